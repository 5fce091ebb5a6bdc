"""Statistics of few runs: interquartile mean, stratified bootstrap, probability of improvement, performance profile.

The scores of one method are *strata*: an array of runs for each task. A bootstrap draws runs again within each task, so
that every task keeps its weight. All intervals are 95 % percentile intervals, and the same numbers give the same
intervals. What they mean and how they are used: Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Strata = Sequence[Floats]

REPETITIONS = 2000
FEWEST_RUNS = 5
"""Runs of all tasks together from which on an interval is given."""
_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval; ``low`` and ``high`` are None where the runs are too few to tell."""

    value: float
    low: float | None = None
    high: float | None = None


def can_tell(*methods: Strata) -> bool:
    """Return whether a bootstrap says something: two runs of every task, five of all tasks."""
    return all(min(map(len, strata)) > 1 and sum(map(len, strata)) >= FEWEST_RUNS for strata in methods)


def iqm(scores: Floats) -> Floats:
    """Return the interquartile mean along the last axis: of what is left when a quarter is cut off at either end.

    A quarter that is no whole number of runs is rounded down.
    """
    cut = scores.shape[-1] // 4
    ordered = np.sort(scores, axis=-1)
    middle: Floats = ordered[..., cut : scores.shape[-1] - cut].mean(axis=-1)
    return middle


def iqm_of(strata: Strata) -> Estimate:
    """Return the interquartile mean of the runs of all tasks, with its interval."""
    value = float(iqm(np.concatenate(strata)))
    if not can_tell(strata):
        return Estimate(value)
    generator, found = np.random.default_rng(0), []
    for count in _portions(sum(map(len, strata))):
        drawn = [scores[generator.integers(len(scores), size=(count, len(scores)))] for scores in strata]
        found.append(iqm(np.concatenate(drawn, axis=1)))
    return Estimate(value, *_edges(np.concatenate(found)))


def improvement(first: Strata, second: Strata, lower: bool = False) -> Estimate:
    """Return the probability that a run of ``first`` is better than one of ``second``.

    It is the mean over tasks; draws count one half. On each task it is Mann and Whitney's U, divided by the number of
    pairs.
    """
    sign = -1.0 if lower else 1.0
    wins = [np.sign(sign * (a[:, None] - b[None, :])) / 2 + 0.5 for a, b in zip(first, second, strict=True)]
    value = float(np.mean([task.mean() for task in wins]))
    if not can_tell(first, second):
        return Estimate(value)
    generator = np.random.default_rng(0)
    drawn = np.mean([_drawn_means(task, generator) for task in wins], axis=0)
    return Estimate(value, *_edges(drawn))


def _drawn_means(wins: Floats, generator: np.random.Generator) -> Floats:
    """Return means of a table of pairs whose rows and columns are drawn again.

    How often each was drawn is its weight.
    """
    rows, columns = (generator.multinomial(n, np.full(n, 1 / n), size=REPETITIONS) for n in wins.shape)
    means: Floats = ((rows @ wins) * columns).sum(axis=1) / wins.size
    return means


def profile(strata: Strata, thresholds: Floats, lower: bool = False) -> tuple[Floats, Floats | None, Floats | None]:
    """Return the share of the runs that are better than each threshold, and the edges of its interval (low, high)."""
    sign = -1.0 if lower else 1.0
    total = sum(map(len, strata))
    better = [(sign * scores[:, None] > sign * thresholds[None, :]).sum(axis=0) for scores in strata]
    share: Floats = np.sum(better, axis=0) / total
    if not can_tell(strata):
        return share, None, None
    generator = np.random.default_rng(0)
    # Of n runs drawn again, a binomial number is better: the same as drawing runs, and cheaper.
    shape = (REPETITIONS, len(thresholds))
    drawn = sum(generator.binomial(len(scores), k / len(scores), shape) for scores, k in zip(strata, better))
    low, high = np.percentile(drawn / total, (2.5, 97.5), axis=0)
    return share, low, high


def _edges(drawn: Floats) -> tuple[float, float]:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def _portions(runs: int) -> list[int]:
    """Return how many repetitions to draw at a time, so that many runs need no more memory than few."""
    most = max(1, _AT_ONCE // runs)
    return [min(most, REPETITIONS - begun) for begun in range(0, REPETITIONS, most)]
