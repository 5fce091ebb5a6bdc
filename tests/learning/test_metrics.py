"""Metrics added up over micro-batches and minibatches."""

import math

import pytest
import torch

from rollmill.learning.metrics import Sums, row_sums

MOMENTS = ("target", "error", "target_square", "error_square")


def moments(predicted: torch.Tensor, target: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return row_sums([target, target - predicted], mask)


def test_means_over_minibatches() -> None:
    sums = Sums(("a", "b"))
    sums.add(torch.tensor([1.0, 10.0]))
    sums.add(torch.tensor([3.0, 30.0]))
    assert sums.means() == {"a": 2.0, "b": 20.0}


def test_nothing_added_is_all_zeros() -> None:
    means = Sums(("a", *MOMENTS)).means()
    assert means == {"a": 0.0, "explained_variance": 0.0, "target_deviation": 0.0, "error_deviation": 0.0}


def test_means_since_a_copy() -> None:
    sums = Sums(("a",))
    before = sums.copy()
    sums.add(torch.tensor([4.0]))
    assert sums.since(before) == {"a": 4.0}
    middle = sums.copy()
    sums.add(torch.tensor([8.0]))
    sums.add(torch.tensor([2.0]))
    assert sums.since(middle) == {"a": 5.0}
    assert middle.means() == {"a": 4.0}
    assert sums.since(sums.copy()) == {"a": 0.0}


def test_explained_variance_over_parts_is_that_of_the_whole() -> None:
    rng = torch.Generator().manual_seed(0)
    target = torch.randn(40, generator=rng) * 3 + 100
    predicted = target + torch.randn(40, generator=rng)
    mask = torch.rand(40, generator=rng) > 0.3
    sums = Sums(MOMENTS)
    parts = [moments(predicted[i : i + 10], target[i : i + 10], mask[i : i + 10]) for i in range(0, 40, 10)]
    sums.add(torch.stack(parts).sum(0) / mask.sum())
    metrics = sums.means()
    wanted, error = target[mask].double(), (target - predicted)[mask].double()
    spread, left = wanted.std(correction=0), error.std(correction=0)
    assert metrics["explained_variance"] == pytest.approx(float(1 - (left / spread) ** 2), rel=1e-6)
    assert metrics["target_deviation"] == pytest.approx(float(spread), rel=1e-6)
    assert metrics["error_deviation"] == pytest.approx(float(left), rel=1e-6)


@pytest.mark.parametrize(
    ("predicted", "wanted"), [([1.0, 2.0, 3.0], 1.0), ([2.0, 2.0, 2.0], 0.0), ([3.0, 2.0, 1.0], -3.0)]
)
def test_explained_variance_of_known_cases(predicted: list[float], wanted: float) -> None:
    sums = Sums(MOMENTS)
    everything = torch.ones(3, dtype=torch.bool)
    sums.add(moments(torch.tensor(predicted), torch.tensor([1.0, 2.0, 3.0]), everything) / 3)
    assert sums.means()["explained_variance"] == pytest.approx(wanted)


def test_equal_targets_have_no_explained_variance() -> None:
    sums = Sums(MOMENTS)
    mask = torch.ones(4, dtype=torch.bool)
    sums.add(moments(torch.rand(4), torch.full((4,), 7.3), mask) / 4)
    assert sums.means()["explained_variance"] == 0.0


def test_masked_rows_are_not_read() -> None:
    mask = torch.tensor([True, False])
    sums = row_sums([torch.tensor([1.0, math.nan]), torch.tensor([2.0, math.inf]), torch.tensor([3.0, 0.0])], mask)
    assert sums.tolist() == [1.0, 2.0, 3.0, 4.0, 9.0], "three sums, then the squares of the last two"
    assert sums.dtype == torch.float64
