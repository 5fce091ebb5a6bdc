"""Sections that pages about runs have in common, whatever kind of run it is: how it ended, curves of metrics, what went
wrong, checkpoints, where it comes from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rollmill.core.errors import RollmillError
from rollmill.core.steps import position
from rollmill.core.text import bytes_text
from rollmill.reports.html.document import (
    Kind,
    card,
    code,
    details,
    document,
    footer,
    grid,
    header,
    made_at,
    note,
    pair,
    paragraph,
    preformatted,
    section,
    word,
)
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.media import Media
from rollmill.reports.html.plots import Line, curves
from rollmill.reports.html.tables import MAX_ROWS, NONE, Marked, number, table
from rollmill.reports.run.facts import RunFacts

MAX_POINTS = 400
"""Points of a curve; of more rows, means of neighbours are drawn."""
LEVELS = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}

Row = Mapping[str, Any]
Points = list[tuple[float, float]]
Sections = Mapping[str, Callable[[], Html]]
"""What makes each section, by its title."""


def run_page(kind: Kind, facts: RunFacts, title: str, top: Sequence[Callable[[], Html]], sections: Sections) -> Html:
    """Return the page about one run: how it ended, what ``top`` makes, the sections, and its configuration.

    Files of the run may hold anything: a section that cannot be made says so, the others stand.
    """
    every = {**sections, "Configuration": lambda: configuration(facts)}
    return document(
        kind,
        title,
        header(title.partition(": ")[0], paragraph(code(facts.folder)), _state(facts, kind)),
        *map(_guarded, top),
        *(section(name, _guarded(make)) for name, make in every.items()),
        footer(f"Made {made_at()} from the files of the run's folder."),
    )


def _guarded(make: Callable[[], Html]) -> Html:
    try:
        return make()
    except (AttributeError, KeyError, TypeError, ValueError, OSError, RollmillError) as error:
        found = f"{type(error).__name__}: {error}"
        return paragraph(f"The files behind this are damaged or of another version ({found}).", kind="bad")


def _state(facts: RunFacts, kind: Kind) -> Html:
    if kind == "world" and not facts.state:  # its stages have states
        return NOTHING
    state, reason = str(facts.state.get("state", "unknown")), str(facts.state.get("reason") or "")
    first = reason.splitlines()[0] if reason else ""
    return paragraph(word(state, LEVELS.get(state, "unknown")), f": {first}" if first else "")


# -- curves ---------------------------------------------------------------------------------------------------


def points(rows: Sequence[Row], name: str) -> Points:
    """Return (frames or steps, value) of the rows that have a finite value."""
    found = []
    for row in rows:
        y = row.get(name)
        if isinstance(y, int | float) and math.isfinite(y):
            found.append((float(position(row) or 0), float(y)))
    return found


def thinned(points: Points, limit: int = MAX_POINTS) -> Points:
    """Return at most ``limit`` points: means of as many neighbours as it takes; the last point stays itself."""
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
) -> Html:
    """Draw metrics over frames (or what ``unit`` is) in one plot; ``names``: metric by the label of its line."""
    lines = [Line(label, thinned(points(rows, name))) for label, name in names.items()]
    plot = curves(lines, title, x_title=unit, mark=mark)
    return card(plot, note(about), title=title) if plot else NOTHING


def all_metrics(rows: Sequence[Row], drawn: Iterable[str], unit: str = "frames") -> Html:
    """List every metric in a table, and draw curves of those that are not drawn elsewhere; both folded."""
    shown = [name for name in metric_names(rows) if not re.match(r"worker\d+/", name)]
    cells = []
    for name in shown:
        values = [y for _, y in points(rows, name)]
        if values:
            cells.append([name, *(number(f) for f in (values[0], values[-1], min(values), max(values)))])
    if not cells:
        return NOTHING
    titles = ("metric", "first", "last", "lowest", "highest")
    tables = (table(titles, cells[k : k + MAX_ROWS], left=1) for k in range(0, len(cells), MAX_ROWS))
    elsewhere = ("episode/", "suite/", "task/", "variable/")  # in sections of their own
    others = [name for name in shown if name not in drawn and not name.startswith(elsewhere)]
    more = grid(curve_card(rows, name, {name: name}, unit) for name in others)
    return join(
        details(f"Table of {len(cells)} metrics", *tables),
        details(f"{len(others)} more curves", more) if more else NOTHING,
    )


# -- what went wrong, what is left of it ----------------------------------------------------------------------


def faults(facts: RunFacts, counters: Sequence[tuple[str, str]] = ()) -> Html:
    """Show what went wrong; ``counters``: (label, metric) of what is counted while the run goes on."""
    found = last(facts.rows)
    rows = [[label, Marked(f"{found[name]:,.0f}", found[name] > 0)] for label, name in counters if name in found]
    parts = [pair(table(("what", "count"), rows, left=1)) if rows else NOTHING]
    reason = str(facts.state.get("reason", ""))
    if facts.state.get("state") == "failed" and "\n" in reason:
        parts.append(preformatted(reason, "Error"))
    if facts.complaints:
        shown = f"last {len(facts.complaints)} of {facts.complaint_count:,}"
        parts.append(preformatted("\n".join(facts.complaints), f"Warnings and errors in the log ({shown})"))
    if facts.problems:
        parts.append(preformatted("\n".join(facts.problems), "Not readable for this report"))
    return join(*parts)


def videos(facts: RunFacts, captions: Mapping[Path, str] | None = None) -> Html:
    """Show the run's videos; ``captions``: what a video shows."""
    media = Media(facts.folder)
    return grid(media.figure(path, (captions or {}).get(path, "")) for path in facts.videos[:MAX_ROWS])


