"""Counts of values in bins: of an array at once, or of values that come in pieces and have no known range."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmill.core.fields import Array


def histogram(values: Array, bins: int = 40) -> dict[str, Any]:
    """Count the finite ``values`` in at most ``bins`` equal bins: ``edges`` [k + 1], ``counts`` [k].

    Bins of whole numbers hold equally many numbers each, so that no comb appears.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {"edges": [], "counts": []}
    low, high = float(finite.min()), float(finite.max())
    whole = high - low < 2**52 and bool((finite == np.floor(finite)).all())
    if whole:
        width = max(1, int(np.ceil((high - low + 1) / bins)))
        edges = np.arange(low, high + width + 1, width) - 0.5
    elif low == high or not np.isfinite(high - low):
        edges = np.array([low, np.nextafter(high, np.inf)])
    else:
        edges = np.linspace(low, high, bins + 1)
        if not (np.diff(edges) > 0).all():  # values so close together that there is no room for bins
            edges = np.array([low, high])
    while whole and edges[-2] > high:
        edges = edges[:-1]
    counts, edges = np.histogram(finite, edges)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


DISTINCT = 12
"""More different values than this are shown in bins."""
_LARGEST = 1e300
"""Values beyond are counted as not finite: widths of bins and squares would overflow."""


class GrowingHistogram:
    """Counts, mean, deviation and extremes of values that come in pieces, in bounded memory.

    The range doubles when a value lies outside it: neighbouring bins are joined, no count is lost. As long as there
    are no more than ``DISTINCT`` different values, each is counted on its own too.
    """

    def __init__(self, bins: int = 64) -> None:
        self._bins = bins  # even: neighbours are joined in pairs
        self._low = self._width = 0.0  # of the first bin; a width of 0: nothing was seen yet
        self._counts = np.zeros(bins, np.int64)
        self.count = self.nonzero = self.non_finite = 0
        self.min, self.max = np.inf, -np.inf
        self._mean = self._squares = 0.0
        self._distinct: dict[float, int] | None = {}

    def add(self, values: Array) -> None:
        values = np.asarray(values, np.float64).ravel()
        finite = values[np.abs(values) <= _LARGEST]
        self.non_finite += len(values) - len(finite)
        if not len(finite):
            return
        self._add_moments(finite)
        self._add_distinct(finite)
        if self._width == 0.0:
            self._begin(float(finite[0]))
        self._grow(float(finite.min()), float(finite.max()))
        places = np.clip(((finite - self._low) / self._width).astype(np.int64), 0, self._bins - 1)
        self._counts += np.bincount(places, minlength=self._bins)

    def _add_moments(self, values: Array) -> None:
        # Chan's way of joining two sets of moments; sums of squares would lose small deviations from large means.
        count, mean = len(values), float(values.mean())
        total = self.count + count
        apart = mean - self._mean
        self._squares += float(((values - mean) ** 2).sum()) + apart**2 * self.count * count / total
        self._mean += apart * count / total
        self.count = total
        self.nonzero += int(np.count_nonzero(values))
        self.min, self.max = min(self.min, float(values.min())), max(self.max, float(values.max()))

    def _add_distinct(self, values: Array) -> None:
        if self._distinct is None:
            return
        for value, count in zip(*(part.tolist() for part in np.unique(values, return_counts=True))):
            self._distinct[value] = self._distinct.get(value, 0) + count
            if len(self._distinct) > DISTINCT:
                self._distinct = None
                return

    def _begin(self, value: float) -> None:
        self._width = max(abs(value), 1.0) * 2.0**-20
        self._low = np.floor(value / self._width) * self._width - self._width * (self._bins // 2)

    def _grow(self, low: float, high: float) -> None:
        half = self._bins // 2
        while low < self._low or high >= self._low + self._width * self._bins:
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.zeros(self._bins, np.int64)
            if low < self._low:
                self._counts[half:] = pairs
                self._low -= self._width * self._bins
            else:
                self._counts[:half] = pairs
            self._width *= 2

    @property
    def mean(self) -> float:
        return self._mean if self.count else np.nan

    @property
    def std(self) -> float:
        return float(np.sqrt(self._squares / self.count)) if self.count else np.nan

    def metrics(self) -> dict[str, Any]:
        """Return JSON values: moments, extremes and the bins that hold something, with those between them."""
        used = np.flatnonzero(self._counts)
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        edges = self._low + self._width * np.arange(first, last + 1) if len(used) else np.zeros(0)
        counts = self._counts[first:last]
        distinct = None if self._distinct is None else [list(pair) for pair in sorted(self._distinct.items())]
        return {
            "count": self.count,
            "non_finite": self.non_finite,
            "nonzero": self.nonzero,
            "mean": self.mean if self.count else None,
            "std": self.std if self.count else None,
            "min": self.min if self.count else None,
            "max": self.max if self.count else None,
            "edges": edges.tolist(),
            "counts": counts.tolist(),
            "distinct": distinct,
        }
