"""The wire format of ``tf.train.Example`` and ``SequenceExample``, written and read by hand: no TensorFlow or protobuf.

Messages are written as lists of pieces, so that an image's bytes are not copied once per nesting. What is read are
views of the message: nothing is copied before somebody asks for the numbers, and no length is believed. Everything here
is a length-delimited field (tag, length as a varint, contents)::

    Example { Features features = 1; }
    SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
    Features { map<string, Feature> feature = 1; }        FeatureLists { map<string, FeatureList> feature_list = 1; }
    FeatureList { repeated Feature feature = 1; }
    Feature { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; }   each: value = 1

Others may write numbers one by one instead of side by side (not packed), and fields that we do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollmill.core.fields import Array

Pieces = list[bytes]

_BYTES, _FLOAT, _INT64 = 1, 2, 3
_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
"""Kinds of fields on the wire."""
_PIECE_BYTES = 1 << 20
_MOST_NAMES = 10_000
"""Features of one message; each takes more memory than the bytes that name it."""


def sequence_example(context: Mapping[str, Pieces], lists: Mapping[str, Iterable[Pieces]]) -> Pieces:
    """Encode a whole message: features by name, and lists of features (one per step) by name."""
    features = [piece for name, feature in context.items() for piece in _entry(name, feature)]
    steps: Pieces = []
    for name, items in lists.items():
        body = [piece for feature in items for piece in _delimited(1, feature)]
        steps += _entry(name, body)
    return _delimited(1, features) + _delimited(2, steps)


def example(features: Mapping[str, Pieces]) -> Pieces:
    """Encode a whole message of features by name."""
    return _delimited(1, [piece for name, feature in features.items() for piece in _entry(name, feature)])


def bytes_feature(values: Sequence[bytes]) -> Pieces:
    return _delimited(_BYTES, [piece for value in values for piece in _delimited(1, [value])])


def float_feature(values: Array) -> Pieces:
    """Encode floats of 32 bits, packed."""
    return _delimited(_FLOAT, _delimited(1, [np.ascontiguousarray(values, "<f4").tobytes()]))


def int64_feature(values: Array | Sequence[int]) -> Pieces:
    """Encode integers of up to 64 bits with a sign, packed."""
    return _delimited(_INT64, _delimited(1, [b"".join(varint(int(value)) for value in np.ravel(values))]))


def varint(value: int) -> bytes:
    """Encode a number: seven bits per byte, the lowest first; negative ones as their two's complement of 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _entry(name: str, value: Pieces) -> Pieces:
    """Encode one entry of a map: key = 1, value = 2."""
    return _delimited(1, [*_delimited(1, [name.encode("utf-8")]), *_delimited(2, value)])


def _delimited(field: int, pieces: Pieces) -> Pieces:
    return [bytes([field << 3 | 2]) + varint(sum(map(len, pieces))), *pieces]


# --------------------------------------------------------------------------------------------------- reading


class WireError(ValueError):
    """What should be a message is none."""


@dataclass(frozen=True)
class Feature:
    """One feature as it stands in a message."""

    kind: int
    body: memoryview

    def texts(self) -> Iterator[memoryview]:
        """Yield the values of a list of bytes, one after another."""
        if self.kind != _BYTES:
            raise WireError("it holds numbers, bytes are needed")
        for number, _, value in _fields(self.body):
            if number == 1:
                yield value

    def numbers(self) -> Array:
        """Return the values of a list of numbers: float32 or int64 ``[n]``."""
        if self.kind == _BYTES:
            raise WireError("it holds bytes, numbers are needed")
        packed = bytearray()
        for number, wire, value in _fields(self.body):
            if number == 1:
                if wire not in (_DELIMITED, _FOUR_BYTES if self.kind == _FLOAT else _VARINT):
                    raise WireError("a number is of another type than its list")
                packed += value
        if self.kind == _INT64:
            return _integers(packed)
        if len(packed) % 4:
            raise WireError(f"{len(packed)} bytes are no whole number of floats")
        return np.frombuffer(packed, "<f4")

    @property
    def is_bytes(self) -> bool:
        return self.kind == _BYTES


def read_message(data: memoryview) -> tuple[dict[str, memoryview], dict[str, memoryview]]:
    """Read an ``Example`` or a ``SequenceExample``: its features by name, and its lists of features by name."""
    found: tuple[dict[str, memoryview], dict[str, memoryview]] = {}, {}
    for number, _, body in _fields(data):
        if number in (1, 2):
            for key, value in _entries(body):
                found[number - 1][key] = value
                if len(found[number - 1]) > _MOST_NAMES:
                    raise WireError(f"more than {_MOST_NAMES:,} features")
    return found


def read_feature(data: memoryview) -> Feature:
    """Read a feature; one that was never set has no values."""
    kind, body = _INT64, memoryview(b"")
    for number, wire, contents in _fields(data):
        if number in (_BYTES, _FLOAT, _INT64) and wire == _DELIMITED:
            kind, body = number, contents
    return Feature(kind, body)


def read_features(data: memoryview) -> Iterator[Feature]:
    """Yield the features of a list, one per step."""
    for number, _, body in _fields(data):
        if number == 1:
            yield read_feature(body)


def _entries(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Yield the entries of a map."""
    for number, _, entry in _fields(data):
        if number != 1:
            continue
        key, value = "", memoryview(b"")
        for part, _, contents in _fields(entry):
            if part == 1:
                key = bytes(contents).decode("utf-8", "replace")
            elif part == 2:
                value = contents
        yield key, value


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (number, kind on the wire, contents) of every field of a message; of a varint its bytes."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        wire = tag & 7
        if wire == _VARINT:
            end = _read_varint(data, position)[1]
        elif wire == _DELIMITED:
            length, position = _read_varint(data, position)
            end = position + length
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            end = position + (8 if wire == _EIGHT_BYTES else 4)
        else:
            raise WireError(f"a field of kind {wire}, which nobody writes")
        if end > len(data):
            raise WireError(f"a field of {end - position:,} bytes, where {len(data) - position:,} are left")
        yield tag >> 3, wire, data[position:end]
        position = end


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(position, min(position + 10, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise WireError("an integer has no end")


def _integers(packed: bytearray) -> Array:
    """Decode varints side by side as int64, a piece at a time: the helper arrays are much larger than the bytes."""
    data = np.frombuffer(packed, np.uint8)
    if len(data) and data[-1] >= 0x80:
        raise WireError("an integer has no end")
    values = np.empty(int(np.count_nonzero(data < 0x80)), np.int64)
    start = row = 0
    while start < len(data):
        piece = data[start : start + _PIECE_BYTES]
        ends = np.flatnonzero(piece < 0x80)
        if not len(ends):
            raise WireError("an integer of more than 64 bits")
        values[row : row + len(ends)] = _whole_integers(piece, ends)
        start += int(ends[-1]) + 1
        row += len(ends)
    return values


def _whole_integers(data: Array, ends: Array) -> Array:
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends + 1 - starts
    if lengths.max() > 10:
        raise WireError("an integer of more than 64 bits")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(lengths.max())):
        longer = lengths > place
        values[longer] |= (data[starts[longer] + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)
