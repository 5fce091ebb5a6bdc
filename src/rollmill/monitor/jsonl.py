"""Metrics as one JSON object per line: ``{"frames": 4096, "time": 1700000000.1, "episode/return": 3.5}``.

``time`` is seconds since 1970. A metric that is NaN or infinite is written as ``null``: JSON has neither,
and text in the place of a number would break every reader that plots it.

Every row is handed to the system in one piece as it is written, so a killed run loses at most the row it
was writing; that torn row is cut off when the file is opened again.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.opening import MOST_LINE_BYTES, parse_json, plain_file, read_lines
from rollmill.core.steps import place, position

_LOG = logging.getLogger("rollmill")
_RESERVED = ("frames", "step", "unit", "time")
_OLD_METRICS = {"time/main_answer": "time/main_inference", "time/pictures_per_s": "time/images_per_s"}
"""Name in files of version 0.1 -> name now."""
_BLOCK = 1 << 16
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class JsonlSink:
    """Appends rows to ``path``; implements ``Sink``.

    ``resume_step``: the run continues from there, so rows beyond it (written after the checkpoint and
    before the kill) are removed; they will be written again.
    """

    def __init__(
        self,
        path: Path,
        resume_step: int | None = None,
        clock: Callable[[], float] = time.time,
        unit: str = "frames",
    ) -> None:
        """Open the file; rows after ``resume_step`` are removed. Rows say ``frames``, or ``step`` with its ``unit``
        where the run counts something else."""
        self._path = path
        self._clock = clock
        self._unit = unit
        try:
            if path.exists():
                _cut_torn_row(path)
                if resume_step is not None:
                    _remove_rows_after(path, resume_step)
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _cannot_write(path, error) from error

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        row: dict[str, Any] = {**place(step, self._unit), "time": round(self._clock(), 3)}
        for name, value in metrics.items():
            if name in _RESERVED:
                raise ValueError(f"a metric cannot be called {name!r}: every row has that already")
            row[name] = _number(value)
        self._append(json.dumps(row, allow_nan=False).encode("ascii") + b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            raise ValueError(f"{self._path} is closed")
        end = os.fstat(self._file).st_size
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, end)  # no half row before the rows to come
            raise _cannot_write(self._path, error) from error


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return all rows; a last row without its line end (torn by a kill, or being written) is left out."""
    try:
        return [_parse(path, number, line) for number, line in _whole_lines(path)]
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror or error}") from error


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(read_lines(path), 1):
        if line.endswith(b"\n"):
            yield number, line


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise RunFolderError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(row, dict) or position(row) is None:
        raise RunFolderError(f"{path}, line {number}: not a row of metrics (no frames)")
    return {new_name(name): value for name, value in row.items()}


def new_name(metric: str) -> str:
    """Return what a metric is called today that version 0.1 called otherwise."""
    own = metric.removeprefix("dial/")
    return f"variable/{own}" if own != metric else _OLD_METRICS.get(metric, metric)


def old_names(metric: str) -> list[str]:
    """Return what version 0.1 called a metric of today, where that was otherwise."""
    own = metric.removeprefix("variable/")
    return [f"dial/{own}"] if own != metric else [old for old, new in _OLD_METRICS.items() if new == metric]


def _number(value: float) -> float | int | None:
    if isinstance(value, int):
        return int(value)
    number = float(value)  # numpy's numbers too
    return number if math.isfinite(number) else None


def _cut_torn_row(path: Path) -> None:
    with open(path, "r+b", opener=plain_file) as file:
        size = file.seek(0, os.SEEK_END)
        end = _end_of_last_line(file.fileno(), size)
        if end < size:
            file.truncate(end)
            _LOG.info("%s: cut off a row that a killed run had not finished (%d bytes)", path, size - end)


def _end_of_last_line(descriptor: int, size: int) -> int:
    position = size
    while position > 0:
        if size - position > MOST_LINE_BYTES:
            raise OSError(errno.EFBIG, f"its last row has more than {MOST_LINE_BYTES:,} bytes")
        start = max(0, position - _BLOCK)
        newline = os.pread(descriptor, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def _remove_rows_after(path: Path, step: int) -> None:
    beyond = set()
    for number, line in _whole_lines(path):
        try:
            if (position(_parse(path, number, line)) or 0) > step:
                beyond.add(number)
        except RunFolderError as error:  # metrics must not keep a run from continuing
            _LOG.warning("%s; left as it is", error)
    if beyond:
        atomic.write_bytes(path, (line for number, line in _whole_lines(path) if number not in beyond))
        _LOG.info("%s: removed %d rows beyond step %d, where the run continues", path, len(beyond), step)


def _cannot_write(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path}: metrics cannot be written: {error.strerror or error}")
