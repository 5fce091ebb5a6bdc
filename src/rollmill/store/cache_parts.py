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

import google_crc32c
import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import StoreError, StoreFull
from rollmill.core.fields import Array
from rollmill.store.reader import Store
from rollmill.store.schema import Column

FORMAT = 1
PART = "part-"
PART_FILE, EPISODES_FILE = "part.json", "episodes.bin"
CHUNK_STEPS = 256
"""Steps decoded at a time while building."""

IDENTITY = np.dtype([("shard", "<u8"), ("uid", "<u8"), ("length", "<i8"), ("end", "<i8"), ("time", "<f8")])
"""What tells episodes apart; ``shard`` is a hash of its name, ``end`` the place of the end record."""

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all) now and then."""


class PartDamaged(Exception):
    """A part cannot be used; it is built again."""


@dataclass(frozen=True)
class Part:
    """A finished part: its episodes and the memory-mapped columns."""

    path: Path
    shards: tuple[str, ...]
    episodes: Array  # IDENTITY
    columns: dict[str, Array]  # [rows, ...]
    crcs: dict[str, int]  # by file name
    bytes: int


def cache_key(store: Store, columns: Sequence[str]) -> str:
    """Folder of a cache: the same for everybody who decodes these columns of this store."""
    text = json.dumps([FORMAT, str(store.path.resolve()), store.schema.layout, sorted(columns)])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def identities_of(store: Store) -> Array:
    """``[episodes]`` IDENTITY."""
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
        data = json.loads((path / PART_FILE).read_text(encoding="utf-8"))
        files: dict[str, str] = data["columns"]
        episodes = np.fromfile(path / EPISODES_FILE, IDENTITY)
        if google_crc32c.value(episodes.tobytes()) != data["crcs"][EPISODES_FILE]:
            raise PartDamaged(f"{path / EPISODES_FILE} is damaged")
        maps = {name: _map(path / files[name], column, episodes["length"]) for name, column in columns.items()}
        return Part(path, tuple(data["shards"]), episodes, maps, data["crcs"], data["bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PartDamaged(f"the cache's part {path} cannot be used ({type(error).__name__}: {error})") from error


def _map(path: Path, column: Column, lengths: Array) -> Array:
    shape = (int(_rows(column, lengths).sum()), *column.shape)
    size = shape[0] * column.row_bytes
    if path.stat().st_size != size:
        raise PartDamaged(f"{path} has {path.stat().st_size} bytes, {size} are expected")
    if size == 0:
        return np.zeros(shape, column.numpy)
    # A plain array over the map: slicing np.memmap objects costs several times as much.
    return np.asarray(np.memmap(path, column.numpy, "r", shape=shape)).view(np.ndarray)


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
        crcs = _write_columns(temporary, store, columns, files, numbers, progress)
        crcs[EPISODES_FILE] = google_crc32c.value(identities.tobytes())
        atomic.write_bytes(temporary / EPISODES_FILE, [identities.tobytes()])
        total = int(episode_bytes(columns, store.table.length[numbers]).sum())
        shards = [store.shards[k].name for k in np.unique(store.table.shard[numbers])]
        content = {"format": FORMAT, "columns": files, "crcs": crcs, "bytes": total, "shards": shards}
        atomic.write_json(temporary / PART_FILE, content)
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
) -> dict[str, int]:
    """Write the columns' files, synced; returns their checksums by file name."""
    crcs = dict.fromkeys(files.values(), 0)
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
                    data = array.tobytes()
                    crcs[files[name]] = google_crc32c.extend(crcs[files[name]], data)
                    _write_all(targets[name], data)
                    done += array.nbytes
                if progress is not None:
                    progress(done, total)
        for target in targets.values():
            os.fsync(target.fileno())
    return crcs


def _write_all(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]


def file_crc(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while data := file.read(4 << 20):
            crc = google_crc32c.extend(crc, data)
    return crc
