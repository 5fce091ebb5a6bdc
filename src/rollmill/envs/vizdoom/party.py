"""The engines of one match: started together, called together, ended together.

An engine of a match waits for all others in every tic, so a call into one of them returns only while all are called.
Every player but the first has a thread for that; the first is called by the caller's own.

A match is whole or it is over. When an engine dies, or a call takes longer than ``deadline`` (an engine was stopped,
or they wait for each other), all engines are killed. Then every waiting call raises by itself, and ``each`` raises one
error for all of them. Nobody waits for an engine that will not answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from rollmill.core.errors import EnvError, error_text
from rollmill.envs.vizdoom.engine import Engine, Place

if TYPE_CHECKING:
    from vizdoom import DoomGame

LOOKS_PER_SECOND = 4
"""How often the watch looks. Deadlines are counted in looks: a process that was paused must not wake up to its end."""
START_SECONDS = 60.0
POLL_SECONDS = 0.005
OF_HOST = "of host"
"""The network of a player who joins (``Place``): the one that the host has made."""

Act = Callable[[int], None]
"""What is done for one player, by number."""


class Party:
    """See the module's text. ``games`` are configured, and not yet initialised; the first one is the host."""

    def __init__(self, games: Sequence[DoomGame], deadline: float) -> None:
        """Set up the engines; ``deadline``: seconds that a call may take."""
        self._engines = [Engine(game) for game in games]
        self.folder = self._engines[0].folder
        """A scratch folder that goes with the party."""
        self._deadline = deadline
        self._starting = False
        self._broken = ""
        """Why the match is over."""
        self._closing = threading.Event()
        self._calls = 0
        """Begun and ended: odd while one is under way."""
        self._orders: list[SimpleQueue[Act | None]] = [SimpleQueue() for _ in games[1:]]
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(player, orders), name=f"doom-player-{player}", daemon=True)
            for player, orders in enumerate(self._orders, start=1)
        ]
        self._watch = threading.Thread(target=self._watch_calls, name="doom-deadline", daemon=True)
        for thread in (*self._threads, self._watch):
            thread.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the engines, the host's first."""
        return tuple(engine.pid for engine in self._engines)

    def start(self, places: Sequence[Place]) -> None:
        """Start all engines; they meet when the last one is there.

        The place of a player who joins may name ``OF_HOST`` as its network: the one that the host has made.
        """

        def start(player: int) -> None:
            place = places[player]
            if place.network == OF_HOST:
                place = Place(str(self._wait_for_host()), place.cores)
            self._engines[player].start(place, lambda: self._mourn(player))

        self._starting = True
        self._all(start)
        self._starting = False

    def _wait_for_host(self) -> int:
        while (pid := self._engines[0].process()) is None:
            if self._broken:
                raise EnvError(self._broken)
            time.sleep(POLL_SECONDS)
        return pid

    def each(self, act: Act) -> None:
        """Call ``act`` for every player at once; raises EnvError if the match broke meanwhile."""
        if self._broken:
            raise EnvError(f"the match is over: {self._broken}")
        self._all(act)

    def close(self) -> None:
        """End everything. May be called again."""
        self._closing.set()
        for engine in self._engines:
            engine.kill()
        for orders in self._orders:
            orders.put(None)
        for thread in (*self._threads, self._watch):
            thread.join()
        for engine in self._engines:
            engine.close()

    # -- calls ---------------------------------------------------------------------------------------

    def _all(self, act: Act) -> None:
        self._calls += 1
        try:
            for orders in self._orders:
                orders.put(act)
            errors = [self._do(act, 0), *(self._answers.get() for _ in self._orders)]
        except BaseException as error:  # the caller was interrupted, and answers of the others are still to come
            self._break(f"interrupted by {error_text(error)}")
            raise
        finally:
            self._calls += 1
        found = next((error for error in errors if error is not None), None)
        if found is not None:
            raise EnvError(f"the match broke: {self._broken or found}") from found

    def _do(self, act: Act, player: int) -> BaseException | None:
        """Do one player's part. What goes wrong for one is over for all: the others would wait for it."""
        call = self._engines[player].call
        call.active = True
        try:
            act(player)
        except Exception as error:  # noqa: BLE001 - ViZDoom's errors have no common base
            self._break(f"player {player}: {error}")
            return error
        finally:
            call.active = False
        return None

    def _serve(self, player: int, orders: SimpleQueue[Act | None]) -> None:
        while (act := orders.get()) is not None:
            try:
                answer = self._do(act, player)
            except BaseException as error:  # noqa: BLE001 - without an answer the caller would wait for ever
                self._break(f"player {player}: {error_text(error)}")
                answer = error
            self._answers.put(answer)

    # -- ends ----------------------------------------------------------------------------------------

    def _break(self, reason: str) -> None:
        if self._closing.is_set():
            return
        self._broken = self._broken or reason
        for engine in self._engines:
            engine.kill()

    def _mourn(self, player: int) -> None:
        """Break the match after an engine has ended, for whatever reason; most often nothing has been said."""
        if not self._closing.is_set():
            self._break(f"engine {player} ended; it said last: {self._engines[player].last_words()!r}")

    def _watch_calls(self) -> None:
        """End the match when one call goes on for too long."""
        seen, looks = 0, 0
        while not self._closing.wait(1 / LOOKS_PER_SECOND):
            if self._calls % 2 == 0 or self._calls != seen:
                seen, looks = self._calls, 0
                continue
            looks += 1
            limit = START_SECONDS if self._starting else self._deadline
            if looks <= limit * LOOKS_PER_SECOND:
                continue
            if self._starting:
                _give_up()
            self._break(f"an engine did not answer for {limit:g} s")


def _give_up() -> None:
    """End this process: ViZDoom cannot be brought back from a start that does not end."""
    message = f"process {os.getpid()}: engines of a Doom match did not meet in {START_SECONDS:g} s; ending\n"
    os.write(2, message.encode())
    os._exit(1)
