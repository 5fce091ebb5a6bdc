"""Normalised advantages and returns, ordinary ones and the awkward ones."""

import numpy as np
import pytest
import torch

from rollmill.learning.normalise import normalise_advantages, normalise_returns
from rollmill.models.encoders import RunningMoments


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def test_advantages_get_mean_zero_and_deviation_one_where_they_count():
    advantages = torch.randn(16, 4) * 5 + 3
    mask = torch.rand(16, 4) < 0.7
    advantages[~mask] = float("nan")
    scaled = normalise_advantages(advantages, mask)
    kept = advantages[mask].numpy().astype(np.float64)
    np.testing.assert_allclose(scaled[mask].numpy(), (kept - kept.mean()) / kept.std(), rtol=1e-5, atol=1e-6)
    assert not scaled[~mask].any()
    assert scaled.dtype == torch.float32


@pytest.mark.parametrize("value", [0.0, 0.1, -3.3, 1e4])
@pytest.mark.parametrize("count", [1, 2, 999])
def test_equal_advantages_become_zero(value, count):
    scaled = normalise_advantages(torch.full((count,), value), torch.ones(count, dtype=torch.bool))
    assert scaled.abs().max() < 1e-3


def test_nothing_that_counts_gives_zeros():
    scaled = normalise_advantages(torch.full((3,), float("nan")), torch.zeros(3, dtype=torch.bool))
    assert not scaled.any()


def test_advantages_with_gradient_come_out_without():
    assert not normalise_advantages(torch.randn(3, requires_grad=True), torch.ones(3, dtype=torch.bool)).requires_grad


def test_returns_are_scaled_by_everything_seen_so_far():
    moments = RunningMoments()
    first, second = torch.randn(8, 2) + 10, torch.randn(8, 2) * 3
    mask = torch.rand(8, 2) < 0.8
    normalise_returns(first, torch.ones_like(mask), moments)
    scaled = normalise_returns(second, mask, moments)
    seen = np.concatenate([first.flatten(), second[mask]]).astype(np.float64)
    expected = (second.numpy() - seen.mean()) / np.sqrt(seen.var() + moments.EPSILON)
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-4, atol=1e-5)
