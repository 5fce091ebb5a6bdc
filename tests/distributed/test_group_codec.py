"""Segments of groups, packed out of one arena into another: bit for bit, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.slots import Arena, SegmentLayout
from rollmill.distributed.group_codec import GroupCodec
from rollmill.store.format.codec import CodecError

FIELDS = (
    Field("image", "uint8", (12, 18, 3)),
    Field("map", "uint8", (4, 20, 20)),
    Field("numbers", "float32", (3,)),
    Field("count", "int64"),
)


def arena_of(lanes: int, steps: int, state: int, names: tuple[str, ...] = ()) -> Arena:
    observation = tuple(field for field in FIELDS if not names or field.name in names)
    spec = EnvSpec("packed", observation, ActionSpec("discrete", nvec=(3,), start=(0,)))
    return Arena(SegmentLayout(spec, steps, lanes, state, steps // 2 if state else 0), 2)


def fill(arena: Arena, slot: int, seed: int) -> None:
    """Random bytes: floats that are no numbers, and booleans, are data like any other."""
    rng = np.random.default_rng(seed)
    for array in arena.segment(slot).values():
        if array.dtype == np.bool_:
            array[...] = rng.random(array.shape) < 0.5
        elif array.dtype.kind == "f":
            array[...] = np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
        else:
            array[...] = rng.integers(0, 3 if seed % 2 else 120, array.shape)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([0, 6]), st.integers(0, 1000))
def test_a_segment_comes_out_bit_for_bit(lanes: int, half: int, state: int, seed: int) -> None:
    source, target = (arena_of(lanes, 2 * half, state) for _ in range(2))
    fill(source, 1, seed)
    codec = GroupCodec(source.layout)
    data = codec.pack(source, 1)
    GroupCodec(target.layout).unpack(data, target, 0)
    for name, array in source.segment(1).items():
        assert array.tobytes() == target.segment(0)[name].tobytes(), name


def test_what_is_damaged_or_of_another_layout_is_refused_and_nothing_is_written() -> None:
    source, target, other = arena_of(2, 4, 0), arena_of(2, 4, 0), arena_of(2, 4, 0, ("count",))
    fill(source, 0, 3)
    fill(target, 0, 4)
    codec = GroupCodec(source.layout)
    data = codec.pack(source, 0)
    before = target.block.array("uint8", (target.block.nbytes,), 0).copy()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 4
    for bad in (bytes(flipped), data[:-1], data[:10], b""):
        with pytest.raises(CodecError):
            codec.unpack(bad, target, 0)
    with pytest.raises(CodecError, match="another layout"):
        GroupCodec(other.layout).unpack(data, other, 0)
    assert (target.block.array("uint8", (target.block.nbytes,), 0) == before).all()
