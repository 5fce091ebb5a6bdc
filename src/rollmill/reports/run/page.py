"""The page about one run: facts in, HTML out. Sections in the order in which one asks: how did it go, what does it look
like, what went wrong, what is left of it, where does it come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollmill.core.text import bytes_text
from rollmill.monitor.console import count_text, duration_text
from rollmill.reports.html.document import card, document, grid, note, tiles
from rollmill.reports.html.svg import Plot, escape, number
from rollmill.reports.html.tables import NONE, Marked, size, table, value
from rollmill.reports.run import parts
from rollmill.reports.run.parts import Points, Row, curve_card, pair, points, section, thinned

if TYPE_CHECKING:
    from rollmill.reports.run.facts import RunFacts

CURVES = (
    ("Return", "episode/return", "mean of the last episodes; band: lowest to highest"),
    ("Length", "episode/length", "steps"),
    ("Frames per second", "time/frames_per_s", ""),
    ("Entropy", "learn/entropy", "nats"),
    ("KL", "learn/kl", "from the policy that acted"),
    ("Explained variance", "learn/explained_variance", "1: values predict the returns"),
    ("Policy loss", "learn/policy_loss", ""),
    ("Value loss", "learn/value_loss", ""),
    ("Gradient norm", "learn/grad_norm", "before clipping"),
    ("Clip fraction", "learn/clip_fraction", ""),
    ("Policy lag", "learn/policy_lag", "batches"),
    ("Learning rate", "learn/learning_rate", ""),
)
PHASES = (
    ("Workers: in environments", "time/worker_env"),
    ("Workers: waiting for actions", "time/worker_wait"),
    ("Main: answering", "time/main_answer"),
    ("Main: gathering batches", "time/main_gather"),
    ("Main: learning", "time/main_learn"),
)
USAGE = (
    ("Memory, MB", "usage/memory_mb"),
    ("of it main process", "usage/memory_main_mb"),
    ("largest worker", "usage/memory_worker_mb"),
    ("Processes", "usage/processes"),
    ("Threads", "usage/threads"),
    ("of it main process", "usage/threads_main"),
    ("largest worker with its simulators", "usage/threads_worker"),
    ("Cores busy", "usage/cores"),
)
FAULTS = (
    ("Environment faults", "sample/env_faults"),
    ("Workers replaced", "sample/worker_restarts"),
    ("Segments lost with them", "sample/lost_segments"),
    ("Segments dropped as too old", "sample/dropped_segments"),
    ("Checkpoints not written", "run/checkpoint_failures"),
    ("Segments the recorder dropped", "record/dropped_segments"),
    ("Recorder restarts", "record/restarts"),
)


def render_run(facts: RunFacts) -> str:
    """The whole page."""
    names = parts.metric_names(facts.rows)
    drawn = {name for _, name, _ in CURVES}
    body = (
        parts.head(facts),
        parts.whole(lambda: _tiles(facts)),
        section("Curves", lambda: _curves(facts)),
        section("Evaluations", lambda: _evaluations(facts)),
        section("The environment's own statistics", lambda: _own_statistics(facts.rows, names)),
        section("Workers and policies", lambda: _comparisons(facts.rows, names)),
        section("Faults and drops", lambda: parts.faults(facts, FAULTS)),
        section("Time and memory", lambda: _machine_use(facts.rows)),
        section("Recorded data", lambda: _data(facts)),
        section("Videos", lambda: parts.videos(facts)),
        section("All metrics", lambda: parts.all_metrics(facts.rows, names, drawn)),
        section("Checkpoints", lambda: parts.checkpoints(facts)),
        section("Where it comes from", lambda: parts.origin(facts)),
        section("Configuration", lambda: parts.configuration(facts)),
        parts.foot(facts),
    )
    return document("run", f"{facts.folder.name}: run report", "".join(body), parts.STYLE)


# -- how did it go --------------------------------------------------------------------------------------------


def _tiles(facts: RunFacts) -> str:
    last, sessions = parts.last(facts.rows), facts.diary.get("sessions") or []
    frames = facts.state.get("frames") or last.get("frames", 0)
    returns = points(facts.rows, "episode/return")
    best = max((y for _, y in returns), default=None)
    seconds = last.get("time/seconds")
    rates = [y for _, y in points(facts.rows, "time/frames_per_s") if y > 0]
    figures = (
        (f"{frames:,}", "frames"),
        (value(last.get("episode/return")), f"mean return at the end, best {value(best)}"),
        (f"{last.get('episode/count', 0):,.0f}", "episodes"),
        (count_text(sorted(rates)[len(rates) // 2]) if rates else NONE, "frames per second (median)"),
        (duration_text(seconds) if seconds is not None else NONE, f"of training, {len(sessions)} session(s)"),
        (f"{last.get('learn/batches', 0):,}", "training steps"),
    )
    return tiles(figures)


# -- curves ---------------------------------------------------------------------------------------------------


def _curves(facts: RunFacts) -> str:
    others = (_curve_card(facts, title, name, about) for title, name, about in CURVES[1:])
    return grid([_return_card(facts.rows), _eval_card(facts), *others])


def _curve_card(facts: RunFacts, title: str, name: str, about: str) -> str:
    limit = _number_in(facts.config, "max_grad_norm") if name == "learn/grad_norm" else None
    drawn = thinned(points(facts.rows, name))
    if not limit or not drawn or limit > 20 * max(y for _, y in drawn):
        return curve_card(facts.rows, title, {title: name}, "frames", about)
    plot = _plot(drawn, title, [*(y for _, y in drawn), limit])
    plot.line([(drawn[0][0], limit), (drawn[-1][0], limit)], "mark")
    plot.line(drawn) if len(drawn) > 1 else plot.points(drawn)
    return card(str(plot) + note(f"{about}; dashed: learning.max_grad_norm = {limit:g}"), title)


def _plot(drawn: Points, label: str, heights: Sequence[float]) -> Plot:
    low, high = min(heights), max(heights)
    margin = (high - low) * 0.06 or abs(high) * 0.1
    return Plot((drawn[0][0], drawn[-1][0]), (low - margin, high + margin), label=label, x_title="frames").axes()


def _return_card(rows: Sequence[Row]) -> str:
    title, name, about = CURVES[0]
    drawn = thinned(points(rows, name))
    if not drawn:
        return card('<p class="muted">No episode has ended.</p>', title)
    low, high = thinned(points(rows, f"{name}_min")), thinned(points(rows, f"{name}_max"))
    plot = _plot(drawn, title, [y for _, y in (*drawn, *low, *high)])
    if len(low) == len(high) and len(low) > 1:
        plot.band(low, high)
    plot.line(drawn) if len(drawn) > 1 else plot.points(drawn)
    return card(str(plot) + note(about), title)


def _eval_card(facts: RunFacts) -> str:
    """Returns of evaluations that were made while the run went on."""
    drawn = points(facts.eval_rows, "eval/return")
    if not drawn:
        return ""
    plot = _plot(drawn, "Evaluation return", [y for _, y in drawn]).points(drawn).line(drawn)
    return card(str(plot) + note("of the weights at these frames"), "Evaluation return")


def _number_in(config: str, key: str) -> float | None:
    """A number from the saved config: the page needs one, not the machinery that checks them all."""
    found = re.search(rf"^\s+{key}: ([-+.\deE_]+)\s*$", config, re.MULTILINE)
    return float(found[1]) if found else None


def _own_statistics(rows: Sequence[Row], names: Iterable[str]) -> str:
    known = {"episode/return", "episode/return_min", "episode/return_max", "episode/length", "episode/count"}
    own = [name for name in names if name.startswith(("episode/", "dial/")) and name not in known]
    titles = {name: name.removeprefix("episode/") for name in own}
    return grid(curve_card(rows, titles[name], {titles[name]: name}, "frames") for name in own)


def _evaluations(facts: RunFacts) -> str:
    rows = [
        [
            entry["file"],
            f"{entry['frames']:,}",
            entry.get("episodes", NONE),
            value(entry["mean"]),
            value(entry.get("standard_error")),
            value(entry.get("median")),
            value((entry.get("random") or {}).get("mean")),
        ]
        for entry in facts.evaluations
    ]
    head = ("file", "frames", "episodes", "mean return", "± standard error", "median", "random policy")
    return table(head, rows, left=1) if rows else ""


# -- side by side ---------------------------------------------------------------------------------------------


def _comparisons(rows: Sequence[Row], names: Iterable[str]) -> str:
    """Returns by worker and by policy: the last figure, and how it stands against the others."""
    tables = []
    for title, pattern in (("worker", r"worker(\d+)/return"), ("policy", r"policy(\d+)/(?:episode/)?return")):
        found = {int(m[1]): name for name in names if (m := re.fullmatch(pattern, name))}
        last = {k: drawn[-1][1] for k, name in sorted(found.items()) if (drawn := points(rows, name))}
        if last:
            tables.append(_compared(title, last, rows, found))
    return pair(*tables)


def _compared(title: str, last: Mapping[int, float], rows: Sequence[Row], names: Mapping[int, str]) -> str:
    mean = sum(last.values()) / len(last)
    spread = math.sqrt(sum((y - mean) ** 2 for y in last.values()) / len(last))
    cells: list[list[Any]] = []
    for k, figure in last.items():
        history = [y for _, y in points(rows, names[k])]
        apart = (figure - mean) / spread if spread > 0 else 0.0
        cells.append([f"{title} {k}", value(figure), value(max(history)), Marked(f"{apart:+.1f}", abs(apart) > 3)])
    head = (title, "mean return at the end", "highest", "apart, in deviations")
    return table(head, cells, left=1)


# -- what went wrong ------------------------------------------------------------------------------------------


def _machine_use(rows: Sequence[Row]) -> str:
    shares = [[label, f"{100 * _mean(rows, name):.0f} %"] for label, name in PHASES if points(rows, name)]
    usage = [
        [label, number(drawn[-1][1]), number(max(y for _, y in drawn))]
        for label, name in USAGE
        if (drawn := points(rows, name))
    ]
    return pair(
        table(("phase", "share of the time"), shares, left=1) if shares else "",
        table(("use", "at the end", "highest"), usage, left=1) if usage else "",
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    values = [y for _, y in points(rows, name)]
    return sum(values) / len(values)


# -- what is left of it ---------------------------------------------------------------------------------------


def _data(facts: RunFacts) -> str:
    last, found = parts.last(facts.rows), facts.data
    figures: list[tuple[str, str]] = []
    if found:
        try:
            episodes, returns = found["episodes"], found["returns"]
            stored = sum(shard["bytes"] for shard in found["shards"])
            figures = [
                ("episodes", f"{episodes['total']:,}, {episodes['whole']:,} whole"),
                ("steps", f"{found['rows']['steps']:,}"),
                ("mean return", f"{value(returns['mean'])} ± {value(returns['std'])}"),
                ("on disk", size(stored)),
            ]
        except (KeyError, TypeError):
            figures = [("report", "data_report.json is of another version")]
    elif "record/bytes" in last:
        figures = [
            ("episodes", f"{last['record/episodes']:,.0f}"),
            ("steps", f"{last['record/rows']:,.0f}"),
            ("on disk", bytes_text(last["record/bytes"])),
        ]
    if not figures:
        return ""
    link = f'<p><a href="{escape(facts.data_page)}">Report of the recorded data</a></p>' if facts.data_page else ""
    return pair(table(("data", ""), [list(row) for row in figures], left=2)) + link
