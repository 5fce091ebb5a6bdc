"""Is what was kept like what was played? Compares the whole episodes of a store with the metrics of all episodes.

Within each part of the run, kept episodes count with one over their probability of having been kept. The weighted mean
is compared with the mean of all that were played; where the choice was made by chance alone, the difference is noise
of a size that follows from the probabilities. *z* is the difference in units of that noise, over all parts together.
Beyond ``ALARM`` something else than chance has chosen (one false alarm in ten thousand comparisons).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.core.fields import Array
from rollmill.store.played import Part, PlayedEpisodes
from rollmill.store.table import EpisodeTable

ALARM = 4.0
QUANTITIES = ("return", "length")


@dataclass(frozen=True)
class Difference:
    """One quantity (return or length), kept against played, over the parts that have both."""

    kept: float
    """Weighted mean."""
    played: float
    z: float
    ks: float
    """Kolmogorov and Smirnov's distance: the largest difference between the two distributions."""
    ks_p: float
    """How often chance alone gives a distance as large."""

    @property
    def agrees(self) -> bool:
        return abs(self.z) < ALARM


@dataclass(frozen=True)
class Comparison:
    """Kept beside played."""

    kept: int
    """Whole episodes with a known probability."""
    played: int
    """Episodes that ended in the parts of the run that have kept ones."""
    all_played: int
    differences: dict[str, Difference]
    parts: list[dict[str, Any]]
    """By part of the run: frames, episodes played and kept, means of both."""

    @property
    def agrees(self) -> bool:
        return all(difference.agrees for difference in self.differences.values())

    def sentence(self) -> str:
        """What a reader should know."""
        share = f"{self.kept:,} of {self.played:,} episodes were kept"
        if self.agrees:
            return f"{share}; in return and length they are like those played"
        words = {"return": ("have lower returns", "have higher returns"), "length": ("are shorter", "are longer")}
        found = [
            f"kept episodes {words[name][d.z > 0]} than those played: {d.kept:.4g} against {d.played:.4g} "
            f"({abs(d.z):.1f} standard errors)"
            for name, d in self.differences.items()
            if not d.agrees
        ]
        return f"{share}, and " + "; ".join(found)

    def to_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "played": self.played,
            "all_played": self.all_played,
            "agrees": self.agrees,
            "sentence": self.sentence(),
            "parts": self.parts,
            **{
                name: {"kept": d.kept, "played": d.played, "z": finite(d.z), "ks": d.ks, "ks_p": d.ks_p}
                for name, d in self.differences.items()
            },
        }


def finite(z: float) -> float:
    """For JSON, which has no infinity."""
    return max(-1e9, min(1e9, z))


def compare(table: EpisodeTable, played: PlayedEpisodes) -> Comparison | None:
    """None where nothing can be compared: no whole episode that was kept by chance."""
    known = table["finished"] & ~table["partial_start"] & ~table["partial_end"] & ~np.isnan(table["probability"])
    if not known.any():
        return None
    places = table["global_step_first"][known] // played.width
    values = np.stack([table.return_[known], table.length[known].astype(np.float64)], axis=1)
    weights = 1 / table["probability"][known]
    pairs = [
        _Pair(place, played.parts[place], values[places == place], weights[places == place])
        for place in np.unique(places).tolist()
        if place in played.parts
    ]
    if not pairs:
        return None
    total = sum(pair.part.moments.count for pair in pairs)
    return Comparison(
        kept=sum(len(pair.values) for pair in pairs),
        played=total,
        all_played=played.count,
        differences={name: _difference(pairs, total, k) for k, name in enumerate(QUANTITIES)},
        parts=[pair.to_json(played.width) for pair in pairs],
    )


@dataclass(frozen=True)
class _Pair:
    """One part of the run: all episodes, and those that were kept (``values`` ``[n, 2]``)."""

    place: int
    part: Part
    values: Array
    weights: Array

    @property
    def mean(self) -> Array:
        return np.asarray((self.values * self.weights[:, None]).sum(axis=0) / self.weights.sum())

    @property
    def variance(self) -> Array:
        """Of ``mean``, if chance alone has chosen: nothing is left of it where everything was kept."""
        count, n = self.part.moments.count, len(self.values)
        spread = float((self.weights**2).sum() / self.weights.sum() ** 2)
        missing = 1 - n / count if n <= count else 1 + n / count  # more kept than known: the run was killed
        return np.asarray(self.part.moments.variance * spread * missing)

    def to_json(self, width: int) -> dict[str, Any]:
        return {
            "frames": [self.place * width, (self.place + 1) * width],
            "played": self.part.moments.count,
            "kept": len(self.values),
            **{
                name: {"kept": float(self.mean[k]), "played": float(self.part.moments.mean[k])}
                for k, name in enumerate(QUANTITIES)
            },
        }


def _difference(pairs: list[_Pair], total: int, k: int) -> Difference:
    shares = [pair.part.moments.count / total for pair in pairs]
    kept = sum(share * float(pair.mean[k]) for share, pair in zip(shares, pairs))
    played = sum(share * float(pair.part.moments.mean[k]) for share, pair in zip(shares, pairs))
    noise = math.sqrt(sum(share**2 * float(pair.variance[k]) for share, pair in zip(shares, pairs)))
    distance, p = _kolmogorov(pairs, shares, k)
    spread = max(float(pair.part.moments.variance[k]) for pair in pairs) ** 0.5
    return Difference(kept, played, _ratio(kept - played, noise, max(abs(played), spread)), distance, p)


def _ratio(difference: float, noise: float, scale: float) -> float:
    if abs(difference) <= 1e-4 * scale:  # returns are summed up in 32 bits on the way
        return 0.0
    return difference / noise if noise else math.copysign(math.inf, difference)


def _kolmogorov(pairs: list[_Pair], shares: list[float], k: int) -> tuple[float, float]:
    """Distance between the weighted distributions, and its p-value (an upper bound where values repeat)."""
    kept = np.concatenate([pair.values[:, k] for pair in pairs])
    kept_weights = np.concatenate([s * pair.weights / pair.weights.sum() for s, pair in zip(shares, pairs)])
    sample = np.concatenate([pair.part.sample[:, 1 + k] for pair in pairs])
    sample_weights = np.concatenate(
        [np.full(len(pair.part.sample), s / max(1, len(pair.part.sample))) for s, pair in zip(shares, pairs)]
    )
    points = np.unique(np.concatenate([kept, sample]))
    distance = float(
        np.abs(_cumulative(kept, kept_weights, points) - _cumulative(sample, sample_weights, points)).max()
    )
    sizes = [float(w.sum() ** 2 / (w**2).sum()) for w in (kept_weights, sample_weights)]
    root = math.sqrt(sizes[0] * sizes[1] / (sizes[0] + sizes[1]))
    x = (root + 0.12 + 0.11 / root) * distance
    terms = sum((-1) ** (j - 1) * math.exp(-2 * j * j * x * x) for j in range(1, 101))
    return distance, min(1.0, max(0.0, 2 * terms)) if x > 0.2 else 1.0


def _cumulative(values: Array, weights: Array, points: Array) -> Array:
    order = np.argsort(values, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    return np.asarray(sums[np.searchsorted(values[order], points, side="right")] / sums[-1])
