"""Rank 0's part of the roll call (``learning.roll_call``): it serves the store, and decides who makes up a group."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from rollmill.core import errors
from rollmill.core.errors import ConfigError, LostRankError, RankError, RollmillError
from rollmill.core.text import cut
from rollmill.learning.roll_call import BEAT_SECONDS, LOOK_SECONDS, STORE_SECONDS, Group, Pulse, members

log = logging.getLogger("rollmill")

START_SILENCE = 60.0
"""How long a rank may be silent, at least, before the first group: libraries that start may hold the interpreter."""
SUSPICIOUS, KNOCK_SECONDS = 4 * BEAT_SECONDS, 1.0
"""After so much silence it is looked whether the process of a rank is there at all; its machine may answer for it."""
VAIN_SECONDS, MOST_VAIN = 60.0, 3
"""So many groups in a row may break within this time although nobody was lost."""


def _is_shut(store: TCPStore, door: str) -> bool:
    """Return whether a rank's process is gone, and its machine says so: nobody listens any more where it did."""
    if not store.check([door]):
        return False
    try:
        socket.create_connection(json.loads(store.get(door)), KNOCK_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # its machine says nothing
        pass
    return False


class Silence:
    """For how long each rank's beat has stood still. Time in which nobody looked does not count."""

    def __init__(self) -> None:
        self._heard: dict[int, tuple[int, float]] = {}
        """By rank: its last beat, and when that was new."""
        self._looked = 0.0

    def look(self, beats: Mapping[int, int], now: float) -> dict[int, float]:
        """Return the seconds of silence of each rank that has begun to beat."""
        asleep = max(0.0, now - self._looked - 2 * BEAT_SECONDS)
        self._looked = now
        for rank, beat in beats.items():
            last, at = self._heard.get(rank, (0, now))
            if beat:
                self._heard[rank] = (beat, now if beat != last else at + asleep)
        return {rank: now - self._heard[rank][1] for rank in beats if rank in self._heard}


class Leader:
    """Rank 0's part: it serves the store, admits the others, gives up who is silent, and says who makes up a group."""

    rank = 0

    def __init__(self, host: str, port: int, count: int, silence: float) -> None:
        """Listen on ``host:port``, an address (port 0: any that is free). Raises ConfigError if that cannot be."""
        self.host = host
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            raise ConfigError(
                f"learning.meet={host}:{port}: this machine cannot listen there ({error.strerror or error}). It has to "
                "be an address of the machine that runs rank 0, with a port that nobody uses"
            ) from error
        self.port: int = listener.getsockname()[1]
        self._store = TCPStore(
            self.host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_SECONDS),
            master_listen_fd=listener.detach(),  # it would listen on all addresses
        )
        self.watch: Callable[[], None] = lambda: None
        """Called again and again while anybody is waited for: may ``lose`` ranks, or ``hear_failure`` of them."""
        self.refuse: Callable[[Mapping[str, Any]], str] = lambda _card: ""
        """Why one that would like to join cannot, by its card; empty where it may."""
        self.seats: list[int] = []
        """Ranks that are still to be given to those who join."""
        self._names = {rank: f"rank {rank}" for rank in range(1, count)}
        self._present = tuple(range(count))
        self.lost: dict[int, str] = {}
        """Why ranks are gone."""
        self._error: RollmillError | None = None
        self._silence, self._longest_silence = Silence(), silence
        self._suspected: set[int] = set()
        self._group = Group()
        self._met_at = 0.0
        self._vain = 0
        self._answered: set[int] = set()
        self._pulse: Pulse | None = None

    def open(self, run: Mapping[str, Any]) -> None:
        """Let others come: they may read what is to be learnt, are admitted, and from then on listened to."""
        self._store.set("run", json.dumps(run))
        self._pulse = Pulse(self._store, self._look)

    def name(self, rank: int, name: str) -> None:
        """Set what a rank is called in messages."""
        self._names[rank] = name

    def lose(self, rank: int, what: str) -> None:
        """Note that a rank is gone for good, and ``what`` it did (``was killed by ...``); the first reason counts."""
        self.lost.setdefault(rank, f"{self._names[rank]} {what}")

    def hear_failure(self, rank: int, failure: Mapping[str, str]) -> None:
        """Note that a rank has ended with an error (``core.child.failure``).

        An error that a user can meet ends the run: all ranks have the same code and settings, and it would end a run of
        one rank, too. Anything else is taken for a fault of that machine.
        """
        if failure["trace"]:
            log.error("%s:\n%s", self._names[rank], failure["trace"])
        kind = getattr(errors, failure["type"], RankError)
        if isinstance(kind, type) and issubclass(kind, RollmillError) and not issubclass(kind, RankError):
            self._error = self._error or kind(f"{self._names[rank]} failed: {failure['error']}")
        else:
            self.lose(rank, f"failed: {failure['error']}")

    # -- what rank 0 calls ---------------------------------------------------------------------

    def check(self) -> None:
        self._look_around()
        gone = [self.lost[rank] for rank in self._present if rank in self.lost]
        if gone:
            raise LostRankError("; ".join(gone))
        if self._group.is_closed:
            raise LostRankError("the connection between ranks has broken")

    def assemble(self, limit: float) -> tuple[int, ...]:
        before = self._present
        if self._group.has_met:
            self._store.set(self._group.closing, "")
            self._give_up_in_time()
        self._group.number += 1
        for rank in self._late(limit):
            self.lose(rank, f"has not come within {limit:g} s")
        self._present = tuple(rank for rank in before if rank not in self.lost)
        if self._present != before:
            gone = "; ".join(self.lost[rank] for rank in before if rank in self.lost)
            if not self._group.number:
                raise RankError(gone)
            log.warning("lost for this run: %s", gone)
            self._vain = 0
        self._store.set(f"group/{self._group.number}", json.dumps(self._present))
        self._met_at = time.monotonic()
        return self._present

    def store(self) -> Store:
        return members(self._store, self._group.number)

    def end(self, why: str, seconds: float) -> None:
        """End the run, ``why`` where it has failed, and wait until the others have heard of it."""
        if why:
            self._store.set("ended", why)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._missing("left"):
            time.sleep(LOOK_SECONDS)
            self.watch()
        if self._pulse is not None:
            self._pulse.end()
        del self._store  # with its last reference, the server goes

    # -- who is there --------------------------------------------------------------------------

    def _look_around(self) -> None:
        self.watch()
        if self._error is not None:
            raise self._error
        if self._pulse is not None and self._pulse.problem:
            raise RankError(f"rank 0 cannot look after the others any more: {self._pulse.problem}")

    def _missing(self, key: str) -> list[int]:
        """Return those of the others that are not lost and have not said ``key``."""
        waiting = [rank for rank in self._present[1:] if rank not in self.lost]
        return [rank for rank in waiting if not self._store.check([f"{key}/{rank}"])]

    def _late(self, limit: float) -> list[int]:
        """Wait for the others to come to the group; return those that are late. Everybody has to come to the first."""
        deadline = time.monotonic() + limit
        while late := self._missing(f"back/{self._group.number}"):
            if time.monotonic() > deadline or (self.lost and not self._group.number):
                break
            time.sleep(LOOK_SECONDS)
            self._look_around()
        return late if time.monotonic() > deadline else []

    def _give_up_in_time(self) -> None:
        """Raise RankError if the ranks regroup again and again.

        Ranks that all live, and cannot talk to each other, would regroup for ever.
        """
        self._vain = self._vain + 1 if time.monotonic() - self._met_at < VAIN_SECONDS else 0
        if self._vain > MOST_VAIN:
            raise RankError(
                f"{len(self._present)} ranks live, but have lost the connection to each other {self._vain} times in a "
                "row: is there a network, or a firewall, that lets only some of them talk?"
            )

    # -- the pulse's thread --------------------------------------------------------------------

    def _look(self, store: TCPStore) -> None:
        self._admit(store)
        others = [rank for rank in self._present[1:] if rank not in self.lost]
        beats = {rank: store.add(f"beat/{rank}", 0) for rank in others}
        limit = max(self._longest_silence, 0.0 if self._group.has_met else START_SILENCE)
        for rank, seconds in self._silence.look(beats, time.monotonic()).items():
            if seconds > limit:
                self.lose(rank, f"has given no sign of life for {limit:g} s (learning.rank_silence)")
            elif seconds > SUSPICIOUS and rank not in self._suspected:
                self._suspected.add(rank)  # once: where nothing answers, looking takes a while
                if _is_shut(store, f"door/{rank}"):
                    self.lose(rank, "has ended without a word")
            elif seconds < SUSPICIOUS:
                self._suspected.discard(rank)
        for rank in others:
            if store.check([f"gone/{rank}"]):
                why = json.loads(store.get(f"gone/{rank}"))
                self.lose(rank, why) if isinstance(why, str) else self.hear_failure(rank, why)
        self._group.look(store)

    def _admit(self, store: TCPStore) -> None:
        for number in range(1, store.add("knocks", 0) + 1):
            if number not in self._answered and store.check([f"card/{number}"]):
                self._answered.add(number)
                store.set(f"answer/{number}", json.dumps(self._answer(store.get(f"card/{number}"))))

    def _answer(self, text: bytes) -> dict[str, Any]:
        """Return a seat for whoever has knocked, or why there is none."""
        try:
            card = json.loads(text)
            name, why = cut(str(card["name"]), 200), self.refuse(card) if self.seats else "all its ranks are taken"
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            name, why = "somebody", f"a card that makes no sense: {error!r}"
        if why:
            log.warning("%s cannot learn with this run: %s", name, why)
            return {"refused": why}
        rank = self.seats.pop(0)
        self.name(rank, f"rank {rank} on {name}")
        log.info("rank %d is on %s", rank, name)
        return {"rank": rank}
