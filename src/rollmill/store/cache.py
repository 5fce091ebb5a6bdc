"""A decoded copy of some columns of a store, for training that reads the data many times.

    source = DecodedCache(store, "/scratch/cache", limit_bytes=50 << 30)     builds what is missing, then reads from it
    windows = Windows(source, 32)                                            a cache stands wherever a store does

Layout
------
::

    <folder>/<key>/lock                     held while a part is built
    <folder>/<key>/part-<random>/part.json     what is inside; written last
                                 episodes.bin  which episodes (``IDENTITY`` records)
                                 0.bin, 1.bin  a column each: the rows of one episode after the other, as in memory
                                 0.crc, 1.crc  checksums of their rows, one for every 256 KB
    <folder>/<key>/.<random>.tmp/              a part being built

``<key>`` names the store's place, its layout and the columns. A part never changes. It is built under another name,
synced and renamed, so a killed build leaves nothing that could be taken for a part; the next one removes the remains.
When the store has grown, another part with the new episodes is added. One process builds at a time; others wait for it
and find the work done.

Each episode is known by its uid, its shard and where it ends there: data of a store that was replaced are never
mistaken for those of the new one. Rows are compared with their checksum the first time that a process reads them; what
has been good once is then as safe as the process's own memory. ``verify`` reads everything again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.cache_parts import (
    PART,
    Part,
    PartDamaged,
    Progress,
    cache_key,
    episode_bytes,
    identities_of,
    load_part,
    load_parts,
    locked,
    part_paths,
    write_part,
)
from rollmill.store.episode import Episode
from rollmill.store.format.schema import DERIVED, StoreSchema
from rollmill.store.format.shards import list_shards
from rollmill.store.reader import Store, StoreWarning
from rollmill.store.table import EpisodeTable
from rollmill.store.views import episode_numbers


class DecodedCache:
    """A store whose columns ``columns`` (default: all) are read from decoded, memory-mapped files.

    ``episodes``: which ones to keep decoded (default: all). They are taken in this order until ``limit_bytes`` are
    used (by all parts of this store and these columns); the others, and other columns, are read from the store, and a
    ``StoreWarning`` says so. ``covered`` tells how much of the selection is decoded. ``progress(done, total)`` is
    called with bytes while building.

    ``read`` gives read-only views of the files where no ``out`` is given. Episodes without an end record are never
    cached.
    """

    def __init__(
        self,
        store: Store,
        folder: Path | str,
        *,
        columns: Sequence[str] | None = None,
        episodes: ArrayLike | None = None,
        limit_bytes: int = 32 << 30,
        progress: Progress | None = None,
    ) -> None:
        self.store = store
        names = store.schema.names if columns is None else [name for name in columns if name not in DERIVED]
        self._columns = {name: store.schema[name] for name in sorted(set(names))}
        self._limit = limit_bytes
        self._everything = episodes is None
        self.episodes = episode_numbers(store, episodes)
        self.path = Path(folder).absolute() / cache_key(store, list(self._columns))
        self._build(progress)

    @property
    def schema(self) -> StoreSchema:
        return self.store.schema

    @property
    def table(self) -> EpisodeTable:
        return self.store.table

    @property
    def covered(self) -> float:
        """Share of the selected episodes' steps that are decoded."""
        lengths = self.table.length[self.episodes]
        return float(lengths[self._part[self.episodes] >= 0].sum() / max(lengths.sum(), 1))

    @property
    def bytes(self) -> int:
        """Bytes that the parts take up on disk."""
        return sum(part.bytes for part in self._parts)

    def refresh(self, progress: Progress | None = None) -> int:
        """Take in what was added to the store, decode it too; returns the number of new episodes.

        A cache made for chosen ``episodes`` keeps to these.
        """
        new = self.store.refresh()
        if self._everything:
            self.episodes = np.arange(len(self.store))
        self._build(progress)
        return new

    def verify(self) -> None:
        """Read all of the cache again and compare checksums; ``StoreError`` names a file that has changed."""
        for part in self._parts:
            for column in part.columns.values():
                column.verify()

    # ---------------------------------------------------------------------------------------- reading

    def read(
        self,
        i: int,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        *,
        out: Mapping[str, Array] | None = None,
        next_obs: bool = False,
    ) -> dict[str, Array]:
        """Read steps as ``Store.read`` does; without ``out`` the arrays of cached columns are read-only views."""
        names = self.schema.names if columns is None else columns
        if not 0 <= i < len(self._part) or self._part[i] < 0:
            return self.store.read(i, start, stop, names, out=out, next_obs=next_obs)
        if not 0 <= start <= stop <= self._length[i]:
            raise StoreError(f"steps {start}..{stop} of episode {i}, which has {self._length[i]} steps")
        part = self._parts[self._part[i]]
        result: dict[str, Array] = {}
        others: list[str] = []
        for name in names:
            column = self._columns.get(name)
            if column is None:
                others.append(name)
                continue
            per_obs = column.per == "obs"
            # An episode of n steps has n + 1 observations, so those of the k-th episode begin k rows later.
            first = int(self._first[i]) + (int(self._rank[i]) if per_obs else 0)
            rows = part.columns[name].rows(first + start, first + stop + (next_obs and per_obs))
            if out is not None and name in out:
                target = out[name]
                if target.shape != rows.shape or target.dtype != rows.dtype:
                    given, needed = f"{target.dtype} {target.shape}", f"{rows.dtype} {rows.shape}"
                    raise StoreError(f"out[{name!r}] is {given}; needed is {needed}")
                target[...] = rows
                rows = target
            result[name] = rows
        if others:
            result |= self.store.read(i, start, stop, others, out=out, next_obs=next_obs)
        return result

    def rewards(self, i: int) -> Array:
        """Read all rewards of an episode as ``Store.rewards`` does."""
        i %= len(self.store)
        if i >= len(self._part) or self._part[i] < 0 or "reward" not in self._columns:
            return self.store.rewards(i)
        return self.read(i, 0, int(self._length[i]), ["reward"])["reward"]

    def episode(self, i: int, columns: Sequence[str] | None = None) -> Episode:
        """Return a whole episode as ``Store.episode`` does; cached columns are read-only views."""
        end = self.store.end_record(i)
        wanted = self.schema.names if columns is None else [name for name in columns if name not in DERIVED]
        arrays = self.read(i % len(self.store), 0, end.length, wanted, next_obs=True)
        return Episode(arrays, end.info, end.terminated, end.truncated, end.stats, steps_stored=end.length)

    def close(self) -> None:
        """Give up the store's files; the memory maps go with the last array that refers to them."""
        self.store.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the memory maps, which a copy opens by itself."""
        return {**vars(self), "_parts": [part.path for part in self._parts]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        try:
            self._parts = [load_part(path, self._columns) for path in state["_parts"]]
        except PartDamaged as error:
            raise StoreError(f"the cache at {self.path} was changed while it was in use: {error}") from error

    # ---------------------------------------------------------------------------------------- building

    def _build(self, progress: Progress | None) -> None:
        """Find the parts that are there; if wanted episodes are missing, add one with them."""
        identities = identities_of(self.store)
        if not self._find_all(identities):
            with locked(self.path):
                self._clean()
                self._use(load_parts(self.path, self._columns), identities)
                missing = self._fitting(self._missing())
                if len(missing):
                    path = self.path / f"{PART}{secrets.token_hex(8)}"
                    write_part(path, self.store, self._columns, missing, identities[missing], progress)
                    self._use([*self._parts, load_part(path, self._columns)], identities)
        if len(self._missing()):
            warnings.warn(
                f"{self.path}: {self.covered:.0%} of the selected steps fit in limit_bytes={self._limit}, "
                "the others are decoded whenever they are read",
                StoreWarning,
                stacklevel=4,
            )

    def _find_all(self, identities: Array) -> bool:
        """Use the parts that are there; returns True if nothing can be added (needs no lock: parts never change)."""
        try:
            self._use(load_parts(self.path, self._columns), identities)
        except PartDamaged:
            return False  # looked at again, and removed, under the lock
        return not len(self._fitting(self._missing()))

    def _use(self, parts: list[Part], identities: Array) -> None:
        """Find every episode of the store in ``parts``."""
        self._parts = parts
        self._length = np.ascontiguousarray(self.store.table.length)
        self._part = np.full(len(identities), -1, np.int32)
        self._first = np.zeros(len(identities), np.int64)  # steps before the episode in its part
        self._rank = np.zeros(len(identities), np.int64)  # episodes before it there
        numbers = {identity: i for i, identity in enumerate(map(bytes, identities))} if parts else {}
        for number, part in enumerate(parts):
            first = np.cumsum(part.episodes["length"]) - part.episodes["length"]
            known = [(numbers.get(bytes(row), -1), rank) for rank, row in enumerate(part.episodes)]
            pairs = np.array([pair for pair in known if pair[0] >= 0], np.int64).reshape(-1, 2)
            self._part[pairs[:, 0]] = number
            self._first[pairs[:, 0]] = first[pairs[:, 1]]
            self._rank[pairs[:, 0]] = pairs[:, 1]

    def _missing(self) -> Array:
        """Return the selected episodes that could be decoded and are not, each once."""
        wanted = self.episodes[(self._part[self.episodes] < 0) & self.table["finished"][self.episodes]]
        _, order = np.unique(wanted, return_index=True)
        return np.asarray(wanted[np.sort(order)])

    def _fitting(self, wanted: Array) -> Array:
        """Return the first of ``wanted``, as many as fit into what is left of the limit."""
        fits = np.cumsum(episode_bytes(self._columns, self.table.length[wanted])) <= self._limit - self.bytes
        return np.asarray(wanted[fits])

    def _clean(self) -> None:
        """Remove what no process will ever read again; the lock is held."""
        for left in self.path.glob(".*.tmp"):
            shutil.rmtree(left)
        shards = {ref.name for ref in list_shards(self.store.path)}
        for path in part_paths(self.path):
            try:
                gone = not shards.intersection(load_part(path, self._columns).shards)
            except PartDamaged as error:
                warnings.warn(f"{error}; it is built again", StoreWarning, stacklevel=4)
                gone = True
            if gone:
                # Renamed first: half of a part must not look like one if this is killed.
                doomed = path.with_name(f".{secrets.token_hex(8)}.tmp")
                os.rename(path, doomed)
                shutil.rmtree(doomed)
