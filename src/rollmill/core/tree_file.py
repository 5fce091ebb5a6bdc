"""One file for nested state: dicts, lists, JSON scalars and numpy arrays. Nothing is ever unpickled.

``pack_tree`` and ``unpack_tree`` are the same without a file, for what travels between machines.

Layout (all integers little-endian, version 1)::

    0    magic "rollmill" | version | header bytes | file bytes      4 x 8 bytes
    32   header: the tree as ASCII JSON, arrays replaced by references
         SHA-256 of everything before it, so that the header can be trusted on its own   32 bytes
         arrays in the order of the header, C order, each padded to a 64-byte boundary
    end  SHA-256 of everything before it   32 bytes

In the header ``{"$array": [dtype, shape, offset]}`` stands for an array (offset from the first array) and
``{"$float": "nan"}`` for a float that JSON lacks; keys of the user that start with ``$`` get one more.

Words: *tree*: what is stored. *outline*: a tree with an ``ArrayRef`` in the place of every array.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import CheckpointError
from rollmill.core.fields import Array
from rollmill.core.opening import plain_file

Tree: TypeAlias = Any
"""None, bool, int, float, str, numpy arrays, and dicts (str keys) and lists of these."""

MAGIC = b"rollmill"
VERSION = 1
MAX_DEPTH = 100
MAX_INT_BITS = 4096  # RNG states need 128; far larger ones would not be read back by json

_PREFIX = struct.Struct("<8sQQQ")
_DIGEST_BYTES = 32
_ALIGN = 64
_PIECE_BYTES = 1 << 20
_SMALLEST_FILE = _PREFIX.size + 1 + 2 * _DIGEST_BYTES

# float128 is missing on purpose: its bytes mean different numbers on different machines.
_DTYPES = {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"}


@dataclass(frozen=True)
class ArrayRef:
    """Where an array lies: ``offset`` in bytes from the first array of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def save_tree(path: Path, tree: Tree) -> None:
    """Write ``tree`` to ``path`` atomically. Arrays are streamed, not copied as a whole.

    numpy numbers are stored as the Python number they equal and byte order becomes little-endian;
    everything else comes back as it was. Raises ``CheckpointError`` and leaves an older file untouched.
    """
    plan = _Plan(path, tree)
    try:
        atomic.write_bytes(path, plan.chunks())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def tree_file_bytes(tree: Tree) -> int:
    """Return the size in bytes of the file that ``save_tree`` would write."""
    return _Plan(Path("tree"), tree).file_bytes


def tree_checksum(tree: Tree) -> str:
    """Return the ``stored_checksum`` of the file that ``save_tree`` would write."""
    *_, digest = _Plan(Path("tree"), tree).chunks()
    return bytes(digest).hex()


def load_tree(path: Path) -> Tree:
    """Read a tree and verify its checksum. Arrays are writable and own their memory."""
    with _opened(path) as reader:
        return _read(reader)


def pack_tree(tree: Tree) -> bytes:
    """Return the bytes of the file that ``save_tree`` would write."""
    return b"".join(_Plan(Path("tree"), tree).chunks())


def unpack_tree(data: bytes, source: str) -> Tree:
    """Undo ``pack_tree``; a CheckpointError, which names the ``source``, says where the bytes are damaged."""
    return _read(_Reader(Path(source), io.BytesIO(data), len(data)))


def read_header(path: Path) -> Tree:
    """Read the outline of the tree: everything but the arrays' contents, which are not read or verified."""
    with _opened(path) as reader:
        return reader.decode(lambda ref: ref)


def check_tree(path: Path) -> None:
    """Read the whole file and raise ``CheckpointError`` where ``load_tree`` would; needs no memory."""
    with _opened(path) as reader:
        reader.decode(reader.skip)
        reader.finish()


def stored_checksum(path: Path) -> str:
    """Read the SHA-256 at the end of the file, as hex: it names the contents without reading them."""
    with _opened(path) as reader:
        reader.file.seek(-_DIGEST_BYTES, os.SEEK_END)
        return reader.file.read(_DIGEST_BYTES).hex()


# ---------------------------------------------------------------------------------------------- writing


