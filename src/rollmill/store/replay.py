"""A replay buffer: the newest steps in memory, sampled at random, saved as a store.

What is added in one call (an episode, or a piece of one) is a *segment*: n steps and the observation after the last.
Steps lie in a ring of ``capacity`` rows; the oldest give way one by one, a segment that loses its beginning stays
usable. The observation after a segment's last step lies apart: every row is a full transition and capacity is exact.
"""

from __future__ import annotations

import secrets
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.core.shapes import ARRAY, FLAGS, INTS, MAPPING, Shape, check_shape
from rollmill.store.episode import Episode, EpisodeInfo, Stats
from rollmill.store.format.block_buffer import check_final, check_rows
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.views import MASK, NEXT, Batch
from rollmill.store.writer import StoreWriter

REPLAY_SHAPE: Shape = {
    "oldest": int,
    "rows": {str: ARRAY},
    "finals": {str: ARRAY},
    "stops": INTS,
    "terminated": FLAGS,
    "truncated": FLAGS,
    "generator": MAPPING,
}


@dataclass
class _Segment:
    """Steps ``start`` .. ``stop``, counted over all that were ever added."""

    start: int
    stop: int
    final: int  # row in the final observations
    info: EpisodeInfo
    terminated: bool
    truncated: bool
    stats: Stats


