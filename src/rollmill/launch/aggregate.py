"""Many runs taken together: curves of groups with confidence bands, the best settings, and which parameters matter.

Runs of a *group* differ in their seed alone. Their curves are interpolated at common frames; the band is the 95 %
confidence interval of the mean (Student's t, at each place by itself). A place counts the runs that got so far, so a
band is only drawn where there are two at least. A run's *score* is the mean of the metric over its last tenth.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rollmill.core.errors import LaunchError
from rollmill.core.run_folder import RunFolder
from rollmill.launch.book import Book
from rollmill.launch.describe import SEED, flat
from rollmill.launch.plan import name_runs
from rollmill.launch.progress import Curve, last_row, number_of, read_curve

Floats = npt.NDArray[np.float64]

METRIC = "episode/return"
POINTS = 200
SCORE_SHARE = 0.1
"""Share of a run's frames, at its end, that its score is the mean of."""
LEVELS = 6
"""A parameter with more values than this is cut into quarters before its levels are compared."""
_T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class RunResult:
    """One run. ``score``: None before there is a value of the metric."""

    name: str
    group: str
    params: Mapping[str, Any]
    """What it differs in, the seed included."""
    state: str
    curve: Curve
    score: float | None
    frames: int
    frames_per_s: float | None
    seconds: float | None


@dataclass(frozen=True)
class GroupResult:
    """Runs that differ in their seed alone. Arrays have one entry per place, ``frames`` are the places."""

    name: str
    params: Mapping[str, Any]
    runs: Sequence[RunResult]
    frames: Floats
    mean: Floats
    low: Floats
    """Lower edge of the band; NaN where fewer than two runs are."""
    high: Floats
    count: npt.NDArray[np.int64]
    score: float | None
    margin: float | None
    """Half the width of the score's confidence interval; None with fewer than two runs."""


@dataclass(frozen=True)
class Importance:
    """How much of the differences between scores goes with one parameter."""

    param: str
    share: float
    """0 to 1: the part of the variance of scores that its levels explain, corrected for their number."""
    levels: Sequence[tuple[str, float, int]]
    """(value, mean score, runs) of each level, best first."""


@dataclass(frozen=True)
class Aggregate:
    """An experiment as a whole; groups are sorted by score, best first."""

    name: str
    metric: str
    runs: Sequence[RunResult]
    groups: Sequence[GroupResult]
    importance: Sequence[Importance] = field(default_factory=tuple)


def aggregate(experiment: Path, metric: str = METRIC) -> Aggregate:
    """Read every run of an experiment's folder, launched or not."""
    runs = [_result(folder, name, group, params, metric) for folder, name, group, params in find_runs(experiment)]
    if not runs:
        raise LaunchError(f"{experiment}: there are no runs in it; expected folders with a config.yaml each")
    if not any(run.curve.frames for run in runs):
        rows = [last_row(RunFolder(folder).metrics) or {} for folder, *_ in find_runs(experiment)]
        known = ", ".join(sorted({key for row in rows for key in row}))
        raise LaunchError(f"{experiment}: no run has the metric {metric!r}; there are: {known or 'none yet'}")
    names = list(dict.fromkeys(run.group for run in runs))
    groups = [_group(name, [run for run in runs if run.group == name]) for name in names]
    groups.sort(key=lambda g: (g.score is None, -(g.score or 0.0)))
    return Aggregate(experiment.absolute().name, metric, runs, groups, importance(runs))


# ------------------------------------------------------------------------------------------------------ reading


def find_runs(experiment: Path) -> list[tuple[Path, str, str, Mapping[str, Any]]]:
    """(folder, name, group, parameters) of all runs that have begun."""
    book = Book(experiment)
    planned = {run.name: run for run in book.read_plan().runs} if book.exists else {}
    folders = sorted(path.parent for path in experiment.glob("*/config.yaml"))
    found: list[tuple[Path, str, str, Mapping[str, Any]]] = []
    others = [folder for folder in folders if folder.name not in planned]
    for folder in folders:
        if folder.name in planned:
            run = planned[folder.name]
            found.append((folder, run.name, run.group, run.params))
    return found + _unplanned(others, experiment.absolute().name)


