"""Ratings against known strengths, closed forms, and what has no answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from rollmill.core.fields import Array
from rollmill.pbt.ratings import ELO, rate, wilson

KNOWN = np.array([-350.0, -240, -130, -40, 50, 140, 230, 340])


def play(rng: np.random.Generator, elo: Array, games: int, draw: float = 0.0) -> tuple[Array, Array]:
    """Wins and draws of ``games`` games, shared out evenly to all pairs; ``draw``: chance at equal strength."""
    n = len(elo)
    wins, draws = np.zeros((n, n)), np.zeros((n, n))
    pairs = [(i, j) for i in range(n) for j in range(i)]
    for k in range(games):
        i, j = pairs[k % len(pairs)]
        chance = 1 / (1 + 10 ** ((elo[j] - elo[i]) / 400))
        drawn = draw * 4 * chance * (1 - chance) * min(chance, 1 - chance) / 0.5
        luck = rng.random()
        if luck < drawn:
            draws[i, j] += 1
            draws[j, i] += 1
        else:  # so that half a point for a draw leaves the expected score as it is
            win = chance - drawn / 2
            wins[(i, j) if luck < drawn + win else (j, i)] += 1
    return wins, draws


@pytest.mark.parametrize("draw", [0.0, 0.6])
def test_eight_players_of_known_strength(draw: float) -> None:
    rng = np.random.default_rng(5)
    errors, inside, orders = [], [], []
    for _ in range(60):
        found = rate(*play(rng, KNOWN, 2000, draw))
        gap = found.elo - (KNOWN - KNOWN.mean())
        errors.append(np.abs(gap).mean())
        inside.append(np.abs(gap) <= found.margin)
        orders.append(spearmanr(found.elo, KNOWN).statistic)
    assert np.mean(errors) <= 25
    assert np.mean(orders) >= 0.98
    assert 0.85 <= np.mean(inside) <= 0.95


def test_two_players_have_the_odds_they_have_won() -> None:
    found = rate(np.array([[0.0, 7500], [2500, 0]]))
    assert found.elo[0] - found.elo[1] == pytest.approx(400 * math.log10(3), abs=0.1)
    assert found.strength.tolist() == pytest.approx([0.75, 0.25], abs=1e-3)
    assert found.expected()[0, 1] == pytest.approx(0.75, abs=1e-3)
    # the variance of a log of odds is 1 / (n p q)
    spread = math.sqrt(found.covariance[0, 0] + found.covariance[1, 1] - 2 * found.covariance[0, 1])
    assert spread == pytest.approx(ELO / math.sqrt(10000 * 0.75 * 0.25), rel=1e-2)
    assert found.better(0, 1) > 0.999
    assert found.better(0, 1) + found.better(1, 0) == pytest.approx(1)


def test_whoever_wins_everything_stays_finite_and_unsure() -> None:
    found = rate(np.array([[0.0, 10, 10], [0, 0, 10], [0, 0, 0]]))
    assert found.elo[0] > found.elo[1] > found.elo[2]
    assert np.isfinite(found.elo).all()
    assert found.margin.min() > 100


def test_only_draws_are_equal_strength_and_tell_more_than_wins_and_losses() -> None:
    even = np.array([[0.0, 50], [50, 0]])
    drawn, fought = rate(np.zeros((2, 2)), even * 2), rate(even)
    assert drawn.elo.tolist() == pytest.approx([0, 0])
    assert 0 < drawn.margin[0] < fought.margin[0]


def test_a_cycle_has_no_strongest_player() -> None:
    found = rate(np.array([[0.0, 90, 10], [10, 0, 90], [90, 10, 0]]))
    assert found.elo.tolist() == pytest.approx([0, 0, 0], abs=1e-6)


def test_wilson_interval() -> None:
    # Wilson (1927) at 95 %: 8 of 10
    assert wilson(8, 10, 0.95) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20)[0] == 0
    assert wilson(0, 20)[1] > 0.05
    assert wilson(0, 0) == (0, 1)


@pytest.mark.parametrize(
    ("wins", "draws", "message"),
    [
        (np.zeros((2, 3)), None, "must be"),
        (np.eye(2), None, "against themselves"),
        (np.zeros((2, 2)), np.array([[0.0, 1], [0, 0]]), "symmetric"),
        (np.array([[0.0, -1], [0, 0]]), None, "negative"),
    ],
)
def test_what_is_no_table_of_games_is_refused(wins: Array, draws: Array | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rate(wins, draws)