class _Plan:
    """The header and the list of arrays of one file, before any byte is written."""

    def __init__(self, path: Path, tree: Tree) -> None:
        self._path = path
        self._arrays: list[tuple[int, Array]] = []
        self._payload_bytes = 0
        self._header = json.dumps(self._encode(tree, "tree", 0), separators=(",", ":")).encode("ascii")
        self._payload_start = _aligned(_PREFIX.size + len(self._header) + _DIGEST_BYTES)
        self.file_bytes = self._payload_start + self._payload_bytes + _DIGEST_BYTES

    def chunks(self) -> Iterator[atomic.Chunk]:
        """Return the file's bytes in order."""
        digest = hashlib.sha256()
        for chunk in self._unsealed():
            digest.update(chunk)
            yield chunk
        yield digest.digest()

    def _unsealed(self) -> Iterator[atomic.Chunk]:
        head = _PREFIX.pack(MAGIC, VERSION, len(self._header), self.file_bytes) + self._header
        head += hashlib.sha256(head).digest()
        yield head
        position = len(head)
        for offset, array in self._arrays:
            start = self._payload_start + offset
            yield bytes(start - position)
            yield from _bytes_of(array)
            position = start + array.nbytes
        yield bytes(self._payload_start + self._payload_bytes - position)

    def _encode(self, value: Tree, where: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self._refused(where, f"nested more than {MAX_DEPTH} deep")
        kind = type(value)
        if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
            value = value.item()
            kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            if value.bit_length() > MAX_INT_BITS:
                raise self._refused(where, f"an int of more than {MAX_INT_BITS} bits")
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind in (np.ndarray, np.memmap):
            return self._encode_array(value, where)
        if kind is list:
            return [self._encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        if kind in (dict, OrderedDict):
            return self._encode_dict(value, where, depth)
        raise self._refused(where, f"a {kind.__module__}.{kind.__qualname__}")

    def _encode_dict(self, value: dict[Any, Tree], where: str, depth: int) -> dict[str, Any]:
        encoded = {}
        for key, item in value.items():
            if type(key) is not str:
                raise self._refused(where, f"a dict with the key {key!r}, which is not a str")
            name = f"${key}" if key.startswith("$") else key
            encoded[name] = self._encode(item, f"{where}[{key!r}]", depth + 1)
        return encoded

    def _encode_array(self, array: Array, where: str) -> dict[str, Any]:
        dtype = array.dtype.newbyteorder("<").str
        if dtype not in _DTYPES or array.dtype.names is not None:
            raise self._refused(where, f"an array of dtype {array.dtype}")
        offset = _aligned(self._payload_bytes)
        self._arrays.append((offset, array))
        self._payload_bytes = offset + array.nbytes
        return {"$array": [dtype, list(array.shape), offset]}

    def _refused(self, where: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path}: not saved: {where} is {what}; allowed are None, bool, int, float, str, lists, "
            "dicts with str keys, and numpy arrays of bools and numbers"
        )


def _bytes_of(array: Array) -> Iterator[memoryview]:
    """Yield the array's bytes, C order and little-endian, in pieces of about a megabyte."""
    if array.size == 0:
        return
    dtype = array.dtype.newbyteorder("<")
    if array.flags.c_contiguous and array.dtype == dtype:
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _PIECE_BYTES):
            yield flat[start : start + _PIECE_BYTES].data
        return
    count = _PIECE_BYTES // array.itemsize
    for start in range(0, array.size, count):
        yield array.flat[start : start + count].astype(dtype, copy=False).view(np.uint8).data


# ---------------------------------------------------------------------------------------------- reading


def _read(reader: _Reader) -> Tree:
    tree = reader.decode(reader.array)
    reader.finish()
    return tree


