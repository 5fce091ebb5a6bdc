"""The metrics of runs as columns of numbers, one value for each row of ``metrics.jsonl``; NaN where a row has none."""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.opening import check_within, read_lines
from rollmill.monitor.jsonl import new_name
from rollmill.viewer.index import Stamp, stamp_of

MEMORY_BYTES = 64_000_000
"""Of columns that are kept."""


class Columns:
    """Reads columns and keeps those of the runs asked for last. Usable by several threads."""

    def __init__(self, root: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self._root, self._most, self._bytes = root, memory_bytes, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, tuple[Stamp, dict[str, Array]]] = OrderedDict()

    def read(self, path: Path, names: Sequence[str]) -> list[Array]:
        """Float64 ``[rows]`` for each name; empty ones where there is no such file. Frames pass what float32 holds."""
        table = self._table(path)
        rows = len(next(iter(table.values()), ()))
        missing = np.full(rows, np.nan)
        return [table.get(name, missing) for name in names]

    def names(self, path: Path) -> list[str]:
        """Of all columns of a file."""
        return list(self._table(path))

    def _table(self, path: Path) -> dict[str, Array]:
        stamp = stamp_of(path)
        if stamp is None:
            return {}
        with self._lock:
            kept = self._kept.get(path)
            if kept is not None and kept[0] == stamp:
                self._kept.move_to_end(path)
                return kept[1]
        check_within(path, self._root)
        table = read_columns(path)
        with self._lock:
            self._drop(path)
            self._kept[path] = (stamp, table)
            self._bytes += _size(table)
            while self._bytes > self._most and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))
        return table

    def _drop(self, path: Path) -> None:
        kept = self._kept.pop(path, None)
        self._bytes -= _size(kept[1]) if kept else 0


def read_columns(path: Path) -> dict[str, Array]:
    """All columns of a file of metrics; lines that are no rows are left out."""
    found: dict[str, list[float]] = {}
    count = 0
    for line in read_lines(path):
        if not line.endswith(b"\n"):
            continue
        try:
            row = json.loads(line)  # numbers alone are taken from it, so that no depth and no size does harm
        except (ValueError, RecursionError):
            continue
        if not isinstance(row, dict):
            continue
        for name, value in row.items():
            if isinstance(value, int | float):
                column = found.setdefault(name, [])
                column += [math.nan] * (count - len(column))
                column.append(_number(value))
        count += 1
    for column in found.values():
        column += [math.nan] * (count - len(column))
    return {new_name(name): np.array(column) for name, column in found.items()}


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer that no float holds
        return math.nan


def _size(table: dict[str, Array]) -> int:
    return sum(column.nbytes for column in table.values())
