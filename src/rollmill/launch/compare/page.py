"""The report of an experiment as one HTML file: no scripts, nothing from elsewhere, everything escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rollmill.launch.compare.aggregate import POINTS, SEEDS, Aggregate, Family, GroupResult
from rollmill.launch.compare.export import STATISTICS, count_text, score_text, spread_text, statistics_cells
from rollmill.launch.compare.importance import Shares, value_text
from rollmill.launch.compare.methods import Summary
from rollmill.launch.progress import Curve
from rollmill.reports.html.document import (
    card,
    document,
    footer,
    grid,
    header,
    note,
    paragraph,
    section,
    subsection,
    tiles,
    word,
)
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.plots import Plot, key, legend, spread, wide
from rollmill.reports.html.style import HUES
from rollmill.reports.html.tables import number, table, value, whole
from rollmill.reports.run.population import population

SHOWN = 3
"""Groups whose seeds or bands are drawn in the plot of all groups: more of them on top of each other tell nothing."""
PARAM_COLUMNS = 4
"""Parameters that have a column each; more of them share one."""
_ELSEWHERE = "rollmill report --csv FOLDER writes all of them"
_FOOT = (
    "A run's score is the mean of the metric over the last tenth of the way that all runs of its group have come; "
    "a group's is the mean over its runs."
)
_WHAT = (
    "IQM: mean of the middle half of the runs. P(best is better): how likely a run of the best method beats one of "
    "this method. Intervals and bands: 95 %, stratified bootstrap; five runs are needed, and two for each environment."
)
Points = list[tuple[float, float]]


def render(found: Aggregate) -> Html:
    """Return the page."""
    others = ", ".join(f"{name} ({kind})" for name, kind in found.others)
    return document(
        "experiment",
        f"Experiment {found.name}",
        *_head(found),
        *map(_family, found.families),
        *map(_across, found.across),
        section("Population", population(found.ledger)) if found.ledger else NOTHING,
        note(f"Not compared: {others}." if others else ""),
        footer(_FOOT),
    )


def _head(found: Aggregate) -> tuple[Html, Html]:
    runs = [run for family in found.families for run in family.runs]
    states = Counter(run.state for run in runs)
    told = ", ".join(f"{count} {state}" for state, count in states.items())
    frames = sum(run.frames for family in found.families if family.kind == "online" for run in family.runs)
    metrics = [
        (whole(len(runs)), "runs"),
        (whole(sum(len(family.groups) for family in found.families)), "groups"),
        (whole(frames), "frames"),
    ]
    if len(found.families) == 1:
        family = found.families[0]
        metrics.append((value(family.groups[0].score), f"best {family.metric}"))
    else:
        metrics.append((whole(len(found.families)), "environments, offline runs apart"))
    return header(found.name, paragraph(told, kind="muted")), tiles(metrics)


def _family(family: Family) -> Html:
    order = "the lowest is best" if family.lower else "the highest is best"
    return section(
        family.title or "Runs",
        note(f"{family.metric}; {order}."),
        _together(family),
        subsection("Settings, best first", _settings(family)),
        subsection("Statistics", _statistics(family.summary, family.metric)),
        subsection("What matters", _importance(family.shares)),
        subsection("Every group", _each(family)),
        subsection("Runs", _runs(family)),
    )


def _across(summary: Summary) -> Html:
    what = f"Methods over {', '.join(summary.tasks)}. Scores are on a scale from 0 to 1, the higher the better."
    return section("All environments", note(what), _statistics(summary, "score"))


# ----------------------------------------------------------------------------------------------------- plots


Range = tuple[float, float]


def _ranges(groups: Sequence[GroupResult]) -> tuple[Range, Range]:
    """Return ranges of the axes that hold all curves and bands of these groups."""
    frames = [0.0, *(run.curve.frames[-1] for group in groups for run in group.runs if run.curve.frames)]
    values = [v for group in groups for run in group.runs for v in run.curve.values]
    values += [float(v) for group in groups for edge in (group.low, group.high) for v in edge if np.isfinite(v)]
    return (0.0, max(frames)), spread(values)


def _draw(plot: Plot, group: GroupResult, colour: str = "", with_spread: bool = True) -> None:
    """Draw the mean, and around it the confidence band or, of few seeds, each seed as a thin line."""
    if with_spread and group.spread == "confidence":
        places = group.frames.tolist()
        plot.band(list(zip(places, group.low.tolist())), list(zip(places, group.high.tolist())), f"band {colour}")
    if with_spread and group.spread == "range":
        for run in group.runs:
            plot.line(_thinned(run.curve), f"seed {colour}")
    mean: Points = list(zip(group.frames.tolist(), group.mean.tolist()))
    plot.curve(mean, colour)


def _thinned(curve: Curve) -> Points:
    if len(curve.frames) <= POINTS:
        return list(zip(curve.frames, curve.values))
    places = np.linspace(curve.frames[0], curve.frames[-1], POINTS)
    return list(zip(places.tolist(), np.interp(places, curve.frames, curve.values).tolist()))


def _drawable(family: Family) -> list[GroupResult]:
    return [group for group in family.groups if group.count]


def _together(family: Family) -> Html:
    groups = _drawable(family)[: len(HUES)]
    if not groups:
        return note(f"No run here has a value of {family.metric}.")
    if all(len(run.curve.frames) <= 1 for group in groups for run in group.runs):
        return NOTHING  # one value per run is a table, not a curve

    def draw(size: tuple[int, int]) -> Html:
        label = f"curves of all groups, {family.title}"
        plot = Plot(*_ranges(groups), size=size, label=label, x_title=family.unit, y_title=family.metric).axes()
        for k, group in reversed(list(enumerate(groups))):  # the best one on top
            _draw(plot, group, f"c{k}", k < SHOWN)
        return plot.svg()

    keys = (paragraph(key(k), f"{group.name} ", word(_told(group), "muted")) for k, group in enumerate(groups))
    more = len(_drawable(family)) - len(groups)
    rest = f" {more} more groups below." if more > 0 else ""
    return join(card(wide(draw), *keys), note(_what_is_drawn(groups) + rest))


def _what_is_drawn(groups: Sequence[GroupResult]) -> str:
    kinds = {group.spread for group in groups[:SHOWN]}
    of_best = f" of the best {SHOWN}" if len(groups) > SHOWN else ""
    text = "" if kinds == {"none"} else "Line: mean over the seeds, as far as all of them have come."
    if "range" in kinds:
        text += f" Thin lines{of_best}: each seed (fewer than {SEEDS} say nothing about the error of a mean)."
    if "confidence" in kinds:
        text += f" Band{of_best}: 95 % confidence interval of the mean."
    return text


def _each(family: Family) -> Html:
    groups = _drawable(family)
    if len(groups) < 2 or all(len(run.curve.frames) <= 1 for group in groups for run in group.runs):
        return NOTHING
    cards = []
    x, y = _ranges(groups)
    for group in groups:
        plot = Plot(x, y, label=f"curve of {group.name}", x_title=family.unit, y_title=family.metric).axes()
        _draw(plot, group)
        cards.append(card(plot.svg(), title=f"{group.name} ({count_text(group)})"))
    return grid(cards)


# ---------------------------------------------------------------------------------------------------- tables


def _told(group: GroupResult) -> str:
    spread = spread_text(group)
    return f"{count_text(group)}, {score_text(group)}" + (f" ({spread})" if spread else "")


def _settings(family: Family) -> Html:
    """Show what each group is and brought; nothing where there is a single run, which stands below anyway."""
    if len(family.runs) == 1:
        return NOTHING
    keys = list(dict.fromkeys(key for group in family.groups for key in group.params))
    many = len(keys) > PARAM_COLUMNS
    params = _deviations(family.groups, keys) if many else [_values(group, keys) for group in family.groups]
    named = ["differs from most in"] if many else keys
    several = any(group.spread != "none" for group in family.groups)
    head = ("group", *named, "runs", "mean", f"to {family.unit[:-1]}", *(["spread"] if several else []))
    rows = []
    for group, own in zip(family.groups, params):
        end = f"{group.frames[-1]:,.0f}" if len(group.frames) else "-"
        metrics = [count_text(group), score_text(group), end, *([spread_text(group) or "-"] if several else [])]
        rows.append((group.name, *own, *metrics))
    what = f"Spread: lowest to highest run; from {SEEDS} seeds on ± the 95 % confidence interval of the mean."
    return join(table(head, rows, left=1 + len(named), elsewhere=_ELSEWHERE), note(what if several else ""))


def _values(group: GroupResult, keys: Sequence[str]) -> list[str]:
    return [value_text(group.params.get(key)) for key in keys]


def _deviations(groups: Sequence[GroupResult], keys: Sequence[str]) -> list[list[str]]:
    """Return one text for each group: the settings in which it is not as most groups are."""
    usual = {key: Counter(value_text(group.params.get(key)) for group in groups).most_common(1)[0][0] for key in keys}
    texts = []
    for group in groups:
        own = zip(keys, _values(group, keys))
        texts.append([", ".join(f"{key} {text}" for key, text in own if text != usual[key]) or "nothing"])
    return texts


def _statistics(summary: Summary | None, metric: str) -> Html:
    """Show interquartile means, and the share of runs that are better than each score."""
    if summary is None:
        return NOTHING
    methods = summary.methods[: len(HUES)]
    ends = (float(summary.thresholds[0]), float(summary.thresholds[-1]))

    def draw(size: tuple[int, int]) -> Html:
        label = f"performance profiles, {', '.join(summary.tasks)}"
        plot = Plot(ends, (0.0, 1.0), size=size, label=label, x_title=metric, y_title="share of runs").axes()
        places = summary.thresholds.tolist()
        for k, method in reversed(list(enumerate(methods))):
            if k < SHOWN and method.profile_low is not None and method.profile_high is not None:
                low, high = (list(zip(places, edge.tolist())) for edge in (method.profile_low, method.profile_high))
                plot.band(low, high, f"band c{k}")
            plot.curve(list(zip(places, method.profile.tolist())), f"c{k}")
        return plot.svg()

    profiles = card(
        wide(draw),
        legend([method.name for method in methods]),
        title=f"Runs {'below' if summary.lower else 'above'} each score",
    )
    rows = [statistics_cells(method) for method in summary.methods]
    return join(
        table(STATISTICS, rows, left=1, elsewhere="rollmill report --json prints all of them"), profiles, note(_WHAT)
    )


def _importance(shares: Shares) -> Html:
    if not shares.items:
        return note(f"{shares.why_not[:1].upper()}{shares.why_not[1:]}." if shares.why_not else "")
    rows = []
    for item in shares.items:
        levels = "; ".join(f"{name}: {number(mean)} ({count} runs)" for name, mean, count in item.levels)
        rows.append((item.param, f"{item.share:.0%}", levels if item.seen else f"no effect seen: {levels}"))
    text = (
        "Share of the variance of scores that goes with the values of one parameter, corrected for their number. "
        "What is missing to 100 % are seeds, and parameters that only matter together."
    )
    return join(table(("parameter", "share", "mean score of its values, best first"), rows, left=3), note(text))


def _runs(family: Family) -> Html:
    rows = [
        (run.name, run.group, run.state, whole(run.frames), value(run.score), value(run.frames_per_s))
        for run in family.runs
    ]
    head = ("run", "group", "state", family.unit, "score", f"{family.unit}/s")
    return table(head, rows, left=3, elsewhere=_ELSEWHERE)