class ReplayBuffer:
    """The newest ``capacity`` steps of what was added; ``len`` counts them. ``seed``: of the sampling."""

    def __init__(self, schema: StoreSchema, capacity: int, seed: int = 0) -> None:
        if capacity < 1:
            raise ConfigError(f"replay buffer: the capacity {capacity} must be at least 1 step")
        self.schema = schema
        self.capacity = capacity
        self.added = 0
        """Steps ever added."""
        self.age = 0.0
        """How many steps were added after those that were drawn last, in the mean."""
        self._rng = np.random.default_rng(seed)
        try:
            self._rows: Batch = {c.name: np.zeros((capacity, *c.shape), c.numpy) for c in schema.columns}
            self._begin = np.zeros(capacity, np.int64)  # where the row's segment begins, counted over all ever added
            self._stop = np.zeros(capacity, np.int64)  # and where it ends
            self._last = np.full(capacity, -1, np.int64)  # row in _finals if the row is the last of its segment
        except (MemoryError, ValueError) as error:  # the second: more than any memory could have
            raise ConfigError(f"replay buffer: there is no memory for a capacity of {capacity:,} steps") from error
        self._flags = {name: np.zeros(capacity, np.bool_) for name in ("terminated", "truncated")}
        self._finals: Batch = {c.name: np.zeros((0, *c.shape), c.numpy) for c in schema.obs_columns}
        self._free: list[int] = []  # rows of _finals
        self._segments: deque[_Segment] = deque()

    def __len__(self) -> int:
        return self.added - self._oldest

    @property
    def _oldest(self) -> int:
        return self._segments[0].start if self._segments else self.added

    # ---------------------------------------------------------------------------------------- adding

    def add(
        self,
        columns: Mapping[str, Any],
        *,
        final: Mapping[str, Any],
        terminated: bool = False,
        truncated: bool = False,
        info: EpisodeInfo | None = None,
        stats: Stats | None = None,
    ) -> None:
        """Add a segment: ``[n, ...]`` of every column (a number stands for n equal ones), and the observation after it.

        The arrays are copied. Of a segment longer than the buffer the last ``capacity`` steps stay.
        """
        rows, count = check_rows(self.schema, columns)
        last = check_final(self.schema, final)
        if count < 1:
            raise StoreError("a segment needs at least one step")
        skip = max(0, count - self.capacity)
        self._drop(len(self) + count - skip - self.capacity)
        info = info or EpisodeInfo()
        start, stop = self.added + skip, self.added + count
        places = np.arange(start, stop) % self.capacity
        for name, array in rows.items():
            self._rows[name][places] = array if array.ndim == 0 else array[skip:]
        final_row = self._keep_final(last)
        self._begin[places], self._stop[places] = start, stop
        self._last[places] = -1
        self._last[places[-1]] = final_row
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            self._flags[name][places] = False
            self._flags[name][places[-1]] = flag
        info = replace(info, first_step=info.first_step + skip)
        self._segments.append(_Segment(start, stop, final_row, info, terminated, truncated, dict(stats or {})))
        self.added = stop

    def add_episode(self, episode: Episode) -> None:
        """Add a whole episode (or a piece of one) as it comes from a store."""
        observed = [column.name for column in self.schema.obs_columns]
        self.add(
            {name: array[: len(episode)] for name, array in episode.columns.items()},
            final={name: episode.column(name)[len(episode)] for name in observed},
            terminated=episode.terminated,
            truncated=episode.truncated,
            info=episode.info,
            stats=episode.stats,
        )

    def _drop(self, count: int) -> None:
        """Let go of the ``count`` oldest steps."""
        while count > 0:
            segment = self._segments[0]
            cut = min(count, segment.stop - segment.start)
            segment.start += cut
            segment.info = replace(segment.info, first_step=segment.info.first_step + cut)
            count -= cut
            if segment.start == segment.stop:
                self._free.append(segment.final)
                self._segments.popleft()

    def _keep_final(self, final: Mapping[str, Array]) -> int:
        if not self._free:
            held = len(next(iter(self._finals.values())))
            grown = max(16, 2 * held)
            for name, array in self._finals.items():
                self._finals[name] = np.concatenate([array, np.zeros((grown - held, *array.shape[1:]), array.dtype)])
            self._free = list(range(held, grown))
        row = self._free.pop()
        for name, array in final.items():
            self._finals[name][row] = array
        return row

    # ---------------------------------------------------------------------------------------- sampling

    def sample(self, count: int) -> Batch:
        """Return ``[count, ...]`` random transitions, drawn with replacement: every column, ``next_*`` of observation
        columns, ``terminated``, ``truncated``.
        """
        rows = self._draw(count) % self.capacity
        batch = {name: array[rows] for name, array in self._rows.items()}
        return batch | self._outcome(rows)

    def sample_n_step(self, count: int, steps: int, gamma: float) -> Batch:
        """Return ``[count, ...]`` random transitions of ``steps`` steps, or as many as are left of the segment.

        They are as those of ``sample``, but ``reward`` is the discounted sum of the rewards of these steps, ``next_*``
        and the ends are those of the last step, and ``discount`` is the weight of what follows: ``gamma`` for each
        step, 0 behind a terminal one.
        """
        if steps < 1:
            raise ConfigError(f"replay buffer: transitions of {steps} steps")
        first = self._draw(count)
        rows = first % self.capacity
        taken = np.minimum(self._stop[rows] - first, steps)
        batch = {name: array[rows] for name, array in self._rows.items()}
        for k in range(1, steps):
            further = self._rows["reward"][(rows + k) % self.capacity]
            batch["reward"] += np.where(k < taken, np.float32(gamma**k) * further, np.float32(0))
        batch |= self._outcome((rows + taken - 1) % self.capacity)
        batch["discount"] = np.where(batch["terminated"], 0, gamma**taken).astype(np.float32)
        return batch

    def _outcome(self, rows: Array) -> Batch:
        """Return what came after these rows: ``next_*`` of observation columns, ``terminated``, ``truncated``."""
        batch = {}
        last = self._last[rows]
        ends = np.flatnonzero(last >= 0)
        for name, finals in self._finals.items():
            following = self._rows[name][(rows + 1) % self.capacity]
            following[ends] = finals[last[ends]]
            batch[NEXT + name] = following
        return batch | {name: flags[rows] for name, flags in self._flags.items()}

    def sample_windows(self, count: int, length: int) -> Batch:
        """Return ``[count, length, ...]`` random stretches that begin at any step and stay within a segment, and
        ``mask``: False behind the segment's end, where rows are zero.
        """
        if length < 1:
            raise ConfigError(f"replay buffer: windows of {length} steps")
        first = self._draw(count)
        steps = first[:, None] + np.arange(length)
        mask = steps < self._stop[first % self.capacity][:, None]
        rows = steps % self.capacity
        batch = {}
        for name, array in (*self._rows.items(), *self._flags.items()):
            batch[name] = array[rows]
            batch[name][~mask] = 0
        batch[MASK] = mask
        return batch

    def sample_segments(self, count: int, length: int) -> Batch:
        """Return ``[count, length, ...]`` random segments from their beginning on (what is left of it), and ``mask``:
        False behind their end, where rows are zero. Observation columns have one row more: what was seen after the last
        step.

        Long segments are drawn more often: as often as one draws a row of theirs. None may be longer than ``length``.
        """
        drawn = self._draw(count) % self.capacity
        begin, stop = np.maximum(self._begin[drawn], self._oldest), self._stop[drawn]
        if int((stop - begin).max()) > length:
            raise ConfigError(f"replay buffer: a segment has {int((stop - begin).max())} steps, {length} are read")
        steps = begin[:, None] + np.arange(length + 1)
        rows, mask = steps % self.capacity, steps < stop[:, None]
        batch = {}
        for name, array in (*self._rows.items(), *self._flags.items()):
            seen = name in self._finals
            values = array[rows if seen else rows[:, :-1]]
            values[~(mask if seen else mask[:, :-1])] = 0
            if seen:
                finals = self._finals[name][self._last[(stop - 1) % self.capacity]]
                values[np.arange(count), stop - begin] = finals
            batch[name] = values
        batch[MASK] = mask[:, :-1]
        return batch

    def _draw(self, count: int) -> Array:
        if not len(self):
            raise StoreError("the replay buffer is empty: add something before sampling")
        drawn = self._rng.integers(self._oldest, self.added, count)
        self.age = self.added - float(drawn.mean()) if count else 0.0
        return drawn

    # ---------------------------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """Return the contents and the random generator as plain arrays and numbers; what was said about episodes is
        left out.
        """
        rows = np.arange(self._oldest, self.added) % self.capacity
        finals = [segment.final for segment in self._segments]
        return {
            "oldest": self._oldest,
            "rows": {name: array[rows] for name, array in self._rows.items()},
            "finals": {name: array[finals] for name, array in self._finals.items()},
            "stops": np.array([segment.stop for segment in self._segments], np.int64),
            "terminated": np.array([segment.terminated for segment in self._segments], np.bool_),
            "truncated": np.array([segment.truncated for segment in self._segments], np.bool_),
            "generator": self._rng.bit_generator.state,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, with the same samples to come; a smaller buffer keeps the newest rows."""
        check_shape(state, REPLAY_SHAPE)
        start = state["oldest"]
        self.added, self._segments, self._free = start, deque(), []
        self._finals = {c.name: np.zeros((0, *c.shape), c.numpy) for c in self.schema.obs_columns}
        for k, stop in enumerate(state["stops"].tolist()):
            rows = slice(start - state["oldest"], stop - state["oldest"])
            self.add(
                {name: array[rows] for name, array in state["rows"].items()},
                final={name: array[k] for name, array in state["finals"].items()},
                terminated=bool(state["terminated"][k]),
                truncated=bool(state["truncated"][k]),
            )
            start = stop
        self._rng.bit_generator.state = state["generator"]

    # ---------------------------------------------------------------------------------------- files

    def segments(self) -> Iterator[Episode]:
        """Yield what is in the buffer, oldest first; the arrays are copies."""
        for segment in self._segments:
            rows = np.arange(segment.start, segment.stop) % self.capacity
            columns = {name: array[rows] for name, array in self._rows.items()}
            for name, finals in self._finals.items():
                columns[name] = np.concatenate([columns[name], finals[segment.final][None]])
            yield Episode(columns, segment.info, segment.terminated, segment.truncated, segment.stats)

    def save(self, path: Path | str) -> None:
        """Write the contents as a new store, which appears when it is complete; refuses to replace anything."""
        target = Path(path).absolute()
        if target.exists():
            raise StoreError(f"{target} exists already; save the replay buffer under a new name")
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        uids: set[int] = set()
        try:
            with StoreWriter(temporary, self.schema, sync="seal") as writer:
                for episode in self.segments():
                    uid = episode.info.uid
                    if uid in uids:  # another piece of the same episode: a name of its own
                        episode.info = replace(episode.info, uid=None)
                    elif uid is not None:
                        uids.add(uid)
                    writer.add_episode(episode)
            temporary.rename(target)
            atomic.sync_folder(target.parent)
        except OSError as error:
            raise StoreError(f"the replay buffer cannot be saved as {target}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    @classmethod
    def load(cls, path: Path | str, capacity: int | None = None, seed: int = 0) -> ReplayBuffer:
        """Return a buffer with the episodes of a store, any store; the last of them where there are more than
        ``capacity`` steps. Without ``capacity`` the buffer is just as large as what it loads.
        """
        with Store(path) as store:
            lengths = store.table.length
            buffer = cls(store.schema, capacity or max(1, int(lengths.sum())), seed)
            newer = np.cumsum(lengths[::-1])[::-1] - lengths  # steps behind each episode
            for i in np.flatnonzero(newer < buffer.capacity).tolist():
                buffer.add_episode(store.episode(i))
            return buffer
