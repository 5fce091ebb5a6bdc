"""Reading a store: the table of its episodes, and any rows of any of them.

Opening reads the index files only. Reading rows touches just the blocks they lie in and decodes just the columns
asked for, straight into the arrays that are returned. A store may be read while it is written: sealed shards and
the good part of open ones. Readers never write.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rollmill.core.errors import BadBlock, StoreError
from rollmill.core.fields import Array
from rollmill.store.catalog import Catalog
from rollmill.store.derive.thinning import share_left
from rollmill.store.episode import Episode, EpisodeEnd
from rollmill.store.files import BlockCache, HandlePool
from rollmill.store.format import framing as frames
from rollmill.store.format.blocks import block_rows, decode_column
from rollmill.store.format.codec import CodecError
from rollmill.store.format.index import ShardIndex
from rollmill.store.format.read_column import read_block_column, read_column
from rollmill.store.format.records import Block, RecordError, parse, parse_block
from rollmill.store.format.schema import DERIVED, Column, load_schema, store_at
from rollmill.store.format.shards import Problem, ShardRef
from rollmill.store.table import EpisodeTable
from rollmill.store.views import Episodes, Transitions, Windows

COLUMN_READ_BYTES = 16 << 10
"""Blocks below this are read whole: that costs no more than reading two parts of them."""
WARNED = 20
"""Problems of an opened store that are warned of one by one."""


class StoreWarning(UserWarning):
    """A store has damage that opening it came across; what is listed is still good."""


class Store:
    """Reads a directory of episodes.

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
        self.path = store_at(path)
        self.schema = load_schema(self.path)
        self.verify = verify
        self.unfinished = unfinished
        self._limits = (max_files, cache_bytes)
        self._handles = HandlePool(max_files)
        self._cache = BlockCache(cache_bytes)
        self._positions = {name: k for k, name in enumerate(self.schema.names)}
        self._catalog = Catalog(self.path, self.schema.layout)
        self._listed: dict[int, int] = {}  # episodes of each shard that the table has
        self.table = EpisodeTable.gather([], [])
        self.refresh()

    @property
    def shards(self) -> list[ShardRef]:
        """Return the shards that can be read; ``table["shard"]`` are numbers in this list."""
        return self._catalog.shards

    @property
    def _indexes(self) -> list[ShardIndex]:
        return self._catalog.indexes

    @property
    def problems(self) -> list[Problem]:
        """Return what opening came across, lost episodes one by one."""
        return self._catalog.problems

    # ---------------------------------------------------------------------------------------- the table

    def refresh(self) -> int:
        """Take in what was written since; returns how many episodes are new.

        Known episodes keep their numbers, new ones follow (with ``unfinished=True`` all numbers may change).
        """
        before = len(self.table)
        if self.unfinished:
            self._cache.clear()  # numbers of blocks change with those of episodes
            self._listed = {}
            self.table = EpisodeTable.gather([], [])
        _warn(self.path, self._catalog.update())
        picks = []
        for number, index in enumerate(self._indexes):
            rows = index.episodes if self.unfinished else index.episodes[index.episodes["finished"]]
            known = self._listed.get(number, 0)
            if len(rows) > known:
                picks.append((number, rows[known:]))
                self._listed[number] = len(rows)
        self.table = self.table.joined(EpisodeTable.gather(self._indexes, picks), share_left(self.path))
        self._remember_rows()
        return len(self.table) - before

    def _remember_rows(self) -> None:
        """Keep what ``read`` needs of each episode as plain columns."""
        rows = self.table.rows
        self._length = np.ascontiguousarray(rows["length"])
        self._block = np.ascontiguousarray(rows["block"])
        self._blocks = np.ascontiguousarray(rows["blocks"])
        self._start = np.ascontiguousarray(rows["block_start"])
        self._uid = np.ascontiguousarray(rows["uid"])
        self._finished = np.ascontiguousarray(rows["finished"])
        self._shard = np.ascontiguousarray(self.table.shard)

    def __len__(self) -> int:
        return len(self.table)

    def end_record(self, i: int) -> EpisodeEnd:
        """Return length, return, flags, seeds, versions and statistics of episode ``i``."""
        return self.table.end(self._number(i))

    def stats(self, i: int) -> dict[str, Any]:
        """Return the environment's own statistics of episode ``i``."""
        return dict(self.end_record(i).stats)

    def _number(self, i: int) -> int:
        if not -len(self) <= i < len(self):
            raise StoreError(f"{self.path} has {len(self)} episodes; there is no number {i}")
        return i % len(self)

    # ---------------------------------------------------------------------------------------- views

    @property
    def episodes(self) -> Episodes:
        """Return all episodes as a sequence: ``store.episodes[3].rewards``."""
        return Episodes(self)

    def windows(self, length: int, **options: Any) -> Windows:
        """Return windows of ``length`` steps; the options are those of ``Windows``."""
        return Windows(self, length, **options)

    def transitions(self, **options: Any) -> Transitions:
        """Return single steps with what they led to; the options are those of ``Transitions``."""
        return Transitions(self, **options)

    # ---------------------------------------------------------------------------------------- reading

    def episode(self, i: int, columns: Sequence[str] | None = None) -> Episode:
        """Return a whole episode: ``[n, ...]`` per column, ``[n + 1, ...]`` for observations."""
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
        """Read steps ``start`` .. ``stop`` of episode ``i``: ``[stop - start, ...]`` per column.

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
        """Read all rewards ``[n]`` of episode ``i``, without the rest of their blocks where these are large.

        Every column of a block has a checksum of its own. Blocks of version 0.1 have none: they are read whole, as is
        a block with a damaged place, which raises ``BadBlock`` then.
        """
        i = self._number(i)
        found = self._read_rewards(i)
        return self.read(i, 0, int(self._length[i]), ["reward"])["reward"] if found is None else found

    def _read_rewards(self, i: int) -> Array | None:
        """Read and check the rewards alone; returns None if whole blocks have to be read for them."""
        number, size, first = int(self.table.shard[i]), int(self._block[i]), int(self._start[i])
        places = self._indexes[number].places[first : first + int(self._blocks[i])].tolist()
        if any(length < COLUMN_READ_BYTES for _, length, _ in places[:-1] or places):
            return None
        handle, column = self._handles.get(self.shards[number]), self.schema["reward"]
        rewards = np.empty((int(self._length[i]), *column.shape), column.numpy)
        try:
            for k, (offset, length, _) in enumerate(places):
                block, begin = read_block_column(handle.fd, offset, length)
                part = rewards[k * size : (k + 1) * size]
                if self._misplaced(i, k, block) or block.steps != len(part):
                    return None
                read_column(handle.fd, block, begin, self._positions["reward"], column, part, verify=self.verify)
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
        return self._block_in(self._read_payload(i, k, self.verify), i, k)

    def _read_payload(self, i: int, k: int, verify: bool) -> bytes:
        number = self._shard.item(i)
        offset, length, _ = self._indexes[number].places[self._start.item(i) + k].item()
        if length == 0:
            raise self._bad(i, k, f"the block of steps {k * int(self._block[i])}.. is lost")
        handle = self._handles.get(self.shards[number])
        try:
            return frames.read_payload(handle.fd, offset, length, verify=verify)
        except frames.FrameError as error:
            raise self._bad(i, k, str(error)) from error

    def _block_in(self, payload: bytes, i: int, k: int) -> Block:
        try:
            block = parse_block(payload)
        except RecordError as error:
            raise self._bad(i, k, str(error)) from error
        if self._misplaced(i, k, block):
            raise self._bad(i, k, "the block is that of another place")
        return block

    def _misplaced(self, i: int, k: int, block: Block) -> bool:
        """Return whether this cannot be block ``k`` of episode ``i``, however good its checksum is."""
        first = k * self._block.item(i)
        steps = min(self._block.item(i), self._length.item(i) - first)
        # An episode without an end record gives up its last step where no final observation was written.
        short = not self._finished.item(i) and not block.last and block.steps == steps + 1
        expected = (self._uid.item(i), first, block.steps if short else steps, len(self._positions))
        return (block.uid, block.first, block.steps, len(block.sizes)) != expected

    def _bad(self, i: int, k: int, reason: str) -> BadBlock:
        number = int(self.table.shard[i])
        offset, length, record = self._indexes[number].places[self._start[i] + k].item()
        return BadBlock(
            reason,
            shard=str(self.shards[number].path),
            record=record if length else -1,
            offset=offset,
            episode=int(self.table.rows["uid"][i]),
        )

    def records(self, i: int) -> Iterator[tuple[bytes, Block | EpisodeEnd]]:
        """Yield the records of an episode, its end record last: the payloads as they are on disk, and what they say.

        Checksums are always verified, and that every record is this episode's; raises BadBlock otherwise.
        """
        i = self._number(i)
        finished, last = self._finished.item(i), self._blocks.item(i) - 1
        for k in range(last + 1):
            payload = self._read_payload(i, k, verify=True)
            block = self._block_in(payload, i, k)
            if finished and block.last != (k == last):
                raise self._bad(i, k, "the final observation is missing or not in the last block")
            yield payload, block
        if finished:
            yield self._read_end(i)

    def _read_end(self, i: int) -> tuple[bytes, EpisodeEnd]:
        number, row = int(self.table.shard[i]), self.table.rows[i]
        place = (int(row["end_offset"]), int(row["end_length"]))
        try:
            payload = frames.read_payload(self._handles.get(self.shards[number]).fd, *place)
            end = parse(payload)
            known = (row["uid"], row["length"], row["time"])
            if not isinstance(end, EpisodeEnd) or (end.uid, end.length, end.time) != known:
                raise RecordError("it is that of another episode")
        except (frames.FrameError, RecordError) as error:
            raise BadBlock(
                f"the end record: {error}",
                shard=str(self.shards[number].path),
                record=int(row["end_record"]),
                offset=place[0],
                episode=int(row["uid"]),
            ) from error
        return payload, end

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
        """Pickle without open files and caches: a copy lists the very same episodes."""
        return {name: value for name, value in vars(self).items() if name not in ("_handles", "_cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        max_files, cache_bytes = self._limits
        self._handles, self._cache = HandlePool(max_files), BlockCache(cache_bytes)


def _warn(path: Path, problems: Sequence[Problem]) -> None:
    for problem in problems[:WARNED]:
        warnings.warn(f"{path}: {problem}", StoreWarning, stacklevel=4)
    if len(problems) > WARNED:
        more = f"{len(problems) - WARNED} more problems, see Store.problems (`rollmill data verify` lists them)"
        warnings.warn(f"{path}: {more}", StoreWarning, stacklevel=4)


def store_bytes(path: Path) -> int:
    """Return how many bytes the files of a store take up, indexes included."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # sealed meanwhile, or a link to nowhere
                total += os.stat(os.path.join(folder, name)).st_size
    return total