def checkpoints(facts: RunFacts, unit: str = "frames") -> Html:
    rows = [[name, f"{frames:,}", bytes_text(nbytes)] for name, frames, nbytes in facts.checkpoints]
    return table(("checkpoint", unit, "size"), rows, left=1) if rows else NOTHING


# -- where it comes from --------------------------------------------------------------------------------------


def origin(facts: RunFacts, unit: str = "frame") -> Html:
    """Show what the diary says: command, code, versions, machine, parent, sessions."""
    diary = facts.diary
    if not diary:
        return paragraph("There is no diary.", kind="muted")
    git, machine = diary.get("git") or {}, diary.get("machine") or {}
    commit = git.get("commit")
    about = [
        ("command", diary.get("command")),
        ("folder", diary.get("folder")),
        ("created", _time(diary.get("created"))),
        ("code", f"{commit}{' with changes' if git.get('dirty') else ''}" if commit else "not in a repository"),
        ("versions", ", ".join(f"{name} {found}" for name, found in (diary.get("versions") or {}).items() if found)),
        (
            "machine",
            f"{machine.get('host')}, {machine.get('platform')}, {machine.get('cores')} cores, "
            f"{bytes_text(machine.get('memory_bytes') or 0)} memory",
        ),
    ]
    return join(table((), about, left=2), _parent(diary, unit), _sessions(diary, unit))


def _time(saved: object) -> str:
    """Write ``2026-11-18 05:42:26 UTC`` instead of ISO's single word, which no line of a table holds."""
    try:
        return datetime.fromisoformat(str(saved)).strftime("%Y-%m-%d %H:%M:%S %Z")
    except ValueError:
        return str(saved)


def _parent(diary: Row, unit: str) -> Html:
    parent = diary.get("parent")
    if not parent:
        return note("Started from scratch.")
    words = paragraph("Started from ", code(parent["checkpoint"]), f" at {position(parent) or 0:,} {unit}s.")
    changes = [[key, *(str(side) for side in sides)] for key, sides in (parent.get("difference") or {}).items()]
    told = table(("changed key", "before", "after"), changes, left=3) if changes else note("Nothing was changed.")
    return join(words, told)


def _sessions(diary: Row, unit: str) -> Html:
    rows = [
        [
            _time(session.get("started")),
            session.get("host"),
            f"{session.get('step_at_start') or 0:,}",
            f"{session['step_at_end']:,}" if session.get("step_at_end") is not None else NONE,
            str(session.get("how") or "not recorded").splitlines()[0][:120],
            ", ".join(f"{key}={sides[1]}" for key, sides in (session.get("overrides") or {}).items()) or NONE,
        ]
        for session in diary.get("sessions") or []
    ]
    titles = ("session", "host", f"from {unit}", f"to {unit}", "how it ended", "changed")
    return table(titles, rows, left=6) if rows else NOTHING


def configuration(facts: RunFacts) -> Html:
    return details("config.yaml", preformatted(facts.config)) if facts.config else NOTHING


# -- small things ---------------------------------------------------------------------------------------------


def reached(facts: RunFacts) -> int:
    """Return how far the run came, in its own unit: as its state says, or else its last row."""
    said = facts.state.get("frames", facts.state.get("step"))
    return int(said or (position(facts.rows[-1]) if facts.rows else 0) or 0)


def last(rows: Sequence[Row]) -> Row:
    """Return the newest finite number of every metric."""
    found: dict[str, Any] = {}
    for row in rows:
        found.update({name: y for name, y in row.items() if isinstance(y, int | float) and math.isfinite(y)})
    return found


def metric_names(rows: Sequence[Row]) -> list[str]:
    """Return every metric, in the order of first appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in ("frames", "step", "unit", "time")]
