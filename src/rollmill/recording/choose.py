"""Which episodes a recording keeps: decided at their first row, before anybody knows how they will end.

What is kept is then like what was played. Choosing later, or cutting what does not fit, would keep the short ones: an
agent that dies early would look like one that never lives long.

Every episode has a number between 0 and 1, drawn by a hash of the run's seed, its env and its count, and is kept if
that number is below the *probability* of the moment. The probability follows from what is known before the episode:
the room in the budget, the frames that are left, how well the recorder keeps up. It is stored with the episode, so
that means over all that was played can be estimated from what was kept (``EpisodeTable["probability"]``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rollmill.core.fields import Array
from rollmill.recording.settings import RecordingSettings
from rollmill.recording.window import SLICES, Window

SPREAD_SHARE = 0.95
"""Part of the budget that ``when=spread`` shares out: estimates of what is still to come are never exact."""
PRIOR_ROWS = 2_000
"""A size that was tried out before the start counts as much as this many rows of the run."""
MARGIN = 1.25
"""An open episode may become this much longer than the longest so far, and its rows this much larger than the mean,
before room that was set aside for it is too little."""
MAX_LEVEL = 15
"""Halvings that ``at_budget=thin`` can do."""


def draw(key: int, envs: Array, episodes: Array) -> Array:
    """Draw the number in (0, 1] of each episode, float64: the same whenever and wherever it is asked for."""
    x = envs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + episodes.astype(np.uint64)
    x += np.uint64(key & 0xFFFFFFFFFFFFFFFF)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the finaliser of SplitMix64, twice
        for _ in range(2):
            x ^= x >> np.uint64(shift)
            x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return np.asarray(((x >> np.uint64(11)).astype(np.float64) + 1) / 2.0**53)


def level_of(number: float) -> int:
    """Return how often episodes can be halved before this one goes: those with ``number <= 2**-level`` stay."""
    return min(MAX_LEVEL, int(-np.log2(number)))


class Chooser(Protocol):
    """Says which segments are kept. ``EpisodeChooser``: for their episodes; ``pieces.PieceChooser``: as they are."""

    def offered(
        self, groups: Sequence[int], learnt: bool, frames: int, counts: Mapping[str, int], most: float = 1.0
    ) -> None:
        """Announce the next segments by their groups, in the order they ended; ``learnt`` False: they were too old.

        ``frames``: of the run so far. ``counts``: ``SinkCounts``. ``most``: the largest probability that may be used.
        """

    def choose(self, position: int, group: int, segment: Mapping[str, Array]) -> float | None:
        """Return the probability with which episodes that begin in this segment are kept; None if it is not needed."""

    def lost(self, group: int | None = None) -> int:
        """Note that a needed segment of the group (None: of every group) could not be kept; returns episodes cut."""

    @property
    def full(self) -> bool:
        """Whether nothing will be chosen any more, because there is no room."""


class ChosenLanes:
    """Follows segments in the order they ended, and knows which lanes have a chosen episode under way."""

    def __init__(self, key: int, groups: int, lanes: int, agents: int) -> None:
        self._key, self._lanes, self._agents = key, lanes, agents
        self._open = np.zeros((groups, lanes), np.bool_)

    @property
    def open(self) -> int:
        """Chosen episodes under way."""
        return int(np.count_nonzero(self._open))

    def follow(self, segment: Mapping[str, Array], group: int, probability: float) -> bool:
        """Choose among the episodes that begin in a segment; returns whether it has rows of chosen ones."""
        begins = (segment["step"][:-1] == 0) & segment["valid"][:-1]
        rows, lanes = np.nonzero(begins)
        mine = self._open[group]
        if not rows.size:
            return bool(mine.any())
        mine[lanes[rows == 0]] = False
        needed = bool(mine.any())
        envs = (group * self._lanes + lanes) // self._agents
        chosen = draw(self._key, envs, segment["episode"][rows, lanes]) <= probability
        mine[lanes] = chosen  # of several in one lane, the last one counts
        return needed or bool(chosen.any())

    def forget(self, group: int | None = None) -> int:
        """Forget chosen episodes of a group (or of all), as rows of theirs are lost; returns how many there were."""
        lost = self._open if group is None else self._open[group]
        count = int(np.count_nonzero(lost))
        lost[...] = False
        return count


@dataclass
class Size:
    """What a row takes on disk, learnt while recording; begins with what a trial has found."""

    bytes_per_row: float
    _settled: int = -1
    _bytes: int = 0

    def learn(self, settled: int, size: int) -> None:
        """Learn from ``size``, the store's bytes by now, and ``settled``, the rows in it."""
        if self._settled < 0:
            self._settled, self._bytes = settled, size
        rows = settled - self._settled
        if rows < PRIOR_ROWS // 20:
            return
        found = max(0, size - self._bytes) / rows
        self.bytes_per_row += (found - self.bytes_per_row) * rows / (rows + PRIOR_ROWS)
        self._settled, self._bytes = settled, size

    def restart(self) -> None:
        """Forget where the counts stood: the recorder counts anew, or has dropped episodes."""
        self._settled = -1


@dataclass(frozen=True)
class RunShape:
    """The numbers of a run that the choice depends on."""

    frames: int
    """After which it ends; 0: nobody knows."""
    frames_per_step: int
    bytes_per_row: float
    """As a trial has found it."""
    episode_steps: float
    """Mean length of an episode in the trial."""


