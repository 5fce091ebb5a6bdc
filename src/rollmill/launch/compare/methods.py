"""Methods side by side: what each one's runs come to, over one task or over several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.config.yaml import read_mapping
from rollmill.core.errors import ConfigError
from rollmill.launch.compare.statistics import Estimate, Floats, Strata, improvement, iqm_of, profile

THRESHOLDS = 51

Range = tuple[float, float]
"""Scores that become 0 and 1."""


@dataclass(frozen=True)
class Method:
    """One method. ``profile``: the share of its runs that are better than each threshold of the summary."""

    name: str
    runs: int
    """Of all tasks together."""
    iqm: Estimate
    best_is_better: Estimate | None
    """Probability that a run of the best method is better than one of this; None for the best itself."""
    profile: Floats
    profile_low: Floats | None
    profile_high: Floats | None


@dataclass(frozen=True)
class Summary:
    """Methods by interquartile mean, best first."""

    tasks: Sequence[str]
    lower: bool
    """Whether lower scores are better; never over several tasks, whose scores are put on one scale first."""
    thresholds: Floats
    methods: Sequence[Method]


def summarise(tasks: Sequence[str], scores: Mapping[str, Strata], lower: bool) -> Summary | None:
    """Compare methods by their ``scores``: of each method, the runs of each task.

    Returns None where no method has several runs: there is nothing to sum up.
    """
    if max((sum(map(len, strata)) for strata in scores.values()), default=0) < 2:
        return None
    means = {name: iqm_of(strata) for name, strata in scores.items()}
    order = sorted(scores, key=lambda name: means[name].value if lower else -means[name].value)
    every = np.concatenate([runs for strata in scores.values() for runs in strata])
    thresholds = np.linspace(every.min(), every.max(), THRESHOLDS)
    methods = []
    for name in order:
        strata = scores[name]
        beaten = None if name == order[0] else improvement(scores[order[0]], strata, lower)
        count = sum(map(len, strata))
        methods.append(Method(name, count, means[name], beaten, *profile(strata, thresholds, lower)))
    return Summary(tasks, lower, thresholds, methods)


def normalised(scores: Strata, every: Floats, lower: bool, reference: Range | None) -> list[Floats]:
    """Put the scores of a task on a scale from 0 to 1, higher is better.

    0 and 1 are those of ``reference``, or the worst and the best run there is.
    """
    ends = (float(every.min()), float(every.max()))
    worst, best = reference or (ends[::-1] if lower else ends)
    return [(runs - worst) / ((best - worst) or 1.0) for runs in scores]


def read_references(path: Path) -> dict[str, Range]:
    """Read a YAML file ``environment: [score that is 0, score that is 1]``."""
    return {name: _range(path, name, value) for name, value in read_mapping(path).data.items()}


def _range(path: Path, name: str, value: Any) -> Range:
    fits = isinstance(value, list) and len(value) == 2
    if not fits or not all(isinstance(v, int | float) and math.isfinite(v) for v in value) or value[0] == value[1]:
        raise ConfigError(f"{path}: {name}: two different numbers are expected, the scores that become 0 and 1")
    return float(value[0]), float(value[1])
