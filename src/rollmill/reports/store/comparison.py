"""Is what was kept like what was played? Compares the whole episodes of a store with the metrics of all episodes.

Within each part of the run, kept episodes count with one over their probability of having been kept. The weighted mean
is compared with the mean of all that were played; where the choice was made by chance alone, the difference is noise
of a size that follows from the probabilities. *z* is the difference in units of that noise, over all parts together.
Means can agree where distributions do not (the shortest and the longest are missing): these are compared by Kolmogorov
and Smirnov's test, with the sample of all episodes that every part has.

Beyond ``ALARM``, or below ``ALARM_P``, something else than chance has chosen. Both have one false alarm in 16,000
comparisons; returns and lengths are compared by both, so one report in 4,000 is wrong at most.
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
"""Standard errors."""
ALARM_P = math.erfc(ALARM / math.sqrt(2))
"""The probability of a larger |z| by chance, and of a larger distance."""
_SAME = 1e-4
"""Share of the scale below which values do not differ: returns are summed up in 32 bits on the way."""
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
    def means_agree(self) -> bool:
        return abs(self.z) < ALARM

    @property
    def agrees(self) -> bool:
        return self.means_agree and self.ks_p >= ALARM_P

    def sentence(self, name: str) -> str:
        """Say how kept episodes differ, where they do."""
        if self.means_agree:
            what = f"{name}s that are spread differently from those played"
            return f"kept episodes have {what}: up to {self.ks:.0%} apart (p = {self.ks_p:.1g})"
        words = {"return": ("have lower returns", "have higher returns"), "length": ("are shorter", "are longer")}
        apart = f"{self.kept:.4g} against {self.played:.4g} ({abs(self.z):.1f} standard errors)"
        return f"kept episodes {words[name][self.z > 0]} than those played: {apart}"


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
        """Say what a reader should know."""
        share = f"{self.kept:,} of {self.played:,} episodes were kept"
        if self.agrees:
            return f"{share}; in return and length they are like those played"
        found = [difference.sentence(name) for name, difference in self.differences.items() if not difference.agrees]
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
    """Limit a number for JSON, which has no infinity."""
    return max(-1e9, min(1e9, z))


def compare(table: EpisodeTable, played: PlayedEpisodes) -> Comparison | None:
    """Compare the store's whole episodes with all that were played; None if none of them was kept by chance."""
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
        parts=[pair.to_json(played.width, last=int(table["global_step_first"][known].max())) for pair in pairs],
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
    def excess(self) -> Array:
        """How much the weighted sum of kept values exceeds that of as many mean values. Chance alone gives 0 in the
        mean, however few are kept, and whatever the probabilities have to do with the values.
        """
        return np.asarray((self._away * self.weights[:, None]).sum(axis=0))

    @property
    def variances(self) -> Array:
        """``[2, 2]``: the variance of ``excess`` if chance alone has chosen, by the values of all and by those that
        were kept.

        Nothing is left of either where everything was kept. The second is the larger one where episodes that are
        rarely kept are unlike the others, or a few outdo all.
        """
        weights, all_ = self.weights, self.part.moments.variance
        spread = weights**2 if self._killed else weights * (weights - 1)
        known = weights.sum() ** 2 / self.part.moments.count * all_ if self._killed else np.zeros(2)
        return np.stack([all_ * spread.sum(), (self._away**2 * spread[:, None]).sum(axis=0)]) + known

    @property
    def _killed(self) -> bool:
        """Whether the kept and the known episodes are both only samples: a run that is killed forgets the newest
        episodes that it played, and its recorder some that it kept. Then more are kept than known, or all were to be
        kept and the means differ.
        """
        same = np.abs(self.excess) <= _SAME * self.weights.sum() * self.part.moments.scale
        return len(self.weights) > self.part.moments.count or bool((self.weights == 1).all() and not same.all())

    @property
    def _away(self) -> Array:
        return np.asarray(self.values - self.part.moments.mean)

    def to_json(self, width: int, last: int) -> dict[str, Any]:
        """Return the part as JSON values; ``last``: where the last episode began, no part goes on behind it."""
        return {
            "frames": [self.place * width, min((self.place + 1) * width, last)],
            "played": self.part.moments.count,
            "kept": len(self.values),
            **{
                name: {"kept": float(self.mean[k]), "played": float(self.part.moments.mean[k])}
                for k, name in enumerate(QUANTITIES)
            },
        }


def _difference(pairs: list[_Pair], total: int, k: int) -> Difference:
    shares = [pair.part.moments.count / total for pair in pairs]
    played = sum(share * float(pair.part.moments.mean[k]) for share, pair in zip(shares, pairs))
    excess = sum(float(pair.excess[k]) for pair in pairs) / total
    noise = math.sqrt(max(np.sum([pair.variances[:, k] for pair in pairs], axis=0))) / total
    same = _SAME * max(float(pair.part.moments.scale[k]) for pair in pairs)
    distance, p = _kolmogorov(pairs, k, same)
    return Difference(played + excess, played, _ratio(excess, noise, same), distance, p)


def _ratio(difference: float, noise: float, same: float) -> float:
    if abs(difference) <= same:
        return 0.0
    return difference / noise if noise else math.copysign(math.inf, difference)


def _kolmogorov(pairs: list[_Pair], k: int, same: float) -> tuple[float, float]:
    """Return the distance between the weighted distributions, and its p-value (an upper bound: values repeat, parts are
    alike, and what was kept was played). Values that are ``same`` apart count as equal.

    The sample of a part counts as much as what was kept of it, as in ``_Pair.excess``.
    """
    kept = np.concatenate([pair.values[:, k] for pair in pairs])
    kept_weights = np.concatenate([pair.weights for pair in pairs])
    sample = np.concatenate([pair.part.sample[:, 1 + k] for pair in pairs])
    sizes_of_samples = [len(pair.part.sample) for pair in pairs]
    sample_weights = np.concatenate(
        [np.full(size, pair.weights.sum() / max(1, size)) for size, pair in zip(sizes_of_samples, pairs)]
    )
    points = np.unique(np.concatenate([kept, sample]))
    below, sample_below = (
        [_cumulative(values, weights, points + shift) for shift in (0, same)]
        for values, weights in ((kept, kept_weights), (sample, sample_weights))
    )
    distance = max(0.0, float(np.maximum(below[0] - sample_below[1], sample_below[0] - below[1]).max()))
    sizes = [float(w.sum() ** 2 / (w**2).sum()) for w in (kept_weights, sample_weights)]
    root = math.sqrt(sizes[0] * sizes[1] / (sizes[0] + sizes[1]))
    x = (root + 0.12 + 0.11 / root) * distance
    terms = sum((-1) ** (j - 1) * math.exp(-2 * j * j * x * x) for j in range(1, 101))
    return distance, min(1.0, max(0.0, 2 * terms)) if x > 0.2 else 1.0


def _cumulative(values: Array, weights: Array, points: Array) -> Array:
    order = np.argsort(values, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    return np.asarray(sums[np.searchsorted(values[order], points, side="right")] / sums[-1])
