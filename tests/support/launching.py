"""Launches for tests: experiments whose program is ``launch_trainer.py``, which costs next to nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.core.config.load import load_config
from rollmill.launch.experiment import Experiment
from rollmill.launch.launcher import Launcher, record_plan
from rollmill.launch.params import ParamGrid, Params
from rollmill.launch.plan import PlannedRun, RunFacts, make_plan
from rollmill.launch.records import LaunchRecords, PlanRecord
from rollmill.launch.settings import LaunchSettings

PROGRAM = (sys.executable, str(Path(__file__).with_name("launch_trainer.py")))
FRAMES = 100


def facts(_run: PlannedRun) -> RunFacts:
    """In place of the real check: the settings of the trainer are its own."""
    return RunFacts(FRAMES)


def experiment(
    params: Params | None = None, seeds: int = 1, settings: Mapping[str, Any] | None = None, name: str = "tests"
) -> Experiment:
    return Experiment(
        name,
        params=params or ParamGrid({"learning.gamma": [0.9]}),
        seeds=seeds,
        settings={"stop.frames": FRAMES, **(settings or {})},
        program=PROGRAM,
    )


def launcher(folder: Path, what: Experiment, *words: str) -> Launcher:
    """A launcher of the experiment below ``folder``, as ``rollmill launch run`` would make it."""
    settings = load_config(LaunchSettings, [], ["poll_seconds=0.05", *words])
    plan = make_plan(what, folder, facts)
    records = LaunchRecords(plan.folder)
    record: PlanRecord = record_plan(records, plan, settings, os.getcwd())
    return Launcher(records, record, settings)


def sessions(run: Path) -> list[dict[str, Any]]:
    """Every start of a run, from its diary."""
    found: list[dict[str, Any]] = json.loads((run / "diary.json").read_text())["sessions"]
    return found


def place(run: Path, session: int = 1) -> dict[str, Any]:
    """Where the trainer found itself."""
    found: dict[str, Any] = json.loads((run / f"place-{session}.json").read_text())
    return found


def states(statuses: Any) -> dict[str, str]:
    return {status.run.name: status.state for status in statuses}
