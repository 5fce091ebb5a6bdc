"""Open files and decoded blocks, each kept in a small least-recently-used pool."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from pathlib import Path

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.opening import plain_file
from rollmill.store.format.shards import ShardRef, shard_path


class Handle:
    """A file opened for reading; closed when nobody refers to it any more, so a reading thread never loses it."""

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = plain_file(str(path), os.O_RDONLY)

    @property
    def bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class HandlePool:
    """At most ``limit`` shards open at a time, however many a store has."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, ref: ShardRef) -> Handle:
        with self._lock:
            handle = self._handles.get(ref.name)
            if handle is None:
                handle = self._handles[ref.name] = open_shard(ref)
                if len(self._handles) > self._limit:
                    self._handles.popitem(last=False)
            else:
                self._handles.move_to_end(ref.name)
            return handle

    def clear(self) -> None:
        with self._lock:
            self._handles.clear()


def open_shard(ref: ShardRef) -> Handle:
    """Open a shard under the name it had, or the one it got when it was sealed in the meantime."""
    try:
        try:
            return Handle(ref.path)
        except FileNotFoundError:
            return Handle(shard_path(ref.store, ref.name, True))
    except OSError as error:
        raise StoreError(f"shard {ref.path} cannot be opened: {error.strerror or error}") from error


class BlockCache:
    """Decoded columns of blocks by name, up to ``limit`` bytes in all. The arrays are shared: copy, never write.

    A block is worth keeping when it is wanted again: the first time its name is only noted. Reading at random in a
    store much larger than the cache would otherwise fill it, at a price, with what nobody asks for again.
    """

    NOTED = 4096
    """Names of blocks that are remembered, those of the latest misses."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._blocks: OrderedDict[Hashable, Mapping[str, Array]] = OrderedDict()
        self._noted: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = threading.Lock()

    def worth_keeping(self, key: Hashable) -> bool:
        """Return whether a block that ``get`` did not find was asked for not long ago; notes that it was now."""
        with self._lock:
            if key in self._noted:
                del self._noted[key]
                return True
            self._noted[key] = None
            if len(self._noted) > self.NOTED:
                self._noted.popitem(last=False)
            return False

    def get(self, key: Hashable) -> Mapping[str, Array] | None:
        with self._lock:
            columns = self._blocks.get(key)
            if columns is not None:
                self._blocks.move_to_end(key)
            return columns

    def put(self, key: Hashable, columns: Mapping[str, Array]) -> None:
        """Keep a block's columns instead of those that were kept of it."""
        size = _nbytes(columns)
        if size > self._limit:
            return
        with self._lock:
            self._bytes += size - _nbytes(self._blocks.pop(key, {}))
            self._blocks[key] = columns
            while self._bytes > self._limit:
                self._bytes -= _nbytes(self._blocks.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._noted.clear()
            self._bytes = 0


def _nbytes(columns: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in columns.values())
