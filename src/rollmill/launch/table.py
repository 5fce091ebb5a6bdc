"""The status of a launch as a table: on a terminal, as plain text, and what stands in its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmill.core.terminal import printable
from rollmill.core.text import columns
from rollmill.launch.status import STATES, Standing, count_states

STYLES = {"running": "green", "queued": "cyan", "waiting": "dim", "failed": "bold red", "cancelled": "yellow"}
HEAD = ("run", "state", "frames", "return", "frames/s", "left", "try", "host", "reason")
_REASON = 300


def cells(standing: Standing) -> tuple[str, ...]:
    """One row, as text."""
    share = ""
    if standing.frames is not None and standing.run.frames:
        share = f" ({min(1.0, standing.frames / standing.run.frames):.0%})"
    return (
        standing.run.name,
        standing.state,
        "-" if standing.frames is None else f"{standing.frames:,}{share}",
        "-" if standing.mean_return is None else f"{standing.mean_return:.4g}",
        "-" if standing.frames_per_s is None else f"{standing.frames_per_s:,.0f}",
        "-" if standing.seconds_left is None else duration(standing.seconds_left),
        str(standing.attempts) if standing.attempts else "-",
        standing.host or "-",
        first_line(standing.reason),
    )


def first_line(text: str) -> str:
    """What is wrong; a traceback below it is in the log."""
    return text.strip().partition("\n")[0][:_REASON]


def plain(standings: Sequence[Standing]) -> str:
    """For files and pipes: columns of text, and below it what failed."""
    return "\n".join([*columns([HEAD, *map(cells, standings)]), "", summary(standings), *tails(standings)])


def tails(standings: Sequence[Standing]) -> list[str]:
    """The last lines of what every failed run said."""
    found: list[str] = []
    for standing in standings:
        if standing.state == "failed" and standing.tail:
            head = f"\n{standing.run.name} failed ({standing.attempts} attempts); the end of its output:"
            found += [head, *(f"    {line}" for line in standing.tail.splitlines())]
    return found


def summary(standings: Sequence[Standing]) -> str:
    """``12 runs: 2 running, 10 finished; 120,000 of 500,000 frames, about 3h20m left``."""
    counts = ", ".join(f"{count} {state}" for state, count in count_states(standings).items())
    frames = sum(standing.frames or 0 for standing in standings)
    wanted = sum(standing.run.frames for standing in standings)
    limit = f" of {wanted:,}" if wanted else ""
    left = seconds_left(standings)
    rest = "" if left is None else f", about {duration(left)} left"
    return f"{len(standings)} run{'s' * (len(standings) != 1)}: {counts}; {frames:,}{limit} frames{rest}"


def seconds_left(standings: Sequence[Standing]) -> float | None:
    """Until all runs are done, if it goes on at the rate of those that run now; None where nobody can tell."""
    open_runs = [standing for standing in standings if not standing.settled]
    rate = sum(standing.frames_per_s or 0.0 for standing in open_runs if standing.state == "running")
    if not rate or not all(standing.run.frames for standing in open_runs):
        return None
    return sum(max(0, standing.run.frames - (standing.frames or 0)) for standing in open_runs) / rate


def rich_table(standings: Sequence[Standing], limit: int) -> RenderableType:
    """For a terminal with room for ``limit`` rows: what needs attention comes first."""
    table = Table(box=None, pad_edge=False)
    for name in HEAD:
        right = name in ("frames", "return", "frames/s", "left", "try")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "reason")
    ranked = sorted(standings, key=lambda standing: STATES.index(standing.state))
    for standing in ranked[:limit]:
        table.add_row(*(Text(printable(cell)) for cell in cells(standing)), style=STYLES.get(standing.state, ""))
    hidden = len(ranked) - limit
    more = [Text(f"... and {hidden} more", style="dim")] if hidden > 0 else []
    return Group(table, *more, Text(summary(standings), style="bold"))


def duration(seconds: float) -> str:
    """``45s``, ``12m``, ``3h20m``, ``2d04h``."""
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
