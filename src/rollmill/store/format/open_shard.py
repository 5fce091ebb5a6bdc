"""The shard a writer is filling: whole records go to the end of one file, or not at all.

Nothing is buffered in the process: a record is in the hands of the operating system when ``append`` returns, so a
killed process loses no acknowledged episode. ``sync`` is about power cuts.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from rollmill.core import atomic
from rollmill.core.errors import StoreError, StoreFull
from rollmill.store.format import framing as frames
from rollmill.store.format.index import IndexBuilder, write_index
from rollmill.store.format.records import Header, Owner, encode_header
from rollmill.store.format.schema import StoreSchema, schema_text
from rollmill.store.format.shards import BlockPlace, index_path, shard_path

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OpenShard:
    """One ``.open.tfrecord`` file and the index that grows with it."""

    def __init__(self, store: Path, name: str, schema: StoreSchema, writer: str, seq: int, owner: Owner) -> None:
        self.name = name
        self.bytes = 0
        self.records = 0
        self.unsynced = 0
        """Episodes acknowledged since the last ``sync``."""
        self.episodes: set[int] = set()
        """Uids of the episodes that are open in it."""
        self.index = IndexBuilder(name, schema.layout)
        self._store = store
        self._unfinished: dict[int, list[BlockPlace]] = {}
        self._path = shard_path(store, name, sealed=False)
        self._dirty = False
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _failure(self._path, "cannot be created", error) from error
        header = Header(schema.hash, schema.layout, schema_text(schema), writer, seq, owner, time.time())
        try:
            self.append(encode_header(header))
            atomic.sync_folder(self._path.parent)
        except BaseException:
            os.close(self._fd)
            self._path.unlink(missing_ok=True)
            raise

    def append(self, payload: Sequence[bytes]) -> BlockPlace:
        """Write one record; on failure the file ends where it did before."""
        pieces = frames.frame(payload)
        size = sum(map(len, pieces))
        try:
            _write_all(self._fd, pieces, size)
        except OSError as error:
            self._cut()
            raise _failure(self._path, "cannot be written", error) from error
        place = BlockPlace(self.bytes, size - frames.FRAME_BYTES, self.records)
        self.bytes += size
        self.records += 1
        self._dirty = True
        return place

    def _cut(self) -> None:
        """Take a half-written record off. Where even that fails, readers cut it by its checksum."""
        try:
            os.ftruncate(self._fd, self.bytes)
            os.lseek(self._fd, self.bytes, os.SEEK_SET)
        except OSError as error:
            if error.errno not in (*_NO_SPACE, errno.EIO):
                raise

    def sync(self) -> int:
        """Bring everything to the disk; returns how many acknowledged episodes that made durable."""
        if self._dirty:
            try:
                os.fsync(self._fd)
            except OSError as error:
                raise _failure(self._path, "cannot be synced", error) from error
        self._dirty = False
        durable, self.unsynced = self.unsynced, 0
        return durable

    def abandon(self, uid: int, blocks: list[BlockPlace]) -> None:
        """Note that an open episode will get no end record."""
        self.episodes.discard(uid)
        if blocks:
            self._unfinished[uid] = blocks

    def seal(self) -> int:
        """Sync, write the index, rename; returns how many episodes became durable. The shard never changes again.

        A full disk costs no more than the index: readers rebuild it from the shard.
        """
        try:
            durable = self.sync()
            for uid, blocks in self._unfinished.items():
                self.index.add_unfinished(uid, blocks)
            try:
                write_index(index_path(self._store, self.name), self.index.build(self.bytes))
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
            os.rename(self._path, shard_path(self._store, self.name, sealed=True))
            atomic.sync_folder(self._path.parent)
        except OSError as error:
            raise _failure(self._path, "cannot be sealed", error) from error
        finally:
            os.close(self._fd)
        return durable

    def remove(self) -> None:
        """Take away a shard that holds nothing but its header."""
        os.close(self._fd)
        self._path.unlink(missing_ok=True)


def _write_all(fd: int, pieces: list[bytes], size: int) -> None:
    """Call ``writev`` until everything is written."""
    written = os.writev(fd, pieces[:_MAX_PIECES])
    if written == size:
        return
    rest = memoryview(b"".join(pieces))[written:]
    while rest:
        rest = rest[os.write(fd, rest) :]


_MAX_PIECES = 1000  # the system takes 1024 at once


def _failure(path: Path, what: str, error: OSError) -> StoreError:
    reason = error.strerror or str(error)
    if error.errno in _NO_SPACE:
        return StoreFull(
            f"{path} {what}: {reason}. Episodes acknowledged so far stay readable; free space and start a new writer"
        )
    return StoreError(f"{path} {what}: {reason}")
