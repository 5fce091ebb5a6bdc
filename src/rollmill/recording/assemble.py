"""Rebuilds episodes from segments: rows of one lane, joined across the segments' borders.

Words
-----
piece     consecutive rows of one episode in one lane that lie in one segment.
pending   the bootstrap row of a lane's last segment: what its last action led to. If the next segment never comes
          (it was not kept, it was dropped, the worker died), it is the final observation of a partial episode.

Whether a piece continues the open episode of its lane is seen from episode number and step, so nothing is ever
joined across a hole, whatever made it. Rows that do not count (``valid`` False) hold final observations, agents
that wait for others, or faults: they are never steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.recording.choose import draw, level_of
from rollmill.store.episode import EpisodeInfo
from rollmill.store.format.schema import StoreSchema

Rows = Mapping[str, Array]

SOURCES = {"global_step": "frames"}
"""Columns of a store that have another name in a segment."""


class EpisodeOut(Protocol):
    """Where episodes go, row by row: as ``StoreWriter``, with a question before each lane."""

    def reserve(self, steps: int, episodes: int) -> None:
        """Called before so many steps of so many pieces are appended; may raise when there is no room."""

    def begin(self, key: Hashable, info: EpisodeInfo, level: int = 0) -> None:
        """``level``: how often what is kept can be halved before this one goes (``choose.level_of``)."""

    def append(self, key: Hashable, columns: Rows) -> None: ...

    def end(self, key: Hashable, final: Rows, terminated: bool, truncated: bool) -> None: ...


@dataclass(frozen=True)
class LanePlan:
    """How lanes are numbered, and where their seeds come from."""

    groups: int
    lanes: int
    """Lanes of a group."""
    agents: int
    groups_per_worker: int
    seeds: Seeds | None
    """The sampler's branch of the seed tree; None where episodes have no seeds of their own."""
    workers_before: int = 0
    key: int = 0
    """What the numbers of episodes are drawn with (``choose.draw``)."""

    def worker(self, group: int) -> int:
        """Number of the worker that runs a group, over the whole run."""
        return self.workers_before + group // self.groups_per_worker

    def seed(self, lane: int, episode: int) -> int | None:
        """What the env of a lane (numbered over all groups) was reset with for an episode."""
        if self.seeds is None:
            return None
        worker = lane // (self.lanes * self.groups_per_worker)
        env = lane // self.agents
        return self.seeds.branch("worker", worker).branch(env).branch("episode", episode).integer()


@dataclass(frozen=True)
class Piece:
    """Rows ``start`` .. ``stop`` of a lane, of an episode with the number ``draw`` (``choose``)."""

    lane: int
    start: int
    stop: int
    draw: float


def find_pieces(valid: Array) -> tuple[Array, Array, Array]:
    """Runs of rows that count, lane by lane: their lanes, starts and stops; ``valid`` is ``[T, L]``."""
    padded = np.zeros((valid.shape[1], valid.shape[0] + 2), np.int8)
    padded[:, 1:-1] = valid.T
    change = np.diff(padded, axis=1)
    lanes, starts = np.nonzero(change == 1)
    _, stops = np.nonzero(change == -1)
    return lanes, starts, stops


@dataclass
class _Open:
    """The open episode of a lane: what would continue it, and its final observation if nothing does."""

    episode: int
    next_step: int
    pending: dict[str, Array]


