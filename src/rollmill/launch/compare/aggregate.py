"""Many runs taken together: curves of groups, the best settings, and which parameters matter.

Runs of a *group* differ in their seed alone. A mean is taken only over frames that **all** runs of the group have
reached: it ends where the first of them ends, so that no line jumps because a run is missing. From five seeds on the
band around it is the 95 % confidence interval of the mean (Student's t, at each place by itself). Fewer seeds cannot
tell that: there, lowest and highest are given. A run's *score* is the mean of the metric over the last tenth of those
frames.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rollmill.core.errors import ConfigError, LaunchError
from rollmill.core.run_folder import RunFolder
from rollmill.core.run_kind import UNITS, RunKind
from rollmill.core.steps import position
from rollmill.core.text import nearest
from rollmill.launch.compare.gather import COMPARED, Found, families, find_runs
from rollmill.launch.compare.importance import Shares, importance
from rollmill.launch.compare.methods import Range, Summary, normalised, summarise
from rollmill.launch.plan import differing_keys, name_parts
from rollmill.launch.progress import Curve, last_row, number_of, read_curve
from rollmill.launch.verbs import SEED
from rollmill.pbt.ledger import NAME, read_ledger

Floats = npt.NDArray[np.float64]

METRICS: dict[RunKind, tuple[str, ...]] = {
    "online": ("episode/return",),
    "offline": ("eval/return", "validation/loss"),
}
"""What runs are compared by unless asked otherwise: the first one that all runs of a family have."""
POINTS = 200
SCORE_SHARE = 0.1
"""Share of the frames, at their end, that a score is the mean of."""
SEEDS = 5
"""Seeds from which on a confidence interval says something."""
_LOSS = re.compile(r"(?:^|[/_])(?:loss|error|faults|failures)(?:$|[/_])")
_ENV = ("env", "env.id")
_WORKER = re.compile(r"worker\d+/")
_T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""

Spread = Literal["confidence", "range", "none"]
"""What ``low`` and ``high`` are: a 95 % confidence interval of the mean, the lowest and highest run, or nothing."""


@dataclass(frozen=True)
class RunResult:
    """One run. ``score``: None before there is a value of the metric."""

    name: str
    group: str
    params: dict[str, Any]
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
    params: dict[str, Any]
    runs: Sequence[RunResult]
    frames: Floats
    """Where all runs that have values have some; empty where there is no such place."""
    mean: Floats
    low: Floats
    high: Floats
    score: float | None
    score_low: float | None
    score_high: float | None

    @property
    def count(self) -> int:
        """Runs that have values: the n of the mean."""
        return sum(bool(run.curve.frames) for run in self.runs)

    @property
    def spread(self) -> Spread:
        return spread_of(self.count)

    @property
    def scores(self) -> Floats:
        """The scores of the runs that have one."""
        return np.array([run.score for run in self.runs if run.score is not None and math.isfinite(run.score)])


@dataclass(frozen=True)
class Family:
    """Runs that are compared with each other; groups are sorted by score, best first."""

    kind: RunKind
    env: str
    metric: str
    lower: bool
    """Whether lower is better."""
    runs: Sequence[RunResult]
    groups: Sequence[GroupResult]
    shares: Shares
    summary: Summary | None = None
    """Statistics of the groups; None where every group is a single run."""

    @property
    def title(self) -> str:
        env = self.env or ("" if self.kind == "online" else "environment not known")
        return f"{env}, learnt offline" if self.kind == "offline" else env

    @property
    def unit(self) -> str:
        """What the axis counts."""
        return UNITS[self.kind]


@dataclass(frozen=True)
class Aggregate:
    """An experiment as a whole."""

    name: str
    families: Sequence[Family]
    across: Sequence[Summary] = ()
    """Statistics of methods over all environments, online and offline ones apart; scores on a scale from 0 to 1."""
    others: Sequence[tuple[str, str]] = ()
    """(name, why) of folders that are not compared: world models and their stages, and what cannot be read."""
    ledger: Sequence[Mapping[str, Any]] = ()
    """Every decision, if the runs are members of a population."""


def aggregate(
    experiment: Path,
    metric: str | None = None,
    lower: bool = False,
    references: Mapping[str, Range] | None = None,
) -> Aggregate:
    """Read every run of an experiment's folder, launched or not.

    ``metric``: None takes the usual one of each kind of run. ``lower``: lower is better, whatever the metric is called.
    ``references``: the scores of each environment that are 0 and 1 where environments are taken together; None takes
    the worst and the best run.
    """
    found, unread = find_runs(experiment)
    compared = [run for run in found if run.kind in COMPARED]
    if not compared:
        what = "only world models" if found else "no runs"
        why = "".join(f"; {name}: {problem}" for name, problem in unread.items())
        raise LaunchError(f"{experiment}: there are {what} in it; expected folders with a config.yaml each{why}")
    made = [_family(kind, env, runs, metric, lower) for (kind, env), runs in families(compared).items()]
    if not any(run.curve.frames for family in made for run in family.runs):
        raise LaunchError(f"{experiment}: {_no_metric(compared, metric)}")
    others = [*((run.name, run.kind) for run in found if run.kind not in COMPARED), *unread.items()]
    name = experiment.absolute().name
    ledger = read_ledger(experiment / NAME) if (experiment / NAME).is_file() else ()
    return Aggregate(name, made, _across(made, references, name), others, ledger)


def _no_metric(runs: Sequence[Found], metric: str | None) -> str:
    rows = [last_row(RunFolder(run.folder).metrics) or {} for run in runs]
    known = sorted({key for row in rows for key in row if not _WORKER.match(key)})
    if metric is None:
        return f"no run has a value to compare yet; their metrics are: {', '.join(known) or 'none yet'}"
    hint = nearest(metric, known) or f"there are: {', '.join(known) or 'none yet'}"
    return f"no run has the metric {metric!r}; {hint}"


def lower_is_better(metric: str) -> bool:
    """Return whether the name is that of a loss, an error or a count of faults."""
    return bool(_LOSS.search(metric))


# ------------------------------------------------------------------------------------------------------ reading


def _family(kind: RunKind, env: str, runs: Sequence[Found], metric: str | None, lower: bool) -> Family:
    metric = metric or _usual_metric(kind, runs)
    lower = lower or lower_is_better(metric)
    results = [_result(run, metric) for run in runs]
    names = list(dict.fromkeys(run.group for run in results))
    groups = [_group(name, [run for run in results if run.group == name]) for name in names]
    groups.sort(key=lambda g: (g.score is None, (g.score or 0.0) if lower else -(g.score or 0.0)))
    results = [run for group in groups for run in group.runs]
    scored = [run for run in results if run.score is not None]
    settled = len({run.group for run in scored})
    shares = importance([run.params for run in scored], [run.score or 0.0 for run in scored], settled, lower)
    scores = {group.name: [group.scores] for group in groups if len(group.scores)}
    return Family(kind, env, metric, lower, results, groups, shares, summarise([env], scores, lower))


def _usual_metric(kind: RunKind, runs: Sequence[Found]) -> str:
    first, *others = METRICS[kind]
    rows = [last_row(RunFolder(run.folder).metrics) or {} for run in runs]
    return next((m for m in (first, *others) if all(m in row for row in rows)), others[-1] if others else first)


def _result(run: Found, metric: str) -> RunResult:
    folder = RunFolder(run.folder)
    curve = read_curve(folder.metrics, metric)
    row = last_row(folder.metrics) or {}
    state = folder.read_state() or {}
    seconds = number_of(row, "time/seconds")
    reached = position(row) or 0
    frames = position(state) or reached
    rate = reached / seconds if seconds else None
    params = dict(run.params or {})
    return RunResult(run.name, run.group, params, str(state.get("state", "begun")), curve, None, frames, rate, seconds)


# ------------------------------------------------------------------------------------------- all environments


def _across(families: Sequence[Family], references: Mapping[str, Range] | None, alone: str) -> list[Summary]:
    """Sum up the methods that were tried in every environment of their kind of run, by one metric."""
    together: dict[tuple[RunKind, str], list[Family]] = {}
    for family in families:
        if family.env:
            together.setdefault((family.kind, family.metric), []).append(family)
    return [
        found
        for same in together.values()
        if len(same) > 1 and (found := _summary_across(same, references, alone)) is not None
    ]


def _summary_across(families: Sequence[Family], references: Mapping[str, Range] | None, alone: str) -> Summary | None:
    missing = [family.env for family in families if references is not None and family.env not in references]
    if missing:
        raise ConfigError(f"the references lack {', '.join(missing)}")
    scores: dict[str, list[Floats]] = {}
    for family in families:
        groups: dict[str, Floats] = {}
        for group in family.groups:
            groups[_method(group)] = np.concatenate([groups.get(_method(group), np.zeros(0)), group.scores])
        groups = {method: runs for method, runs in groups.items() if len(runs)}
        if not groups:
            return None
        every = np.concatenate(list(groups.values()))
        reference = references[family.env] if references is not None else None
        for method, runs in zip(groups, normalised(list(groups.values()), every, family.lower, reference)):
            scores.setdefault(method, []).append(runs)
    everywhere = {method: strata for method, strata in scores.items() if len(strata) == len(families)}
    if references is None and len(everywhere) < 2:
        return None  # on a scale from its own worst to its own best run, every method looks alike
    named = _names({_method(group): group for family in families for group in family.groups}, list(everywhere), alone)
    return summarise(
        [family.env for family in families], {named[key]: strata for key, strata in everywhere.items()}, lower=False
    )


def _method(group: GroupResult) -> str:
    """Return what is the same of a group in every environment: its settings, the environment's apart."""
    return repr(sorted((key, repr(value)) for key, value in group.params.items() if key not in _ENV))


