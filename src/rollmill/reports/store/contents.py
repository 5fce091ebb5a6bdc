"""What the rows of a store say: actions, rewards, bytes per column, order in time, content of episodes, and which
episodes are there more than once.

One pass over the blocks of the chosen episodes. Of each block only the small columns are decoded (action, reward,
global step, version); images stay compressed. Memory is one block and a fixed number of counters, and a digest per
episode. Damaged episodes are left out and named.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.core.errors import BadBlock
from rollmill.core.fields import ActionSpec, Array
from rollmill.reports.store.histograms import GrowingHistogram
from rollmill.store.format.blocks import block_rows, decode_column
from rollmill.store.format.codec import CodecError
from rollmill.store.format.records import Block
from rollmill.store.format.shards import Problem
from rollmill.store.reader import Store

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) between episodes; may raise to stop the work."""

SMALL = ("action", "reward", "global_step", "version")
MAX_CHOICES = 1 << 16
"""Choices of a discrete action that are counted one by one; those beyond are counted together."""

MAX_DECODED = 1 << 30
"""Bytes of observations that are decoded for comparison at most."""
SHOWN = 50


@dataclass(frozen=True)
class Digest:
    """What an episode holds, in 32 bytes: ``small`` names actions, rewards and how it ended; ``stored`` the
    compressed observations (the same observations in blocks of another size have another one).
    """

    small: bytes
    stored: bytes


@dataclass
class Contents:
    """The findings of ``look_inside``."""

    actions: ActionCounts
    rewards: GrowingHistogram = field(default_factory=GrowingHistogram)
    digests: dict[int, Digest] = field(default_factory=dict)
    """By episode number."""
    column_bytes: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """``[columns]`` as stored."""
    column_rows: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """``[columns]``"""
    step_goes_back: int = 0
    """Episodes whose global step falls from one row to the next."""
    version_goes_back: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def episodes(self) -> int:
        return len(self.digests)


def look_inside(store: Store, episodes: Sequence[int] | Array, progress: Progress | None = None) -> Contents:
    """Read the given episodes once."""
    schema = store.schema
    found = Contents(ActionCounts(schema.env.action, schema["action"].shape, schema["action"].numpy.kind == "f"))
    found.column_bytes = np.zeros(len(schema.columns), np.int64)
    found.column_rows = np.zeros(len(schema.columns), np.int64)
    heads = _heads(store)
    total, done = int(store.table.length[np.asarray(episodes, np.int64)].sum()), 0
    for i in map(int, episodes):
        if progress is not None:
            progress(done, total)
        done += int(store.table.length[i])
        try:
            _take(store, i, heads(i), found)
        except BadBlock as error:
            shard = store.shards[int(store.table.shard[i])].name
            found.problems.append(Problem(shard, error.record, error.offset, error.reason, error.episode))
        except CodecError as error:
            shard = store.shards[int(store.table.shard[i])].name
            found.problems.append(Problem(shard, -1, -1, str(error), int(store.table.uid[i])))
    if progress is not None:
        progress(total, total)
    return found


def _take(store: Store, i: int, head: bytes, found: Contents) -> None:
    """Take in one episode: all of it, or nothing if a block is damaged."""
    columns = store.schema.columns
    sizes, rows = np.zeros(len(columns), np.int64), np.zeros(len(columns), np.int64)
    stored = hashlib.blake2b(digest_size=16)
    parts: dict[str, list[Array]] = {name: [] for name in SMALL}
    for block in _blocks(store, i):
        sizes += block.sizes
        rows += [block_rows(block, column) for column in columns]
        offset = 0
        for position, column in enumerate(columns):
            size = block.sizes[position]
            if column.name in parts:
                values = np.empty((block.steps, *column.shape), column.numpy)
                decode_column(block, position, column, values)
                parts[column.name].append(values)
            elif column.per == "obs":
                stored.update(block.data[offset : offset + size])
            offset += size
    small = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    found.column_bytes += sizes
    found.column_rows += rows
    found.actions.add(small["action"])
    found.rewards.add(small["reward"])
    found.step_goes_back += bool((np.diff(small["global_step"]) < 0).any())
    found.version_goes_back += bool((np.diff(small["version"]) < 0).any())
    decided = hashlib.blake2b(head, digest_size=16)
    decided.update(small["action"].tobytes())
    decided.update(small["reward"].tobytes())
    found.digests[i] = Digest(decided.digest(), stored.digest())


