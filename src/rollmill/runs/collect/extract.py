"""From finished segments to episodes in a store.

A ``Harvest`` walks the rows of each finished slot and writes what its ``Selection`` asks for, an episode per lane at
a time. What happens in a lane is read off the rows alone:

- ``first``: an episode begins (the rows before it, without an end, belong to one that an env's fault has ended);
- ``valid`` rows are its steps; the last one of them is terminated or truncated, the row after it holds the final
  observation;
- a number missing in ``episode``: rows were lost with a worker that had to be replaced.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.slots import OBS, Arena
from rollmill.sampling.pool import ProcessCrew
from rollmill.sampling.sampler import Sampler
from rollmill.store.episode import EpisodeEnd, EpisodeInfo
from rollmill.store.writer import StoreWriter

PROGRESS_FOLDER = "progress"
"""In a store: one small file for each writer, rewritten as it goes on."""
PROGRESS_SECONDS = 2.0

Stats = dict[str, float]


class Selection(Protocol):
    """Decides which episodes are kept; asked in the order of the rows, lane by lane."""

    def begin(self, lane: int, episode: int) -> EpisodeInfo | None:
        """An episode begins: how to call it, or None to leave it out."""

    def end(self, lane: int, episode: int, record: EpisodeEnd) -> None:
        """It is in the store."""

    def lost(self, lane: int, episode: int) -> None:
        """An episode will never end: its env or its worker has failed. Told of all, kept or not."""


@dataclass
class _Open:
    """A lane's episode that is being written."""

    episode: int
    following: dict[str, Array]
    """The observation after its last row so far."""


class Harvest:
    """Writes the selected episodes of an arena's finished slots; not thread-safe, like its writer.

    ``constants``: values of the columns that are the same in every row (``version``, ``global_step``).
    ``step_limit``: after so many steps in all, everything open is ended as partial and nothing is written any more.
    """

    def __init__(
        self,
        arena: Arena,
        writer: StoreWriter,
        selection: Selection,
        constants: Mapping[str, int],
        step_limit: int | None = None,
    ) -> None:
        self._arena, self._writer, self._selection = arena, writer, selection
        self._constants = dict(constants)
        self._agents = arena.layout.spec.agents
        self._obs = [name for name in arena.fields if name.startswith(OBS)]
        self._columns = [*self._obs, "action", "reward"]
        self._open: dict[int, _Open] = {}
        self._next: dict[int, int] = {}
        self._stats: dict[tuple[int, int], Stats] = {}
        self._step_limit = step_limit
        self.steps = 0
        """Steps of all episodes that are in the store or still open."""
        self.returns = 0.0
        self.episodes = 0

    @property
    def is_full(self) -> bool:
        return self._step_limit is not None and self.steps >= self._step_limit

    def take(self, slot: int, group: int, stats: Mapping[tuple[int, int], Stats]) -> None:
        """Write what slot ``slot``, filled by ``group``, adds; ``stats``: envs' own figures by (lane, episode)."""
        self._stats.update(stats)
        rows = self._arena.segment(slot)
        lanes = self._arena.layout.lanes
        for column in range(lanes):
            if not self.is_full:
                self._lane(group * lanes + column, {name: array[:, column] for name, array in rows.items()})

    def _lane(self, lane: int, rows: Mapping[str, Array]) -> None:
        steps = self._arena.layout.steps
        starts = np.flatnonzero(rows["first"][:steps])
        edges = [0, *starts[starts > 0].tolist(), steps]
        for begin, end in itertools.pairwise(edges):
            if rows["first"][begin]:
                self._begin(lane, int(rows["episode"][begin]))
            if lane in self._open and not self.is_full:
                self._append(lane, rows, begin, end)

    def _begin(self, lane: int, episode: int) -> None:
        expected = self._next.get(lane, 0)
        if lane in self._open:
            expected = self._open[lane].episode
            self._discard(lane)
        assert episode >= self._next.get(lane, 0), "episodes of a lane are numbered upwards"
        for missing in range(expected, episode):
            self._selection.lost(lane, missing)
        self._next[lane] = episode + 1
        self._forget_stats(lane, episode)
        info = self._selection.begin(lane, episode)
        if info is not None:
            self._writer.begin(lane, info)
            self._open[lane] = _Open(episode, {})

    def _append(self, lane: int, rows: Mapping[str, Array], begin: int, end: int) -> None:
        """Rows ``begin`` .. ``end`` belong to the lane's open episode, as far as they are valid."""
        valid = rows["valid"][begin:end]
        count = int(valid.argmin()) if not valid.all() else end - begin
        if self._step_limit is not None:
            count = min(count, self._step_limit - self.steps)
        if count == 0:
            return
        stop = begin + count
        self._writer.append(lane, {**{name: rows[name][begin:stop] for name in self._columns}, **self._constants})
        self.steps += count
        terminated, truncated = bool(rows["terminated"][stop - 1]), bool(rows["truncated"][stop - 1])
        following = {name: rows[name][stop] for name in self._obs}
        if terminated or truncated:
            self._end(lane, following, terminated, truncated)
        else:
            self._open[lane].following = {name: row.copy() for name, row in following.items()}
        if self.is_full:
            self.end_open()

    def _end(self, lane: int, final: Mapping[str, Array], terminated: bool, truncated: bool) -> None:
        episode = self._open.pop(lane).episode
        own = self._stats.get((lane - lane % self._agents, episode), {})
        record = self._writer.end(lane, final=final, terminated=terminated, truncated=truncated, stats=own)
        assert record is not None, "an episode that ended has a step"
        self.episodes += 1
        self.returns += record.return_
        self._selection.end(lane, episode, record)

    def _forget_stats(self, lane: int, episode: int) -> None:
        """Figures of the env's earlier episodes are used up (or were of none that is kept)."""
        if lane % self._agents == 0:
            for key in [key for key in self._stats if key[0] == lane and key[1] < episode]:
                del self._stats[key]

    def end_open(self) -> None:
        """End what is open as partial: it stops at its last step, the observation after it included."""
        for lane, open_ in list(self._open.items()):
            if open_.following:
                record = self._writer.end(lane, final=open_.following)
                assert record is not None, "there is a step before a following observation"
                del self._open[lane]
            else:
                self._discard(lane)

    def discard_open(self) -> None:
        """Leave out what has not ended."""
        for lane in list(self._open):
            self._discard(lane)

    def _discard(self, lane: int) -> None:
        self.steps -= self._writer.steps(lane)
        self._writer.discard(lane)
        del self._open[lane]


