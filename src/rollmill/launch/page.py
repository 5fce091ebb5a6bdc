"""The report of an experiment as one HTML file: no scripts, nothing from elsewhere, everything escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rollmill.launch.aggregate import Aggregate, GroupResult, Importance
from rollmill.store.page.style import STYLE
from rollmill.store.page.svg import Plot, escape, number
from rollmill.store.page.tables import NONE, table, value, whole

COLOURS = 8
"""Groups that share a plot; the rest get plots of their own only."""
BANDS = 3
"""Groups whose bands are drawn there: more of them on top of each other tell nothing."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_HUES = ("#2f6fd0", "#d9480f", "#2b8a3e", "#862e9c", "#c2255c", "#0b7285", "#8d6e00", "#5f6b7a")
_STYLE = "".join(
    f".line.c{k} {{ stroke: {hue}; }} .key.c{k} {{ background: {hue}; }}\n"
    f".band.c{k} {{ fill: {hue}; fill-opacity: 0.16; }}\n"
    for k, hue in enumerate(_HUES)
)
_ELSEWHERE = "rollmill report --csv FOLDER writes all of them"
Points = list[tuple[float, float]]


def render(found: Aggregate) -> str:
    """The page."""
    title = f"Experiment {found.name}"
    sections = (
        _head(found),
        _section("Groups together", _together(found)),
        _section("Settings, best first", _settings(found)),
        _section("What matters", _importance(found.importance)),
        _section("Every group", _each(found)),
        _section("Runs", _runs(found)),
        _foot(found),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n" if body else ""


def _head(found: Aggregate) -> str:
    states: dict[str, int] = {}
    for run in found.runs:
        states[run.state] = states.get(run.state, 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in states.items())
    tiles = {
        "runs": whole(len(found.runs)),
        "groups": whole(len(found.groups)),
        "frames": f"{sum(run.frames for run in found.runs):,}",
        "best score": value(found.groups[0].score),
    }
    boxes = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for k, v in tiles.items())
    about = f"metric {found.metric}; {told}"
    return (
        f'<header><h1>{escape(found.name)}</h1>\n<p class="muted">{escape(about)}</p></header>\n'
        f'<div class="tiles">{boxes}</div>\n'
    )


# ----------------------------------------------------------------------------------------------------- plots


def _ranges(groups: Iterable[GroupResult]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ranges of frames and values that hold all curves; bands may stick out of very noisy ones."""
    frames, values = [0.0], []
    for group in groups:
        frames += [float(f) for f in group.frames]
        values += [v for run in group.runs for v in run.curve.values]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.05 * (high - low)
    return (0.0, max(frames)), (low - margin, high + margin)


def _draw(plot: Plot, group: GroupResult, colour: str, with_band: bool = True) -> None:
    places = zip(group.frames, group.low, group.high) if with_band else ()
    edges = [(float(f), float(a), float(b)) for f, a, b in places if math.isfinite(a)]
    plot.band([(f, a) for f, a, _ in edges], [(f, b) for f, _, b in edges], f"band{colour}")
    line: Points = [(float(f), float(m)) for f, m in zip(group.frames, group.mean) if math.isfinite(m)]
    plot.line(line, f"line{colour}")


def _together(found: Aggregate) -> str:
    groups = [group for group in found.groups if len(group.frames)][:COLOURS]
    if not groups:
        return ""
    x, y = _ranges(groups)
    plot = Plot(
        x, y, width=760, height=340, label="curves of all groups", x_title="frames", y_title=found.metric
    ).axes()
    for k, group in reversed(list(enumerate(groups))):  # the best one on top
        _draw(plot, group, f" c{k}", k < BANDS)
    keys = "".join(
        f'<p><span class="key c{k}"></span>{escape(group.name)} <span class="muted">{escape(_score(group))}</span></p>'
        for k, group in enumerate(groups)
    )
    left = len(found.groups) - len(groups)
    rest = f'<p class="note">{left} more groups below.</p>' if left > 0 else ""
    note = (
        f'<p class="note">Line: mean over seeds. Band (of the best {BANDS}): 95 % confidence interval of the mean.</p>'
    )
    return f'<div class="card">{plot}{keys}</div>{note}{rest}'


def _each(found: Aggregate) -> str:
    groups = [group for group in found.groups if len(group.frames)]
    x, y = _ranges(groups)
    cards = []
    for group in groups:
        plot = Plot(x, y, label=f"curve of {group.name}", x_title="frames", y_title=found.metric).axes()
        _draw(plot, group, "")
        title = f"{group.name} ({len(group.runs)} runs)"
        cards.append(f'<div class="card"><h3>{escape(title)}</h3>{plot}</div>')
    return f'<div class="grid3">{"".join(cards)}</div>'


# ---------------------------------------------------------------------------------------------------- tables


def _score(group: GroupResult) -> str:
    if group.score is None:
        return "no value yet"
    return number(group.score) + (f" ± {number(group.margin)}" if group.margin is not None else "")


def _settings(found: Aggregate) -> str:
    keys = list(dict.fromkeys(key for group in found.groups for key in group.params))
    head = ("group", *keys, "runs", "score", "± 95 %", "lowest", "highest")
    rows = []
    for group in found.groups:
        scores = [run.score for run in group.runs if run.score is not None]
        ends = (min(scores), max(scores)) if scores else (None, None)
        told = (whole(len(group.runs)), value(group.score), value(group.margin), *map(value, ends))
        rows.append((group.name, *(_text(group.params.get(key)) for key in keys), *told))
    return table(head, rows, left=1 + len(keys), elsewhere=_ELSEWHERE)


def _importance(found: Sequence[Importance]) -> str:
    if not found:
        return ""
    rows = []
    for item in found:
        levels = "; ".join(f"{name}: {number(mean)} ({count} runs)" for name, mean, count in item.levels)
        rows.append((item.param, levels, f"{item.share:.0%}"))
    note = (
        '<p class="note">Share of the variance of scores that goes with the values of one parameter, corrected for '
        "their number. What is missing to 100 % are seeds, and parameters that only matter together.</p>"
    )
    return table(("parameter", "mean score of its values, best first", "share"), rows, left=2) + note


def _runs(found: Aggregate) -> str:
    rows = [
        (run.name, run.group, run.state, whole(run.frames), value(run.score), value(run.frames_per_s))
        for run in found.runs
    ]
    return table(("run", "group", "state", "frames", "score", "frames/s"), rows, left=3, elsewhere=_ELSEWHERE)


def _text(what: object) -> str:
    return NONE if what is None else f"{what:g}" if isinstance(what, float) else str(what)


def _foot(found: Aggregate) -> str:
    text = "A run's score is the mean of the metric over the last tenth of its frames; a group's is the mean over runs."
    return f'<footer class="muted"><p>{escape(text)}</p></footer>\n'