def _unplanned(folders: Sequence[Path], name: str) -> list[tuple[Path, str, str, Mapping[str, Any]]]:
    """Runs that were started one by one: what their saved settings differ in."""
    from rollmill.core.yaml_io import read_mapping

    settings = []
    for folder in folders:
        values = flat(read_mapping(folder / "config.yaml").data)
        settings.append({k: v for k, v in values.items() if not k.startswith("run.") or k == SEED})
    if not settings:
        return []
    named = name_runs(settings, name)
    return [(folder, folder.name, group, params) for folder, (_, group, _, params) in zip(folders, named)]


def _result(folder: Path, name: str, group: str, params: Mapping[str, Any], metric: str) -> RunResult:
    run = RunFolder(folder)
    curve = read_curve(run.metrics, metric)
    row = last_row(run.metrics) or {}
    state = run.read_state() or {}
    seconds = number_of(row, "time/seconds")
    frames = int(state.get("frames") or row.get("frames") or 0)
    rate = row["frames"] / seconds if seconds else None
    return RunResult(name, group, params, str(state.get("state", "begun")), curve, score(curve), frames, rate, seconds)


def score(curve: Curve) -> float | None:
    """The mean over the last tenth of the frames."""
    if not curve.frames:
        return None
    start = curve.frames[-1] * (1 - SCORE_SHARE)
    return float(np.mean([v for f, v in zip(curve.frames, curve.values) if f >= start]))


# ------------------------------------------------------------------------------------------------------- groups


def _group(name: str, runs: Sequence[RunResult]) -> GroupResult:
    params = {key: value for key, value in runs[0].params.items() if key != SEED}
    frames, values = common([run.curve for run in runs])
    mean, low, high, count = band(values)
    scores = np.array([run.score for run in runs if run.score is not None])
    middle, margin = interval(scores) if len(scores) else (None, None)
    return GroupResult(name, params, runs, frames, mean, low, high, count, middle, margin)


def common(curves: Sequence[Curve], points: int = POINTS) -> tuple[Floats, Floats]:
    """(frames ``[P]``, values ``[run, P]``): all curves at the same places; NaN outside of a curve's own range."""
    curves = [curve for curve in curves if curve.frames]
    if not curves:
        return np.zeros(0), np.zeros((0, 0))
    low, high = min(c.frames[0] for c in curves), max(c.frames[-1] for c in curves)
    frames = np.linspace(low, high, points if high > low else 1)
    values = [np.interp(frames, c.frames, c.values, left=np.nan, right=np.nan) for c in curves]
    return frames, np.array(values)


