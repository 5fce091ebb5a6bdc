"""What stands in TFRecord files that anybody may have written: records, their features, and rows of numbers in these.

What is damaged, or is not what it says, is refused by file, record and byte (``StoreError``). No more memory is taken
than is free, whatever lengths and sizes a file claims.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.machine import available_memory
from rollmill.core.opening import plain_file
from rollmill.store.convert.encoded_image import decode, is_encoded
from rollmill.store.convert.sequence_example import Feature, WireError, read_feature, read_features, read_message
from rollmill.store.format.framing import FRAME_BYTES, TAGS, FrameError, read_length, read_payload


@dataclass(frozen=True)
class Wanted:
    """A feature, and what its rows are.

    Without a dtype: float32, int64, and uint8 for bytes. Without a shape: a number, or as many as there are in a row.
    """

    feature: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


def free_memory() -> float:
    """Return the bytes of free memory, or a modest guess."""
    return available_memory() or 8e9


@dataclass(frozen=True)
class Record:
    """The features of a record by name, those of the whole of it and those with one for each step."""

    where: str
    features: dict[str, memoryview]
    lists: dict[str, memoryview]
    most_bytes: float = 2e9
    """That one array of it may take."""

    def __contains__(self, name: str) -> bool:
        return name in self.lists or name in self.features

    @property
    def there(self) -> str:
        """The features that the record has, for messages."""
        return f"it has {', '.join(sorted((*self.lists, *self.features))) or 'nothing'}"

    def rows(self, wanted: Wanted, count: int | None = None) -> Array:
        """Return ``[n, *shape]``; n is ``count`` if neither the shape nor a feature for each row says how many."""
        if wanted.feature not in self:
            raise StoreError(f"{self.where} has no {wanted.feature} ({self.there})")
        try:
            if wanted.feature in self.lists:
                return _by_step(read_features(self.lists[wanted.feature]), wanted, self.most_bytes)
            return _side_by_side(read_feature(self.features[wanted.feature]), wanted, count, self.most_bytes)
        except ValueError as error:
            raise StoreError(f"{self.where}: {wanted.feature}: {error}") from error


def read_records(files: Sequence[Path]) -> Iterator[Record]:
    """Yield the records of all files; the first bad one ends it with an error."""
    for path in files:
        most = free_memory() / 4
        try:
            with open(path, "rb", opener=plain_file) as file:
                # A byte may become an integer of eight, and there are copies on the way.
                for where, payload in _payloads(path, file.fileno(), most / 4):
                    yield Record(where, *read_message(memoryview(payload)), most)
        except WireError as error:
            raise StoreError(f"{where} is neither a SequenceExample nor an Example: {error}") from error
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def _payloads(path: Path, fd: int, most: float) -> Iterator[tuple[str, bytes]]:
    size = os.fstat(fd).st_size
    offset = number = 0
    while offset < size:
        where = f"{path}, record {number} at byte {offset}"
        try:
            length = read_length(fd, offset, size)
            if length > most:
                raise FrameError(f"the record has {length / 1e9:.2f} GB, more than the memory that is free here allows")
            payload = read_payload(fd, offset, length)
        except FrameError as error:
            packed = number == 0 and os.pread(fd, 2, 0) == b"\x1f\x8b"
            raise StoreError(f"{where}: {'the file is compressed: gunzip it first' if packed else error}") from error
        if payload[:4] in TAGS:
            raise StoreError(f"{path} is a shard of a store, which needs no import (see `rollmill data merge`)")
        yield where, payload
        offset, number = offset + length + FRAME_BYTES, number + 1


def _by_step(features: Iterator[Feature], wanted: Wanted, most: float) -> Array:
    """Read rows that have a feature each."""
    rows, shape, dtype, count = bytearray(), wanted.shape, wanted.dtype or "float32", 0
    for feature in features:
        values = _numbers(feature, wanted, most - len(rows))
        if shape is None:
            shape = () if values.size == 1 else (values.size,)
        if values.size != math.prod(shape):
            raise WireError(f"step {count} has {values.size} numbers, where {list(shape)} are expected")
        if count and values.dtype != dtype:
            raise WireError(f"step {count} is {values.dtype}, those before it are {dtype}")
        dtype = values.dtype.name
        rows += values.tobytes()
        count += 1
    return np.frombuffer(rows, dtype).reshape(count, *(shape or ()))


def _side_by_side(feature: Feature, wanted: Wanted, count: int | None, most: float) -> Array:
    """Read rows that are all in one feature."""
    values, shape = _numbers(feature, wanted, most), wanted.shape
    if shape is None:
        if count is None:
            raise WireError("one feature holds all steps: say what a row is, as in --fields obs=NAME:float32:4")
        shape = () if values.size == count else (values.size // max(count, 1),)
    numbers = math.prod(shape)
    if not numbers or values.size % numbers:
        raise WireError(f"{values.size} numbers are no whole number of rows {list(shape)}")
    return values.reshape(-1, *shape)


def _numbers(feature: Feature, wanted: Wanted, most: float) -> Array:
    """Return all numbers of a feature, one after another; of images that take up to ``most`` bytes unpacked."""
    if not feature.is_bytes:
        return _cast(feature.numbers(), wanted.dtype)
    dtype = np.dtype(wanted.dtype or "uint8").newbyteorder("<")
    joined = bytearray()
    for text in feature.texts():
        joined += decode(text, wanted.shape or ()).data.cast("B") if is_encoded(text) else text
        if len(joined) > most:
            raise WireError("its images take more than the memory that is free here allows")
    if len(joined) % dtype.itemsize:
        raise WireError(f"{len(joined)} bytes are no whole number of {dtype.name}")
    return np.frombuffer(joined, dtype)


def _cast(values: Array, dtype: str | None) -> Array:
    if dtype is None:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        found = values.astype(dtype)
    if found.dtype.kind in "iub" and not np.array_equal(found, values):
        raise WireError(f"not all of its numbers are {dtype}")
    return found
