"""Who takes part in a run: the nodes there are, what is started on them, and who has been silent for too long.

Words
-----
node         a machine (or a share of one) as the link knows it, by a name that no other node has.
seat         a node's number while it takes part: its lanes are numbered by it. A seat is free again when its node left.
incarnation  one start of a sampler on a node. Numbers only go up, over all sessions of a run: what an earlier
             incarnation still says is not listened to, and its episodes are never played again.

Pure logic: no clock of its own, no processes, no network. It is told what was seen and heard, with the time of it, and
answers with what to start and to end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Stage = Literal["starting", "sampling", "resting", "refused"]

INCARNATIONS_EACH = 100_000
"""Numbers that one gateway may give; the next one begins with the next so many. Enough for two hundred starts on each
of ``settings.MOST_NODES`` seats; and the numbers of episodes of 90,000 gateways are below 2**63 (``core.seeds``)."""
FIRST_REST, LONGEST_REST = 1.0, 60.0
"""Seconds before a node that has failed is tried again; doubled with each failure."""
PROVEN_SECONDS = 60.0
"""A node that has sampled for so long begins with the shortest rest again."""


@dataclass(frozen=True)
class Start:
    """Have a node sample."""

    node: str
    seat: int
    incarnation: int


@dataclass(frozen=True)
class End:
    """End what runs on a node, if anything still does."""

    node: str
    seat: int
    incarnation: int
    reason: str


@dataclass
class Member:
    """A node that has a seat."""

    node: str
    seat: int
    incarnation: int
    stage: Stage
    since: float
    """When this stage began."""
    heard: float | None
    """When it last said something; None before its first word, which takes as long as its processes take to start."""
    failures: int = 0
    """Since it was last proven."""
    reason: str = ""
    """Why it rests, or is refused."""

    def silent(self, now: float) -> float:
        """Return the seconds since its last word, or since it was started."""
        return now - (self.since if self.heard is None else self.heard)

    @property
    def rest(self) -> float:
        """Seconds until it is tried again."""
        return min(LONGEST_REST, FIRST_REST * 2.0 ** min(self.failures - 1, 10))


class Membership:
    """The nodes of a run; ``look`` is called about once a second, the others whenever something happens."""

    def __init__(self, seats: int, first_incarnation: int, start_timeout: float, node_timeout: float) -> None:
        self._seats = seats
        self._next, self._last = first_incarnation, first_incarnation + INCARNATIONS_EACH - 1
        self._start_timeout, self._node_timeout = start_timeout, node_timeout
        self.members: dict[str, Member] = {}

    @property
    def used_up(self) -> bool:
        """Whether there is no number left for another start on every seat."""
        return self._next + self._seats > self._last

    def look(self, nodes: Collection[str], now: float) -> list[Start | End]:
        """Take in ``nodes``, all that the link sees; returns what is to be started and ended."""
        steps: list[Start | End] = []
        for member in list(self.members.values()):
            if member.node not in nodes:
                steps += self._close(member, "it has left the cluster")
                del self.members[member.node]
            elif member.stage in ("starting", "sampling"):
                steps += self._check_heard(member, now)
            elif member.stage == "resting" and now - member.since >= member.rest:
                steps.append(self._start(member, now))
        taken = {member.seat for member in self.members.values()}
        free = [seat for seat in range(self._seats) if seat not in taken]
        for node, seat in zip(sorted(node for node in nodes if node not in self.members), free):
            member = self.members[node] = Member(node, seat, 0, "starting", now, None)
            steps.append(self._start(member, now))
        return steps

    def hears(self, node: str, incarnation: int, now: float) -> Member | None:
        """Note word from a node; returns the member it is from, or None if that one is not listened to any more."""
        member = self.members.get(node)
        if member is None or member.incarnation != incarnation or member.stage not in ("starting", "sampling"):
            return None
        member.heard = now
        if member.stage == "sampling" and now - member.since >= PROVEN_SECONDS:
            member.failures = 0
        return member

    def samples(self, node: str, incarnation: int, now: float) -> bool:
        """Note that a node has started and samples from now on; returns whether that is news."""
        member = self.hears(node, incarnation, now)
        if member is None or member.stage == "sampling":
            return False
        member.stage, member.since = "sampling", now
        return True

    def fails(self, node: str, incarnation: int, reason: str, now: float) -> list[Start | End]:
        """Give up an incarnation that is lost; the node is tried again after a rest."""
        member = self.hears(node, incarnation, now)
        if member is None:
            return []
        steps = self._close(member, reason)
        member.stage, member.since, member.reason = "resting", now, reason
        member.failures += 1
        return steps

    def refuse(self, node: str, incarnation: int, reason: str, now: float) -> list[Start | End]:
        """Refuse a node that does not fit the run: it is left alone until it leaves and comes back."""
        steps = self.fails(node, incarnation, reason, now)
        if steps:
            self.members[node].stage = "refused"
        return steps

    def sampling(self) -> list[Member]:
        """Return those that can be asked for segments, by seat."""
        return sorted((m for m in self.members.values() if m.stage == "sampling"), key=lambda m: m.seat)

    def _check_heard(self, member: Member, now: float) -> list[Start | End]:
        if member.stage == "starting" and now - member.since >= self._start_timeout:
            reason = f"it has not begun to sample within {self._start_timeout:g} s"
            if member.heard is None:
                reason += ", and nothing was heard of it (does it sample for another run?)"
        elif member.heard is not None and member.silent(now) >= self._node_timeout:
            reason = f"nothing was heard of it for {self._node_timeout:g} s"
        else:
            return []
        return self.fails(member.node, member.incarnation, reason, now)

    def _start(self, member: Member, now: float) -> Start:
        member.incarnation, self._next = self._next, self._next + 1
        member.stage, member.since, member.heard = "starting", now, None
        return Start(member.node, member.seat, member.incarnation)

    @staticmethod
    def _close(member: Member, reason: str) -> list[Start | End]:
        if member.stage not in ("starting", "sampling"):
            return []
        return [End(member.node, member.seat, member.incarnation, reason)]
