"""Whole episodes out of finished segments into a store: those that a quota asks for, each written as it goes on.

What happens in a lane is read off the rows alone (``store.assemble``). A number missing among its episodes is one that
was lost: its env has failed before its first step, or its rows went with a worker that had to be replaced.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.store.assemble import Assembler, Piece, Rows, find_pieces
from rollmill.store.episode import EpisodeInfo
from rollmill.store.writer import StoreWriter

PROGRESS_FOLDER = "progress"
"""In a store: one small file for each writer, rewritten as it goes on."""
PROGRESS_SECONDS = 2.0

Stats = dict[str, float]


class EpisodeQuota:
    """Which of all episodes count: the first ``need`` by number (None: all), and one more for each that fails.

    By number, not in the order they end: the first N to end would be the short ones. Player p of ``players`` plays the
    numbers p, p + players, p + 2 * players and so on. It has ``lanes`` lanes, the agents of an environment; its
    episode counts when it has ended in all of them.

    ``own_place``: one that fails is replaced by the same player's next, so that what counts does not depend on who is
    faster. Otherwise it is replaced by the next one that begins anywhere, which takes less time.
    """

    def __init__(self, players: int, need: int | None, lanes: int = 1, own_place: bool = False) -> None:
        self._players, self._lanes = players, lanes
        self._numbers = self.need = need
        self._decided = np.full(players, -1, np.int64)
        self._open: dict[tuple[int, int], int] = {}
        self._owed = np.zeros(players if own_place else 1, np.int64)
        self.complete = 0
        self.closed = False
        """No more episodes are begun (budget); those that are open go on."""

    @property
    def is_done(self) -> bool:
        if self.closed:
            return not self._open
        return self.need is not None and self.complete >= self.need

    def lower(self, need: int) -> None:
        """Ask for no more than ``need`` episodes in all, as others have done a part; what has begun is finished."""
        if self.need is not None:
            self.need = min(self.need, max(need, self.complete + len(self._open)))

    def wants(self, lane: int, episode: int) -> bool:
        """Return whether a lane's episode counts, decided when it is first asked; lanes of no player never count."""
        player = lane // self._lanes
        if player >= self._players:
            return False
        if episode > self._decided[player]:
            self._decided[player] = episode
            if self._has_room(player, episode):
                self._open[player, episode] = self._lanes
        return (player, episode) in self._open

    def _has_room(self, player: int, episode: int) -> bool:
        if self.closed:
            return False
        if self.need is None or self._numbers is None:
            return True
        if self.complete + len(self._open) >= self.need:
            return False
        if player + self._players * episode < self._numbers:
            return True
        owed = player % len(self._owed)
        if self._owed[owed]:
            self._owed[owed] -= 1
            return True
        return False

    def end(self, lane: int, episode: int) -> None:
        """Note that an episode that counts has ended in this lane."""
        key = (lane // self._lanes, episode)
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
            self.complete += 1

    def lose(self, lane: int, episode: int) -> bool:
        """Note that an episode will never end: its env or its worker failed. Returns whether it would have counted."""
        if not self.wants(lane, episode):
            return False
        player = lane // self._lanes
        del self._open[player, episode]
        self._owed[player % len(self._owed)] += 1
        return True


class EpisodeExtractor:
    """Writes the episodes of a quota; not thread-safe, like its writer.

    ``describe``: what is to be known of (lane, episode); those whose uid is ``present`` in the store count without
    being written. ``constants``: values of the columns that are the same in every row (``version``, ``global_step``).
    ``step_limit``: after so many steps in all, everything open is ended as partial and nothing is written any more.
    """

    def __init__(
        self,
        writer: StoreWriter,
        quota: EpisodeQuota,
        describe: Callable[[int, int], EpisodeInfo],
        constants: Mapping[str, int],
        agents: int = 1,
        present: Collection[int] = frozenset(),
        step_limit: int | None = None,
    ) -> None:
        self._writer, self._quota, self._describe, self._present = writer, quota, describe, present
        self._constants, self._agents = dict(constants), agents
        final = {column.name: column.name for column in writer.schema.obs_columns}
        self._assembler = Assembler(self, {**final, "action": "action", "reward": "reward"}, final)
        self._open: dict[int, int] = {}
        """Episodes that are being written, by lane."""
        self._stopped: dict[int, Rows] = {}
        """What followed the last step of those among them that did not end."""
        self._next: dict[int, int] = {}
        self._stats: dict[tuple[int, int], Stats] = {}
        self._step_limit = step_limit
        self.steps = 0
        """Steps of all episodes that are in the store or still open."""
        self.returns = 0.0
        self.episodes = 0
        self.written: set[int] = set()
        """Uids of the episodes that were added."""

    @property
    def is_full(self) -> bool:
        return self._step_limit is not None and self.steps >= self._step_limit

    def take(self, segment: Rows, group: int, stats: Mapping[tuple[int, int], Stats]) -> None:
        """Write what a segment of a group adds; ``stats``: envs' own metrics by (lane of the first agent, episode)."""
        self._stats.update(stats)
        first = group * segment["valid"].shape[1]
        for piece in find_pieces(segment).listed():
            if not self.is_full:
                self._take_piece(segment, first + piece.column, piece)

    def _take_piece(self, segment: Rows, lane: int, piece: Piece) -> None:
        if not self._assembler.continues(lane, piece) and not self._begin(lane, piece):
            return
        if self._step_limit is not None:
            piece = piece._replace(stop=min(piece.stop, piece.start + self._step_limit - self.steps))
        self._assembler.add(segment, lane, piece)
        if self.is_full:
            self.end_open()

    def _begin(self, lane: int, piece: Piece) -> bool:
        """Begin the episode of a piece that continues no open one, if it is wanted; returns whether it has begun."""
        if piece.step:
            return False  # of one that is left out
        expected = self._next.get(lane, 0)
        assert piece.episode >= expected, "episodes of a lane are numbered upwards"
        if lane in self._open:
            expected = self._open[lane]
            self._discard(lane)
        for missing in range(expected, piece.episode):
            self._quota.lose(lane, missing)
        self._next[lane] = piece.episode + 1
        self._forget_stats(lane, piece.episode)
        if not self._quota.wants(lane, piece.episode):
            return False
        info = self._describe(lane, piece.episode)
        if info.uid in self._present:
            self._quota.end(lane, piece.episode)
            return False
        self._writer.begin(lane, info)
        self._open[lane] = piece.episode
        return True

    def _forget_stats(self, lane: int, episode: int) -> None:
        """Drop metrics of the env's earlier episodes: they are used up, or of episodes that are not kept."""
        if lane % self._agents == 0:
            for key in [key for key in self._stats if key[0] == lane and key[1] < episode]:
                del self._stats[key]

    # -- PieceOut ------------------------------------------------------------------------------

    def append(self, key: int, columns: Rows) -> None:
        self._writer.append(key, {**columns, **self._constants})
        self.steps += len(columns["reward"])

    def end(self, key: int, final: Rows, terminated: bool, truncated: bool) -> None:
        if not (terminated or truncated):
            self._stopped[key] = final  # left out when the lane's next one begins, unless all is ended before
            return
        episode = self._open.pop(key)
        stats = self._stats.get((key - key % self._agents, episode), {})
        record = self._writer.end(key, final=final, terminated=terminated, truncated=truncated, stats=stats)
        assert record is not None, "an episode that ended has a step"
        self.episodes += 1
        self.returns += record.return_
        self.written.add(record.uid)
        self._quota.end(key, episode)

    # -- what has not ended --------------------------------------------------------------------

    def end_open(self) -> None:
        """End what is open as partial: it stops at its last step, the observation after it included."""
        self._assembler.leave_all()
        for lane in list(self._open):
            self._writer.end(lane, final=self._stopped.pop(lane, None))
            del self._open[lane]

    def discard_open(self) -> None:
        """Leave out what has not ended."""
        self._assembler.leave_all()
        for lane in list(self._open):
            self._discard(lane)

    def _discard(self, lane: int) -> None:
        self.steps -= self._writer.steps(lane)
        self._writer.discard(lane)
        self._stopped.pop(lane, None)  # none where writing its rows has failed
        del self._open[lane]


def check_writable(folder: Path) -> None:
    """Raise StoreError now, rather than after the first episode, when files cannot be written here."""
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

    def write(self, state: str, metrics: Mapping[str, Any], now: bool = False) -> None:
        """Write the file if the last time was two seconds ago, or ``now``."""
        if not now and self._clock() < self._due:
            return
        self._due = self._clock() + PROGRESS_SECONDS
        value = {"state": state, "time": datetime.now(UTC).isoformat(timespec="seconds"), "pid": os.getpid(), **metrics}
        try:
            # No sync: it is a note for whoever looks, and the episodes themselves are what must survive.
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written: {error.strerror or error}") from error
