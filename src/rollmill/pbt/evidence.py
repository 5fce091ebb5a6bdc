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
        """Sum up the objectives of a member's episodes; one episode alone does not tell how far it is off."""
        count = len(values)
        error = math.sqrt(variance(values) / count) if count > 1 else math.inf
        return cls(fmean(values) if count else math.nan, error, count)


def chance(better: Evidence, worse: Evidence, pairs: int = 1) -> float:
    """Return how often equal members differ by so much, in this direction, in any of ``pairs`` that can be chosen.

    Welch's test, one-sided. Whoever compares the best with the worst chooses its pair by looking: among eight equal
    members some two differ "significantly" in every other round. So what holds for one pair counts once for each.
    """
    gap, error = better.mean - worse.mean, math.hypot(better.error, worse.error)
    if error == 0:
        return 0.0 if gap > 0 else 1.0
    if not math.isfinite(error):
        return min(1.0, 0.5 * pairs)
    freedom = error**4 / sum(e.error**4 / (e.episodes - 1) for e in (better, worse) if e.error)
    return min(1.0, pairs * NormalDist().cdf(-as_normal(gap / error, freedom)))


def as_normal(t: float, freedom: float) -> float:
    """Return the normal deviate as rare as Student's ``t`` (Wallace 1959; off by less than 0.01 from 3 degrees on)."""
    size = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.copysign(size, t)


@dataclass(frozen=True)
class Gate:
    """What must hold for one member to take over from another."""

    significance: float = 0.05
    gap: float = 0.0
    gap_absolute: float = 0.0
    min_episodes: int = 10

    def refusal(self, donor: Evidence, taker: Evidence, pairs: int = 1) -> str:
        """Return why ``taker`` is not replaced; empty if it is. ``pairs``: how many the two were chosen from."""
        gap = donor.mean - taker.mean
        wanted = max(self.gap * abs(donor.mean), self.gap_absolute)
        if gap <= 0:
            return "nobody it could learn from is better"
        if gap < wanted:
            return f"the gap of {gap:.4g} is below {wanted:.4g}"
        found = chance(donor, taker, pairs)
        if found > self.significance:
            return f"may be chance (p = {found:.2g})"
        return ""

    def ranked(self, evidence: Sequence[Evidence]) -> list[int]:
        """Return the members with enough episodes, the best first; among equals the one with the lower number."""
        known = [k for k, e in enumerate(evidence) if e.episodes >= self.min_episodes and math.isfinite(e.mean)]
        return sorted(known, key=lambda k: (-evidence[k].mean, k))
