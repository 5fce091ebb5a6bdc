"""The files of a decoded cache (``store.cache``): parts that never change, built aside and renamed when complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import StoreError, StoreFull
from rollmill.core.fields import Array
from rollmill.core.opening import plain_file, read_json
from rollmill.store.format.schema import Column
from rollmill.store.reader import Store

FORMAT = 2
PART = "part-"
PART_FILE, EPISODES_FILE = "part.json", "episodes.bin"
SUMS = ".crc"
"""Ending of the file with the checksums of another one."""
CHUNK_STEPS = 256
"""Steps decoded at a time while building."""
CHECKED_BYTES = 256 << 10
"""About what one checksum covers: little enough to be read in vain, and enough for few checksums."""

IDENTITY = np.dtype([("shard", "<u8"), ("uid", "<u8"), ("length", "<i8"), ("end", "<i8"), ("time", "<f8")])
"""What tells episodes apart; ``shard`` is a hash of its name, ``end`` the place of the end record."""

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all) now and then."""


class PartDamaged(Exception):
    """A part cannot be used; it is built again."""


class CachedColumn:
    """The rows of a column in a memory-mapped file. Whatever is read is compared with its checksum first, once.

    ``sums``: the checksum of every ``chunk_rows`` rows.
    """

    def __init__(self, path: Path, rows: Array, sums: Array, chunk_rows: int) -> None:
        self._path = path
        self._rows = rows
        self._sums = sums
        self._chunk = chunk_rows
        self._good = bytearray(len(sums))

    def rows(self, start: int, stop: int) -> Array:
        """Return rows ``start`` .. ``stop``, a read-only view; raises an error if they are not what was written."""
        first, last = start // self._chunk, -(-stop // self._chunk)
        if self._good.find(0, first, last) >= 0:
            self._check(first, last)
        return self._rows[start:stop]

    def verify(self) -> None:
        """Read all of it again."""
        self._good = bytearray(len(self._sums))
        self._check(0, len(self._sums))

    def _check(self, first: int, last: int) -> None:
        for k in range(first, last):
            part = self._rows[k * self._chunk : (k + 1) * self._chunk]
            if not self._good[k] and google_crc32c.value(part) != self._sums[k]:
                raise StoreError(
                    f"{self._path} has changed since it was written: remove {self._path.parent}, it is built again"
                )
            self._good[k] = 1


@dataclass(frozen=True)
class Part:
    """A finished part: its episodes and the memory-mapped columns."""

    path: Path
    shards: tuple[str, ...]
    episodes: Array  # IDENTITY
    columns: dict[str, CachedColumn]
    bytes: int


def cache_key(store: Store, columns: Sequence[str]) -> str:
    """Return the name of a cache's folder: the same for everybody who decodes these columns of this store."""
    # The 1 is the first format: parts of older ones are found under the same name, and are built again.
    text = json.dumps([1, str(store.path.resolve()), store.schema.layout, sorted(columns)])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def identities_of(store: Store) -> Array:
    """Return ``[episodes]`` IDENTITY."""
    rows, found = store.table.rows, np.zeros(len(store), IDENTITY)
    hashes = [int.from_bytes(hashlib.sha256(ref.name.encode()).digest()[:8], "little") for ref in store.shards]
    if len(rows):
        found["shard"] = np.array(hashes, np.uint64)[store.table.shard]
    for name, column in (("uid", "uid"), ("length", "length"), ("end", "end_offset"), ("time", "time")):
        found[name] = rows[column]
    return found


def _rows(column: Column, lengths: Array) -> Array:
    return lengths + (column.per == "obs")


def episode_bytes(columns: Mapping[str, Column], lengths: Array) -> Array:
    total: Array = np.zeros(len(lengths), np.int64) + IDENTITY.itemsize
    for column in columns.values():
        total += column.row_bytes * _rows(column, lengths)
    return total


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process builds in this cache, and keep others out."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreError(f"the cache at {path} cannot be written: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            raise StoreError(f"{path}: this file system has no locks; choose a folder on a local disk") from error
        yield
    finally:
        os.close(fd)


def part_paths(path: Path) -> list[Path]:
    return sorted(path.glob(f"{PART}*"))


def load_parts(path: Path, columns: Mapping[str, Column]) -> list[Part]:
    return [load_part(part, columns) for part in part_paths(path)]


