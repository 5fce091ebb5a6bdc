"""The page about one run: facts in, HTML out. Sections in the order in which one asks: how did it go, what does it look
like, what went wrong, what is left of it, where does it come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollmill.monitor.console import bytes_text, count_text, duration_text
from rollmill.store.page.style import STYLE
from rollmill.store.page.svg import Plot, escape, number
from rollmill.store.page.tables import MAX_ROWS, NONE, Marked, size, table, value

if TYPE_CHECKING:
    from rollmill.runs.run_report import RunFacts

MAX_POINTS = 400
"""Points of a curve; of more rows, means of neighbours are drawn."""
_POLICY = (
    "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_MORE_STYLE = """
pre { margin: 0; font: 12px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
details > .card, details > .grid3 { margin-top: 10px; }
.wrap td.l { white-space: normal; overflow-wrap: anywhere; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 12px;
  align-items: start; }
.grid2 .card { margin-top: 0; }
video { width: 100%; border-radius: 4px; background: var(--line); }
"""

Row = Mapping[str, Any]
Points = list[tuple[float, float]]

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
    names = _names(facts.rows)
    drawn = {name for _, name, _ in CURVES}
    sections = (
        _head(facts),
        _whole(lambda: _tiles(facts)),
        _section("Curves", lambda: _curves(facts)),
        _section("Evaluations", lambda: _evaluations(facts)),
        _section("The environment's own statistics", lambda: _own_statistics(facts.rows, names)),
        _section("Workers and policies", lambda: _comparisons(facts.rows, names)),
        _section("Faults and drops", lambda: _faults(facts)),
        _section("Time and memory", lambda: _machine_use(facts.rows)),
        _section("Recorded data", lambda: _data(facts)),
        _section("Videos", lambda: _videos(facts)),
        _section("All metrics", lambda: _all_metrics(facts.rows, names, drawn)),
        _section("Checkpoints", lambda: _checkpoints(facts)),
        _section("Where it comes from", lambda: _diary(facts)),
        _section("Configuration", lambda: _config(facts)),
        f'<footer class="note"><p>Made {escape(facts.made_at)} from the files of the run\'s folder.</p></footer>\n',
    )
    title = f"{facts.folder.name}: run report"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<link rel="icon" href="data:,"/>\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{_MORE_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _whole(make: Callable[[], str]) -> str:
    """What ``make`` gives, or that it cannot be shown: files of the run may hold anything, the other sections stand."""
    try:
        return make()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        found = escape(f"{type(error).__name__}: {error}")
        return f'<p class="bad">The files behind this are damaged or of another version ({found}).</p>'


def _section(title: str, make: Callable[[], str]) -> str:
    body = _whole(make)
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n" if body else ""


def _card(title: str, body: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3>{body}</div>'


def _grid(*cards: str) -> str:
    there = [card for card in cards if card]
    return f'<div class="grid3">{"".join(there)}</div>' if there else ""


# -- how did it go --------------------------------------------------------------------------------------------


def _head(facts: RunFacts) -> str:
    state, reason = facts.state.get("state", "unknown"), facts.state.get("reason", "")
    level = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}.get(state, "unknown")
    first = str(reason).splitlines()[0] if reason else ""
    return (
        f"<header><h1>{escape(facts.folder.name)}</h1>\n<p><code>{escape(facts.folder)}</code></p>\n"
        f'<p><span class="{level}">{escape(state)}</span>{escape(f": {first}" if first else "")}</p></header>\n'
    )


def _tiles(facts: RunFacts) -> str:
    last, sessions = _last(facts.rows), facts.diary.get("sessions") or []
    frames = facts.state.get("frames") or last.get("frames", 0)
    returns = _points(facts.rows, "episode/return")
    best = max((y for _, y in returns), default=None)
    seconds = last.get("time/seconds")
    rates = [y for _, y in _points(facts.rows, "time/frames_per_s") if y > 0]
    tiles = (
        (f"{frames:,}", "frames"),
        (value(last.get("episode/return")), f"mean return at the end, best {value(best)}"),
        (f"{last.get('episode/count', 0):,.0f}", "episodes"),
        (count_text(sorted(rates)[len(rates) // 2]) if rates else NONE, "frames per second (median)"),
        (duration_text(seconds) if seconds is not None else NONE, f"of training, {len(sessions)} session(s)"),
        (f"{last.get('learn/batches', 0):,}", "training steps"),
    )
    cells = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for v, k in tiles)
    return f'<div class="tiles">{cells}</div>\n'


# -- curves ---------------------------------------------------------------------------------------------------


def _curves(facts: RunFacts) -> str:
    return _grid(_return_card(facts.rows), *_eval_cards(facts), *(_curve_card(facts, *c) for c in CURVES[1:]))


def _points(rows: Sequence[Row], name: str) -> Points:
    """(frames, value) of the rows that have a finite value."""
    found = []
    for row in rows:
        y = row.get(name)
        if isinstance(y, int | float) and math.isfinite(y):
            found.append((float(row["frames"]), float(y)))
    return found


def thinned(points: Points, limit: int = MAX_POINTS) -> Points:
    """At most ``limit`` points: means of as many neighbours as it takes; the last point stays itself."""
    if len(points) <= limit:
        return points
    width = math.ceil(len(points) / (limit - 1))
    groups = [points[k : k + width] for k in range(0, len(points), width)]
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    return [*means, points[-1]]


def _plot(points: Points, label: str, low: float, high: float) -> Plot:
    margin = (high - low) * 0.06 or abs(high) * 0.1
    ends = (points[0][0], points[-1][0])
    return Plot(ends, (low - margin, high + margin), label=label, x_title="frames").axes()


def _curve_card(facts: RunFacts, title: str, name: str, note: str) -> str:
    points = thinned(_points(facts.rows, name))
    if not points:
        return ""
    values = [y for _, y in points]
    limit = _number_in(facts.config, "max_grad_norm") if name == "learn/grad_norm" else None
    top = max([*values, limit] if limit and limit < 20 * max(values) else values)
    plot = _plot(points, title, min(values), top)
    if limit and limit <= top:
        plot.line([(points[0][0], limit), (points[-1][0], limit)], "mark")
        note += f"; dashed: learning.max_grad_norm = {limit:g}"
    plot.line(points) if len(points) > 1 else plot.points(points)
    return _card(title, f'{plot}<p class="note">{escape(note)}</p>' if note else str(plot))


def _return_card(rows: Sequence[Row]) -> str:
    title, name, note = CURVES[0]
    points = thinned(_points(rows, name))
    if not points:
        return _card(title, '<p class="muted">No episode has ended.</p>')
    low, high = thinned(_points(rows, f"{name}_min")), thinned(_points(rows, f"{name}_max"))
    values = [y for _, y in (*points, *low, *high)]
    plot = _plot(points, title, min(values), max(values))
    if len(low) == len(high) and len(low) > 1:
        plot.band(low, high)
    plot.line(points) if len(points) > 1 else plot.points(points)
    return _card(title, f'{plot}<p class="note">{escape(note)}</p>')


def _eval_cards(facts: RunFacts) -> list[str]:
    """Returns of evaluations that were made while the run went on."""
    points = _points(facts.eval_rows, "eval/return")
    if not points:
        return []
    values = [y for _, y in points]
    plot = _plot(points, "Evaluation return", min(values), max(values)).points(points)
    plot.line(points)
    return [_card("Evaluation return", f'{plot}<p class="note">of the weights at these frames</p>')]


def _number_in(config: str, key: str) -> float | None:
    """A number from the saved config: the page needs one, not the machinery that checks them all."""
    found = re.search(rf"^\s+{key}: ([-+.\deE_]+)\s*$", config, re.MULTILINE)
    return float(found[1]) if found else None


def _own_statistics(rows: Sequence[Row], names: Iterable[str]) -> str:
    known = {"episode/return", "episode/return_min", "episode/return_max", "episode/length", "episode/count"}
    own = [name for name in names if name.startswith(("episode/", "dial/")) and name not in known]
    return _grid(*(_small_card(rows, name) for name in own))


def _small_card(rows: Sequence[Row], name: str) -> str:
    points = thinned(_points(rows, name))
    if not points:
        return ""
    values = [y for _, y in points]
    plot = _plot(points, name, min(values), max(values))
    plot.line(points) if len(points) > 1 else plot.points(points)
    return _card(name.partition("/")[2] if name.startswith("episode/") else name, str(plot))


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
    parts = []
    for title, pattern in (("worker", r"worker(\d+)/return"), ("policy", r"policy(\d+)/(?:episode/)?return")):
        found = {int(m[1]): name for name in names if (m := re.fullmatch(pattern, name))}
        last = {k: points[-1][1] for k, name in sorted(found.items()) if (points := _points(rows, name))}
        if last:
            parts.append(_compared(title, last, rows, found))
    return f'<div class="grid2">{"".join(parts)}</div>' if parts else ""


def _compared(title: str, last: Mapping[int, float], rows: Sequence[Row], names: Mapping[int, str]) -> str:
    mean = sum(last.values()) / len(last)
    spread = math.sqrt(sum((y - mean) ** 2 for y in last.values()) / len(last))
    cells: list[list[Any]] = []
    for k, figure in last.items():
        history = [y for _, y in _points(rows, names[k])]
        apart = (figure - mean) / spread if spread > 0 else 0.0
        cells.append([f"{title} {k}", value(figure), value(max(history)), Marked(f"{apart:+.1f}", abs(apart) > 3)])
    head = (title, "mean return at the end", "highest", "apart, in deviations")
    return table(head, cells, left=1)


# -- what went wrong ------------------------------------------------------------------------------------------


def _faults(facts: RunFacts) -> str:
    last = _last(facts.rows)
    rows = [[label, Marked(f"{last[name]:,.0f}", last[name] > 0)] for label, name in FAULTS if name in last]
    body = f'<div class="grid2">{table(("what", "count"), rows, left=1)}</div>' if rows else ""
    reason = str(facts.state.get("reason", ""))
    if facts.state.get("state") == "failed" and "\n" in reason:
        body += _card("Error", f"<pre>{escape(reason)}</pre>")
    if facts.complaints:
        shown = f"last {len(facts.complaints)} of {facts.complaint_count:,}"
        text = escape("\n".join(facts.complaints))
        body += _card(f"Warnings and errors in the log ({shown})", f"<pre>{text}</pre>")
    if facts.problems:
        body += _card("Not readable for this report", f"<pre>{escape(chr(10).join(facts.problems))}</pre>")
    return body


def _machine_use(rows: Sequence[Row]) -> str:
    shares = [[label, f"{100 * _mean(rows, name):.0f} %"] for label, name in PHASES if _points(rows, name)]
    usage = [
        [label, number(points[-1][1]), number(max(y for _, y in points))]
        for label, name in USAGE
        if (points := _points(rows, name))
    ]
    parts = table(("phase", "share of the time"), shares, left=1) if shares else ""
    parts += table(("use", "at the end", "highest"), usage, left=1) if usage else ""
    return f'<div class="grid2">{parts}</div>' if parts else ""


def _mean(rows: Sequence[Row], name: str) -> float:
    values = [y for _, y in _points(rows, name)]
    return sum(values) / len(values)


# -- what is left of it ---------------------------------------------------------------------------------------


def _data(facts: RunFacts) -> str:
    last, found = _last(facts.rows), facts.data
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
    return f'<div class="grid2">{table(("data", ""), [list(row) for row in figures], left=2)}</div>{link}'


def _videos(facts: RunFacts) -> str:
    cards = []
    for video in facts.videos[:MAX_ROWS]:
        link = f'<a href="{escape(video.path)}">{escape(video.path)}</a> ({escape(size(video.nbytes))})'
        film = f'<video controls="controls" preload="metadata" src="{video.data}"></video>' if video.data else ""
        cards.append(f'<div class="card">{film}<p class="note">{link}</p></div>')
    return _grid(*cards)


def _checkpoints(facts: RunFacts) -> str:
    rows = [[name, f"{frames:,}", size(nbytes)] for name, frames, nbytes in facts.checkpoints]
    return table(("checkpoint", "frames", "size"), rows, left=1) if rows else ""


def _all_metrics(rows: Sequence[Row], names: Sequence[str], drawn: set[str]) -> str:
    shown = [name for name in names if not re.match(r"worker\d+/", name)]
    cells = []
    for name in shown:
        values = [y for _, y in _points(rows, name)]
        if values:
            cells.append([name, *(number(f) for f in (values[0], values[-1], min(values), max(values)))])
    if not cells:
        return ""
    head = ("metric", "first", "last", "lowest", "highest")
    tables = "".join(table(head, cells[k : k + MAX_ROWS], left=1) for k in range(0, len(cells), MAX_ROWS))
    others = [name for name in shown if name not in drawn and not name.startswith(("episode/", "dial/"))]
    more = _grid(*(_small_card(rows, name) for name in others))
    return (
        f"<details><summary>Table of {len(cells)} metrics</summary>{tables}</details>"
        f"<details><summary>{len(others)} more curves</summary>{more}</details>"
    )


# -- where it comes from --------------------------------------------------------------------------------------


def _diary(facts: RunFacts) -> str:
    diary = facts.diary
    if not diary:
        return '<p class="muted">There is no diary.</p>'
    git, machine = diary.get("git") or {}, diary.get("machine") or {}
    commit = git.get("commit")
    about = [
        ("command", diary.get("command")),
        ("folder", diary.get("folder")),
        ("created", diary.get("created")),
        ("code", f"{commit}{' with changes' if git.get('dirty') else ''}" if commit else "not in a repository"),
        ("versions", ", ".join(f"{name} {found}" for name, found in (diary.get("versions") or {}).items() if found)),
        (
            "machine",
            f"{machine.get('host')}, {machine.get('platform')}, {machine.get('cores')} cores, "
            f"{bytes_text(machine.get('memory_bytes') or 0)} memory",
        ),
    ]
    facts_table = table(("", ""), [list(row) for row in about], left=2)
    return f'<div class="wrap">{facts_table}</div>{_parent(diary)}{_sessions(diary)}'


def _parent(diary: Row) -> str:
    parent = diary.get("parent")
    if not parent:
        return '<p class="note">Started from scratch.</p>'
    origin = f"<p>Started from <code>{escape(parent['checkpoint'])}</code> at {parent['frames']:,} frames.</p>"
    return origin + _changes(parent.get("difference") or {}, "Nothing was changed.")


def _changes(difference: Mapping[str, Any], none: str) -> str:
    rows = [[key, *(str(side) for side in pair)] for key, pair in difference.items()]
    return table(("changed key", "before", "after"), rows, left=3) if rows else f'<p class="note">{escape(none)}</p>'


def _sessions(diary: Row) -> str:
    rows = [
        [
            session.get("started"),
            session.get("host"),
            f"{session.get('frames_at_start') or 0:,}",
            f"{session['frames_at_end']:,}" if session.get("frames_at_end") is not None else NONE,
            str(session.get("how") or "not recorded").splitlines()[0][:120],
            ", ".join(f"{key}={pair[1]}" for key, pair in (session.get("overrides") or {}).items()) or NONE,
        ]
        for session in diary.get("sessions") or []
    ]
    head = ("session", "host", "from frame", "to frame", "how it ended", "changed")
    return f'<div class="wrap">{table(head, rows, left=6)}</div>' if rows else ""


def _config(facts: RunFacts) -> str:
    if not facts.config:
        return ""
    return f'<details><summary>config.yaml</summary><div class="card"><pre>{escape(facts.config)}</pre></div></details>'


# -- small things ---------------------------------------------------------------------------------------------


def _last(rows: Sequence[Row]) -> Row:
    """The newest finite number of every metric."""
    found: dict[str, Any] = {}
    for row in rows:
        found.update({name: y for name, y in row.items() if isinstance(y, int | float) and math.isfinite(y)})
    return found


def _names(rows: Sequence[Row]) -> list[str]:
    """Every metric, in the order of first appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in ("frames", "time")]
