"""The page about an online run: facts in, HTML out. Sections in the order in which one asks: how did it go, what does
it look like, what went wrong, what is left of it, where does it come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any

from rollmill.core.text import bytes_text, counted
from rollmill.monitor.console import count_text, duration_text
from rollmill.pbt.evidence import as_normal
from rollmill.reports.html.document import card, grid, link, note, pair, paragraph, tiles
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.plots import Plot, spread
from rollmill.reports.html.tables import NONE, Marked, number, table, value
from rollmill.reports.run import sections
from rollmill.reports.run.facts import RunFacts
from rollmill.reports.run.population import population
from rollmill.reports.run.sections import Points, Row, curve_card, points, thinned
from rollmill.reports.run.selfplay import selfplay
from rollmill.reports.run.tasks import tasks

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
    ("Main: answering", "time/main_inference"),
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
CHANCE = 0.01
"""How often one of several equal workers, or policies, may be marked as apart from the others."""


def render_online(facts: RunFacts) -> Html:
    """Return the whole page."""
    drawn = {name for _, name, _ in CURVES}
    every: sections.Sections = {
        "Curves": lambda: _curves(facts),
        "Tasks": lambda: tasks(facts.rows),
        "Population": lambda: population(facts.ledger),
        "Self-play": lambda: selfplay(facts.games),
        "Evaluations": lambda: _evaluations(facts),
        "The environment's own statistics": lambda: _own_statistics(facts.rows),
        "Workers and policies": lambda: _comparisons(facts.rows),
        "Faults and drops": lambda: sections.faults(facts, FAULTS),
        "Time and memory": lambda: _machine_use(facts.rows),
        "Recorded data": lambda: _data(facts),
        "Videos": lambda: sections.videos(facts),
        "All metrics": lambda: sections.all_metrics(facts.rows, drawn),
        "Checkpoints": lambda: sections.checkpoints(facts),
        "Where it comes from": lambda: sections.origin(facts),
    }
    return sections.run_page("run", facts, f"{facts.folder.name}: run report", [lambda: _tiles(facts)], every)


# -- how did it go --------------------------------------------------------------------------------------------


def _tiles(facts: RunFacts) -> Html:
    last, sessions = sections.last(facts.rows), facts.diary.get("sessions") or []
    frames = sections.reached(facts)
    returns = points(facts.rows, "episode/return")
    best = max((y for _, y in returns), default=None)
    seconds = last.get("time/seconds")
    rates = [y for _, y in points(facts.rows, "time/frames_per_s") if y > 0]
    return tiles(
        [
            (f"{frames:,}", "frames"),
            (value(last.get("episode/return")), f"mean return at the end, best {value(best)}"),
            (f"{last.get('episode/count', 0):,.0f}", "episodes"),
            (count_text(sorted(rates)[len(rates) // 2]) if rates else NONE, "frames per second (median)"),
            (
                duration_text(seconds) if seconds is not None else NONE,
                f"of training, {counted(len(sessions), 'session')}",
            ),
            (f"{last.get('learn/batches', 0):,}", "training steps"),
        ]
    )


# -- curves ---------------------------------------------------------------------------------------------------


def _curves(facts: RunFacts) -> Html:
    others = (_curve_card(facts, title, name, about) for title, name, about in CURVES[1:])
    return grid([_return_card(facts.rows), _eval_card(facts), *others])


def _curve_card(facts: RunFacts, title: str, name: str, about: str) -> Html:
    limit = _number_in(facts.config, "max_grad_norm") if name == "learn/grad_norm" else None
    drawn = thinned(points(facts.rows, name))
    if not limit or not drawn or limit > 20 * max(y for _, y in drawn):
        return curve_card(facts.rows, title, {title: name}, "frames", about)
    plot = _plot(drawn, title, [*(y for _, y in drawn), limit])
    plot.line([(drawn[0][0], limit), (drawn[-1][0], limit)], "mark").curve(drawn)
    return card(plot.svg(), note(f"{about}; dashed: learning.max_grad_norm = {limit:g}"), title=title)


def _plot(drawn: Points, label: str, heights: Sequence[float]) -> Plot:
    return Plot((drawn[0][0], drawn[-1][0]), spread(heights), label=label, x_title="frames").axes()


def _return_card(rows: Sequence[Row]) -> Html:
    title, name, about = CURVES[0]
    drawn = thinned(points(rows, name))
    if not drawn:
        return card(paragraph("No episode has ended.", kind="muted"), title=title)
    low, high = thinned(points(rows, f"{name}_min")), thinned(points(rows, f"{name}_max"))
    plot = _plot(drawn, title, [y for _, y in (*drawn, *low, *high)])
    if len(low) == len(high) and len(low) > 1:
        plot.band(low, high)
    return card(plot.curve(drawn).svg(), note(about), title=title)


def _eval_card(facts: RunFacts) -> Html:
    """Draw returns of evaluations that were made while the run went on."""
    drawn = points(facts.eval_rows, "eval/return")
    if not drawn:
        return NOTHING
    plot = _plot(drawn, "Evaluation return", [y for _, y in drawn]).points(drawn).line(drawn)
    return card(plot.svg(), note("of the weights at these frames"), title="Evaluation return")


def _number_in(config: str, key: str) -> float | None:
    """Find a number in the saved config: the page needs one, not the machinery that checks them all."""
    found = re.search(rf"^\s+{key}: ([-+.\deE_]+)\s*$", config, re.MULTILINE)
    return float(found[1]) if found else None


def _own_statistics(rows: Sequence[Row]) -> Html:
    known = {"episode/return", "episode/return_min", "episode/return_max", "episode/length", "episode/count"}
    names = sections.metric_names(rows)
    own = [name for name in names if name.startswith(("episode/", "variable/")) and name not in known]
    titles = {name: name.removeprefix("episode/") for name in own}
    return grid(curve_card(rows, titles[name], {titles[name]: name}, "frames") for name in own)


def _evaluations(facts: RunFacts) -> Html:
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
    return table(head, rows, left=1) if rows else NOTHING


# -- side by side ---------------------------------------------------------------------------------------------


def _comparisons(rows: Sequence[Row]) -> Html:
    """Show returns by worker and by policy: the last one, and how it stands against the others."""
    names = sections.metric_names(rows)
    tables = []
    for title, pattern in (("worker", r"worker(\d+)/return"), ("policy", r"policy(\d+)/(?:episode/)?return")):
        found = {int(m[1]): name for name in names if (m := re.fullmatch(pattern, name))}
        last = {k: drawn[-1][1] for k, name in sorted(found.items()) if (drawn := points(rows, name))}
        if last:
            tables.append(_compared(title, last, rows, found))
    about = (
        "Apart: how far a mean return is from that of the others, in their standard deviations. Marked where, among so "
        f"many equal ones, chance would bring any as far in fewer than {CHANCE * 100:.0f} of 100 runs: the fewer there "
        "are, the further that is."
    )
    return join(pair(*tables), note(about)) if tables else NOTHING


def _compared(title: str, last: Mapping[int, float], rows: Sequence[Row], names: Mapping[int, str]) -> Html:
    cells: list[list[Any]] = []
    for k, mean_return in last.items():
        highest = max(y for _, y in points(rows, names[k]))
        cells.append([f"{title} {k}", value(mean_return), value(highest), _apart(k, last)])
    return table((title, "mean return at the end", "highest", "apart"), cells, left=1)


def _apart(k: int, values: Mapping[int, float]) -> str:
    """Say how far a value is from the others; it is not among those that say how far values usually are apart."""
    others = [y for j, y in values.items() if j != k]
    if len(others) < 2:
        return NONE
    gap, width = values[k] - fmean(others), stdev(others) * math.sqrt(1 + 1 / len(others))
    apart = gap / width if width else math.copysign(math.inf, gap) if gap else 0.0
    chance = 2 * NormalDist().cdf(-abs(as_normal(apart, len(others) - 1)))
    return Marked(f"{apart:+.1f}", chance * len(values) < CHANCE)


# -- what went wrong ------------------------------------------------------------------------------------------


def _machine_use(rows: Sequence[Row]) -> Html:
    shares = [[label, f"{100 * _mean(rows, name):.0f} %"] for label, name in PHASES if points(rows, name)]
    usage = [
        [label, number(drawn[-1][1]), number(max(y for _, y in drawn))]
        for label, name in USAGE
        if (drawn := points(rows, name))
    ]
    return pair(
        table(("phase", "share of the time"), shares, left=1) if shares else NOTHING,
        table(("use", "at the end", "highest"), usage, left=1) if usage else NOTHING,
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    values = [y for _, y in points(rows, name)]
    return sum(values) / len(values)


# -- what is left of it ---------------------------------------------------------------------------------------


def _data(facts: RunFacts) -> Html:
    last, found = sections.last(facts.rows), facts.data
    metrics: list[tuple[str, str]] = []
    if found:
        try:
            episodes, returns = found["episodes"], found["returns"]
            stored = sum(shard["bytes"] for shard in found["shards"])
            metrics = [
                ("episodes", f"{episodes['total']:,}, {episodes['whole']:,} whole"),
                ("steps", f"{found['rows']['steps']:,}"),
                ("mean return", f"{value(returns['mean'])} ± {value(returns['std'])}"),
                ("on disk", bytes_text(stored)),
            ]
        except (KeyError, TypeError):
            metrics = [("report", "data_report.json is of another version")]
    elif "record/bytes" in last:
        metrics = [
            ("episodes", f"{last['record/episodes']:,.0f}"),
            ("steps", f"{last['record/rows']:,.0f}"),
            ("on disk", bytes_text(last["record/bytes"])),
        ]
    if not metrics:
        return NOTHING
    more = paragraph(link(facts.data_page, "Report of the recorded data")) if facts.data_page else NOTHING
    return join(pair(table((), metrics, left=2)), more)