def band(values: Floats) -> tuple[Floats, Floats, Floats, npt.NDArray[np.int64]]:
    """Mean, lower and upper edge of the 95 % confidence band, and how many runs there are, at each place."""
    count = np.sum(np.isfinite(values), axis=0)
    total = np.nansum(values, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
        variance = np.nansum((values - mean) ** 2, axis=0) / (count - 1)
        half = np.array([t975(n - 1) if n > 1 else math.nan for n in count]) * np.sqrt(variance / count)
    return mean, mean - half, mean + half, count


def interval(values: Floats) -> tuple[float, float | None]:
    """(mean, half the width of its 95 % confidence interval)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None
    return mean, t975(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def t975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    if freedom < 1:
        raise ValueError("at least one degree of freedom is needed")
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z = 1.959964  # the normal distribution, and the first two terms of its correction (exact to 0.001 from here on)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


# --------------------------------------------------------------------------------------------------- importance


def importance(runs: Sequence[RunResult]) -> tuple[Importance, ...]:
    """Of every parameter that varies, most important first; empty with fewer than three runs that have a score.

    Scores are explained by a sum of effects, one for each value of each parameter (analysis of variance without
    interactions). What is lost when a parameter is left out of the sum is its share.
    """
    scored = [run for run in runs if run.score is not None]
    keys = dict.fromkeys(key for run in scored for key in run.params if key != SEED)
    levels = {key: _levels([run.params.get(key) for run in scored]) for key in keys}
    levels = {key: values for key, values in levels.items() if len(set(values)) > 1}
    if len(scored) < 3 or not levels:
        return ()
    scores = np.array([run.score for run in scored], dtype=np.float64)
    whole = float(np.sum((scores - scores.mean()) ** 2))
    unexplained, rank = _unexplained(scores, levels)
    left = len(scores) - rank
    noise = unexplained / left if left else 0.0
    found = []
    for key, values in levels.items():
        without, lower = _unexplained(scores, {k: v for k, v in levels.items() if k != key})
        # Every further value explains something by chance alone: that much is subtracted.
        gain = without - unexplained - (rank - lower) * noise
        share = min(1.0, max(0.0, gain / whole)) if whole else 0.0
        found.append(Importance(key, share, _table(values, scores)))
    return tuple(sorted(found, key=lambda item: -item.share))


def _unexplained(scores: Floats, levels: Mapping[str, Sequence[str]]) -> tuple[float, int]:
    """(sum of squares that a sum of effects leaves, how many numbers it has to choose)."""
    columns = [np.ones(len(scores))]
    columns += [
        np.array([value == name for value in values], dtype=np.float64)
        for values in levels.values()
        for name in dict.fromkeys(values)
    ]
    design = np.stack(columns, axis=1)
    effects, _, rank, _ = np.linalg.lstsq(design, scores, rcond=None)
    return float(np.sum((scores - design @ effects) ** 2)), int(rank)


def _table(values: Sequence[str], scores: Floats) -> tuple[tuple[str, float, int], ...]:
    """(value, mean score, runs), best first."""
    members = {name: scores[[value == name for value in values]] for name in dict.fromkeys(values)}
    rows = [(name, float(part.mean()), len(part)) for name, part in members.items()]
    return tuple(sorted(rows, key=lambda row: -row[1]))


def _levels(values: Sequence[Any]) -> list[str]:
    """The value of each run as text; many different numbers become quarters of their range."""
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numeric or len(set(values)) <= LEVELS:
        return [_text(value) for value in values]
    edges = np.quantile(np.array(values, dtype=np.float64), [0, 0.25, 0.5, 0.75, 1])
    names = [f"{a:.3g} to {b:.3g}" for a, b in itertools.pairwise(edges)]
    return [names[int(np.clip(np.searchsorted(edges, v, side="right") - 1, 0, 3))] for v in values]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "not set" if value is None else str(value)


# ---------------------------------------------------------------------------------------------------------- CSV


def write_csv(found: Aggregate, folder: Path) -> list[Path]:
    """``curves.csv`` (a row per group and place), ``runs.csv`` and ``groups.csv``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_curves_csv(found, folder), _runs_csv(found, folder), _groups_csv(found, folder)]
    except OSError as error:
        raise LaunchError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _curves_csv(found: Aggregate, folder: Path) -> Path:
    rows = [
        (group.name, f"{frames:.0f}", *(_cell(v) for v in (mean, low, high)), int(count))
        for group in found.groups
        for frames, mean, low, high, count in zip(group.frames, group.mean, group.low, group.high, group.count)
    ]
    return _write(folder / "curves.csv", ("group", "frames", "mean", "low", "high", "runs"), rows)


def _runs_csv(found: Aggregate, folder: Path) -> Path:
    keys = list(dict.fromkeys(key for run in found.runs for key in run.params))
    head = ("run", "group", *keys, "state", "frames", "score", "frames_per_s", "seconds")
    rows = [
        (
            *(run.name, run.group),
            *(run.params.get(key, "") for key in keys),
            *(run.state, run.frames),
            *(_cell(value) for value in (run.score, run.frames_per_s, run.seconds)),
        )
        for run in found.runs
    ]
    return _write(folder / "runs.csv", head, rows)


def _groups_csv(found: Aggregate, folder: Path) -> Path:
    keys = list(dict.fromkeys(key for group in found.groups for key in group.params))
    head = ("group", *keys, "runs", "score", "margin")
    rows = [
        (g.name, *(g.params.get(key, "") for key in keys), len(g.runs), _cell(g.score), _cell(g.margin))
        for g in found.groups
    ]
    return _write(folder / "groups.csv", head, rows)


def _cell(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def _write(path: Path, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
    return path


def to_dict(found: Aggregate) -> dict[str, Any]:
    """For scripts; curves are in the CSV files."""
    return {
        "experiment": found.name,
        "metric": found.metric,
        "groups": [
            {
                "group": group.name,
                "params": dict(group.params),
                "runs": [run.name for run in group.runs],
                "score": group.score,
                "margin": group.margin,
            }
            for group in found.groups
        ],
        "importance": [
            {"param": i.param, "share": i.share, "levels": [list(level) for level in i.levels]}
            for i in found.importance
        ],
    }
