"""PB2's way to explore: a Gaussian process over what settings have brought so far, and the most promising next ones.

Rows are (time, settings as 0..1) -> gain of the objective per period. What was long ago counts less: the kernel falls
off with time. Settings that others have just been given count as tried, with the gain that is expected of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollmill.core.fields import Array

FORGET = 0.1
"""How fast the past stops to matter: two rounds k apart are related by (1 - FORGET) ** (k / 2)."""
LENGTHS = (0.1, 0.2, 0.4, 0.8)
NOISES = (0.01, 0.1, 0.5)
CANDIDATES = 512
NEWEST = 1000
"""Rows that are looked at."""


class GainModel:
    """The Gaussian process; its length and noise are those under which the rows are most likely."""

    def __init__(self, times: Array, settings: Array, gains: Array) -> None:
        """Fit the model to ``times`` ``[n]`` in rounds, ``settings`` ``[n, d]`` in 0..1 and ``gains`` ``[n]``."""
        self._times, self._settings = times[-NEWEST:], settings[-NEWEST:]
        gains = gains[-NEWEST:]
        self._centre, self._spread = float(gains.mean()), float(gains.std()) or 1.0
        self._gains = (gains - self._centre) / self._spread
        choices = [(length, noise) for length in LENGTHS for noise in NOISES]
        self._length, self._noise = max(choices, key=lambda pair: self._likelihood(*pair))
        self._factor = np.linalg.cholesky(self._covariance(self._length, self._noise))

    def _kernel(self, times: Array, settings: Array, length: float) -> Array:
        """Return ``[len(times), n]``, how related these are to the rows of the model."""
        apart = np.abs(times[:, None] - self._times[None])
        distance = np.square(settings[:, None] - self._settings[None]).sum(-1)
        related: Array = (1 - FORGET) ** (apart / 2) * np.exp(-distance / (2 * length**2))
        return related

    def _covariance(self, length: float, noise: float) -> Array:
        return self._kernel(self._times, self._settings, length) + noise * np.eye(len(self._times))

    def _likelihood(self, length: float, noise: float) -> float:
        factor = np.linalg.cholesky(self._covariance(length, noise))
        solved = np.linalg.solve(factor, self._gains)
        return float(-0.5 * solved @ solved - np.log(np.diag(factor)).sum())

    def predict(self, time: float, settings: Array) -> tuple[Array, Array]:
        """Return (mean, deviation) ``[m]`` of the gain of ``settings`` ``[m, d]``, standardised."""
        related = self._kernel(np.full(len(settings), time), settings, self._length)
        solved = np.linalg.solve(self._factor, related.T)
        mean = solved.T @ np.linalg.solve(self._factor, self._gains)
        deviation = np.sqrt(np.maximum(1e-12, 1.0 - np.square(solved).sum(0)))
        return mean, deviation

    def tried(self, time: float, settings: Array) -> None:
        """Count ``settings`` ``[d]`` as tried, with the gain that is expected of them."""
        expected, _ = self.predict(time, settings[None])
        self._times = np.append(self._times, time)
        self._settings = np.concatenate([self._settings, settings[None]])
        self._gains = np.append(self._gains, expected)
        self._factor = np.linalg.cholesky(self._covariance(self._length, self._noise))


def propose(model: GainModel, time: float, near: Sequence[float], rng: np.random.Generator) -> Array:
    """Return ``[d]`` in 0..1, where the gain may be highest (upper confidence bound); half the candidates are near."""
    dimensions = len(near)
    anywhere = rng.random((CANDIDATES, dimensions))
    around = np.clip(np.asarray(near) + 0.1 * rng.normal(size=(CANDIDATES, dimensions)), 0, 1)
    candidates = np.concatenate([anywhere, around])
    mean, deviation = model.predict(time, candidates)
    bound = mean + np.sqrt(0.2 + np.log(1 + time)) * deviation
    chosen: Array = candidates[int(bound.argmax())]
    model.tried(time, chosen)
    return chosen
