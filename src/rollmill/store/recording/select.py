"""Which of a training step's segments to keep. Runs in the main process: a few integer operations per segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollmill.store.recording.settings import WHOLE, Keep


@dataclass
class Selector:
    """Chooses segments by the group that made them; groups are numbered worker by worker.

    Segments of a group come in order, so a group whose last segment was kept, and whose next one is kept too, gives
    longer pieces of episodes.
    """

    keep: Keep
    groups_per_worker: int
    workers: int
    every: int = 1
    _count: int = 0
    _turn: int = 0
    _last_kept: dict[int, bool] = field(default_factory=dict)
    """By group: whether its newest segment was kept."""

    def choose(self, groups: Sequence[int], learnt: bool = True) -> list[int]:
        """Positions within ``groups`` (the groups of the segments of one training step) to keep, in order.

        ``learnt`` False: these segments were too old to learn from. They are still experience, and an episode with a
        hole is two pieces: ways to keep that see everything take them, the others do not.
        """
        if self.keep in WHOLE:
            chosen = list(range(len(groups)))
        elif not learnt or not groups:
            chosen = []
        elif self.keep == "every":
            chosen = [i for i in range(len(groups)) if (self._count + i) % self.every == 0]
            self._count += len(groups)
        elif self.keep == "one":
            chosen = [self._same(groups)]
        else:
            chosen = [self._next_worker(groups)]
        for i, group in enumerate(groups):
            self._last_kept[group] = i in chosen
        return chosen

    def _same(self, groups: Sequence[int]) -> int:
        """A segment that continues a kept one, else that of the lowest group."""
        first = {group: i for i, group in reversed(list(enumerate(groups)))}  # the earliest segment of each group
        continued = [group for group in first if self._last_kept.get(group)]
        return first[min(continued or first)]

    def _next_worker(self, groups: Sequence[int]) -> int:
        """The earliest segment of the next worker in turn that has one."""
        workers = [group // self.groups_per_worker for group in groups]
        distance = [(worker - self._turn) % self.workers for worker in workers]
        chosen = distance.index(min(distance))
        self._turn = (workers[chosen] + 1) % self.workers
        return chosen
