"""A moment of a run: who played the episodes of it, the checkpoint that comes nearest, and what the log said."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.errors import CheckpointError
from rollmill.core.fields import Array
from rollmill.core.opening import check_within, read_lines
from rollmill.core.run_folder import LOG_FILES, RunFolder
from rollmill.core.tree_file import read_header
from rollmill.store.reader import Store

AROUND_SECONDS = 60.0
"""Of the log before and after the moment."""
MOST_LINES = 200
_STAMP = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Played:
    """The versions of a policy that have played an episode."""

    policy: int
    first: int
    last: int

    def distance(self, version: int) -> int:
        return max(0, self.first - version, version - self.last)


def moment(
    run: RunFolder, root: Path, frames: float, at: Array, times: Array, played: Played | None = None
) -> dict[str, Any]:
    """Return what is known of a moment of a run.

    ``at`` and ``times`` (seconds since 1970): the rows of the run's metrics; ``played``: see ``played_at``.
    """
    when = float(np.interp(frames, at, times)) if len(at) else None
    lines = list(log_lines(run, root, when)) if when is not None else []
    found = checkpoint_steps(run, root)
    step, version = _nearest(run, root, frames, played)
    return {
        "time": when,
        "played": played and asdict(played),
        "checkpoints": found,
        "checkpoint": step,
        "version": version,
        "log": [line.rstrip("\n") for line in lines[:MOST_LINES]],
        "more": max(0, len(lines) - MOST_LINES),
    }


def played_at(store: Store, frames: int) -> Played | None:
    """Return who played the first of the episodes that were under way then; None where none of them was recorded."""
    table = store.table
    there = np.flatnonzero((table["global_step_first"] <= frames) & (frames <= table["global_step_last"]))
    if not len(there):
        return None
    policy, first, last = (int(table[name][there[0]]) for name in ("policy_id", "version_min", "version_max"))
    return Played(policy, first, last)


def _nearest(run: RunFolder, root: Path, frames: float, played: Played | None) -> tuple[int | None, int | None]:
    """Return (step, version) of the checkpoint that is nearest to those who played, by its version; else the last one
    before, whose version is not asked for.
    """
    if played is not None:
        known = _versions(run, root, played.policy)
        if known:
            return min(known, key=lambda one: (played.distance(one[1]), abs(one[0] - frames)))
    return max((step for step in checkpoint_steps(run, root) if step <= frames), default=None), None


def _versions(run: RunFolder, root: Path, policy: int) -> list[tuple[int, int]]:
    """Return (step, version of a policy) of every checkpoint that is left and says so."""
    found = []
    for checkpoint in Checkpoints(run.checkpoints).list():
        check_within(checkpoint.path, root)
        with contextlib.suppress(CheckpointError, LookupError, TypeError):  # damaged, or of another kind of run
            version = read_header(checkpoint.path)["state"]["learners"][policy]["version"]
            found += [(checkpoint.step, version)] if isinstance(version, int) else []
    return found


def checkpoint_steps(run: RunFolder, root: Path) -> list[int]:
    """Return how far the run was at each of its checkpoints that are left."""
    check_within(run.checkpoints, root)
    return sorted({checkpoint.step for checkpoint in Checkpoints(run.checkpoints).list()})


def log_lines(run: RunFolder, root: Path, when: float) -> Iterator[str]:
    """Yield the lines of the log around a moment, tracebacks that belong to them included, oldest first."""
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