def _blocks(store: Store, i: int) -> Iterator[Block]:
    for _, record in store.records(i):
        if isinstance(record, Block):
            yield record


def _heads(store: Store) -> Callable[[int], bytes]:
    """Return a function that gives what the table says of an episode's content, for its digest."""
    env = store.table["env_id"]
    numbers = [store.table[name] for name in ("length", "first_step", "terminated", "truncated")]
    return lambda i: repr((str(env[i]), *(int(column[i]) for column in numbers))).encode("utf-8", "replace")


# -------------------------------------------------------------------------------------------------- actions


class ActionCounts:
    """How often each action was taken, per component of the action."""

    def __init__(self, spec: ActionSpec, shape: tuple[int, ...], floats: bool) -> None:
        self._spec = spec
        self._size = int(np.prod(shape, dtype=np.int64))
        self._continuous = floats
        # A store made elsewhere may know less of its actions than ours do.
        known = not floats and len(spec.nvec) == self._size
        self._nvec = [min(n, MAX_CHOICES) for n in spec.nvec] if known else [0] * self._size
        self._counts = [np.zeros(n, np.int64) for n in self._nvec]
        self._other = [0] * self._size
        self._spread = [GrowingHistogram() for _ in range(self._size)] if floats else []
        self._outside = [0] * self._size
        self._rows = 0

    def add(self, actions: Array) -> None:
        """Count actions ``[n, ...]`` of consecutive steps."""
        self._rows += len(actions)
        values = actions.reshape(len(actions), self._size)
        for k in range(self._size):
            if self._continuous:
                self._add_floats(k, values[:, k])
            else:
                self._add_choices(k, values[:, k].astype(np.int64))

    def _add_floats(self, k: int, values: Array) -> None:
        self._spread[k].add(values)
        bounds = self._bounds(k)
        if bounds is not None:
            self._outside[k] += int(((values < bounds[0]) | (values > bounds[1])).sum())

    def _add_choices(self, k: int, values: Array) -> None:
        size = len(self._counts[k])
        if self._nvec[k] == 0:  # the number of choices is not known
            top = int(values[values < MAX_CHOICES].max(initial=-1)) + 1
            self._counts[k] = np.concatenate([self._counts[k], np.zeros(max(0, top - size), np.int64)])
            size = len(self._counts[k])
        known = (values >= 0) & (values < size)
        self._counts[k] += np.bincount(values[known], minlength=size)[:size] if size else 0
        self._other[k] += int((~known).sum())

    def _bounds(self, k: int) -> tuple[float, float] | None:
        if len(self._spec.low) != self._size or len(self._spec.high) != self._size:
            return None
        return float(self._spec.low[k]), float(self._spec.high[k])

    def metrics(self) -> dict[str, Any]:
        """Return JSON values. Discrete components: ``counts`` [choices], the numbers as the environment got them begin
        at ``start``. Continuous ones: moments and a histogram; ``outside``: beyond the bounds of the space.
        """
        kind = "continuous" if self._continuous else ("discrete" if self._size == 1 else "multi_discrete")
        parts = [self._floats(k) if self._continuous else self._choices(k) for k in range(self._size)]
        return {"kind": kind, "rows": self._rows, "components": parts}

    def _floats(self, k: int) -> dict[str, Any]:
        bounds = self._bounds(k)
        limits = [bound if np.isfinite(bound) else None for bound in bounds or ()]
        low, high = limits if limits else (None, None)
        return {**self._spread[k].metrics(), "low": low, "high": high, "outside": self._outside[k]}

    def _choices(self, k: int) -> dict[str, Any]:
        counts = self._counts[k]
        shares = counts[counts > 0] / max(counts.sum(), 1)
        start = int(self._spec.start[k]) if len(self._spec.start) == self._size else 0
        entropy = float(-(shares * np.log(shares)).sum()) if len(counts) > 1 else 0.0
        top = float(np.log(len(counts))) if len(counts) > 1 else 0.0
        return {
            "start": start,
            "counts": counts.tolist(),
            "other": self._other[k],
            "never": int((counts == 0).sum()),
            "evenness": abs(entropy / top) if top else None,
        }


