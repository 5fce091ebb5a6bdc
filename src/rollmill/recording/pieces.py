"""Which segments of a training step to keep, where pieces of episodes are enough (keep=one, rotate, every).

Rows are then an even sample of what was played. Episodes are not: those that happen to lie whole within what was kept
are the short ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollmill.core.fields import Array
from rollmill.recording.choose import SPREAD_SHARE
from rollmill.recording.settings import Keep, RecordingSettings
from rollmill.recording.window import Window


@dataclass
class SegmentChoice:
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
        """Return which segments of one training step to keep: positions within ``groups``, theirs, in order.

        ``learnt`` False: these segments were too old to learn from; none of them is kept.
        """
        if not learnt or not groups:
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
        """Return the position of a segment that continues a kept one, else that of the lowest group."""
        first = {group: i for i, group in reversed(list(enumerate(groups)))}  # the earliest segment of each group
        continued = [group for group in first if self._last_kept.get(group)]
        return first[min(continued or first)]

    def _next_worker(self, groups: Sequence[int]) -> int:
        """Return the position of the earliest segment of the next worker in turn that has one."""
        workers = [group // self.groups_per_worker for group in groups]
        distance = [(worker - self._turn) % self.workers for worker in workers]
        chosen = distance.index(min(distance))
        self._turn = (workers[chosen] + 1) % self.workers
        return chosen


class PieceChooser:
    """Chooses segments as they are (``choose.Chooser``): the window in time first, then among those of an offer."""

    def __init__(self, settings: RecordingSettings, workers: int, groups_per_worker: int, limit: int) -> None:
        self._window = Window.parse(settings.when)
        self._budget, self._limit = settings.budget_bytes, limit
        self._choice = SegmentChoice(settings.keep, groups_per_worker, workers, settings.every)
        self._reserved = 0
        self._chosen: list[int] = []

    def offered(
        self, groups: Sequence[int], learnt: bool, frames: int, counts: Mapping[str, int], most: float = 1.0
    ) -> None:
        self._reserved = max(self._reserved, counts["reserved"])  # it is small while nothing is open
        usable = int(SPREAD_SHARE * self._budget) - self._reserved
        is_open = self._window.is_open(frames, self._limit, counts["bytes"], usable)
        self._chosen = self._choice.choose(groups, learnt) if is_open else []

    def choose(self, position: int, group: int, segment: Mapping[str, Array]) -> float | None:
        return 1.0 if position in self._chosen else None

    def lost(self, group: int | None = None) -> int:
        return 0

    @property
    def full(self) -> bool:
        return False