def load_part(path: Path, columns: Mapping[str, Column]) -> Part:
    try:
        data = read_json(path / PART_FILE)
        if data["format"] != FORMAT:
            raise PartDamaged(f"the cache's part {path} was written by another version")
        if data.pop("check") != _check_of(data):
            raise PartDamaged(f"{path / PART_FILE} is damaged")
        episodes = _read_array(path / EPISODES_FILE, IDENTITY, data["crcs"])
        maps = {}
        for name, column in columns.items():
            file = path / data["columns"][name]
            sums = _read_array(file.with_suffix(SUMS), np.dtype("<u4"), data["crcs"])
            maps[name] = CachedColumn(file, _map(file, column, episodes["length"]), sums, chunk_rows(column))
            if len(sums) != -(-int(_rows(column, episodes["length"]).sum()) // chunk_rows(column)):
                raise PartDamaged(f"{file.with_suffix(SUMS)} has {len(sums)} checksums")
        return Part(path, tuple(data["shards"]), episodes, maps, data["bytes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PartDamaged(f"the cache's part {path} cannot be used ({type(error).__name__}: {error})") from error


def chunk_rows(column: Column) -> int:
    """Return the rows that one checksum covers."""
    return max(1, CHECKED_BYTES // max(1, column.row_bytes))


def _check_of(content: Mapping[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(content, sort_keys=True).encode()))


def _read_array(path: Path, dtype: np.dtype[Any], crcs: Mapping[str, int]) -> Array:
    """Read a small file whole and compare it with its checksum."""
    with open(path, "rb", opener=plain_file) as file:
        data = file.read()
    if google_crc32c.value(data) != crcs[path.name]:
        raise PartDamaged(f"{path} is damaged")
    return np.frombuffer(data, dtype)


def _map(path: Path, column: Column, lengths: Array) -> Array:
    shape = (int(_rows(column, lengths).sum()), *column.shape)
    size = shape[0] * column.row_bytes
    with open(path, "rb", opener=plain_file) as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise PartDamaged(f"{path} has {found} bytes, {size} are expected")
        if size == 0:
            return np.zeros(shape, column.numpy)
        # A plain array over the map: slicing np.memmap objects costs several times as much.
        return np.asarray(np.memmap(file, column.numpy, "r", shape=shape)).view(np.ndarray)


def write_part(
    path: Path,
    store: Store,
    columns: Mapping[str, Column],
    numbers: Array,
    identities: Array,
    progress: Progress | None,
) -> None:
    """Decode episodes ``numbers`` into a new part; it appears under its name when it is complete and on disk."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.mkdir()
        files = {name: f"{k}.bin" for k, name in enumerate(columns)}
        small = {EPISODES_FILE: identities.tobytes()}
        for name, sums in _write_columns(temporary, store, columns, files, numbers, progress).items():
            small[str(Path(files[name]).with_suffix(SUMS))] = sums.tobytes()
        for file, data in small.items():
            atomic.write_bytes(temporary / file, [data])
        crcs = {file: google_crc32c.value(data) for file, data in small.items()}
        total = int(episode_bytes(columns, store.table.length[numbers]).sum())
        shards = [store.shards[k].name for k in np.unique(store.table.shard[numbers])]
        content = {"format": FORMAT, "columns": files, "crcs": crcs, "bytes": total, "shards": shards}
        atomic.write_json(temporary / PART_FILE, {**content, "check": _check_of(content)})
        os.rename(temporary, path)
        atomic.sync_folder(path.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"no space left for the cache at {path.parent}: lower limit_bytes or free space") from error
        raise StoreError(f"the cache at {path.parent} cannot be written: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_columns(
    folder: Path,
    store: Store,
    columns: Mapping[str, Column],
    files: Mapping[str, str],
    numbers: Array,
    progress: Progress | None,
) -> dict[str, Array]:
    """Write the columns' files, synced; returns the checksums of each."""
    sums = {name: _Sums(column) for name, column in columns.items()}
    lengths = store.table.length[numbers]
    total, done = int(episode_bytes(columns, lengths).sum()), len(numbers) * IDENTITY.itemsize
    with contextlib.ExitStack() as stack:
        targets = {name: stack.enter_context(open(folder / file, "wb", buffering=0)) for name, file in files.items()}
        for name, target in targets.items():
            size = int(_rows(columns[name], lengths).sum()) * columns[name].row_bytes
            if size:
                os.posix_fallocate(target.fileno(), 0, size)  # a full disk shows now, not after an hour
        for i, n in zip(numbers.tolist(), lengths.tolist()):
            for start in range(0, n, CHUNK_STEPS):
                stop = min(start + CHUNK_STEPS, n)
                chunk = store.read(i, start, stop, list(columns), next_obs=stop == n)
                for name, array in chunk.items():
                    sums[name].take(array)
                    _write_all(targets[name], array.tobytes())
                    done += array.nbytes
                if progress is not None:
                    progress(done, total)
        for target in targets.values():
            os.fsync(target.fileno())
    return {name: found.finish() for name, found in sums.items()}


class _Sums:
    """Checksums of the rows of a column, every ``chunk_rows`` of them."""

    def __init__(self, column: Column) -> None:
        self._chunk = chunk_rows(column)
        self._sums: list[int] = []
        self._crc = self._taken = 0

    def take(self, rows: Array) -> None:
        done = 0
        while done < len(rows):
            part = rows[done : done + self._chunk - self._taken]
            self._crc = google_crc32c.extend(self._crc, part)
            self._taken += len(part)
            done += len(part)
            if self._taken == self._chunk:
                self._close()

    def _close(self) -> None:
        self._sums.append(self._crc)
        self._crc = self._taken = 0

    def finish(self) -> Array:
        if self._taken:
            self._close()
        return np.array(self._sums, "<u4")


def _write_all(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]
