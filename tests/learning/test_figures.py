"""Figures added up over micro-batches and minibatches."""

import math

import pytest
import torch

from rollmill.learning.figures import Sums, value_moments

MOMENTS = ("target", "target_square", "error", "error_square")


def vector(moments: dict[str, torch.Tensor], *others: float) -> torch.Tensor:
    return torch.tensor([*others, *(float(moments[name]) for name in MOMENTS)], dtype=torch.float64)


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
    parts = [
        vector(value_moments(predicted[i : i + 10], target[i : i + 10], mask[i : i + 10])) for i in range(0, 40, 10)
    ]
    counts = [int(mask[i : i + 10].sum()) for i in range(0, 40, 10)]
    weighted = sum(part * count for part, count in zip(parts, counts)) / sum(counts)
    sums.add(torch.as_tensor(weighted))
    figures = sums.means()
    wanted, error = target[mask].double(), (target - predicted)[mask].double()
    spread, left = wanted.std(correction=0), error.std(correction=0)
    assert figures["explained_variance"] == pytest.approx(float(1 - (left / spread) ** 2), rel=1e-6)
    assert figures["target_deviation"] == pytest.approx(float(spread), rel=1e-6)
    assert figures["error_deviation"] == pytest.approx(float(left), rel=1e-6)


@pytest.mark.parametrize(
    ("predicted", "wanted"), [([1.0, 2.0, 3.0], 1.0), ([2.0, 2.0, 2.0], 0.0), ([3.0, 2.0, 1.0], -3.0)]
)
def test_explained_variance_of_known_cases(predicted: list[float], wanted: float) -> None:
    sums = Sums(MOMENTS)
    everything = torch.ones(3, dtype=torch.bool)
    sums.add(vector(value_moments(torch.tensor(predicted), torch.tensor([1.0, 2.0, 3.0]), everything)))
    assert sums.means()["explained_variance"] == pytest.approx(wanted)


def test_equal_targets_have_no_explained_variance() -> None:
    sums = Sums(MOMENTS)
    mask = torch.ones(4, dtype=torch.bool)
    sums.add(vector(value_moments(torch.rand(4), torch.full((4,), 7.3), mask)))
    assert sums.means()["explained_variance"] == 0.0


def test_masked_rows_are_not_read() -> None:
    mask = torch.tensor([True, False])
    moments = value_moments(torch.tensor([1.0, math.nan]), torch.tensor([2.0, math.inf]), mask)
    assert {name: float(x) for name, x in moments.items()} == {
        "target": 2.0,
        "target_square": 4.0,
        "error": 1.0,
        "error_square": 1.0,
    }
