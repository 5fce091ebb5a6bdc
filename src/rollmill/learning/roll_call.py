"""Which learners of a run are there: rank 0 calls the roll, in a store that it serves and that all others reach.

Words
-----
group    the ranks that talk to each other by collectives; groups are numbered 0, 1, 2, ... Whoever notices that one of
         them is lost closes the group. All that are left come back, and rank 0 says who makes up the next one.
beat     a sign of life: a counter in the store that each rank raises. One that stands still is a rank that is lost.

Rank 0 leads (``learning.roll_call_leader``), and its end is the end of the run. A rank that was given up, and lives all
the same, hears that the others have gone on without it.

The store is torch's ``TCPStore``. It knows no password, so it listens on one address only: that of the loopback
device, unless ``learning.meet`` names another one. What is read from it is JSON, never a pickle. It may also never
answer: all but rank 0 talk to it from a thread, and wait for that thread with open ears.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from rollmill.core.errors import ConfigError, LostRankError, RankError

T = TypeVar("T")

BEAT_SECONDS = 0.5
LOOK_SECONDS = 0.01
STORE_SECONDS = 30.0
"""How long an answer of the store may take."""
FAREWELL_SECONDS = 2.0
"""How long last words to the store may take."""


class RollCall(Protocol):
    """One rank's part in it."""

    rank: int
    host: str
    """The address by which the others reach this machine."""

    def check(self) -> None:
        """Raise LostRankError when the group is closed; when the run is over, RankError or what a rank failed with."""

    def assemble(self, limit: float) -> tuple[int, ...]:
        """Close the last group; return who makes up the next: all that live and come within ``limit`` seconds."""

    def store(self) -> Store:
        """Return the store where the members of the group find each other."""


def in_background(call: Callable[[], T], seconds: float, check: Callable[[], None] = lambda: None) -> T:
    """Call ``call`` in a thread of its own, which is left to itself if nobody answers; returns what it returns.

    Meanwhile signals are served, and ``check`` may raise. Raises RuntimeError after so many seconds.
    """
    found: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="ranks")
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive():
        thread.join(LOOK_SECONDS)
        check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"no answer within {seconds:g} s")
    if failed:
        raise failed[0]
    return found[0]


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _client(host: str, port: int) -> TCPStore:
    """Open a connection of its own to the store: on one that is shared, each waits for the others' answers."""
    return TCPStore(host, port, wait_for_workers=False, timeout=timedelta(seconds=STORE_SECONDS))


def members(store: TCPStore, group: int) -> Store:
    """Return the store where the members of a group find each other."""
    return PrefixStore(f"members/{group}", _client(store.host, store.port))


class Pulse:
    """A thread that talks to the store, through a connection of its own: twice a second, or more often if asked to."""

    def __init__(self, store: TCPStore, act: Callable[[TCPStore], None]) -> None:
        self.problem = ""
        """Why the store cannot be reached any more."""
        self.heard = time.monotonic()
        """When it answered last."""
        self.seconds = BEAT_SECONDS
        self._act = act
        self._words: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(
            target=self._run, args=(_client(store.host, store.port),), daemon=True, name="roll-call"
        )
        self._thread.start()

    def say(self, key: str, value: str = "") -> None:
        """Write something into the store, soon."""
        self._words.put((key, value))
        self._wake.set()

    def end(self) -> None:
        """Stop after everything was said, or after a while: the store may never hear it."""
        self._over = True
        self._wake.set()
        self._thread.join(FAREWELL_SECONDS)

    def _run(self, store: TCPStore) -> None:
        try:
            while True:
                over = self._over
                while not self._words.empty():
                    store.set(*self._words.get())
                if over:
                    return
                self._act(store)
                self.heard = time.monotonic()
                self._wake.wait(self.seconds)
                self._wake.clear()
        except Exception as error:  # noqa: BLE001 - raised where it is looked at
            self.problem = first_line(error)


class Group:
    """The number of the group, and whether somebody has closed it."""

    def __init__(self) -> None:
        self.number = -1
        self._closed = -1

    @property
    def has_met(self) -> bool:
        return self.number >= 0

    @property
    def is_closed(self) -> bool:
        return self.has_met and self._closed >= self.number

    @property
    def closing(self) -> str:
        """What is in the store when the group is closed."""
        return f"closed/{self.number}"

    def look(self, store: TCPStore) -> None:
        number = self.number
        if store.check([f"closed/{number}"]):
            self._closed = number


