"""Advantages and value targets against plain loops written for one lane at a time, and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.learning.targets import gae, vtrace

GAMMA, LAM = 0.9, 0.8


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def lane_gae(rewards, values, terminated, valid, gamma, gae_lambda):
    """One lane, by the definition: the sum of discounted errors up to where the episode stops counting."""
    steps = len(rewards)
    advantages = np.zeros(steps)
    for t in range(steps):
        weight, k = 1.0, t
        while k < steps and valid[k]:
            next_value = 0.0 if terminated[k] else values[k + 1]
            advantages[t] += weight * (rewards[k] + gamma * next_value - values[k])
            if terminated[k]:
                break
            weight *= gamma * gae_lambda
            k += 1
    return advantages, advantages + values[:-1]


def lane_vtrace(ratio, rewards, values, terminated, valid, gamma, gae_lambda, rho_bar, c_bar):
    """One lane, by the definition of the paper: v_s = V_s + sum of products of c times discounted errors."""
    steps = len(rewards)
    targets = np.array(values, dtype=np.float64)
    for s in range(steps):
        weight, k = 1.0, s
        while k < steps and valid[k]:
            next_value = 0.0 if terminated[k] else values[k + 1]
            error = min(rho_bar, ratio[k]) * (rewards[k] + gamma * next_value - values[k])
            targets[s] += weight * error
            if terminated[k]:
                break
            weight *= gamma * gae_lambda * min(c_bar, ratio[k])
            k += 1
    advantages = np.zeros(steps)
    for t in range(steps):
        if valid[t]:
            following = 0.0 if terminated[t] else targets[t + 1]
            advantages[t] = min(rho_bar, ratio[t]) * (rewards[t] + gamma * following - values[t])
    return advantages, targets[:-1]


def random_segment(seed, steps, lanes):
    rng = np.random.default_rng(seed)
    return {
        "log_ratio": rng.normal(scale=0.7, size=(steps, lanes)),
        "rewards": rng.normal(size=(steps, lanes)),
        "values": rng.normal(size=(steps + 1, lanes)),
        "terminated": rng.random((steps, lanes)) < 0.2,
        "valid": rng.random((steps, lanes)) < 0.75,
    }


def tensors(segment):
    return {k: torch.from_numpy(v if v.dtype == bool else v.astype(np.float32)) for k, v in segment.items()}


sizes = {"seed": st.integers(0, 2**20), "steps": st.integers(1, 12), "lanes": st.integers(1, 4)}


@settings(max_examples=80, deadline=None)
@given(**sizes, gamma=st.sampled_from([0.0, 0.9, 1.0]), gae_lambda=st.sampled_from([0.0, 0.8, 1.0]))
def test_gae_agrees_with_a_plain_loop(seed, steps, lanes, gamma, gae_lambda):
    segment = random_segment(seed, steps, lanes)
    del segment["log_ratio"]
    advantages, targets = gae(**tensors(segment), gamma=gamma, gae_lambda=gae_lambda)
    for lane in range(lanes):
        expected = lane_gae(**{k: v[:, lane] for k, v in segment.items()}, gamma=gamma, gae_lambda=gae_lambda)
        np.testing.assert_allclose(advantages[:, lane], expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(targets[:, lane], expected[1], rtol=1e-4, atol=1e-5)


@settings(max_examples=80, deadline=None)
@given(**sizes, gae_lambda=st.sampled_from([0.8, 1.0]), bars=st.sampled_from([(1.0, 1.0), (2.0, 0.7), (0.5, 1.0)]))
def test_vtrace_agrees_with_a_plain_loop(seed, steps, lanes, gae_lambda, bars):
    segment = random_segment(seed, steps, lanes)
    advantages, targets = vtrace(**tensors(segment), gamma=GAMMA, gae_lambda=gae_lambda, rho_bar=bars[0], c_bar=bars[1])
    segment["ratio"] = np.exp(segment.pop("log_ratio"))
    for lane in range(lanes):
        expected = lane_vtrace(**{k: v[:, lane] for k, v in segment.items()},
                               gamma=GAMMA, gae_lambda=gae_lambda, rho_bar=bars[0], c_bar=bars[1])  # fmt: skip
        np.testing.assert_allclose(advantages[:, lane], expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(targets[:, lane], expected[1], rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(**sizes)
def test_on_policy_vtrace_has_the_value_targets_of_gae(seed, steps, lanes):
    segment = tensors(random_segment(seed, steps, lanes))
    segment["log_ratio"] = torch.zeros_like(segment["log_ratio"])
    _, targets = vtrace(**segment, gamma=GAMMA, gae_lambda=LAM)
    del segment["log_ratio"]
    torch.testing.assert_close(targets, gae(**segment, gamma=GAMMA, gae_lambda=LAM)[1], rtol=1e-5, atol=1e-5)


def flags(steps, lanes=1, **at):
    """``terminated`` all False and ``valid`` all True, with single rows of lane 0 turned over."""
    terminated, valid = (
        torch.zeros(steps, lanes, dtype=torch.bool),
        torch.ones(steps, lanes, dtype=torch.bool),
    )
    for row in at.get("terminated", ()):
        terminated[row, 0] = True
    for row in at.get("invalid", ()):
        valid[row, 0] = False
    return terminated, valid


@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
def test_with_lambda_one_the_target_is_the_discounted_return(estimator):
    steps, bootstrap = 6, 5.0
    rewards = torch.ones(steps, 1)
    values = torch.randn(steps + 1, 1)
    values[-1] = bootstrap
    terminated, valid = flags(steps)
    if estimator == "gae":
        _, targets = gae(rewards, values, terminated, valid, GAMMA, 1.0)
    else:
        _, targets = vtrace(torch.zeros(steps, 1), rewards, values, terminated, valid, GAMMA)
    for t in range(steps):
        left = steps - t
        closed_form = (1 - GAMMA**left) / (1 - GAMMA) + GAMMA**left * bootstrap
        assert targets[t, 0].item() == pytest.approx(closed_form, rel=1e-5)


def test_with_lambda_zero_the_advantage_is_the_one_step_error():
    rewards, values = torch.randn(4, 2), torch.randn(5, 2)
    terminated, valid = flags(4, 2)
    advantages, _ = gae(rewards, values, terminated, valid, GAMMA, 0.0)
    torch.testing.assert_close(advantages, rewards + GAMMA * values[1:] - values[:-1])


@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not(estimator):
    # rows 0 and 1: the end of an episode; row 2: its final observation; rows 3 and 4: the next episode
    rewards = torch.tensor([[1.0], [2.0], [float("nan")], [4.0], [5.0]])
    values = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0], [60.0]])
    log_ratio = torch.tensor([[0.0], [0.0], [float("nan")], [0.0], [0.0]])

    def targets_of(**at):
        terminated, valid = flags(5, **at)
        if estimator == "gae":
            return gae(rewards, values, terminated, valid, GAMMA, 1.0)
        return vtrace(log_ratio, rewards, values, terminated, valid, GAMMA)

    for ended, last in (((1,), 0.0), ((), 30.0)):
        advantages, targets = targets_of(terminated=ended, invalid=(2,))
        expected = [1 + GAMMA * (2 + GAMMA * last), 2 + GAMMA * last, 30.0]
        expected += [4 + GAMMA * (5 + GAMMA * 60), 5 + GAMMA * 60]
        assert targets[:, 0].tolist() == pytest.approx(expected)
        assert advantages[2, 0] == 0
        assert advantages[0, 0].item() == pytest.approx(expected[0] - 10)


def test_small_ratios_shorten_the_trace_and_large_ones_are_clipped():
    rewards, values = torch.zeros(2, 3), torch.zeros(3, 3)
    rewards[1] = 1.0
    terminated, valid = flags(2, 3)
    log_ratio = torch.tensor([[math.log(0.5), 0.0, math.log(9.0)]]).repeat(2, 1)
    advantages, targets = vtrace(log_ratio, rewards, values, terminated, valid, GAMMA)
    torch.testing.assert_close(targets[0], torch.tensor([0.5 * 0.5 * GAMMA, GAMMA, GAMMA]))
    torch.testing.assert_close(targets[1], torch.tensor([0.5, 1.0, 1.0]))
    torch.testing.assert_close(advantages[1], torch.tensor([0.5, 1.0, 1.0]))


def test_an_overflowing_ratio_is_clipped_too():
    terminated, valid = flags(1)
    advantages, targets = vtrace(torch.full((1, 1), 1e4), torch.ones(1, 1), torch.zeros(2, 1), terminated, valid, GAMMA)
    assert advantages.item() == targets.item() == 1.0


def test_targets_carry_no_gradient():
    values = torch.randn(3, 1, requires_grad=True)
    terminated, valid = flags(2)
    assert not any(x.requires_grad for x in gae(torch.ones(2, 1), values, terminated, valid, GAMMA, LAM))


def test_wrong_shapes_are_named():
    ok, (terminated, valid) = torch.zeros(3, 2), flags(3, 2)
    with pytest.raises(ValueError, match=r"values must be \[T \+ 1, B\] = \[4, 2\], not \[3, 2\]"):
        gae(ok, torch.zeros(3, 2), terminated, valid, GAMMA, LAM)
    with pytest.raises(ValueError, match=r"\[T, B\] = \[3, 2\], not \[4, 2\]"):
        vtrace(torch.zeros(4, 2), ok, torch.zeros(4, 2), terminated, valid, GAMMA)
