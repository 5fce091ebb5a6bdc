"""The episodes of a store as numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import msgpack
import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.episode import EpisodeEnd
from rollmill.store.format.index import EPISODE, ShardIndex, end_from_row

_DERIVED = ("env_id", "partial_end", "partial_start", "policy", "shard")
_HIDDEN = ("block_start", "end_length", "end_offset", "end_record", "env", "stats_bytes", "stats_start")


class EpisodeTable:
    """One row per episode; ``table["length"]`` and so on are arrays ``[episodes]``.

    ==================  ====================================================================
    uid                 uint64, the episode's stable name
    length              steps
    return              sum of stored rewards (NaN for unfinished episodes)
    terminated, truncated, partial_start, partial_end, finished    bool
    first_step          step within the episode at which recording began
    seed, has_seed      0 and False where unknown
    env_id, policy      text
    policy_id, worker, lane
    version_min, version_max, global_step_first, global_step_last
    time                seconds since 1970
    bytes               what it takes up on disk
    probability         of having been kept, among all that were played; NaN where there is no such number
    block, blocks       steps per block, number of blocks
    shard               number in ``Store.shards``
    ==================  ====================================================================
    """

    def __init__(self, rows: Array, shard: Array, indexes: Sequence[ShardIndex], thinned: float = 1.0) -> None:
        self.rows = rows  # EPISODE records
        self.shard = shard  # [episodes] int32
        self.thinned = thinned
        """Share of what was written that a recorder has left (``store.derive.thinning``)."""
        self._indexes = indexes

    @staticmethod
    def gather(indexes: Sequence[ShardIndex], picks: Sequence[tuple[int, Array]]) -> EpisodeTable:
        """Build the table of ``picks``: (number of the shard, rows of its index)."""
        rows = [pick for _, pick in picks]
        shard = np.repeat(np.array([number for number, _ in picks], np.int32), [len(pick) for pick in rows])
        return EpisodeTable(np.concatenate(rows) if rows else np.zeros(0, EPISODE), shard, indexes)

    def joined(self, more: EpisodeTable, thinned: float = 1.0) -> EpisodeTable:
        rows, shard = np.concatenate([self.rows, more.rows]), np.concatenate([self.shard, more.shard])
        return EpisodeTable(rows, shard, more._indexes, thinned)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*(EPISODE.names or ()), *_DERIVED} - set(_HIDDEN)))

    def __getitem__(self, name: str) -> Array:
        if name not in self.names:
            raise StoreError(f"the episode table has no column {name!r} (it has {', '.join(self.names)})")
        if name == "shard":
            return self.shard
        if name == "partial_start":
            return self._column("first_step") > 0
        if name == "partial_end":
            return ~(self._column("terminated") | self._column("truncated"))
        if name in ("env_id", "policy"):
            return self._texts("env" if name == "env_id" else "policy")
        return self._column(name)

    @cached_property
    def _columns(self) -> dict[str, Array]:
        return {}

    def _column(self, name: str) -> Array:
        # Fields of records are strided; a contiguous copy is worth it, made when first asked for.
        if name not in self._columns:
            column = np.ascontiguousarray(self.rows[name])
            if name == "probability":
                column = np.minimum(column, self.thinned)
            column.flags.writeable = False
            self._columns[name] = column
        return self._columns[name]

    def _texts(self, code: str) -> Array:
        texts = np.array([text for index in self._indexes for text in index.strings], np.str_)
        starts = np.cumsum([0, *(len(index.strings) for index in self._indexes)])
        if not len(self):
            return np.zeros(0, np.str_)
        found: Array = texts[starts[self.shard] + self._column(code)]
        return found

    def end(self, i: int) -> EpisodeEnd:
        """Return everything the end record of episode ``i`` says."""
        end = end_from_row(self.rows[i], self._indexes[int(self.shard[i])])
        return end if end.probability is None else replace(end, probability=min(end.probability, self.thinned))

    def stat(self, name: str) -> Array:
        """Return an extra statistic as float64, NaN where an episode has none of that name (or a text)."""
        values = np.full(len(self), np.nan)
        starts, sizes = self._column("stats_start"), self._column("stats_bytes")
        for i in np.flatnonzero(sizes):
            packed = self._indexes[int(self.shard[i])].stats[starts[i] : starts[i] + sizes[i]]
            value = msgpack.unpackb(packed).get(name)
            if value is not None and not isinstance(value, str):
                values[i] = value
        return values

    @property
    def uid(self) -> Array:
        return self["uid"]

    @property
    def length(self) -> Array:
        return self["length"]

    @property
    def return_(self) -> Array:
        return self["return"]

    @property
    def steps(self) -> int:
        """Steps of all episodes together."""
        return int(self["length"].sum())
