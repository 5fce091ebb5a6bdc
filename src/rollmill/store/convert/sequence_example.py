"""The wire format of ``tf.train.Example`` and ``SequenceExample``, written by hand: no TensorFlow, no protobuf.

Messages are given as lists of pieces, so that an image's bytes are not copied once per nesting. Everything here is a
length-delimited field (tag, length as a varint, contents)::

    Example { Features features = 1; }
    SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
    Features { map<string, Feature> feature = 1; }        FeatureLists { map<string, FeatureList> feature_list = 1; }
    FeatureList { repeated Feature feature = 1; }
    Feature { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; }   each: value = 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rollmill.core.fields import Array

Pieces = list[bytes]

_BYTES, _FLOAT, _INT64 = 1, 2, 3


def sequence_example(context: Mapping[str, Pieces], lists: Mapping[str, Iterable[Pieces]]) -> Pieces:
    """A whole message; features by name, and lists of features (one per step) by name."""
    features = [piece for name, feature in context.items() for piece in _entry(name, feature)]
    steps: Pieces = []
    for name, items in lists.items():
        body = [piece for feature in items for piece in _delimited(1, feature)]
        steps += _entry(name, body)
    return _delimited(1, features) + _delimited(2, steps)


def example(features: Mapping[str, Pieces]) -> Pieces:
    """A whole message of features by name."""
    return _delimited(1, [piece for name, feature in features.items() for piece in _entry(name, feature)])


def bytes_feature(values: Sequence[bytes]) -> Pieces:
    return _delimited(_BYTES, [piece for value in values for piece in _delimited(1, [value])])


def float_feature(values: Array) -> Pieces:
    """Floats of 32 bits, packed."""
    return _delimited(_FLOAT, _delimited(1, [np.ascontiguousarray(values, "<f4").tobytes()]))


def int64_feature(values: Array | Sequence[int]) -> Pieces:
    """Integers of up to 64 bits with a sign, packed."""
    return _delimited(_INT64, _delimited(1, [b"".join(varint(int(value)) for value in np.ravel(values))]))


def varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; negative numbers as their two's complement of 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _entry(name: str, value: Pieces) -> Pieces:
    """One entry of a map: key = 1, value = 2."""
    return _delimited(1, [*_delimited(1, [name.encode("utf-8")]), *_delimited(2, value)])


def _delimited(field: int, pieces: Pieces) -> Pieces:
    return [bytes([field << 3 | 2]) + varint(sum(map(len, pieces))), *pieces]
