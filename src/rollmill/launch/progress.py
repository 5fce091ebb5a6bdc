"""What a run's metrics say: its last row while it runs, its curve afterwards.

Only whole lines count: the last one may be in the making.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.core.errors import RunFolderError
from rollmill.core.opening import parse_json, plain_file, read_lines
from rollmill.core.steps import position

_BLOCK = 1 << 16


def last_row(path: Path) -> dict[str, Any] | None:
    """Return the last whole row of a ``metrics.jsonl``, without reading the rest; None before there is one."""
    try:
        with open(path, "rb", opener=plain_file) as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - _BLOCK)
            file.seek(start)
            lines = file.read(_BLOCK).splitlines(keepends=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    for line in reversed(lines):
        row = parsed_row(line)
        if row is not None:
            return row
    return None


def number_of(row: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric of a row; None where the row has none, or no number."""
    value = row.get(metric)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


@dataclass(frozen=True)
class Curve:
    """One metric of one run over frames; both lists have the same length, frames rise."""

    frames: list[float]
    values: list[float]


def read_curve(path: Path, metric: str) -> Curve:
    """Read the metric wherever a row has it as a number."""
    curve = Curve([], [])
    try:
        for line in read_lines(path):
            row = parsed_row(line)
            value = None if row is None else number_of(row, metric)
            if row is None or value is None:
                continue
            at = float(position(row) or 0)
            if not curve.frames or at > curve.frames[-1]:
                curve.frames.append(at)
                curve.values.append(float(value))
    except (FileNotFoundError, NotADirectoryError):
        return curve
    except OSError as error:
        raise _unreadable(path, error) from error
    return curve


def _unreadable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path}: cannot be read: {error.strerror or error}")


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue  # removed while we looked
    return total


def parsed_row(line: bytes) -> dict[str, Any] | None:
    """Parse a line of ``metrics.jsonl`` with its end; None for what is no whole row."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = parse_json(line)
    except ValueError:
        return None  # the block began in the middle of a row
    return row if isinstance(row, dict) and position(row) is not None else None
