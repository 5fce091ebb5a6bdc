"""The status of a launch as a table: on a terminal, as plain text, and what stands in its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmill.core.terminal import printable
from rollmill.core.text import columns, counted
from rollmill.launch.status import STATES, RunStatus, count_states

STYLES = {"running": "green", "queued": "cyan", "waiting": "dim", "failed": "bold red", "cancelled": "yellow"}
HEAD = ("run", "state", "frames", "return", "frames/s", "left", "try", "host", "reason")
_REASON = 300


def cells(status: RunStatus) -> tuple[str, ...]:
    """Return one row, as text."""
    share = ""
    if status.frames is not None and status.run.frames:
        share = f" ({min(1.0, status.frames / status.run.frames):.0%})"
    return (
        status.run.name,
        status.state,
        "-" if status.frames is None else f"{status.frames:,}{share}",
        "-" if status.mean_return is None else f"{status.mean_return:.4g}",
        "-" if status.frames_per_s is None else f"{status.frames_per_s:,.0f}",
        "-" if status.seconds_left is None else duration(status.seconds_left),
        str(status.attempts) if status.attempts else "-",
        status.host or "-",
        first_line(status.reason),
    )


def first_line(text: str) -> str:
    """Return what is wrong; a traceback below it is in the log."""
    return text.strip().partition("\n")[0][:_REASON]


def plain(statuses: Sequence[RunStatus]) -> str:
    """Return the table for files and pipes: columns of text, and below it what failed."""
    return "\n".join([*columns([HEAD, *map(cells, statuses)]), "", summary(statuses), *tails(statuses)])


def tails(statuses: Sequence[RunStatus]) -> list[str]:
    """Return the last lines of what every failed run said."""
    found: list[str] = []
    for status in statuses:
        if status.state == "failed" and status.tail:
            head = f"\n{status.run.name} failed ({counted(status.attempts, 'attempt')}); the end of its output:"
            found += [head, *(f"    {line}" for line in status.tail.splitlines())]
    return found


def summary(statuses: Sequence[RunStatus]) -> str:
    """Return ``12 runs: 2 running, 10 finished; 120,000 of 500,000 frames, about 3h20m left``."""
    counts = ", ".join(f"{count} {state}" for state, count in count_states(statuses).items())
    frames = sum(status.frames or 0 for status in statuses)
    wanted = sum(status.run.frames for status in statuses)
    limit = f" of {wanted:,}" if wanted else ""
    left = seconds_left(statuses)
    rest = "" if left is None else f", about {duration(left)} left"
    return f"{counted(len(statuses), 'run')}: {counts}; {frames:,}{limit} frames{rest}"


def seconds_left(statuses: Sequence[RunStatus]) -> float | None:
    """Return the seconds until all runs are done, at the rate of those that run now; None where nobody can tell."""
    open_runs = [status for status in statuses if not status.settled]
    rate = sum(status.frames_per_s or 0.0 for status in open_runs if status.state == "running")
    if not rate or not all(status.run.frames for status in open_runs):
        return None
    return sum(max(0, status.run.frames - (status.frames or 0)) for status in open_runs) / rate


def rich_table(statuses: Sequence[RunStatus], limit: int) -> RenderableType:
    """Return the table for a terminal with room for ``limit`` rows: what needs attention comes first."""
    table = Table(box=None, pad_edge=False)
    for name in HEAD:
        right = name in ("frames", "return", "frames/s", "left", "try")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "reason")
    ranked = sorted(statuses, key=lambda status: STATES.index(status.state))
    for status in ranked[:limit]:
        table.add_row(*(Text(printable(cell)) for cell in cells(status)), style=STYLES.get(status.state, ""))
    hidden = len(ranked) - limit
    more = [Text(f"... and {hidden} more", style="dim")] if hidden > 0 else []
    return Group(table, *more, Text(summary(statuses), style="bold"))


def duration(seconds: float) -> str:
    """Return text such as ``45s``, ``12m``, ``3h20m``, ``2d04h``."""
    if not math.isfinite(seconds):
        return "-"
    minutes, whole = divmod(round(seconds), 60)
    if not minutes:
        return f"{whole}s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}m"
    days, hours = divmod(hours, 24)
    return f"{hours}h{minutes:02d}m" if not days else f"{days}d{hours:02d}h"
