"""How strong players are, from who has won against whom: Bradley-Terry, on the scale of Elo.

A player of strength ``g`` wins against one of strength ``h`` with probability ``g / (g + h)``; a draw is half a win.
An Elo rating is the logarithm of that strength: 400 points are odds of ten to one. Strengths are fitted to all games at
once, so the order of games does not matter, and no constant says how fast ratings move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rollmill.core.fields import Array

ELO = 400.0 / math.log(10.0)
"""Points of one natural logarithm of odds."""
CONFIDENCE = 0.9
PRIOR_GAMES = 1.0
"""Drawn games against an average player that everybody is credited with: whoever has won all games stays finite."""
_LARGEST_STEP = 2.0
_ITERATIONS = 200
_LEAST_SPREAD = 0.05
"""Share of the spread of won and lost games that is left where nearly all games were drawn."""


@dataclass(frozen=True)
class Ratings:
    """Ratings of ``n`` players, 0 in the mean: only differences say something."""

    elo: Array
    """[n] float64"""
    covariance: Array
    """[n, n] of ``elo``"""
    confidence: float = CONFIDENCE

    @property
    def margin(self) -> Array:
        """[n]: half the width of the interval around each rating."""
        width: Array = _quantile(self.confidence) * np.sqrt(np.diag(self.covariance))
        return width

    @property
    def strength(self) -> Array:
        """[n]: Bradley-Terry strengths, 1 in all."""
        found = np.exp((self.elo - self.elo.max()) / ELO)
        whole: Array = found / found.sum()
        return whole

    def expected(self) -> Array:
        """Return ``[n, n]``, the share of points that the row's player should win from the column's."""
        share: Array = 1.0 / (1.0 + np.exp(np.subtract.outer(-self.elo, -self.elo) / ELO))
        return share

    def better(self, one: int, other: int) -> float:
        """Return the probability that ``one`` is the stronger player of the two."""
        c = self.covariance
        spread = math.sqrt(max(c[one, one] + c[other, other] - 2 * c[one, other], 1e-12))
        return NormalDist().cdf(float(self.elo[one] - self.elo[other]) / spread)


def rate(wins: Array, draws: Array | None = None, confidence: float = CONFIDENCE) -> Ratings:
    """Return ratings from ``wins[i, j]``, the games that i has won against j, and the drawn ones, ``draws[i, j]``.

    Intervals take games for independent of each other. They are as wide as they are for won and lost games, less what
    draws take from the spread of results.
    """
    wins = np.asarray(wins, np.float64)
    draws = np.zeros_like(wins) if draws is None else np.asarray(draws, np.float64)
    _check(wins, draws)
    games = wins + wins.T + draws
    points = (wins + draws / 2).sum(axis=1) + PRIOR_GAMES / 2
    theta = np.zeros(len(wins))
    for _ in range(_ITERATIONS):
        chance, average = _chance(theta)
        missing = points - (games * chance).sum(axis=1) - PRIOR_GAMES * average
        spread = games * chance * (1 - chance)
        step = np.linalg.solve(_information(spread, average), missing)
        theta += np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
    chance, average = _chance(theta)
    spread = games * chance * (1 - chance)
    inverse = np.linalg.inv(_information(spread, average))
    seen = np.maximum(spread - draws / 4, _LEAST_SPREAD * spread)
    centre = np.eye(len(theta)) - 1 / max(1, len(theta))
    covariance = centre @ inverse @ _information(seen, average) @ inverse @ centre
    return Ratings((theta - theta.mean()) * ELO, covariance * ELO**2, confidence)


def _chance(theta: Array) -> tuple[Array, Array]:
    """Return the probabilities ``[n, n]`` of winning against each other, and ``[n]`` against an average player."""
    return 1 / (1 + np.exp(np.subtract.outer(-theta, -theta))), 1 / (1 + np.exp(-theta))


def _information(spread: Array, average: Array) -> Array:
    """Return ``[n, n]``, what games with so much spread of results say about strengths, and the games credited."""
    prior = PRIOR_GAMES * average * (1 - average)
    matrix: Array = np.diag(spread.sum(axis=1) + prior) - spread
    return matrix


def _check(wins: Array, draws: Array) -> None:
    if wins.ndim != 2 or wins.shape[0] != wins.shape[1] or wins.shape != draws.shape:
        raise ValueError(f"wins and draws must be [n, n], got {list(wins.shape)} and {list(draws.shape)}")
    if np.diag(wins).any() or np.diag(draws).any():
        raise ValueError("nobody plays against themselves: the diagonals must be 0")
    if not (draws == draws.T).all():
        raise ValueError("a draw is one for both players: draws must be symmetric")
    if (wins < 0).any() or (draws < 0).any():
        raise ValueError("games cannot be negative")


def wilson(points: float, games: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's interval of a share of points; a draw counts half, which makes it wider than need be."""
    if games < 1:
        return 0.0, 1.0
    z, share = _quantile(confidence), points / games
    middle = (share + z * z / (2 * games)) / (1 + z * z / games)
    half = z * math.sqrt(share * (1 - share) / games + z * z / (4 * games * games)) / (1 + z * z / games)
    return max(0.0, middle - half), min(1.0, middle + half)


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must be above 0 and below 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)