def pop_stats(sampler: Sampler) -> dict[tuple[int, int], Stats]:
    """The envs' own figures of ended episodes that have come in, by (lane of the first agent, episode).

    Workers tell them before they hand over the row in which the episode ended, so whoever calls this after a slot was
    finished has those of all episodes in it. Only from the thread that runs the rounds.
    """
    if isinstance(sampler.crew, ProcessCrew):
        sampler.crew.wait(0)
    waiting = sampler.crew.report.episode_stats
    found: dict[tuple[int, int], Stats] = {}
    while waiting:
        lane, episode, stats = waiting.popleft()
        found[lane, episode] = stats
    return found


def check_writable(folder: Path) -> None:
    """StoreError, now rather than after the first episode, when files cannot be written here."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(probe, [bytes(4096)])
        probe.unlink()
    except OSError as error:
        raise StoreError(f"{folder}: episodes cannot be written here: {error.strerror or error}") from error


class ProgressFile:
    """How far a writer is, for whoever looks from outside: ``<store>/progress/<writer>.json``."""

    def __init__(self, writer: StoreWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = writer.path / PROGRESS_FOLDER / f"{writer.name}.json"
        self._clock = clock
        self._due = clock()
        try:
            self.path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.path.parent}: cannot be created: {error.strerror or error}") from error

    def write(self, state: str, figures: Mapping[str, Any], now: bool = False) -> None:
        """Every two seconds, or ``now``."""
        if not now and self._clock() < self._due:
            return
        self._due = self._clock() + PROGRESS_SECONDS
        value = {"state": state, "time": datetime.now(UTC).isoformat(timespec="seconds"), "pid": os.getpid(), **figures}
        try:
            # No sync: it is a note for whoever looks, and the episodes themselves are what must survive.
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written: {error.strerror or error}") from error