@contextmanager
def _opened(path: Path) -> Iterator[_Reader]:
    try:
        with open(path, "rb", opener=plain_file) as file:
            yield _Reader(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Reader:
    """Reads a file front to back, keeping the checksum of what it has read.

    The constructor verifies the header; ``decode`` asks for the arrays in file order; ``finish`` compares
    the checksum of the whole file. Nothing decoded may be used before ``finish`` has returned.
    """

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.file = file
        self._path = path
        self._digest = hashlib.sha256()
        self._position = 0
        header_bytes, self._file_bytes = self._read_prefix(size)
        self._header = self._take(header_bytes)
        expected = self._digest.digest()
        if self._take(_DIGEST_BYTES) != expected:
            raise self._broken("checksum does not match (header)")
        self._payload_start = _aligned(self._position)

    def _read_prefix(self, size: int) -> tuple[int, int]:
        prefix = self.file.read(_PREFIX.size)
        if prefix[:8] != MAGIC[: len(prefix)]:
            raise self._broken("not a rollmill checkpoint")
        if len(prefix) < _PREFIX.size:
            raise self._broken(f"cut short: {size} of at least {_SMALLEST_FILE} bytes")
        _, version, header_bytes, file_bytes = _PREFIX.unpack(prefix)
        if version > VERSION:
            raise self._broken(
                f"written by a newer version of rollmill (format {version}; this one reads up to {VERSION})"
            )
        if size < file_bytes:
            raise self._broken(f"cut short: {size} of {file_bytes} bytes")
        if size > file_bytes:
            raise self._broken(f"damaged: {size} bytes, but {file_bytes} were written")
        if version == 0 or header_bytes > size - _PREFIX.size - 2 * _DIGEST_BYTES:
            raise self._broken("checksum does not match (start of the file)")
        self._digest.update(prefix)
        self._position = len(prefix)
        return header_bytes, file_bytes

    def decode(self, resolve: Callable[[ArrayRef], Any]) -> Tree:
        """Return the tree, with ``resolve(ref)`` in the place of every array."""
        try:
            return _decode(json.loads(self._header), resolve)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise self._broken(f"the header makes no sense ({error})") from error

    def array(self, ref: ArrayRef) -> Array:
        """Read the next array."""
        self._seek_to(ref)
        array = np.empty(ref.shape, ref.dtype)
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _PIECE_BYTES):
            piece = flat[start : start + _PIECE_BYTES].data
            count = self.file.readinto(piece)  # type: ignore[attr-defined]  # BinaryIO lacks it, files have it
            self._count(count, len(piece))
            self._digest.update(piece)
        return array

    def skip(self, ref: ArrayRef) -> ArrayRef:
        """Read over the next array."""
        self._seek_to(ref)
        left = ref.nbytes
        while left > 0:
            left -= len(self._take(min(left, _PIECE_BYTES)))
        return ref

    def finish(self) -> None:
        """Raise unless the file is what was written, to the last bit."""
        if self._position < self._payload_start:
            self._take(self._payload_start - self._position)
        if self._position != self._file_bytes - _DIGEST_BYTES:
            raise self._broken("the header makes no sense (arrays do not fill the file)")
        expected = self._digest.digest()
        if self._take(_DIGEST_BYTES) != expected:
            raise self._broken("checksum does not match")

    def _seek_to(self, ref: ArrayRef) -> None:
        start = _aligned(max(self._position, self._payload_start))
        if ref.offset != start - self._payload_start:
            raise ValueError(f"an array at {ref.offset} where the last one ended before {start}")
        if start + ref.nbytes > self._file_bytes - _DIGEST_BYTES:
            raise ValueError(f"an array of {ref.nbytes} bytes reaches beyond the end")
        self._take(start - self._position)

    def _take(self, count: int) -> bytes:
        data = self.file.read(count)
        self._count(len(data), count)
        self._digest.update(data)
        return data

    def _count(self, got: int, wanted: int) -> None:
        self._position += got
        if got != wanted:  # the file shrank after it was opened
            raise self._broken(f"cut short: {self._position} of {self._file_bytes} bytes")

    def _broken(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {reason}")


def _decode(node: Any, resolve: Callable[[ArrayRef], Any]) -> Tree:
    if isinstance(node, list):
        return [_decode(item, resolve) for item in node]
    if not isinstance(node, dict):
        return node
    if "$array" in node:
        dtype, shape, offset = node["$array"]
        if dtype not in _DTYPES or any(type(n) is not int or n < 0 for n in [*shape, offset]):
            raise ValueError(f"bad array {node['$array']}")
        return resolve(ArrayRef(dtype, tuple(shape), offset))
    if "$float" in node:
        return float(node["$float"])
    return {key[1:] if key.startswith("$") else key: _decode(item, resolve) for key, item in node.items()}


def _aligned(position: int) -> int:
    return -(-position // _ALIGN) * _ALIGN
