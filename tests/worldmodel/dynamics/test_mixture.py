"""Mixtures of normal distributions against closed forms and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollmill.worldmodel.dynamics.mixture import (
    MAX_LOG_STD,
    MIN_LOG_STD,
    Mixture,
    draw,
    expectation,
    log_likelihood,
    split_mixture,
)


def mixture(weights: list[float], means: list[float], stds: list[float]) -> Mixture:
    """One number's mixture, ``[1, K]``."""
    return Mixture(*(torch.tensor([x]) for x in (np.log(weights).tolist(), means, np.log(stds).tolist())))


def test_one_component_is_a_normal_distribution() -> None:
    x, m, s = 0.3, -0.2, 0.5
    expected = -0.5 * ((x - m) / s) ** 2 - math.log(s) - 0.5 * math.log(2 * math.pi)
    assert log_likelihood(torch.tensor([x]), mixture([1.0], [m], [s])).item() == pytest.approx(expected, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0.1, 1), st.floats(-2, 2), st.floats(0.2, 2)), min_size=1, max_size=4),
    st.floats(-3, 3),
)
def test_density_is_the_weighted_sum_of_densities(parts: list[tuple[float, float, float]], x: float) -> None:
    total = sum(w for w, _, _ in parts)
    density = sum(w / total * math.exp(-0.5 * ((x - m) / s) ** 2) / (s * math.sqrt(2 * math.pi)) for w, m, s in parts)
    said = log_likelihood(torch.tensor([x]), mixture(*(list(column) for column in zip(*parts, strict=True))))
    assert said.item() == pytest.approx(math.log(density), abs=1e-3)  # float32, 25 deviations away


def test_density_sums_to_one() -> None:
    chosen = mixture([0.3, 0.7], [-1.0, 0.5], [0.2, 0.6])
    x = torch.linspace(-8, 8, 4001)[:, None]
    area = torch.trapezoid(log_likelihood(x, chosen).exp()[:, 0], x[:, 0])
    assert area.item() == pytest.approx(1.0, abs=1e-4)


def test_draws_have_the_mean_and_the_spread_of_the_mixture() -> None:
    chosen = mixture([0.25, 0.75], [-2.0, 1.0], [0.3, 0.5])
    many = Mixture(*(x.expand(20_000, 1, 2) for x in chosen))
    drawn = draw(many, 1.0, torch.Generator().manual_seed(0))
    mean = 0.25 * -2 + 0.75 * 1
    variance = 0.25 * (0.09 + 4) + 0.75 * (0.25 + 1) - mean**2
    assert expectation(chosen).item() == pytest.approx(mean)
    assert drawn.mean().item() == pytest.approx(mean, abs=0.05)
    assert drawn.var().item() == pytest.approx(variance, rel=0.05)


def test_temperature_zero_takes_the_likeliest_mean_and_higher_ones_spread_more() -> None:
    chosen = mixture([0.2, 0.8], [-2.0, 1.0], [0.3, 0.5])
    assert draw(chosen, 0.0).item() == 1.0
    many = Mixture(*(x.expand(5_000, 1, 2) for x in chosen))
    spread = [draw(many, t, torch.Generator().manual_seed(1)).std().item() for t in (0.2, 1.0, 3.0)]
    assert spread[0] < spread[1] < spread[2]


def test_split_keeps_every_number_in_its_place_and_bounds_the_spread() -> None:
    numbers = torch.arange(12.0)[None] * 100
    found = split_mixture(numbers, 2, 2)
    assert found.logits.tolist() == [[[0, 100], [200, 300]]]
    assert found.mean.tolist() == [[[400, 500], [600, 700]]]
    assert found.log_std.max() == MAX_LOG_STD
    assert split_mixture(-numbers, 2, 2).log_std.min() == MIN_LOG_STD
