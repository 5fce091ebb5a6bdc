"""Free slots of the learner's arena as credit: a node is asked for no more segments than there is room for.

Every remote slot is in one place at a time: *free*, *lent* to a call that is under way, or *out* with the learner. No
queue can grow, and nothing is dropped for lack of room: where there is none, nobody is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable


class Credits:
    """Who may fill which slot."""

    def __init__(self) -> None:
        self._free: deque[int] = deque()
        self._lent: dict[Hashable, list[int]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def give(self, slots: Iterable[int]) -> None:
        """Take back slots that nobody reads any more."""
        self._free.extend(slots)

    def lend(self, call: Hashable, most: int) -> int:
        """Set slots aside for a call; returns how many."""
        if call in self._lent:
            raise ValueError(f"{call!r} has slots already")
        count = min(most, len(self._free))
        self._lent[call] = [self._free.popleft() for _ in range(count)]
        return count

    def use(self, call: Hashable) -> int | None:
        """Take one of a call's slots for a segment that has come: it is out from now on. None: it has no more."""
        slots = self._lent[call]
        return slots.pop() if slots else None

    def settle(self, call: Hashable) -> None:
        """End a call, answered or not: what it has not used is free again."""
        self._free.extendleft(self._lent.pop(call))


def fair_share(free: int, nodes: int, calls: int) -> int:
    """Return how many segments to ask a node for, so that all nodes can have so many calls under way."""
    return max(1, free // max(1, nodes * calls))
