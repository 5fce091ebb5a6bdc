"""Packed segments come back bit for bit, are small where they can be, and damage is always noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replaying import HUNT_BYTES, complex_hunt

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.slots import SegmentLayout
from rollmill.envs.batch import random_actions
from rollmill.envs.probe import build_one, close_one
from rollmill.envs.settings import EnvSettings
from rollmill.replay.packing import MAGIC, SegmentCodec
from rollmill.store.format.codec import CodecError

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
]
SHAPES = [(), (1,), (3,), (16,), (5, 4), (2, 0), (6, 6, 3), (4, 19, 21), (1, 2, 3, 2)]
ACTIONS = [
    ActionSpec("discrete", nvec=(3,)),
    ActionSpec("multi_discrete", nvec=(300, 2)),
    ActionSpec("continuous", shape=(2,), low=(-1.0, -np.inf), high=(1.0, np.inf)),
    ActionSpec("mixed", nvec=(2,), shape=(2,), low=(0.0, 0.0), high=(1.0, 1.0)),
]


def fill(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, how: str) -> np.ndarray:
    """Any bits; a few levels of any bits; counters; or all the same."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    if kind == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    bits = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    if how == "levels":
        bits = rng.choice(bits[: max(1, int(rng.integers(1, 18)))], count) if count else bits
    elif how == "counter" and kind.kind in "iu":
        info = np.iinfo(kind)
        start = [info.min, 0, max(0, info.max - 300)][rng.integers(3)]
        bits = np.array(start, kind) + rng.integers(0, min(300, info.max), count).astype(kind)
    elif how == "same":
        bits = np.full(count, bits[0]) if count else bits
    return bits.reshape(shape)


@st.composite
def layouts(draw: st.DrawFn) -> SegmentLayout:
    fields = [
        Field(f"f{k}", draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES)))
        for k in range(draw(st.integers(1, 4)))
    ]
    spec = EnvSpec("any", tuple(fields), draw(st.sampled_from(ACTIONS)))
    steps = draw(st.sampled_from([1, 2, 8, 33, 256]))
    return SegmentLayout(spec, steps, 1, draw(st.sampled_from([0, 5])), 1)


@settings(max_examples=150, deadline=None)
@given(layouts(), st.integers(0, 10**6), st.sampled_from(["any", "levels", "counter", "same"]))
def test_whatever_is_packed_comes_back(layout: SegmentLayout, seed: int, how: str) -> None:
    rng = np.random.default_rng(seed)
    segment = {f.name: fill(rng, (rows, *f.shape), f.dtype, how) for f, rows in layout.fields()}
    codec = SegmentCodec(layout.fields())
    packed = codec.pack(segment)
    found = codec.unpack(packed)
    assert list(found) == [f.name for f, _ in layout.fields()]
    for name, array in segment.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()  # NaN and -0 included
    assert len(packed) <= codec.most_bytes


def small() -> tuple[SegmentCodec, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    segments = {
        "obs:map": rng.integers(0, 2, (9, 2, 4, 20, 20), dtype=np.uint8),
        "version": 10**12 + rng.integers(0, 400, (40, 2)),
        "reward": rng.normal(size=(40, 2)).astype(np.float32),
        "valid": rng.random((40, 2)) > 0.5,
    }
    return SegmentCodec.like(segments), {name: array[:, 1] for name, array in segments.items()}


def test_lanes_of_a_batch_need_no_copy_first() -> None:
    codec, segment = small()
    assert not segment["version"].flags.c_contiguous
    found = codec.unpack(codec.pack(segment))
    assert all(np.array_equal(found[name], segment[name]) for name in segment)


def test_every_flipped_bit_and_every_length_is_refused() -> None:
    codec, segment = small()
    packed = codec.pack(segment)
    for bit in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CodecError):
            codec.unpack(bytes(damaged))
    for length in range(len(packed)):
        with pytest.raises(CodecError):
            codec.unpack(packed[:length])
    with pytest.raises(CodecError):
        codec.unpack(packed + b"\0")


def test_forged_contents_are_refused_although_the_checksum_is_right() -> None:
    """No number in a buffer is believed before it is compared with the layout."""
    import google_crc32c

    codec, segment = small()
    packed = codec.pack(segment)
    refused = 0
    for place in range(8, len(packed)):
        for value in (0, 1, 5, 255):
            body = bytearray(packed[8:])
            body[place - 8] = value
            forged = MAGIC + google_crc32c.value(bytes(body)).to_bytes(4, "little") + bytes(body)
            try:
                found = codec.unpack(forged)
            except CodecError:
                refused += 1
            else:
                assert {name: a.shape for name, a in found.items()} == {name: a.shape for name, a in segment.items()}
    assert refused > 100


def test_another_layout_is_refused_on_both_sides() -> None:
    codec, segment = small()
    longer = SegmentCodec([(Field("reward", "float32"), 41)])
    with pytest.raises(CodecError, match=r"layout|too few"):
        longer.unpack(codec.pack(segment))
    with pytest.raises(ValueError, match="reward"):
        codec.pack(segment | {"reward": segment["reward"][:-1]})
    with pytest.raises(ValueError, match="reward"):
        codec.pack(segment | {"reward": segment["reward"].astype(np.float64)})


def test_the_most_complex_maps_of_a_treasure_hunt_fit() -> None:
    codec, segment = complex_hunt()
    packed = codec.pack(segment)
    assert len(packed) <= HUNT_BYTES
    assert np.array_equal(codec.unpack(packed)["obs:maps"], segment["obs:maps"])


def test_a_played_treasure_hunt_is_far_smaller() -> None:
    env = build_one(EnvSettings(id="treasure_hunt"))
    try:
        layout = SegmentLayout(env.spec, 256, 1)
        segment = {f.name: np.zeros((rows, *f.shape), f.dtype) for f, rows in layout.fields()}
        rng = np.random.default_rng(0)
        obs = {f.name: np.zeros((1, *f.shape), f.dtype) for f in env.spec.observation}
        env.reset(0, obs)
        for row in range(257):
            for name, array in obs.items():
                segment[f"obs:{name}"][row] = array[0]
            segment["reward"][row] = env.step(random_actions(env.spec, rng, obs, 1), obs)[0]
    finally:
        close_one(env)
    assert len(SegmentCodec(layout.fields()).pack(segment)) <= HUNT_BYTES / 10
