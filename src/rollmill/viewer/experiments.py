"""Launched experiments as the viewer shows them: how their runs stand, and which parameters matter. Only reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, LaunchError
from rollmill.core.opening import check_within, plain_file
from rollmill.launch.compare.aggregate import Family, aggregate
from rollmill.launch.launcher import make_backend, settings_of
from rollmill.launch.records import LaunchRecords, PlanRecord
from rollmill.launch.status import look
from rollmill.launch.table import summary
from rollmill.launch.verbs import SEED
from rollmill.viewer.facts import written

_READ = ("config.yaml", "state.json", "metrics.jsonl")
"""Files of a run that are looked into."""
LOG_BYTES = 60_000
"""Of the output of an attempt that are shown, its last ones."""


def experiment(folder: Path, root: Path) -> dict[str, Any]:
    """What ``rollmill launch status`` and ``rollmill report`` tell about an experiment."""
    records, plan = _open(folder, root)
    settings = settings_of(plan)
    statuses = look(records, plan, make_backend(settings), settings.retries)
    runs = [
        {key: value for key, value in status.to_dict().items() if key not in ("folder", "attempts")}
        | {"attempts": _attempts(records, status.run.name)}
        for status in statuses
    ]
    families = _families(folder)
    return {
        "summary": summary(statuses),
        "runs": written(runs),
        "importance": [_importance(family) for family in families],
        "scores": [_scores(family) for family in families],
    }


def attempt_log(folder: Path, root: Path, run: str, number: int) -> str:
    """The end of what an attempt has written; ``run``: a name of the plan, nothing else."""
    records, plan = _open(folder, root)
    if run not in {known.name for known in plan.runs} or number not in {a.number for a in records.attempts(run)}:
        raise ConfigError("there is no such attempt")
    path = records.log_path(run, number)
    try:
        with open(path, "rb", opener=plain_file) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return "(this attempt has no log)"
    return text if size <= LOG_BYTES else f"(the last {LOG_BYTES:,} of {size:,} bytes)\n{text}"


def _open(folder: Path, root: Path) -> tuple[LaunchRecords, PlanRecord]:
    """Records and plan of an experiment, with its runs where they must lie: below it, whatever the plan says."""
    records = LaunchRecords(folder)
    inside = (Path(place, name) for place, folders, files in os.walk(records.folder) for name in (*folders, *files))
    runs = (path / name for path in folder.iterdir() if path.is_dir() for name in ("", *_READ))
    for path in (records.folder, *inside, *runs):
        if path.is_symlink():
            check_within(path, root)
    plan = records.read_plan()
    if any(not run.name or Path(run.name).name != run.name for run in plan.runs):
        raise LaunchError("plan.json: a run of it has a name that is no name of a folder")
    return records, replace(plan, runs=tuple(replace(run, folder=str(folder / run.name)) for run in plan.runs))


def _attempts(records: LaunchRecords, run: str) -> list[dict[str, Any]]:
    return [
        {
            "number": attempt.number,
            "started": attempt.started,
            "ended": attempt.ended,
            "host": attempt.process.host,
            "mode": attempt.mode,
            "exit_code": attempt.exit_code,
            "reason": attempt.reason,
        }
        for attempt in records.attempts(run)
    ]


def _families(folder: Path) -> list[Family]:
    try:
        return list(aggregate(folder).families)
    except LaunchError:  # no run has begun, or none has a value yet
        return []


def _title(family: Family) -> str:
    return f"{family.title}, {family.metric}".strip(", ")


def _importance(family: Family) -> dict[str, Any]:
    items = [
        {"param": item.param, "share": item.share, "seen": item.seen, "levels": [list(level) for level in item.levels]}
        for item in family.shares.items
    ]
    return {"title": _title(family), "why_not": family.shares.why_not, "items": written(items)}


def _scores(family: Family) -> dict[str, Any]:
    """Every run that has a score, with the parameters that vary."""
    runs = [run for run in family.runs if run.score is not None]
    varying = _varying([run.params for run in runs])
    rows = [
        {
            "run": run.name,
            "group": run.group,
            "seconds": run.seconds,
            "score": run.score,
            "params": [run.params.get(key) for key in varying],
        }
        for run in runs
    ]
    return {"title": _title(family), "lower": family.lower, "keys": varying, "runs": written(rows)}


def _varying(params: Sequence[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for one in params for key in one if key != SEED)
    return [key for key in keys if len({repr(one.get(key)) for one in params}) > 1]