# -- the others -------------------------------------------------------------------------------------


class Follower:
    """The part of rank 1, 2, ...: it shows that it lives, and hears what rank 0 says."""

    def __init__(self, store: TCPStore, rank: int, patience: float) -> None:
        """Begin to show that this rank lives; ``patience``: seconds for which rank 0 may be silent."""
        self.rank = rank
        self.host = own_address(store.host, store.port)
        self._store, self._patience = store, patience
        self._group = Group()
        self._present: dict[int, tuple[int, ...]] = {}
        """Who makes up which group."""
        self._ended = ""
        self._door = socket.create_server((self.host, 0))
        """Nobody ever comes in. It is open for as long as this process lives, and the system shuts it then."""
        self._pulse = Pulse(store, self._look)
        self._pulse.say(f"door/{rank}", json.dumps(self._door.getsockname()))

    def check(self) -> None:
        self._check_leader()
        if self._group.is_closed:
            raise LostRankError("another rank is lost")

    def assemble(self, limit: float) -> tuple[int, ...]:
        if self._group.has_met:
            self._pulse.say(self._group.closing)
            self._pulse.seconds = LOOK_SECONDS
        self._group.number += 1
        self._pulse.say(f"back/{self._group.number}/{self.rank}")
        deadline = time.monotonic() + 2 * limit  # rank 0 itself waits for others
        while (present := self._present.get(self._group.number)) is None:
            time.sleep(LOOK_SECONDS)
            self._check_leader()
            if time.monotonic() > deadline:
                raise RankError(f"rank 0 has not said within {2 * limit:g} s who goes on")
        self._pulse.seconds = BEAT_SECONDS
        if self.rank not in present:
            raise RankError(f"the others have gone on without this rank ({self.rank}), which was silent for too long")
        return present

    def store(self) -> Store:
        return members(self._store, self._group.number)

    def leave(self, why: Mapping[str, str] | str = "") -> None:
        """End this rank's part.

        ``why``, if it is before the end of the run: words, or an error (``core.child.failure``).
        """
        if why:
            self._pulse.say(f"gone/{self.rank}", json.dumps(why))
        self._pulse.say(f"left/{self.rank}")
        self._pulse.end()
        self._door.close()

    def _check_leader(self) -> None:
        if self._ended:
            raise RankError(f"rank 0 has ended the run: {self._ended}")
        if self._pulse.problem:
            raise RankError(f"rank 0 has gone; its log may say why ({self._pulse.problem})")
        if time.monotonic() - self._pulse.heard > self._patience:
            raise RankError(f"rank 0 has given no sign of life for {self._patience:g} s (learning.rank_silence)")

    def _look(self, store: TCPStore) -> None:
        store.add(f"beat/{self.rank}", 1)
        if store.check(["ended"]):
            self._ended = store.get("ended").decode()
        self._group.look(store)
        number = self._group.number
        if number not in self._present and store.check([f"group/{number}"]):
            self._present[number] = tuple(json.loads(store.get(f"group/{number}")))


def find_store(host: str, port: int) -> TCPStore:
    """Connect to the store at ``host:port``, where rank 0 listens.

    Raises RuntimeError if nothing answers like one.
    """
    return in_background(lambda: _client(host, port), 2 * STORE_SECONDS)


def read_run(store: TCPStore) -> dict[str, Any]:
    """Return what is to be learnt, as rank 0 has given it to ``Leader.open``."""
    text = in_background(lambda: store.get("run"), 2 * STORE_SECONDS)
    run: dict[str, Any] = json.loads(text)
    return run


def knock(store: TCPStore, card: Mapping[str, Any]) -> int:
    """Ask rank 0 for a rank; ConfigError says why there is none. ``card``: who asks; at least a ``name``."""

    def ask() -> bytes:
        number = store.add("knocks", 1)
        store.set(f"card/{number}", json.dumps(card))
        return bytes(store.get(f"answer/{number}"))

    answer = json.loads(in_background(ask, 2 * STORE_SECONDS))
    if "refused" in answer:
        raise ConfigError(f"this machine cannot learn with the run: {answer['refused']}")
    return int(answer["rank"])


def own_address(host: str, port: int) -> str:
    """Return this machine's address, as whoever listens at ``host:port`` sees it; nothing is sent."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
        return address