def _names(groups: Mapping[str, GroupResult], methods: Sequence[str], alone: str) -> dict[str, str]:
    params = [{key: v for key, v in groups[method].params.items() if key not in _ENV} for method in methods]
    keys = differing_keys(params) if params else []
    return {method: "_".join(name_parts(own, keys)) or alone for method, own in zip(methods, params)}


# ------------------------------------------------------------------------------------------------------- groups


def _group(name: str, runs: Sequence[RunResult]) -> GroupResult:
    params = {key: value for key, value in runs[0].params.items() if key != SEED}
    curves = [run.curve for run in runs if run.curve.frames]
    frames, values = common(curves)
    mean, low, high = band(values)
    end = min((curve.frames[-1] for curve in curves), default=0.0)
    runs = [replace(run, score=score(run.curve, end)) for run in runs]
    scores = np.array([[run.score] for run in runs if run.score is not None])
    if not len(frames) or not len(scores):  # a mean of values from different places would be the mean of nothing
        return GroupResult(name, params, runs, frames, mean, low, high, None, None, None)
    middle, lowest, highest = (_number(edge[0]) for edge in band(scores))
    return GroupResult(name, params, runs, frames, mean, low, high, middle, lowest, highest)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def score(curve: Curve, end: float) -> float | None:
    """Return the mean over the last tenth of the frames up to ``end``; None where the curve has not begun there."""
    if not curve.frames or curve.frames[0] > end:
        return None
    start = end * (1 - SCORE_SHARE)
    late = [v for f, v in zip(curve.frames, curve.values) if start <= f <= end]
    return float(np.mean(late)) if late else float(np.interp(end, curve.frames, curve.values))


