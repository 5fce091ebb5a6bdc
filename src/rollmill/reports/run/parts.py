"""What pages about runs have in common, whatever kind of run it is: how it ended, curves of metrics, what went wrong,
checkpoints, where it comes from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollmill.core.text import bytes_text
from rollmill.reports.html.curves import Line, curves
from rollmill.reports.html.document import card, grid, note
from rollmill.reports.html.document import section as plain_section
from rollmill.reports.html.svg import escape, number
from rollmill.reports.html.tables import MAX_ROWS, NONE, Marked, size, table

if TYPE_CHECKING:
    from rollmill.reports.run.facts import RunFacts

MAX_POINTS = 400
"""Points of a curve; of more rows, means of neighbours are drawn."""
STYLE = """
pre { margin: 0; font: 12px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
details > .card, details > .grid3 { margin-top: 10px; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 12px;
  align-items: start; }
.grid2 .card { margin-top: 0; }
video { width: 100%; border-radius: 4px; background: var(--line); }
"""

Row = Mapping[str, Any]
Points = list[tuple[float, float]]


def whole(make: Callable[[], str]) -> str:
    """What ``make`` gives, or that it cannot be shown: files of the run may hold anything, the other sections stand."""
    try:
        return make()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        found = escape(f"{type(error).__name__}: {error}")
        return f'<p class="bad">The files behind this are damaged or of another version ({found}).</p>'


def section(title: str, make: Callable[[], str]) -> str:
    return plain_section(title, whole(make))


def pair(*tables: str) -> str:
    """Small tables beside each other."""
    there = "".join(tables)
    return f'<div class="grid2">{there}</div>' if there else ""


def head(facts: RunFacts) -> str:
    """The run's name, where it lies and how it ended."""
    state, reason = facts.state.get("state", "unknown"), facts.state.get("reason", "")
    level = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}.get(state, "unknown")
    first = str(reason).splitlines()[0] if reason else ""
    return (
        f"<header><h1>{escape(facts.folder.name)}</h1>\n<p><code>{escape(facts.folder)}</code></p>\n"
        f'<p><span class="{level}">{escape(state)}</span>{escape(f": {first}" if first else "")}</p></header>\n'
    )


def foot(facts: RunFacts) -> str:
    text = f"Made {facts.made_at} from the files of the run's folder."
    return f'<footer class="note"><p>{escape(text)}</p></footer>\n'


# -- curves ---------------------------------------------------------------------------------------------------


def points(rows: Sequence[Row], name: str) -> Points:
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


def curve_card(
    rows: Sequence[Row],
    title: str,
    names: Mapping[str, str],
    unit: str,
    about: str = "",
    mark: tuple[float, str] | None = None,
) -> str:
    """Metrics over frames (or what ``unit`` is) in one plot; ``names``: metric by the label of its line."""
    lines = [Line(label, thinned(points(rows, name))) for label, name in names.items()]
    plot = curves(lines, title, x_title=unit, mark=mark)
    return card(plot + note(about), title) if plot else ""


def all_metrics(rows: Sequence[Row], names: Sequence[str], drawn: Iterable[str], unit: str = "frames") -> str:
    """A table of every metric, and curves of those that are not drawn elsewhere; both folded."""
    shown = [name for name in names if not re.match(r"worker\d+/", name)]
    cells = []
    for name in shown:
        values = [y for _, y in points(rows, name)]
        if values:
            cells.append([name, *(number(f) for f in (values[0], values[-1], min(values), max(values)))])
    if not cells:
        return ""
    titles = ("metric", "first", "last", "lowest", "highest")
    tables = "".join(table(titles, cells[k : k + MAX_ROWS], left=1) for k in range(0, len(cells), MAX_ROWS))
    others = [name for name in shown if name not in drawn and not name.startswith(("episode/", "dial/"))]
    more = grid(curve_card(rows, name, {name: name}, unit) for name in others)
    return (
        f"<details><summary>Table of {len(cells)} metrics</summary>{tables}</details>"
        f"<details><summary>{len(others)} more curves</summary>{more}</details>"
    )


# -- what went wrong, what is left of it ----------------------------------------------------------------------


