"""Packs one lane's segment into one flat array of bytes, and back, bit for bit.

::

    "RMS1" | u32 crc32c of all that follows | 8 bytes of the layout's hash | u16 parts | heads | payloads
    head:    u8 how it was reduced | u8 bits or width | u8 levels | u8 codec | u32 bytes of its payload

A field is one part; planes that come first (``[4, 51, 51]``) are one each, for a map is often simpler than all of them.
Every part is reduced where its values allow it, and what is left goes through the store's codecs (``store.format``):

- ``WHOLE``: as it is.
- ``LEVELS``: at most 16 different values: their table, then bit by bit the number of each value's level.
- ``NARROW``: integers as their distance from the smallest, in 1, 2 or 4 bytes.

What a buffer unpacks to is known beforehand. One that is damaged, too short or of another layout is refused.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from functools import partial

import google_crc32c
import numpy as np

from rollmill.core.fields import Array, Field
from rollmill.store.format.codec import RAW, CodecError, Encode, decode_into, make_encoder
from rollmill.store.format.schema import Column

MAGIC = b"RMS1"
FORMAT = MAGIC.decode()
"""The name of this way of packing."""
WHOLE, LEVELS, NARROW = range(3)

_START = struct.Struct("<4sI8sH")
_HEAD = struct.Struct("<BBBBI")
_CHECKED_FROM = 8
"""The checksum is of all bytes from here on."""
MOST_LEVELS = 16
MOST_PLANES = 16
SMALL_BYTES = 64
"""Parts below this are not looked at."""
TABLE_BYTES = 8
"""A part of hardly more values than levels may grow by so much."""
PROBE = 1024
"""Values that are looked at before all of them are."""
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_BYTES = Column("bytes", "uint8")


class SegmentCodec:
    """Packs segments of one layout: every field with its number of rows (``SegmentLayout.fields``). For one thread."""

    def __init__(self, fields: Sequence[tuple[Field, int]]) -> None:
        self._parts = [part for field, rows in fields for part in _parts_of(field, rows)]
        text = repr([(f.name, np.dtype(f.dtype).str, tuple(f.shape), rows) for f, rows in fields])
        self._layout = hashlib.sha256(text.encode()).digest()[:8]
        self._fields = list(fields)
        self._heads = _HEAD.size * len(self._parts)
        self.raw_bytes = sum(rows * field.nbytes for field, rows in fields)
        """Bytes of a segment that is not packed."""
        self.most_bytes = _START.size + self._heads + self.raw_bytes + TABLE_BYTES * len(self._parts)
        """No packed segment is larger."""

    @classmethod
    def like(cls, segments: Mapping[str, Array]) -> SegmentCodec:
        """Build the codec for the lanes of arrays ``[rows, lanes, ...]``."""
        return cls([(Field(name, a.dtype.name, a.shape[2:]), len(a)) for name, a in segments.items()])

    def pack(self, segment: Mapping[str, Array]) -> bytes:
        """Return a segment, ``[rows, *shape]`` of every field, as bytes."""
        for field, rows in self._fields:
            array = segment[field.name]
            if array.shape != (rows, *field.shape) or array.dtype != np.dtype(field.dtype):
                raise ValueError(
                    f"{field.name}: {array.dtype} {array.shape} where the layout has {field.dtype} "
                    f"{(rows, *field.shape)}"
                )
        heads, payloads = [], []
        for part in self._parts:
            head, payload = part.pack(segment[part.name])
            heads.append(head)
            payloads += payload
        body = b"".join([self._layout, len(heads).to_bytes(2, "little"), *heads, *payloads])
        return MAGIC + int(google_crc32c.value(body)).to_bytes(4, "little") + body

    def unpack(self, data: bytes | memoryview) -> dict[str, Array]:
        """Return fresh arrays ``[rows, *shape]`` of every field; raises ``CodecError`` unless ``data`` is a whole
        segment of them."""
        data = memoryview(data)
        self.check(data)
        out = {field.name: np.empty((rows, *field.shape), field.dtype) for field, rows in self._fields}
        at = _START.size + self._heads
        for number, part in enumerate(self._parts):
            head = _HEAD.unpack_from(data, _START.size + number * _HEAD.size)
            try:
                part.unpack(head, data[at : at + head[-1]], out[part.name])
            except (CodecError, ValueError, struct.error) as error:
                raise CodecError(f"{part.name}: {error}") from error
            at += head[-1]
        return out

    def check(self, data: memoryview) -> None:
        """Raise ``CodecError`` unless ``data`` is a packed segment of this layout, and whole; nothing is decoded."""
        if len(data) < _START.size + self._heads:
            raise CodecError(f"{len(data)} bytes are too few for a packed segment")
        magic, crc, layout, parts = _START.unpack_from(data)
        if magic != MAGIC:
            raise CodecError(f"not a packed segment (it begins with {magic!r})")
        if crc != google_crc32c.value(bytes(data[_CHECKED_FROM:])):
            raise CodecError("the checksum of the packed segment does not match: it is damaged or cut off")
        if layout != self._layout or parts != len(self._parts):
            raise CodecError("the packed segment has another layout (fields, types, shapes or number of rows)")
        sizes = (_HEAD.unpack_from(data, _START.size + k * _HEAD.size)[-1] for k in range(parts))
        if _START.size + self._heads + sum(sizes) != len(data):
            raise CodecError("the sizes of the parts do not add up to that of the packed segment")


class _Part:
    """A field, or one plane of it: which values it has, and how they are packed."""

    def __init__(self, field: Field, rows: int, plane: int | None) -> None:
        self.name = field.name
        shape = field.shape if plane is None else field.shape[1:]
        self._rows, self._plane = rows, plane
        self._dtype = np.dtype(field.dtype)
        self._column = Column("part", self._dtype.name, shape)
        self._encode: Encode = make_encoder(self._column)
        self._encode_bytes: Encode = make_encoder(_BYTES)
        self._narrow = {
            width: (column := Column("narrow", np.dtype(kind).name, shape), make_encoder(column))
            for width, kind in _UNSIGNED.items()
            if width < self._dtype.itemsize
        }

    def _values(self, field: Array) -> Array:
        return field if self._plane is None else field[:, self._plane]

    def pack(self, field: Array) -> tuple[bytes, list[bytes]]:
        """Return (head, pieces of the payload) of a field."""
        values = np.ascontiguousarray(self._values(field))
        if values.nbytes >= SMALL_BYTES:
            for reduce in (self._to_levels, self._to_narrow):
                if (found := reduce(values)) is not None:
                    return found
        codec, payload = self._encode(values)
        return _HEAD.pack(WHOLE, 0, 0, codec, len(payload)), [payload]

    def _to_levels(self, values: Array) -> tuple[bytes, list[bytes]] | None:
        numbers = values.reshape(-1).view(_UNSIGNED[self._dtype.itemsize])
        found = _levels(numbers)
        if found is None:
            return None
        levels, index = found
        bits = (len(levels) - 1).bit_length()
        planes = [np.packbits(index >> np.uint8(bit) & np.uint8(1)) for bit in range(bits)]
        codec, payload = self._encode_bytes(np.concatenate(planes)) if planes else (RAW, b"")
        table = levels.tobytes()
        return _HEAD.pack(LEVELS, bits, len(levels), codec, len(table) + len(payload)), [table, payload]

    def _to_narrow(self, values: Array) -> tuple[bytes, list[bytes]] | None:
        if not self._narrow or self._dtype.kind not in "iu":
            return None
        low, high = values.min(), values.max()
        span = int(high) - int(low)
        width = next((width for width in self._narrow if span < 1 << 8 * width), 0)
        if not width:
            return None
        codec, payload = self._narrow[width][1]((values - low).astype(_UNSIGNED[width]))
        base = low.tobytes()
        return _HEAD.pack(NARROW, width, 0, codec, len(base) + len(payload)), [base, payload]

    def unpack(self, head: tuple[int, int, int, int, int], payload: memoryview, field: Array) -> None:
        """Write the values into their place in ``field``."""
        kind, size, count, codec, _ = head
        target = self._values(field)
        decode = partial(decode_into, codec, rows=self._rows)
        if kind == WHOLE:
            values = target if target.flags.c_contiguous else np.empty(target.shape, target.dtype)
            decode(payload, self._column, out=values)
            if values is not target:
                target[...] = values
        elif kind == LEVELS:
            self._from_levels(size, count, codec, payload, target)
        elif kind == NARROW and size in self._narrow:
            base = np.frombuffer(payload[: self._dtype.itemsize], self._dtype)
            narrow = np.empty(target.shape, _UNSIGNED[size])
            decode(payload[self._dtype.itemsize :], self._narrow[size][0], out=narrow)
            np.add(narrow.astype(self._dtype), base[0], out=target)
        else:
            raise CodecError(f"unknown reduction {kind} to {size} bytes")

    def _from_levels(self, bits: int, count: int, codec: int, payload: memoryview, target: Array) -> None:
        width, values = self._dtype.itemsize, target.size
        levels = np.frombuffer(payload[: count * width], _UNSIGNED[width], count=count)
        if not 1 <= count <= 1 << bits <= MOST_LEVELS:
            raise CodecError(f"{count} levels in {bits} bits")
        each = -(-values // 8)
        packed = np.empty(bits * each, np.uint8)
        decode_into(codec, payload[count * width :], _BYTES, len(packed), packed)
        index = np.zeros(values, np.uint8)
        for bit in range(bits):
            index |= np.unpackbits(packed[bit * each : (bit + 1) * each], count=values) << np.uint8(bit)
        if int(index.max(initial=0)) >= count:
            raise CodecError(f"a level beyond the {count} there are")
        target[...] = levels[index].view(self._dtype).reshape(target.shape)


def _parts_of(field: Field, rows: int) -> list[_Part]:
    shape = field.shape
    planes = len(shape) == 3 and 2 <= shape[0] <= MOST_PLANES and shape[-1] > MOST_PLANES
    return [_Part(field, rows, plane) for plane in (range(shape[0]) if planes else [None])]


def _levels(numbers: Array) -> tuple[Array, Array] | None:
    """Return (different values, which of them each number is), if there are few enough."""
    probe = numbers[:: max(1, len(numbers) // PROBE)]
    levels = np.unique(probe)
    while len(levels) <= MOST_LEVELS:
        index = _index(numbers, levels)
        missing = np.flatnonzero(index == MOST_LEVELS)
        if not len(missing):
            return levels, index
        levels = np.union1d(levels, numbers[missing[:PROBE]])
    return None


def _index(numbers: Array, levels: Array) -> Array:
    """Return where each number is in the sorted ``levels``; ``MOST_LEVELS`` where it is not."""
    if numbers.dtype == np.uint8:
        table = np.full(256, MOST_LEVELS, np.uint8)
        table[levels] = np.arange(len(levels))
        return table[numbers]
    place = np.searchsorted(levels, numbers).clip(max=len(levels) - 1).astype(np.uint8)
    return np.where(levels[place] == numbers, place, np.uint8(MOST_LEVELS))
