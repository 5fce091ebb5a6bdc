"""How good a member is, and whether that is more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance


@dataclass(frozen=True)
class Evidence:
    """The objective of one member, from episodes of its present weights alone."""

    mean: float
    error: float
    """Standard error of the mean; 0 where it is known exactly."""
    episodes: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Evidence:
        """From the objective of every episode; of one episode alone nobody knows how far it is off."""
        count = len(values)
        error = math.sqrt(variance(values) / count) if count > 1 else math.inf
        return cls(fmean(values) if count else math.nan, error, count)


def chance(better: Evidence, worse: Evidence) -> float:
    """How often two equal members would differ by so much, in this direction (one-sided, normal approximation)."""
    gap, error = better.mean - worse.mean, math.hypot(better.error, worse.error)
    if error == 0:
        return 0.0 if gap > 0 else 1.0
    return NormalDist().cdf(-gap / error) if math.isfinite(error) else 0.5


@dataclass(frozen=True)
class Gate:
    """What must hold for one member to take over from another."""

    significance: float = 0.05
    gap: float = 0.0
    gap_absolute: float = 0.0
    min_episodes: int = 10

    def refusal(self, donor: Evidence, taker: Evidence) -> str:
        """Why ``taker`` is not replaced; empty if it is."""
        gap = donor.mean - taker.mean
        wanted = max(self.gap * abs(donor.mean), self.gap_absolute)
        if gap <= 0:
            return "nobody it could learn from is better"
        if gap < wanted:
            return f"the gap of {gap:.4g} is below {wanted:.4g}"
        found = chance(donor, taker)
        if found > self.significance:
            return f"may be chance (p = {found:.2g})"
        return ""

    def ranked(self, evidence: Sequence[Evidence]) -> list[int]:
        """Members with enough episodes, the best first; among equals the one with the lower number."""
        known = [k for k, e in enumerate(evidence) if e.episodes >= self.min_episodes and math.isfinite(e.mean)]
        return sorted(known, key=lambda k: (-evidence[k].mean, k))
