"""Launching an experiment that a script describes."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollmill
from rollmill.core.errors import ConfigError
from rollmill.launch.params import ParamGrid

SETTINGS = {
    "env": "toy_target",
    "sampling.mode": "serial",
    "sampling.rollout": 8,
    "learning.batch_size": 64,
    "stop.frames": 200,
    "report.tensorboard": False,
    "report.page": False,
    "checkpoints.min_free_mb": 1,
}


def test_runs_come_back_by_name(tmp_path: Path) -> None:
    params = ParamGrid({"learning.gamma": [0.9, 0.99]})
    experiment = rollmill.Experiment("gammas", params=params, settings=SETTINGS)
    runs = rollmill.launch_experiment(experiment, root=tmp_path, poll_seconds=0.1, local={"parallel": 2})
    assert [run.state for run in runs.values()] == ["finished"] * 2
    assert {run.config.learning.gamma for run in runs.values()} == {0.9, 0.99}
    assert all(run.path.parent == tmp_path / "gammas" for run in runs.values())
    again = rollmill.launch_experiment(tmp_path / "gammas")
    assert {name: run.path for name, run in again.items()} == {name: run.path for name, run in runs.items()}


def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    experiment = rollmill.Experiment("bad", settings={**SETTINGS, "learning.gama": 1})
    with pytest.raises(ConfigError, match=r"nothing was started.*\n?.*unknown key 'learning.gama'"):
        rollmill.launch_experiment(experiment, root=tmp_path)
    with pytest.raises(ConfigError, match="unknown key 'paralel'"):
        rollmill.launch_experiment(rollmill.Experiment("x", settings=SETTINGS), root=tmp_path, paralel=2)
    assert not list(tmp_path.iterdir())
