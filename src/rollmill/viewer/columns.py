"""The metrics of runs as columns of numbers, one value for each row of ``metrics.jsonl``; NaN where a row has none."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.opening import check_within, read_lines
from rollmill.monitor.jsonl import new_name, old_names
from rollmill.viewer.index import Stamp, stamp_of

MEMORY_BYTES = 64_000_000
"""Of columns that are kept."""
_KEY = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)": ?[-0-9]')
"""A name in a row whose value is a number."""


class Columns:
    """Reads columns and keeps those of the runs asked for last. Usable by several threads."""

    def __init__(self, root: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self._root, self._most, self._bytes = root, memory_bytes, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, tuple[Stamp, dict[str, Array]]] = OrderedDict()

    def read(self, path: Path, names: Sequence[str]) -> list[Array]:
        """Return float64 ``[rows]`` (frames pass what float32 holds) for each name; empty if there is no such file."""
        stamp = stamp_of(path)
        if stamp is None:
            return [np.empty(0) for _ in names]
        known = self._known(path, stamp)
        missing = [name for name in names if name not in known]
        if missing:
            check_within(path, self._root)
            known = known | read_columns(path, missing, stamp[1])
            if len({len(column) for column in known.values()}) > 1:  # another file stands there by now
                known = read_columns(path, names, stamp[1])
            self._keep(path, stamp, known)
        return [known[name] for name in names]

    def _known(self, path: Path, stamp: Stamp) -> dict[str, Array]:
        with self._lock:
            kept = self._kept.get(path)
            if kept is None or kept[0] != stamp:
                return {}
            self._kept.move_to_end(path)
            return kept[1]

    def _keep(self, path: Path, stamp: Stamp, table: dict[str, Array]) -> None:
        with self._lock:
            self._drop(path)
            self._kept[path] = (stamp, table)
            self._bytes += _size(table)
            while self._bytes > self._most and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))

    def _drop(self, path: Path) -> None:
        kept = self._kept.pop(path, None)
        self._bytes -= _size(kept[1]) if kept else 0


def read_columns(path: Path, names: Sequence[str], size: int) -> dict[str, Array]:
    """Read columns of the first ``size`` bytes of a file of metrics; lines that are no rows are left out.

    Only the numbers that are asked for are looked at: a row has many more, and there are many rows.
    """
    return columns_in(_whole_rows(path, size), names)


def _whole_rows(path: Path, size: int) -> Iterable[bytes]:
    for line in read_lines(path):
        size -= len(line)
        if size < 0:
            return
        if line.endswith(b"\n") and is_row(line[:-1]):
            yield line[:-1]


def is_row(line: bytes) -> bool:
    """Return whether a line without its end is a row of metrics, as far as can be seen at its ends."""
    return line.startswith(b"{") and line.endswith(b"}")


def columns_in(rows: Iterable[bytes], names: Sequence[str]) -> dict[str, Array]:
    """Return the columns of ``rows``: lines of a file of metrics, without their ends."""
    found: list[list[float]] = [[] for _ in names]
    keys = [[json.dumps(own).encode() + b":" for own in (name, *old_names(name))] for name in names]
    for row in rows:
        for column, spellings in zip(found, keys):
            column.append(_number(row, spellings))
    columns = (np.array(column, np.float64) for column in found)
    return {name: np.where(np.isfinite(column), column, np.nan) for name, column in zip(names, columns)}


def _number(row: bytes, spellings: Sequence[bytes]) -> float:
    """Return the number that stands behind a key, up to the next comma or the end of the row."""
    for key in spellings:
        at = row.find(key)
        if at >= 0:
            at += len(key)
            try:
                return float(row[at : row.find(b",", at)])
            except ValueError:  # null, or a word
                return math.nan
    return math.nan


def names_in(rows: Iterable[bytes]) -> list[str]:
    """Return the names of all metrics that have a number in any row, in the order in which they come."""
    found: dict[bytes, None] = {}
    for row in rows:
        found.update(dict.fromkeys(_KEY.findall(row)))
    return list(dict.fromkeys(new_name(name) for key in found for name in _text(key)))


def _text(key: bytes) -> list[str]:
    try:
        return [json.loads(b'"%s"' % key)]
    except ValueError:  # no text at all
        return []


def _size(table: dict[str, Array]) -> int:
    return sum(column.nbytes for column in table.values())
