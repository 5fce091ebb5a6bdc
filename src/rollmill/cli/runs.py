"""``rollmill runs``: list runs, compare two of them, remove some."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollmill.cli.options import Json
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import refuse_removal, remove_run
from rollmill.core.text import bytes_text, columns, counted, show
from rollmill.launch.listing import Comparison, RunRow, compare, find_all, find_run, list_runs
from rollmill.launch.progress import folder_bytes
from rollmill.launch.table import duration
from rollmill.monitor.console import duration_text, number_text

_ROOT = Path("runs")


# -- list -----------------------------------------------------------------------------------------------------------


def list_all(words: tuple[str, ...] = (), /, root: Path = _ROOT, json_: Json = False) -> int:
    """List runs, the newest first: ``rollmill runs``, ``rollmill runs doom failed``, ``rollmill runs 'sweep*'``.

    A word fits a run if it is a part of its name, state, kind or environment; a pattern is compared with names. All
    words must fit. A run that was killed says so: its folder says running, and nobody is at work there.

    Args:
        words: What to look for, for example failed, offline, CartPole or 'doom*'; none: all runs.
        root: Folder of all experiments.
        json_: Print JSON.
    """
    rows = list_runs(root, words)
    if json_:
        print(json.dumps([row.to_dict() for row in rows]))
        return 0
    if not rows:
        print(f"no run below {root}{f' fits {show(list(words))}' if words else ''}")
        return 0
    print("\n".join(table(rows, time.time())))
    total = bytes_text(sum(row.bytes for row in rows))
    print(f"\n{counted(len(rows), 'run')}, {total}")
    return 0


HEAD = ("run", "state", "kind", "env", "frames", "return", "changed", "size")
_RIGHT = ("frames", "return", "changed", "size")


def table(rows: Sequence[RunRow], now: float) -> list[str]:
    """List the runs below each other; numbers end at the same place."""
    cells = [HEAD, *(_cells(row, now) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [name in _RIGHT for name in HEAD]
    return columns([[c.rjust(w) if r else c for c, w, r in zip(row, widths, right, strict=True)] for row in cells])


def _cells(row: RunRow, now: float) -> tuple[str, ...]:
    unit = "" if row.unit == "frames" else f" {row.unit}"
    return (
        row.name,
        row.state,
        row.kind,
        row.env or "-",
        "-" if row.frames is None else f"{row.frames:,}{unit}",
        "-" if row.mean_return is None else number_text(row.mean_return),
        f"{duration(max(0.0, now - row.changed))} ago",
        bytes_text(row.bytes),
    )


# -- compare --------------------------------------------------------------------------------------------------------


def diff(one: str, two: str, /, root: Path = _ROOT, json_: Json = False) -> int:
    """Compare two runs: settings that differ, and results side by side: ``rollmill runs diff default/a default/b``.

    Args:
        one: A run's folder, ``experiment/run``, or its name where there is one such run.
        two: The other run.
        root: Folder of all experiments.
        json_: Print JSON.
    """
    found = compare(find_run(one, root), find_run(two, root), root)
    print(json.dumps(found.to_dict()) if json_ else "\n".join(_side_by_side(found)))
    return 0


def _side_by_side(found: Comparison) -> list[str]:
    settings = [(f"  {key}", *(_setting(value) for value in pair)) for key, pair in found.settings.items()]
    results = [(f"  {name}", *(_figure(name, value) for value in pair)) for name, pair in found.results.items()]
    lines = columns([("settings", *found.names), *settings, ("results", "", ""), *results])
    return lines if settings else [lines[0], "  (no setting differs)", *lines[1:]]


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else show(value, 40)


def _figure(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name == "bytes":
        return bytes_text(value)
    if name == "time/seconds":
        return duration_text(value)
    return f"{value:,}" if isinstance(value, int) else number_text(value) if isinstance(value, float) else str(value)


# -- remove ---------------------------------------------------------------------------------------------------------


def remove(runs: tuple[str, ...], /, root: Path = _ROOT, yes: bool = False, json_: Json = False) -> int:
    """Remove runs with all that they have written: ``rollmill runs rm default/a default/b``. It asks first.

    Nothing is removed if one of them is in use, is no run, or holds files that no run writes.

    Args:
        runs: Run folders, ``experiment/run``, names where there is one such run, or patterns of them ('sweep*').
        root: Folder of all experiments.
        yes: Do not ask.
        json_: Print JSON; the question goes to stderr.
    """
    if not runs:
        raise ConfigError("which runs? `rollmill runs` lists them")
    folders = find_all(runs, root)
    for folder in folders:
        refuse_removal(folder)
    sizes = {folder: folder_bytes(folder) for folder in folders}
    if not yes and not _agreed(sizes):
        print("nothing was removed", file=sys.stderr)
        return 1
    for folder in folders:
        remove_run(folder)
    freed = sum(sizes.values())
    if json_:
        print(json.dumps({"removed": [str(folder) for folder in folders], "bytes": freed}))
    else:
        print(f"removed {counted(len(folders), 'run')}, {bytes_text(freed)} freed")
    return 0


def _agreed(sizes: dict[Path, int]) -> bool:
    for line in columns([(str(folder), bytes_text(size)) for folder, size in sizes.items()]):
        print(line, file=sys.stderr)
    total = bytes_text(sum(sizes.values()))
    print(f"remove {counted(len(sizes), 'run')}, {total}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