class Assembler:
    """Takes segments of groups, gives episodes to ``out``. Keys are lane numbers over all groups.

    ``whole``: only episodes that were chosen at their first row; otherwise whatever the segments hold, as pieces.
    ``random``: who was kept depends on chance alone, so that the probability says it all.
    """

    def __init__(
        self, schema: StoreSchema, plan: LanePlan, out: EpisodeOut, whole: bool = False, random: bool = False
    ) -> None:
        self._columns = {column.name: SOURCES.get(column.name, column.name) for column in schema.columns}
        self._final = {column.name: SOURCES.get(column.name, column.name) for column in schema.obs_columns}
        self._plan = plan
        self._out = out
        self._whole, self._random = whole, random
        self._open: dict[int, _Open] = {}
        self.taken = 0
        """Rows that were given on."""
        self.longest = 0
        """Steps of the longest episode so far, open ones included."""

    @property
    def open(self) -> int:
        return len(self._open)

    def take(self, segment: Rows, group: int, probability: float = 1.0) -> None:
        """Add one segment: ``[T + 1, L, ...]`` per field (``core.slots``). The arrays are copied.

        ``probability``: with which episodes that begin in it are chosen.
        """
        found: dict[int, list[Piece]] = {}
        for piece in self._wanted(segment, group, probability):
            found.setdefault(piece.lane, []).append(piece)
        steps = len(segment["valid"]) - 1
        for column, pieces in found.items():
            self._out.reserve(sum(p.stop - p.start for p in pieces), len(pieces))
            for piece in pieces:
                self._add(segment, piece, group * self._plan.lanes + column, steps, group, probability)

    def _wanted(self, segment: Rows, group: int, probability: float) -> list[Piece]:
        """Pieces of chosen episodes; without ``whole`` all of them."""
        lanes, starts, stops = find_pieces(segment["valid"][:-1])
        numbers = group * self._plan.lanes + lanes
        draws = draw(self._plan.key, numbers // self._plan.agents, segment["episode"][starts, lanes])
        wanted = np.ones(len(lanes), np.bool_)
        if self._whole:
            wanted = (segment["step"][starts, lanes] == 0) & (draws <= probability)
            if self._open:
                wanted |= (starts == 0) & np.isin(numbers, list(self._open))
        rows = (array[wanted].tolist() for array in (lanes, starts, stops, draws))
        return [Piece(*numbers) for numbers in zip(*rows)]

    def _add(self, segment: Rows, piece: Piece, lane: int, steps: int, group: int, probability: float) -> None:
        start, stop, column = piece.start, piece.stop, piece.lane
        episode, step = int(segment["episode"][start, column]), int(segment["step"][start, column])
        before = self._open.get(lane)
        continued = before is not None and start == 0 and (before.episode, before.next_step) == (episode, step)
        if before is not None and not continued:
            self._end_partial(lane)
        if not continued:
            if self._whole and (step or piece.draw > probability):
                return  # rows of the one that was under way are missing
            info = self._info(lane, group, episode, step, int(segment["policy_id"][start, column]), probability)
            self._out.begin(lane, info, level_of(piece.draw))
        here = {name: segment[source][start:stop, column] for name, source in self._columns.items()}
        self._out.append(lane, here)
        self._open[lane] = _Open(episode, step + stop - start, self._row(segment, stop, column))
        self.taken += stop - start
        self.longest = max(self.longest, step + stop - start)
        terminated = bool(segment["terminated"][stop - 1, column])
        truncated = bool(segment["truncated"][stop - 1, column])
        if terminated or truncated or stop < steps:
            final = self._open.pop(lane).pending
            self._out.end(lane, final, terminated, truncated)

    def _info(self, lane: int, group: int, episode: int, step: int, policy_id: int, probability: float) -> EpisodeInfo:
        return EpisodeInfo(
            first_step=step,
            seed=self._plan.seed(lane, episode),
            policy_id=policy_id,
            worker=self._plan.worker(group),
            lane=lane,
            probability=probability if self._whole and self._random else None,
        )

    def _row(self, segment: Rows, row: int, column: int) -> dict[str, Array]:
        return {name: np.array(segment[source][row, column]) for name, source in self._final.items()}

    def _end_partial(self, lane: int) -> None:
        self._out.end(lane, self._open.pop(lane).pending, False, False)

    def leave(self, group: int) -> None:
        """The next segment of a group is not coming: its open episodes are over, as partial ones."""
        first = group * self._plan.lanes
        for lane in range(first, first + self._plan.lanes):
            if lane in self._open:
                self._end_partial(lane)

    def end_all(self) -> None:
        """End everything that is open, as partial."""
        for lane in list(self._open):
            self._end_partial(lane)
