"""Segments to transitions: what a plain walk along every lane would store."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.learning.experience import Experience, stretches
from rollmill.learning.settings import LearningSettings

SPEC = EnvSpec("e", (Field("x", "float32", (1,)),), ActionSpec("continuous", shape=(1,), low=(-1.0,), high=(1.0,)))
CPU = torch.device("cpu")


def segments_of(valid, terminated, truncated, policy=0):
    """Rows that tell who they are: observation ``100 * lane + row``, reward ``row + 1``."""
    steps, lanes = valid.shape
    number = (np.arange(lanes) * 100 + np.arange(steps + 1)[:, None]).astype(np.float32)
    more = ((0, 1), (0, 0))
    reward = np.broadcast_to(np.arange(steps + 1, dtype=np.float32)[:, None] + 1, number.shape)
    return {
        "obs:x": number[..., None],
        "action": number[..., None] / 1000,
        "reward": reward,
        "valid": np.pad(valid, more),
        "terminated": np.pad(terminated, more),
        "truncated": np.pad(truncated, more),
        "policy_id": np.full(number.shape, policy, np.int16),
        "version": np.zeros(number.shape, np.int64),
        "frames": np.zeros(number.shape, np.int64),
        "step": np.zeros(number.shape, np.int32),
    }


def drawn(experience, n_step=1, count=3000):
    rows = experience.draw(1, count, n_step, CPU)[0]
    return {
        round(float(x)): (float(r), round(float(d), 5), float(y))
        for x, r, d, y in zip(rows.obs["x"], rows.reward, rows.discount, rows.next_obs["x"])
    }


@given(st.integers(0, 2**16), st.integers(1, 9), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_stretches_are_the_unbroken_runs(seed, steps, lanes):
    valid = np.random.default_rng(seed).random((steps, lanes)) < 0.6
    found = {(lane, t) for lane, start, stop in stretches(valid) for t in range(start, stop)}
    assert found == {(lane, t) for t, lane in zip(*np.nonzero(valid))}
    for lane, start, stop in stretches(valid):
        assert start == 0 or not valid[start - 1, lane]
        assert stop == steps or not valid[stop, lane]


def ending(kind):
    """One lane of five steps whose episode ends at row 1; row 2 holds the final observation."""
    valid = np.array([[True], [True], [False], [True], [True]])
    end = np.array([[False], [True], [False], [False], [False]])
    none = np.zeros_like(end)
    return segments_of(valid, end if kind == "terminated" else none, end if kind == "truncated" else none)


def test_a_truncated_episode_bootstraps_from_its_true_final_observation():
    experience = Experience(SPEC, 100, LearningSettings(gamma=0.5), 0)
    assert experience.add(ending("truncated"), 0) == 4
    # The final row (2) is nobody's start, and the end of row 1; row 4 leads to the bootstrap row.
    assert drawn(experience) == {0: (1, 0.5, 1), 1: (2, 0.5, 2), 3: (4, 0.5, 4), 4: (5, 0.5, 5)}


def test_a_terminated_episode_does_not_bootstrap():
    experience = Experience(SPEC, 100, LearningSettings(gamma=0.5), 0)
    experience.add(ending("terminated"), 0)
    assert drawn(experience)[1] == (2, 0, 2)
    assert drawn(experience)[0] == (1, 0.5, 1)


def test_n_steps_stop_at_the_end_of_an_episode_and_of_a_segment():
    experience = Experience(SPEC, 100, LearningSettings(gamma=0.5), 0)
    experience.add(ending("truncated"), 0)
    assert drawn(experience, 3) == {0: (2, 0.25, 2), 1: (2, 0.5, 2), 3: (6.5, 0.25, 5), 4: (5, 0.5, 5)}
    experience = Experience(SPEC, 100, LearningSettings(gamma=0.5), 0)
    experience.add(ending("terminated"), 0)
    assert drawn(experience, 2)[0] == (2, 0, 2)


def test_rewards_are_scaled_then_clipped_and_only_own_rows_count():
    experience = Experience(SPEC, 100, LearningSettings(reward_scale=0.5, reward_clip=1.0), 0)
    everything = np.ones((4, 2), bool)
    segments = segments_of(everything, ~everything, ~everything)
    segments["policy_id"][:, 1] = 1
    assert experience.add(segments, 0) == 4
    assert {number: row[0] for number, row in drawn(experience).items()} == {0: 0.5, 1: 1.0, 2: 1.0, 3: 1.0}
    assert experience.add(segments, 7) == 0
    assert len(experience) == experience.added == 4


@pytest.mark.parametrize("capacity", [6, 100])
def test_a_restored_buffer_draws_the_same_rows(capacity):
    one = Experience(SPEC, capacity, LearningSettings(), 3)
    for _ in range(3):
        one.add(ending("truncated"), 0)
    one.draw(1, 10, 1, CPU)[0]
    two = Experience(SPEC, capacity, LearningSettings(), 99)
    two.load_state(one.state())
    for n_step in (1, 2):
        (a,), (b,) = one.draw(1, 200, n_step, CPU), two.draw(1, 200, n_step, CPU)
        assert torch.equal(a.obs["x"], b.obs["x"])
        assert torch.equal(a.next_obs["x"], b.next_obs["x"])
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.discount, b.discount)
