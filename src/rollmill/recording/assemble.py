"""From the segments that a recording keeps to the episodes it has chosen; joining them is ``store.assemble``'s work."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rollmill.core.fields import TASK_FIELD
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.recording.choose import draw, level_of
from rollmill.store.assemble import Assembler, Piece, Rows, find_pieces
from rollmill.store.episode import EpisodeInfo
from rollmill.store.format.schema import StoreSchema

SOURCES = {"global_step": "frames"}
"""Columns of a store that have another name in a segment."""


class EpisodeOut(Protocol):
    """Takes episodes row by row, as ``StoreWriter`` does, and is asked for room before them (``reserve``)."""

    def reserve(self, steps: int, episodes: int) -> None:
        """Make room for so many steps of so many pieces, before they are appended; may raise if there is none."""

    def begin(self, key: Hashable, info: EpisodeInfo, level: int = 0) -> None:
        """Open an episode; ``level``: how often what is kept can be halved before it goes (``choose.level_of``)."""

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
    own_groups: int | None = None
    """Groups of the run's own sampler, numbered first; None: all of them."""
    node_groups: int = 1
    """Groups of every other machine that samples for the run, numbered behind those."""
    tasks: tuple[str, ...] = ()
    """Names of a suite's tasks."""
    key: int = 0
    """What the numbers of episodes are drawn with (``choose.draw``)."""

    def worker(self, group: int) -> int:
        """Return the number of the worker that runs a group, over the whole run."""
        return self.workers_before + group // self.groups_per_worker

    def seed(self, lane: int, episode: int) -> int | None:
        """Return what the env of a lane (numbered over all groups) was reset with for an episode."""
        if self.seeds is None:
            return None
        own = (self.groups if self.own_groups is None else self.own_groups) * self.lanes
        if lane >= own:  # a sampler knows its own lanes only
            lane = (lane - own) % (self.node_groups * self.lanes)
        worker = lane // (self.lanes * self.groups_per_worker)
        env = lane // self.agents
        seeds = self.seeds.of_incarnation(episode)
        return seeds.branch("worker", worker).branch(env).branch("episode", episode).integer()


class SegmentAssembler:
    """Takes segments of groups, gives episodes to ``out``. Keys are lane numbers over all groups.

    ``whole``: only episodes that were chosen at their first row; otherwise whatever the segments hold, as pieces.
    ``random``: who was kept depends on chance alone, so that the probability says it all.
    """

    def __init__(
        self, schema: StoreSchema, plan: LanePlan, out: EpisodeOut, whole: bool = False, random: bool = False
    ) -> None:
        columns, final = (
            {column.name: SOURCES.get(column.name, column.name) for column in found}
            for found in (schema.columns, schema.obs_columns)
        )
        self._joined = Assembler(out, columns, final)
        self._plan, self._out = plan, out
        self._whole, self._random = whole, random
        self.taken = 0
        """Rows that were given on."""
        self.longest = 0
        """Steps of the longest episode so far, open ones included."""

    @property
    def open(self) -> int:
        return len(self._joined.open)

    def take(self, segment: Rows, group: int, probability: float = 1.0) -> None:
        """Add one segment: ``[T + 1, L, ...]`` per field (``core.slots``). The arrays are copied.

        ``probability``: with which episodes that begin in it are chosen.
        """
        found: dict[int, list[tuple[Piece, float]]] = {}
        for piece, number in self._wanted(segment, group, probability):
            found.setdefault(group * self._plan.lanes + piece.column, []).append((piece, number))
        for lane, pieces in found.items():
            self._out.reserve(sum(piece.stop - piece.start for piece, _ in pieces), len(pieces))
            for piece, number in pieces:
                if not self._joined.continues(lane, piece):
                    if self._whole and (piece.step or number > probability):
                        continue  # rows of the one that was under way are missing
                    self._out.begin(lane, self._info(segment, lane, piece, probability), level_of(number))
                self._joined.add(segment, lane, piece)
                self.taken += piece.stop - piece.start
                self.longest = max(self.longest, piece.step + piece.stop - piece.start)

    def _wanted(self, segment: Rows, group: int, probability: float) -> list[tuple[Piece, float]]:
        """Return the pieces of chosen episodes, each with the number it was drawn by; without ``whole`` all pieces."""
        pieces = find_pieces(segment)
        lanes = group * self._plan.lanes + pieces.column
        draws = draw(self._plan.key, lanes // self._plan.agents, pieces.episode)
        wanted = np.ones(len(lanes), np.bool_)
        if self._whole:
            wanted = (pieces.step == 0) & (draws <= probability)
            if under_way := self._joined.open:
                wanted |= (pieces.start == 0) & np.isin(lanes, under_way)
        return list(zip(pieces.listed(wanted), draws[wanted].tolist()))

    def _info(self, segment: Rows, lane: int, piece: Piece, probability: float) -> EpisodeInfo:
        return EpisodeInfo(
            first_step=piece.step,
            env_id=self._task(segment, piece),
            seed=self._plan.seed(lane, piece.episode),
            policy_id=int(segment["policy_id"][piece.start, piece.column]),
            worker=self._plan.worker(lane // self._plan.lanes),
            lane=lane,
            probability=probability if self._whole and self._random else None,
        )

    def _task(self, segment: Rows, piece: Piece) -> str:
        """Return which task of a suite the episode belongs to; empty without a suite."""
        names = self._plan.tasks
        return names[int(segment[OBS + TASK_FIELD][piece.start, piece.column].argmax())] if names else ""

    def leave(self, group: int) -> None:
        """Note that a group's next segment is not coming: end its open episodes, as partial ones."""
        first = group * self._plan.lanes
        for lane in range(first, first + self._plan.lanes):
            self._joined.leave(lane)

    def end_all(self) -> None:
        """End everything that is open, as partial."""
        self._joined.leave_all()