def common(curves: Sequence[Curve], points: int = POINTS) -> tuple[Floats, Floats]:
    """Bring all curves to the same places: returns frames ``[P]`` and values ``[run, P]``.

    The places go from where the last curve begins to where the first one ends; there are none if they do not overlap.
    """
    low = max((c.frames[0] for c in curves), default=0.0)
    high = min((c.frames[-1] for c in curves), default=-1.0)
    if high < low:
        return np.zeros(0), np.zeros((len(curves), 0))
    frames = np.linspace(low, high, points if high > low else 1)
    return frames, np.array([np.interp(frames, c.frames, c.values) for c in curves])


def spread_of(count: int) -> Spread:
    """Return what can be said about a mean over so many runs."""
    return "confidence" if count >= SEEDS else "range" if count > 1 else "none"


def band(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mean, lower and upper edge at each place of values ``[run, P]``; ``spread_of`` says what the edges are."""
    runs, places = values.shape
    kind = spread_of(runs)
    if not runs or not places:
        return np.zeros(places), np.zeros(places), np.zeros(places)
    mean = values.mean(axis=0)
    if kind == "none":
        return mean, np.full(places, np.nan), np.full(places, np.nan)
    if kind == "range":
        return mean, values.min(axis=0), values.max(axis=0)
    half = t975(runs - 1) * values.std(axis=0, ddof=1) / math.sqrt(runs)
    return mean, mean - half, mean + half


def t975(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    if freedom < 1:
        raise ValueError("at least one degree of freedom is needed")
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z = 1.959964  # the normal distribution, and the first two terms of its correction (exact to 0.001 from here on)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