class KeepProbability:
    """The probability with which an episode that begins now is kept. No clocks: the same run, the same numbers."""

    def __init__(self, settings: RecordingSettings, run: RunShape) -> None:
        self._settings, self._run = settings, run
        self._window = Window.parse(settings.when)
        self._base = 1 / settings.every if settings.keep == "episodes" else 1.0
        self._size = Size(run.bytes_per_row)
        self._level = 0
        self._reserved = 0

    def now(self, frames: int, counts: Mapping[str, int], open_episodes: int, steps: int, lanes: int) -> float:
        """Return the probability for a segment of ``steps`` rows and ``lanes`` lanes.

        ``counts`` as in ``SegmentSink.counts``, ``frames`` of the run so far.
        """
        if frames < self._window.start(self._run.frames):
            return 0.0
        limit = self._settings.budget_bytes
        if not limit:
            return self._base
        if counts["level"] != self._level:
            self._level = counts["level"]
            self._size.restart()
        self._size.learn(counts["settled"], counts["bytes"])
        self._reserved = max(self._reserved, counts["reserved"])  # it is small while nothing is open
        probability = min(self._base, 2.0**-self._level)
        if self._window.kind == "spread":
            probability = min(probability, self._share_of_rest(frames, counts, open_episodes))
        if not self._settings.by_return:  # those wait in memory until it is known how large they are
            begins = lanes * (1 + steps / max(1.0, self._length(counts)))
            probability = min(probability, self._room(counts, open_episodes) / begins)
        return max(0.0, probability)

    def full(self, counts: Mapping[str, int], open_episodes: int) -> bool:
        """Return whether there is no room for one more episode, and never will be."""
        drops = self._settings.at_budget != "stop"
        if drops or self._settings.by_return or open_episodes or not self._settings.budget_bytes:
            return False
        return self._room(counts, 0) == 0

    def _share_of_rest(self, frames: int, counts: Mapping[str, int], open_episodes: int) -> float:
        """Return what is left of the budget, as a share of all rows that are left to be played."""
        run = self._run
        under_way = open_episodes * self._length(counts) * self._size.bytes_per_row
        left = SPREAD_SHARE * self._settings.budget_bytes - self._reserved - counts["bytes"] - under_way
        rows = max(run.frames - frames, run.frames / SLICES) / run.frames_per_step
        return left / max(1.0, rows * self._size.bytes_per_row)

    def _room(self, counts: Mapping[str, int], open_episodes: int) -> float:
        """Return how many more episodes could be begun and kept to their end, be they as long as the longest."""
        limit = self._settings.budget_bytes
        rows = MARGIN * max(counts["longest"], self._run.episode_steps)
        one = counts["overhead"] + rows * MARGIN * self._size.bytes_per_row
        # Others are dropped for it, unless what is there is to stay.
        free = limit - counts["bytes"] if self._settings.at_budget == "stop" else limit / 2
        room = max(0.0, free / max(1.0, one) - open_episodes)
        return max(0.0, room - 2 * math.sqrt(room))  # by chance, more may be chosen than on average

    def _length(self, counts: Mapping[str, int]) -> float:
        """Return the mean length of an episode."""
        return counts["rows"] / counts["episodes"] if counts["episodes"] else self._run.episode_steps


class EpisodeChooser:
    """Chooses whole episodes among the segments that are offered."""

    def __init__(self, settings: RecordingSettings, run: RunShape, lanes: ChosenLanes) -> None:
        self._probability, self._lanes = KeepProbability(settings, run), lanes
        self._now: tuple[int, Mapping[str, int], float] = (0, {}, 1.0)

    def offered(
        self, groups: Sequence[int], learnt: bool, frames: int, counts: Mapping[str, int], most: float = 1.0
    ) -> None:
        """Take note that segments of these groups come next; those too old to learn from are experience too."""
        self._now = (frames, counts, most)

    def choose(self, position: int, group: int, segment: Mapping[str, Array]) -> float | None:
        frames, counts, most = self._now
        rows, lanes = segment["valid"].shape
        probability = min(most, self._probability.now(frames, counts, self._lanes.open, rows - 1, lanes))
        return probability if self._lanes.follow(segment, group, probability) else None

    def lost(self, group: int | None = None) -> int:
        return self._lanes.forget(group)

    @property
    def full(self) -> bool:
        return self._probability.full(self._now[1], self._lanes.open)


class Load:
    """How much of everything the recorder's process can take; by a clock, so only where it is a process of its own.

    At first few episodes are chosen; from what they take it follows how many more there may be. ``filled``: share
    of the queue that is in use.
    """

    FIRST_LANES = 32
    SECONDS = 0.25
    """Between two looks."""
    BUSY = 0.7
    """Of the recorder's time that may be planned with."""
    QUEUE_LOW, QUEUE_HIGH = 0.25, 0.5

    def __init__(self, lanes: int) -> None:
        self._share = min(1.0, self.FIRST_LANES / lanes)
        self._at: float | None = None
        self._before = (0, 0, 0)

    def share(self, clock: float, offered: int, counts: Mapping[str, int], filled: float) -> float:
        """Return the most that may be chosen now. ``offered``: rows that were played so far."""
        now = (offered, counts["taken"], counts["busy_us"])
        if self._at is None or now[1] < self._before[1]:  # the first look, or a new process
            self._at, self._before = clock, now
        passed = clock - self._at
        rows, taken, busy = (new - old for new, old in zip(now, self._before))
        if passed >= self.SECONDS and rows and taken:
            chosen, used = taken / rows, min(1.0, busy / 1e6 / passed)
            possible = chosen * self.BUSY / max(used, 1e-3)
            if filled < self.QUEUE_LOW:  # it keeps up with what it gets, however busy it looks
                self._share = min(1.0, max(self._share, min(possible, 2 * self._share)))
            else:
                self._share = max(self._share / 2, min(self._share, possible, chosen * self.BUSY))
            self._at, self._before = clock, now
        return 0.0 if filled > self.QUEUE_HIGH else self._share
