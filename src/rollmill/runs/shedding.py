"""What is left out of a recording while the recorder is too slow: all of some groups, not a little of each.

A dropped segment cuts every episode that runs through it. Dropped here and there, segments cut long episodes more often
than short ones, and the whole episodes that are left no longer look like what the agent did. So a group that has lost a
segment is passed over altogether; the other groups keep their episodes whole. When there has been room for a while, the
group that has waited longest is taken in again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_SECONDS = 1.0
"""Without a drop before a group is taken in again; doubled when that was too early, halved when it was not."""
MOST_SECONDS = 60.0


class Shedding:
    """The groups that are passed over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: dict[int, None] = {}  # in the order they were given up
        self._wait = FIRST_SECONDS
        self._next = 0.0
        self._trying = False

    def __contains__(self, group: int) -> bool:
        return group in self._groups

    def give_up(self, group: int) -> None:
        """There was no room for a segment of this group."""
        if self._trying:
            self._wait = min(2 * self._wait, MOST_SECONDS)
            self._trying = False
        self._groups[group] = None
        self._next = self._clock() + self._wait

    def take_in(self) -> None:
        """Take a group in again if there has been room for long enough."""
        if not self._groups or self._clock() < self._next:
            return
        if self._trying:
            self._wait = max(self._wait / 2, FIRST_SECONDS)
        self._trying = True
        del self._groups[next(iter(self._groups))]
        self._next = self._clock() + self._wait
