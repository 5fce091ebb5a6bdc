"""What the viewer knows of a run without opening its curves: made of single files, as plain values for the index."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.config.old_names import read_saved
from rollmill.core.diary import new_names
from rollmill.core.errors import RollmillError
from rollmill.core.opening import plain_file, read_json
from rollmill.core.run_folder import RunFolder
from rollmill.launch.compare.gather import Found, found_of
from rollmill.launch.listing import RETURNS
from rollmill.launch.progress import number_of, parsed_row
from rollmill.monitor.jsonl import new_name
from rollmill.viewer.columns import columns_in, is_row, names_in

SPARK = 40
"""Points of the small curve in the table of runs, at least, where there are so many."""
MOST_BYTES = 1_000_000_000
"""Of a file of metrics that is read."""

NO_SETTINGS: dict[str, Any] = {"kind": "?", "env": "", "settings": {}, "problem": "it has no config.yaml"}


def settings_of(config: Path) -> dict[str, Any]:
    """Return the fields of ``Found``, and ``problem`` where the settings cannot be read."""
    folder = config.parent
    try:
        found = found_of(folder, read_saved(config))
    except (RollmillError, OSError) as error:
        return {**NO_SETTINGS, "problem": str(error)}
    return {"kind": found.kind, "env": found.env, "settings": written(found.settings), "problem": ""}


def state_of(path: Path) -> dict[str, Any]:
    """Return what ``state.json`` says; nothing where it cannot be read."""
    try:
        return RunFolder(path.parent).read_state() or {}
    except RollmillError:
        return {}


def origin_of(path: Path) -> dict[str, Any]:
    """Return what the diary says about where a run comes from, and its sessions."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    found = new_names(found) if isinstance(found, dict) else {}
    sessions = [session for session in _list(found.get("sessions")) if isinstance(session, dict)]
    git = found.get("git")
    commit = git if isinstance(git, dict) else {}
    machine = found.get("machine")
    return {
        "created": _text(found.get("created")),
        "command": _text(found.get("command")),
        "commit": _text(commit.get("commit")),
        "dirty": commit.get("dirty") is True,
        "host": _text(sessions[-1].get("host") if sessions else _of(machine, "host")),
        "version": _text(sessions[-1].get("version") if sessions else ""),
        "parent": _text(_of(found.get("parent"), "checkpoint")),
        "libraries": _texts(found.get("versions")),
        "sessions": [
            {
                "frames": session.get("step_at_start") if isinstance(session.get("step_at_start"), int) else 0,
                "started": _text(session.get("started")),
                "how": _text(session.get("how")),
            }
            for session in sessions
        ],
    }


def metrics_of(path: Path) -> dict[str, Any]:
    """Return the last row of a ``metrics.jsonl``, the names of all metrics there, and a small curve of the return."""
    with open(path, "rb", opener=plain_file) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            return {"problem": f"{path.name} has more than {MOST_BYTES / 1e9:g} GB and is not read"}
        rows = [line for line in file.read().split(b"\n")[:-1] if is_row(line)]  # the last piece has no line end
    last = next((row for line in reversed(rows) if (row := parsed_row(line + b"\n")) is not None), None)
    if last is None:
        return {}
    names = names_in(rows)
    return {
        "last": {new_name(name): number_of(last, name) for name in last},
        "unit": _text(last.get("unit")) or "frames",
        "rows": len(rows),
        "metrics": names,
        "spark": _spark(rows, next((name for name in RETURNS if name in names), RETURNS[0])),
    }


def _spark(rows: Sequence[bytes], metric: str) -> list[list[float]]:
    """Return points [step, value] at even distances, the last one among them."""
    frames, steps, values = columns_in(rows, ["frames", "step", metric]).values()
    at = steps if np.isnan(frames).all() else frames
    known = np.flatnonzero(np.isfinite(at) & np.isfinite(values))
    shown = known[:: -max(1, len(known) // SPARK)][::-1]
    return [[x, y] for x, y in zip(at[shown].tolist(), values[shown].tolist())]


def found_in(folder: Path, facts: Mapping[str, Any]) -> Found:
    """Return a run as comparisons know it, from its facts."""
    return Found(folder, folder.name, facts["kind"], facts["env"], facts["settings"])


def written(value: Any) -> Any:
    """Return plain values as JSON has them: numbers that it lacks are words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): written(inner) for key, inner in value.items()}
    return [written(inner) for inner in value] if isinstance(value, list | tuple) else value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _of(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _texts(value: Any) -> dict[str, str]:
    return {str(key): text for key, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
