"""A moment of a run: the last checkpoint before it, and what the log said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.fields import Array
from rollmill.core.opening import check_within, read_lines
from rollmill.core.run_folder import LOG_FILES, RunFolder

AROUND_SECONDS = 60.0
"""Of the log before and after the moment."""
MOST_LINES = 200
_STAMP = "%Y-%m-%d %H:%M:%S"


def moment(run: RunFolder, root: Path, frames: float, at: Array, times: Array) -> dict[str, Any]:
    """``at`` and ``times`` (seconds since 1970): the rows of the run's metrics."""
    when = float(np.interp(frames, at, times)) if len(at) else None
    lines = list(log_lines(run, root, when)) if when is not None else []
    found = checkpoint_steps(run, root)
    before = [number for number in found if number <= frames]
    return {
        "time": when,
        "checkpoints": found,
        "checkpoint": max(before, default=None),
        "log": [line.rstrip("\n") for line in lines[:MOST_LINES]],
        "more": max(0, len(lines) - MOST_LINES),
    }


def checkpoint_steps(run: RunFolder, root: Path) -> list[int]:
    """How far the run was at each of its checkpoints that are left."""
    check_within(run.checkpoints, root)
    return sorted({checkpoint.step for checkpoint in Checkpoints(run.checkpoints).list()})


def log_lines(run: RunFolder, root: Path, when: float) -> Iterator[str]:
    """Lines of the log around a moment, tracebacks that belong to them included, oldest first."""
    first, last = (time.strftime(_STAMP, time.localtime(when + side)) for side in (-AROUND_SECONDS, AROUND_SECONDS))
    inside = False
    for path in (*(run.path / f"log.txt.{k}" for k in range(LOG_FILES - 1, 0, -1)), run.log):
        try:
            check_within(path, root)
            for line in read_lines(path):
                text = line.decode("utf-8", "replace")
                if _is_stamped(text):
                    inside = first <= text[:19] <= last
                if inside:
                    yield text
        except OSError:
            continue  # not there, or rotated away meanwhile


def _is_stamped(text: str) -> bool:
    return text[:4].isdecimal() and text[4:5] == "-" and text[13:14] == ":"