# -------------------------------------------------------------------------------------------------- duplicates


def find_duplicates(store: Store, digests: Mapping[int, Digest], max_decoded: int = MAX_DECODED) -> dict[str, Any]:
    """Find episodes that are there more than once, whatever their uid: the same environment, actions, rewards, end and
    observations. Policy version, global step and worker may differ.

    JSON values: ``copies`` (episodes that repeat an earlier one), ``groups`` (numbers of equal episodes, the first
    ``SHOWN``), ``same_uid`` (episodes of the whole table whose uid appears before), ``not_compared``.

    Episodes with equal digests are equal. Those that differ only in their stored observations are decoded and compared,
    the first one first: blocks of another size hold the same rows in other bytes.
    """
    budget = _Budget(max_decoded)
    groups: list[list[int]] = []
    for alike in _grouped(digests, lambda i: digests[i].small):
        classes = _grouped(alike, lambda i: digests[i].stored, singles=True)
        for joined in _same_observations(store, [members[0] for members in classes], budget):
            first = set(joined)
            equal = sorted(i for members in classes if members[0] in first for i in members)
            if len(equal) > 1:
                groups.append(equal)
    groups.sort()
    uids = store.table.uid
    return {
        "looked_at": len(digests),
        "copies": sum(len(group) - 1 for group in groups),
        "groups": groups[:SHOWN],
        "group_count": len(groups),
        "same_uid": len(uids) - len(np.unique(uids)),
        "not_compared": budget.refused,
    }


class _Budget:
    """How much may still be decoded."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.refused = 0

    def take(self, size: int) -> bool:
        if size > self.left:
            self.refused += 1
            return False
        self.left -= size
        return True


def _grouped(items: Iterable[int], key: Callable[[int], Hashable], singles: bool = False) -> list[list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return [group for group in found.values() if singles or len(group) > 1]


def _same_observations(store: Store, episodes: list[int], budget: _Budget) -> list[list[int]]:
    """Group the episodes by decoded observations. Most part with the first one, so that comes first."""
    if len(episodes) == 1:
        return [episodes]
    groups: list[list[int]] = []
    row = sum(column.row_bytes for column in store.schema.obs_columns)
    for near in _grouped(episodes, lambda i: _observed(store, i, 1, row, budget), singles=True):
        if len(near) == 1:
            groups.append(near)
        else:
            steps = int(store.table.length[near[0]])
            groups += _grouped(near, lambda i, n=steps: _observed(store, i, n, row, budget), singles=True)  # type: ignore[misc]
    return groups


def _observed(store: Store, i: int, steps: int, row: int, budget: _Budget) -> Hashable:
    """Return a digest of the observations of the first ``steps`` steps; of its own if an episode cannot be read."""
    if not budget.take(steps * row):
        return i
    digests = {column.name: hashlib.blake2b(digest_size=16) for column in store.schema.obs_columns}
    length, block = int(store.table.length[i]), 64
    try:
        for start in range(0, steps, block):
            stop = min(start + block, steps)
            rows = store.read(i, start, stop, list(digests), next_obs=stop == length)
            for name, digest in digests.items():
                digest.update(rows[name].tobytes())
    except BadBlock:  # the pass before named it, if it was damaged then
        return i
    return tuple(digest.digest() for digest in digests.values())
