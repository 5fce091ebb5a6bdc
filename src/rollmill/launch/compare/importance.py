"""Which parameters matter: how much of the differences between runs goes with the values of one parameter.

Scores are explained by a sum of effects, one for each value of each parameter (analysis of variance without
interactions). What is lost when a parameter is left out of the sum is its share. Where the runs cannot tell, a sentence
says so, and there is no table.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rollmill.launch.verbs import SEED

Floats = npt.NDArray[np.float64]

LEVELS = 6
"""A parameter with more values than this is cut into quarters before its levels are compared."""
FEWEST_GROUPS = 3
SHUFFLES = 199
CHANCE = 0.05
"""A parameter is seen to matter if so few shuffles of the scores, or fewer, give it a share as large."""


@dataclass(frozen=True)
class Importance:
    """How much of the differences between scores goes with one parameter."""

    param: str
    """Several, joined by " + ", where they were always changed together."""
    share: float
    """0 to 1: the part of the variance of scores that its levels explain, corrected for their number."""
    levels: Sequence[tuple[str, float, int]]
    """(value, mean score, runs) of each level, best first."""
    seen: bool
    """Whether the share is more than chance would give it."""


@dataclass(frozen=True)
class Shares:
    """What was found, or why nothing was: one of both is empty."""

    items: tuple[Importance, ...] = ()
    why_not: str = ""


def importance(params: Sequence[Mapping[str, Any]], scores: Sequence[float], groups: int, lower: bool) -> Shares:
    """Compute the share of every parameter that varies, most important first, from one entry per run with a score.

    ``groups``: settings that were tried, seeds apart. ``lower``: lower scores are better.
    """
    keys = dict.fromkeys(key for setting in params for key in setting if key != SEED)
    levels = {key: _levels([setting.get(key) for setting in params]) for key in keys}
    levels = _joined({key: values for key, values in levels.items() if len(set(values)) > 1})
    if not levels:
        return Shares()
    if groups < FEWEST_GROUPS:
        return Shares(why_not=f"{groups} groups of runs cannot tell which parameter matters; 3 can, with several seeds")
    # The scores themselves, and shuffled ones, which no parameter explains but by chance.
    shuffler = np.random.default_rng(0)
    columns = np.array([scores, *(shuffler.permutation(scores) for _ in range(SHUFFLES))], dtype=np.float64).T
    shares = _shares(columns, levels)
    if shares is None:
        why = "there are as many values to tell apart as runs"
        return Shares(why_not=f"{len(scores)} runs cannot tell which parameter matters: {why}")
    found = []
    for key, of_runs in levels.items():
        share, by_chance = float(shares[key][0]), shares[key][1:]
        seen = share > 0 and float(np.mean(by_chance >= share)) <= CHANCE
        found.append(Importance(key, share, _table(of_runs, columns[:, 0], lower), seen))
    if not any(item.seen for item in found):
        return Shares(why_not=f"{len(scores)} runs cannot tell which parameter matters: chance alone gives as much")
    return Shares(tuple(sorted(found, key=lambda item: -item.share)))


def _shares(scores: Floats, levels: Mapping[str, Sequence[str]]) -> dict[str, Floats] | None:
    """Return the share of every parameter in each column of scores ``[run, column]``; None: too few runs."""
    whole = np.sum((scores - scores.mean(axis=0)) ** 2, axis=0)
    unexplained, rank = _unexplained(scores, levels)
    left = len(scores) - rank
    if not left:
        return None
    found = {}
    for key in levels:
        without, lower_rank = _unexplained(scores, {k: v for k, v in levels.items() if k != key})
        # Every further value explains something by chance alone: that much is subtracted.
        gain = without - unexplained - (rank - lower_rank) * unexplained / left
        found[key] = np.clip(gain / np.where(whole > 0, whole, 1.0), 0.0, 1.0)
    return found


def _joined(levels: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Join parameters that were always changed together into one: nothing can tell their effects apart."""
    together: dict[tuple[int, ...], list[str]] = {}
    for key, values in levels.items():
        numbers = {value: k for k, value in enumerate(dict.fromkeys(values))}
        together.setdefault(tuple(numbers[value] for value in values), []).append(key)
    joined = {}
    for keys in together.values():
        texts = [", ".join(values) for values in zip(*(levels[key] for key in keys))]
        joined[" + ".join(keys)] = texts
    return joined


def _unexplained(scores: Floats, levels: Mapping[str, Sequence[str]]) -> tuple[Floats, int]:
    """Fit a sum of effects to each column; returns (sums of squares it leaves, how many numbers it chooses)."""
    design = [np.ones(len(scores))]
    design += [
        np.array([value == name for value in values], dtype=np.float64)
        for values in levels.values()
        for name in dict.fromkeys(values)
    ]
    matrix = np.stack(design, axis=1)
    effects, _, rank, _ = np.linalg.lstsq(matrix, scores, rcond=None)
    return np.sum((scores - matrix @ effects) ** 2, axis=0), int(rank)


def _table(values: Sequence[str], scores: Floats, lower: bool) -> tuple[tuple[str, float, int], ...]:
    """Return (value, mean score, runs) of each value, best first."""
    members = {name: scores[[value == name for value in values]] for name in dict.fromkeys(values)}
    rows = [(name, float(part.mean()), len(part)) for name, part in members.items()]
    return tuple(sorted(rows, key=lambda row: row[1] if lower else -row[1]))


def _levels(values: Sequence[Any]) -> list[str]:
    """Return the value of each run as text; many different numbers become quarters of their range."""
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numeric or len(set(values)) <= LEVELS:
        return [value_text(value) for value in values]
    edges = np.quantile(np.array(values, dtype=np.float64), [0, 0.25, 0.5, 0.75, 1])
    names = [f"{a:.3g} to {b:.3g}" for a, b in itertools.pairwise(edges)]
    return [names[int(np.clip(np.searchsorted(edges, v, side="right") - 1, 0, 3))] for v in values]


def value_text(value: Any) -> str:
    """Return the value of a setting, for tables."""
    return f"{value:g}" if isinstance(value, float) else "not set" if value is None else str(value)
