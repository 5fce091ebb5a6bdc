"""Reading a store: the table of its episodes, and any rows of any of them.

Opening reads the index files only. Reading rows touches just the blocks they lie in and decodes just the columns
asked for, straight into the arrays that are returned. A store may be read while it is written: sealed shards and
the good part of open ones. Readers never write.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rollmill.core.errors import BadBlock, StoreError
from rollmill.core.fields import Array
from rollmill.store import frames
from rollmill.store.blocks import block_rows, decode_column
from rollmill.store.codec import CodecError
from rollmill.store.episode import Episode, EpisodeEnd
from rollmill.store.files import BlockCache, HandlePool, open_shard
from rollmill.store.index import IndexDamaged, ShardIndex, build_index, empty_index, read_index
from rollmill.store.records import Block, RecordError, parse_block
from rollmill.store.returns import sums_to
from rollmill.store.schema import DERIVED, Column, load_schema
from rollmill.store.shards import (
    Problem,
    ShardRef,
    ShardScan,
    list_shards,
    missing_shards,
    scan_shard,
)
from rollmill.store.skim import skim_block, skim_column
from rollmill.store.table import EpisodeTable

SKIM_BYTES = 16 << 10
"""Blocks below this are read whole: that costs no more than reading two parts of them."""


class StoreWarning(UserWarning):
    """A store has damage that opening it came across; what is listed is still good."""


class Store:
    """A directory of episodes, opened for reading.

    ``verify``: check the checksum of every block that is read. ``unfinished``: list episodes without an end record
    too (their writer died or is still at it). ``cache_bytes``: decoded blocks kept for reads that touch a block more
    than once. ``max_files``: shards open at a time.

    Usable by several threads; forked and pickled copies open their own files.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        verify: bool = True,
        unfinished: bool = False,
        cache_bytes: int = 64 << 20,
        max_files: int = 128,
    ) -> None:
        self.path = Path(path).absolute()
        self.schema = load_schema(self.path)
        self.verify = verify
        self.unfinished = unfinished
        self._limits = (max_files, cache_bytes)
        self._handles = HandlePool(max_files)
        self._cache = BlockCache(cache_bytes)
        self._positions = {name: k for k, name in enumerate(self.schema.names)}
        self._forget()
        self.refresh()

    def _forget(self) -> None:
        self.shards: list[ShardRef] = []
        self.problems: list[Problem] = []
        self._indexes: list[ShardIndex] = []
        self._scans: dict[str, ShardScan] = {}
        self._listed: list[int] = []  # episodes of each shard that the table has
        self.table = EpisodeTable.gather([], [])

    # ---------------------------------------------------------------------------------------- the table

    def refresh(self) -> int:
        """Take in what was written since; returns how many episodes are new.

        Known episodes keep their numbers, new ones follow (with ``unfinished=True`` all numbers may change).
        """
        before = len(self.table)
        if self.unfinished:
            self._cache.clear()  # numbers of blocks change with those of episodes
            self._listed = [0] * len(self._listed)
            self.table = EpisodeTable.gather([], [])
        found = len(self.problems)
        self._look_at_shards()
        picks = []
        for number, index in enumerate(self._indexes):
            rows = index.episodes if self.unfinished else index.episodes[index.episodes["finished"]]
            if len(rows) > self._listed[number]:
                picks.append((number, rows[self._listed[number] :]))
                self._listed[number] = len(rows)
        self.table = self.table.joined(EpisodeTable.gather(self._indexes, picks))
        for problem in self.problems[found:]:
            warnings.warn(f"{self.path}: {problem}", StoreWarning, stacklevel=3)
        self._remember_rows()
        return len(self.table) - before

    def _look_at_shards(self) -> None:
        refs = list_shards(self.path)
        numbers = {ref.name: number for number, ref in enumerate(self.shards)}
        for ref in refs:
            number = numbers.get(ref.name)
            if number is None:
                self.shards.append(ref)
                self._indexes.append(self._load_index(ref))
                self._listed.append(0)
            elif not self.shards[number].sealed and ref != self.shards[number]:
                self.shards[number] = ref
                self._indexes[number] = self._load_index(ref)
        known = {problem.shard for problem in self.problems}
        for name in missing_shards(self.path, refs):
            if name not in known:
                self.problems.append(Problem(name, -1, -1, "the shard's file is missing, only its index is there"))

    def _load_index(self, ref: ShardRef) -> ShardIndex:
        if not ref.sealed:
            return self._scan_open(ref)
        self._scans.pop(ref.name, None)
        try:
            return self._checked(read_index(ref.index_path, ref.name, ref.bytes))
        except IndexDamaged as damage:
            self.problems.append(Problem(ref.name, -1, -1, f"{damage}; read from the shard itself (slower to open)"))
        scan = scan_shard(ref)
        self.problems += scan.problems
        return self._checked(build_index(scan))

    def _scan_open(self, ref: ShardRef) -> ShardIndex:
        scan = self._scans.setdefault(ref.name, ShardScan(ref.name))
        noted = len(scan.problems)
        handle = open_shard(ref)
        scan.advance(handle.fd, handle.bytes)
        self.problems += scan.problems[noted:]
        return self._checked(build_index(scan))

    def _checked(self, index: ShardIndex) -> ShardIndex:
        """The index, or an empty one if the shard holds other columns than this store."""
        if index.layout in (self.schema.layout, ""):
            return index
        self.problems.append(Problem(index.shard, -1, -1, "it holds other columns than this store and is not read"))
        return empty_index(index.shard)

    def _remember_rows(self) -> None:
        """What ``read`` needs of each episode as plain columns."""
        rows = self.table.rows
        self._length = np.ascontiguousarray(rows["length"])
        self._block = np.ascontiguousarray(rows["block"])
        self._blocks = np.ascontiguousarray(rows["blocks"])
        self._start = np.ascontiguousarray(rows["block_start"])
        self._uid = np.ascontiguousarray(rows["uid"])
        self._shard = np.ascontiguousarray(self.table.shard)

    def __len__(self) -> int:
        return len(self.table)

    def end_record(self, i: int) -> EpisodeEnd:
        """Length, return, flags, seeds, versions, statistics of episode ``i``."""
        return self.table.end(self._number(i))

    def stats(self, i: int) -> dict[str, Any]:
        return dict(self.end_record(i).stats)

    def _number(self, i: int) -> int:
        if not -len(self) <= i < len(self):
            raise StoreError(f"{self.path} has {len(self)} episodes; there is no number {i}")
        return i % len(self)

    # ---------------------------------------------------------------------------------------- reading

    def episode(self, i: int, columns: Sequence[str] | None = None) -> Episode:
        """A whole episode: ``[n, ...]`` per column, ``[n + 1, ...]`` for observations."""
        i = self._number(i)
        end, n = self.table.end(i), int(self._length[i])
        wanted = self.schema.names if columns is None else [name for name in columns if name not in DERIVED]
        arrays = self.read(i, 0, n, wanted, next_obs=True)
        return Episode(arrays, end.info, end.terminated, end.truncated, end.stats, steps_stored=n)

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
        """Steps ``start`` .. ``stop`` of episode ``i``: ``[stop - start, ...]`` per column.

        With ``next_obs``, observation columns have one row more. ``columns`` may name ``step``, ``terminated`` and
        ``truncated`` too. ``out``: C-contiguous arrays of just the right shape and dtype to fill instead of new ones.
        """
        i = self._number(i)
        if not 0 <= start <= stop <= self._length[i]:
            raise StoreError(f"steps {start}..{stop} of episode {i}, which has {self._length[i]} steps")
        result: dict[str, Array] = {}
        stored: list[tuple[Column, int, Array]] = []  # column, its row behind the last one, where to
        for name in self.schema.names if columns is None else columns:
            if name in DERIVED:
                target = self._target(name, (stop - start,), np.dtype("<i8" if name == "step" else "?"), out)
                self._derive(name, i, start, stop, target)
            else:
                column = self.schema[name]
                until = stop + (next_obs and column.per == "obs")
                target = self._target(name, (until - start, *column.shape), column.numpy, out)
                stored.append((column, until, target))
            result[name] = target
        if stored:
            self._fill(i, start, stored)
        return result

    def rewards(self, i: int) -> Array:
        """All rewards ``[n]`` of episode ``i``, read without the rest of their blocks where these are large.

        Instead of the blocks' checksums, the sum is compared with the return that the index has. Where that does not
        match, the blocks are read whole, and a damaged one raises ``BadBlock`` as ever.
        """
        i = self._number(i)
        found = self._skim_rewards(i)
        if found is not None and sums_to(found, float(self.table.rows["return"][i])):
            return found
        return self.read(i, 0, int(self._length[i]), ["reward"])["reward"]

    def _skim_rewards(self, i: int) -> Array | None:
        """The rewards without any check; None if they are better read with the whole blocks."""
        number, size, first = int(self.table.shard[i]), int(self._block[i]), int(self._start[i])
        places = self._indexes[number].places[first : first + int(self._blocks[i])].tolist()
        known = math.isfinite(self.table.rows["return"][i])  # a sum of NaN would prove nothing
        if not known or any(offset == 0 or length < SKIM_BYTES for offset, length, _ in places[:-1] or places):
            return None
        handle, column = self._handles.get(self.shards[number]), self.schema["reward"]
        rewards, uid = np.empty((int(self._length[i]), *column.shape), column.numpy), int(self.table.rows["uid"][i])
        try:
            for k, (offset, length, _) in enumerate(places):
                block, begin = skim_block(handle.fd, offset, length)
                part = rewards[k * size : (k + 1) * size]
                if (block.uid, block.first, block.steps) != (uid, k * size, len(part)):
                    return None
                skim_column(handle.fd, block, begin, self._positions["reward"], column, part)
        except (RecordError, CodecError, OSError):
            return None  # reading all of it says what is wrong and where
        return rewards

    def _target(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], out: Mapping[str, Array] | None
    ) -> Array:
        if out is None or name not in out:
            return np.empty(shape, dtype)
        given = out[name]
        if given.shape != shape or given.dtype != dtype or not given.flags.c_contiguous or not given.flags.writeable:
            raise StoreError(
                f"out[{name!r}] is {given.dtype} {given.shape}; needed is a C-contiguous {dtype} {shape} array"
            )
        return given

    def _derive(self, name: str, i: int, start: int, stop: int, target: Array) -> None:
        row = self.table.rows[i]
        if name == "step":
            target[:] = np.arange(start, stop) + row["first_step"]
            return
        target[:] = False
        if stop == self._length[i] and stop > start:
            target[-1] = row[name]

    def _fill(self, i: int, start: int, stored: list[tuple[Column, int, Array]]) -> None:
        size, last = self._block.item(i), self._blocks.item(i) - 1
        until = max(row for _, row, _ in stored)
        if until == start:
            return
        # The final observation lies in the last block, behind its steps.
        for k in range(min(start // size, last), min((until - 1) // size, last) + 1):
            first = max(start, k * size)
            parts: list[tuple[Column, Array]] = []
            for column, stop, target in stored:
                end = stop if k == last else min(stop, (k + 1) * size)
                if end > first:
                    parts.append((column, target[first - start : end - start]))
            self._take(i, k, first - k * size, parts)

    def _take(self, i: int, k: int, skip: int, parts: list[tuple[Column, Array]]) -> None:
        """Copy rows ``skip`` .. of some columns of block ``k`` into arrays."""
        cached = self._cache.get((i, k)) if self._limits[1] else None
        if cached is not None and all(len(cached.get(c.name, ())) >= skip + len(part) for c, part in parts):
            for column, part in parts:
                part[...] = cached[column.name][skip : skip + len(part)]
            return
        block = self._read_block(i, k)
        # A head is not worth keeping: decoding it stops early.
        if skip == 0 or not self._limits[1] or not self._cache.worth_keeping((i, k)):
            for column, part in parts:
                self._decode(i, k, block, column, part, skip)
            return
        whole = dict(cached or {})
        for column, part in parts:
            rows = block_rows(block, column)
            if rows < skip + len(part):
                raise self._bad(i, k, f"column {column.name} has {rows} rows, {skip + len(part)} are needed")
            whole[column.name] = np.empty((rows, *column.shape), column.numpy)
            self._decode(i, k, block, column, whole[column.name])
            part[...] = whole[column.name][skip : skip + len(part)]
        self._cache.put((i, k), whole)

    def _decode(self, i: int, k: int, block: Block, column: Column, out: Array, skip: int = 0) -> None:
        try:
            decode_column(block, self._positions[column.name], column, out, skip)
        except CodecError as error:
            raise self._bad(i, k, str(error)) from error

    def _read_block(self, i: int, k: int) -> Block:
        number = self._shard.item(i)
        offset, length, _ = self._indexes[number].places[self._start.item(i) + k].item()
        if offset == 0:
            raise self._bad(i, k, f"the block of steps {k * int(self._block[i])}.. is lost")
        handle = self._handles.get(self.shards[number])
        try:
            block = parse_block(frames.read_payload(handle.fd, offset, length, verify=self.verify))
        except (frames.FrameError, RecordError) as error:
            raise self._bad(i, k, str(error)) from error
        except OSError as error:
            raise self._bad(i, k, f"cannot be read: {error.strerror or error}") from error
        expected = (self._uid.item(i), k * self._block.item(i), len(self._positions))
        if (block.uid, block.first, len(block.sizes)) != expected:
            raise self._bad(i, k, "the block is that of another place")
        return block

    def _bad(self, i: int, k: int, reason: str) -> BadBlock:
        number = int(self.table.shard[i])
        offset, _, record = self._indexes[number].places[self._start[i] + k].item()
        return BadBlock(
            reason,
            shard=str(self.shards[number].path),
            record=record if offset else -1,
            offset=offset,
            episode=int(self.table.rows["uid"][i]),
        )

    def records(self, i: int) -> Iterator[bytes]:
        """The payloads of an episode's blocks and, last, of its end record, as they are on disk; always verified."""
        i = self._number(i)
        number, row = int(self.table.shard[i]), self.table.rows[i]
        handle = self._handles.get(self.shards[number])
        places = [self._indexes[number].places[self._start[i] + k].item() for k in range(int(self._blocks[i]))]
        for k, (offset, length, _) in enumerate(places):
            if offset == 0:
                raise self._bad(i, k, f"the block of steps {k * int(self._block[i])}.. is lost")
            try:
                yield frames.read_payload(handle.fd, offset, length)
            except frames.FrameError as error:
                raise self._bad(i, k, str(error)) from error
        if row["finished"]:
            try:
                yield frames.read_payload(handle.fd, int(row["end_offset"]), int(row["end_length"]))
            except frames.FrameError as error:
                raise BadBlock(
                    f"the end record: {error}",
                    shard=str(self.shards[number].path),
                    record=int(row["end_record"]),
                    offset=int(row["end_offset"]),
                    episode=int(row["uid"]),
                ) from error

    # ---------------------------------------------------------------------------------------- life

    def close(self) -> None:
        """Give up open files and cached blocks; reading again opens them again."""
        self._handles.clear()
        self._cache.clear()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but files, caches and half-done scans: a copy lists the very same episodes."""
        return {name: value for name, value in vars(self).items() if name not in ("_handles", "_cache", "_scans")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        max_files, cache_bytes = self._limits
        self._handles, self._cache, self._scans = HandlePool(max_files), BlockCache(cache_bytes), {}


def store_bytes(path: Path) -> int:
    """What the files of a store take up, indexes included."""
    return sum(entry.stat().st_size for folder in os.walk(path) for entry in map(Path(folder[0]).joinpath, folder[2]))