def faults(facts: RunFacts, counters: Sequence[tuple[str, str]]) -> str:
    """``counters``: (label, metric) of what is counted while the run goes on."""
    found = last(facts.rows)
    rows = [[label, Marked(f"{found[name]:,.0f}", found[name] > 0)] for label, name in counters if name in found]
    body = pair(table(("what", "count"), rows, left=1)) if rows else ""
    reason = str(facts.state.get("reason", ""))
    if facts.state.get("state") == "failed" and "\n" in reason:
        body += card(f"<pre>{escape(reason)}</pre>", "Error")
    if facts.complaints:
        shown = f"last {len(facts.complaints)} of {facts.complaint_count:,}"
        text = escape("\n".join(facts.complaints))
        body += card(f"<pre>{text}</pre>", f"Warnings and errors in the log ({shown})")
    if facts.problems:
        body += card(f"<pre>{escape(chr(10).join(facts.problems))}</pre>", "Not readable for this report")
    return body


def videos(facts: RunFacts, captions: Mapping[str, str] | None = None) -> str:
    """``captions``: what a film shows, by its path in the run's folder."""
    cards = []
    for video in facts.videos[:MAX_ROWS]:
        link = f'<a href="{escape(video.path)}">{escape(video.path)}</a> ({escape(size(video.nbytes))})'
        film = f'<video controls="controls" preload="metadata" src="{video.data}"></video>' if video.data else ""
        words = (captions or {}).get(video.path, "")
        caption = f"<p>{escape(words)}</p>" if words else ""
        cards.append(card(f'{film}{caption}<p class="note">{link}</p>'))
    return grid(cards)


def checkpoints(facts: RunFacts, unit: str = "frames") -> str:
    rows = [[name, f"{frames:,}", size(nbytes)] for name, frames, nbytes in facts.checkpoints]
    return table(("checkpoint", unit, "size"), rows, left=1) if rows else ""


# -- where it comes from --------------------------------------------------------------------------------------


def origin(facts: RunFacts, unit: str = "frame") -> str:
    """What the diary says: command, code, versions, machine, parent, sessions."""
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
    return table(("", ""), [list(row) for row in about], left=2) + _parent(diary, unit) + _sessions(diary, unit)


def _parent(diary: Row, unit: str) -> str:
    parent = diary.get("parent")
    if not parent:
        return note("Started from scratch.")
    words = f"<p>Started from <code>{escape(parent['checkpoint'])}</code> at {parent['frames']:,} {unit}s.</p>"
    return words + _changes(parent.get("difference") or {}, "Nothing was changed.")


def _changes(difference: Mapping[str, Any], none: str) -> str:
    rows = [[key, *(str(side) for side in sides)] for key, sides in difference.items()]
    return table(("changed key", "before", "after"), rows, left=3) if rows else note(none)


def _sessions(diary: Row, unit: str) -> str:
    rows = [
        [
            session.get("started"),
            session.get("host"),
            f"{session.get('frames_at_start') or 0:,}",
            f"{session['frames_at_end']:,}" if session.get("frames_at_end") is not None else NONE,
            str(session.get("how") or "not recorded").splitlines()[0][:120],
            ", ".join(f"{key}={sides[1]}" for key, sides in (session.get("overrides") or {}).items()) or NONE,
        ]
        for session in diary.get("sessions") or []
    ]
    titles = ("session", "host", f"from {unit}", f"to {unit}", "how it ended", "changed")
    return table(titles, rows, left=6) if rows else ""


def configuration(facts: RunFacts) -> str:
    if not facts.config:
        return ""
    return f'<details><summary>config.yaml</summary><div class="card"><pre>{escape(facts.config)}</pre></div></details>'


# -- small things ---------------------------------------------------------------------------------------------


def last(rows: Sequence[Row]) -> Row:
    """The newest finite number of every metric."""
    found: dict[str, Any] = {}
    for row in rows:
        found.update({name: y for name, y in row.items() if isinstance(y, int | float) and math.isfinite(y)})
    return found


def metric_names(rows: Sequence[Row]) -> list[str]:
    """Every metric, in the order of first appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in ("frames", "time")]
