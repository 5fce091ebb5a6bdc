"""Launched experiments as the viewer shows them: how their runs stand, and which parameters matter. Only reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollmill.core.errors import LaunchError
from rollmill.launch.compare.aggregate import Family, aggregate
from rollmill.launch.launcher import make_backend, settings_of
from rollmill.launch.records import LaunchRecords
from rollmill.launch.status import look
from rollmill.launch.table import summary
from rollmill.viewer.facts import written


def experiment(folder: Path) -> dict[str, Any]:
    """What ``rollmill launch status`` and ``rollmill report`` tell about an experiment."""
    records = LaunchRecords(folder)
    plan = records.read_plan()
    settings = settings_of(plan)
    statuses = look(records, plan, make_backend(settings), settings.retries)
    runs = [{key: value for key, value in status.to_dict().items() if key != "folder"} for status in statuses]
    families = _families(folder)
    return {
        "summary": summary(statuses),
        "runs": written(runs),
        "importance": [_importance(family) for family in families],
        "scores": written([score for family in families for score in _scores(family)]),
    }


def _families(folder: Path) -> list[Family]:
    try:
        return list(aggregate(folder).families)
    except LaunchError:  # no run has begun, or none has a value yet
        return []


def _importance(family: Family) -> dict[str, Any]:
    items = [
        {"param": item.param, "share": item.share, "levels": [list(level) for level in item.levels]}
        for item in family.shares.items
    ]
    title = f"{family.title}, {family.metric}".strip(", ")
    return {"title": title, "why_not": family.shares.why_not, "items": written(items)}


def _scores(family: Family) -> list[dict[str, Any]]:
    return [
        {"run": run.name, "group": run.group, "seconds": run.seconds, "score": run.score}
        for run in family.runs
        if run.score is not None and run.seconds is not None
    ]
