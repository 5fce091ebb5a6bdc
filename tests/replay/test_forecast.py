"""What a buffer will take: no segment is outside of the two ends."""

from __future__ import annotations

import numpy as np
import pytest
from replaying import complex_hunt, hunt_layout

from rollmill.core.fields import Array
from rollmill.core.slots import SegmentLayout
from rollmill.envs.treasure_hunt.env import TreasureHuntEnv
from rollmill.replay.buffer import SegmentBuffer, is_kept
from rollmill.replay.forecast import forecast
from rollmill.replay.settings import ReplaySettings

STEPS = 64
SETTINGS = ReplaySettings(capacity=200)


def blank(layout: SegmentLayout) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    segment: dict[str, Array] = {f.name: np.zeros((rows, *f.shape), f.dtype) for f, rows in layout.fields()}
    for name in ("value", "log_prob"):
        segment[name][:] = rng.normal(size=layout.rows)
    return segment


def noise(layout: SegmentLayout) -> dict[str, Array]:
    """Bytes of which none can be saved."""
    rng = np.random.default_rng(2)
    return {
        f.name: np.frombuffer(rng.bytes(rows * f.nbytes), f.dtype).reshape(rows, *f.shape)
        for f, rows in layout.fields()
    }


def played(layout: SegmentLayout) -> dict[str, Array]:
    """The first steps of a random policy: what the first segment of a run is like."""
    segment, env, rng = blank(layout), TreasureHuntEnv(treasure_num=5), np.random.default_rng(3)
    obs, _ = env.reset(seed=3)
    for row in range(layout.rows):
        for name, array in obs.items():
            segment[f"obs:{name}"][row] = array
        obs, segment["reward"][row], *_ = env.step(int(rng.integers(16)))
    return segment


def packed_bytes(segment: dict[str, Array]) -> float:
    buffer = SegmentBuffer(SETTINGS, 4, 0)
    buffer.add(segment)
    return buffer.counts()["bytes"]


def test_segments_pack_within_the_two_ends() -> None:
    layout = hunt_layout(STEPS)
    found = forecast(SETTINGS, 4, layout)
    assert packed_bytes(blank(layout)) == pytest.approx(found.least, rel=0.02)
    assert found.least < packed_bytes(played(layout)) < packed_bytes(complex_hunt(STEPS)[1]) < found.most
    assert 0.98 * found.most < packed_bytes(noise(layout)) <= found.most
    assert found.contents == (200 * found.least, 200 * found.most)


def test_a_batch_is_there_and_one_segment_beside_it() -> None:
    layout = hunt_layout(STEPS)
    one = sum(rows * field.nbytes for field, rows in layout.fields() if is_kept(field.name))
    found = forecast(SETTINGS, 60, layout)
    assert found.batch == 61 * one
    assert found.memory == tuple(end + 61 * one for end in found.contents)


def test_memory_of_the_policy_counts() -> None:
    """Segments of networks with memory hold states, those of several lanes are counted lane by lane."""
    layout = hunt_layout(STEPS)
    recurrent = SegmentLayout(layout.spec, STEPS, 8, state_size=512, state_every=16)
    assert forecast(SETTINGS, 4, recurrent).most - forecast(SETTINGS, 4, layout).most == pytest.approx(
        4 * 512 * 4, abs=32
    )
