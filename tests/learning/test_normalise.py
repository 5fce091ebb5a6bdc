"""Normalised advantages and returns, ordinary ones and the awkward ones."""

import numpy as np
import pytest
import torch

from rollmill.learning.normalise import normalise_advantages


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
