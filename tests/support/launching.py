"""Launches for tests: experiments whose program is ``launch_trainer.py``, which costs next to nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmill.core.config.load import load_config
from rollmill.launch.experiment import Experiment
from rollmill.launch.launcher import Launcher, record_plan
from rollmill.launch.params import ParamGrid, Params
from rollmill.launch.plan import Plan, PlannedRun, RunFacts, make_plan, plan_members
from rollmill.launch.populating import PopulationLauncher
from rollmill.launch.records import LaunchRecords, PlanRecord
from rollmill.launch.settings import LaunchSettings
from rollmill.pbt.exchange import About
from rollmill.pbt.ledger import NAME, read_ledger
from rollmill.pbt.lineage import ancestors
from rollmill.pbt.settings import PbtSettings

PROGRAM = (sys.executable, str(Path(__file__).with_name("launch_trainer.py")))
MEMBER = (sys.executable, str(Path(__file__).with_name("launch_member.py")))
FRAMES = 100
PERIOD = 30
RATE = "learning.learning_rate"
PBT = PbtSettings(members=4, tune={"learning": {"learning_rate": [0.1, 10]}}, min_episodes=5)


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


def population(**settings: Any) -> Experiment:
    return Experiment("pop", population=PBT, settings={"stop.frames": FRAMES, **settings})


def population_launcher(folder: Path, what: Experiment, *words: str) -> PopulationLauncher:
    """A launcher of a population whose members are ``launch_member.py``."""
    runs = [replace(run, program=MEMBER) for run in plan_members(what, folder, facts)]
    about = About(what.population or PBT, {RATE: 1.0}, PERIOD, 0, [run.name for run in runs])
    plan = Plan(what.name, folder / what.name, tuple(runs), population=about.to_dict())
    settings = load_config(LaunchSettings, [], ["poll_seconds=0.05", "local.parallel=2", "retries=1", *words])
    records = LaunchRecords(plan.folder)
    return PopulationLauncher(records, record_plan(records, plan, settings, os.getcwd()), settings)


def checked_ledger(made: PopulationLauncher) -> list[Any]:
    """The ledger: every round there, with everybody in it, and every copy from somebody better."""
    entries = read_ledger(made.records.experiment / NAME)
    assert [entry["round"] for entry in entries[1:]] == list(range(1, len(entries)))
    for entry in entries[1:]:
        assert [own["member"] for own in entry["members"]] == [0, 1, 2, 3]
        for move in entry["moves"]:
            taker, donor = (entry["members"][move[name]]["objective"] for name in ("member", "from"))
            assert taker is None or taker < donor
    assert all(len(ancestors(entries, member)) == len(entries) for member in range(4))
    return [*entries]


def in_second_round(made: PopulationLauncher, member: int) -> bool:
    """Look after the population; whether a member waits at the gate of its second round."""
    made.tick()
    saved = made.records.experiment / f"member-{member}" / "checkpoints" / "frames-000000000001.ckpt"
    own = json.loads(saved.read_text() or "{}") if saved.exists() else {}
    return bool(own) and (own["round"], own["frames"]) == (1, 2 * PERIOD)


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
