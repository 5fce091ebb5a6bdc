"""Trainings on the hunt: the shipped settings begin, two networks are two, values are scaled and watched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import SERIAL, rows_of, saved_state, train_here

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.errors import RollmillError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.run import train

SETTINGS = ("treasure_hunt", "treasure_hunt_13", "treasure_hunt_two_networks")
SMALL = (
    "env=treasure_hunt",
    "env.vector=true",
    "env.args.treasure_num=1",
    "model.fc=[16]",
    "model.encoder=convnet_grid",
)


@pytest.mark.parametrize("name", SETTINGS)
def test_shipped_settings_are_as_said(name: str) -> None:
    config = load_config(TrainConfig, [Path(name)], [])
    stages = config.env.args["treasure_num"]
    most = 13 if name.endswith("13") else 5
    assert max(stages[-1]) == most
    assert set(stages[-1]) == set(range(most + 1)), "no number is forgotten"
    assert config.env.variables == {"progress": 1.0}


@pytest.mark.parametrize("name", SETTINGS)
def test_shipped_settings_learn_from_a_batch(tmp_path: Path, name: str) -> None:
    place = (f"run.dir={tmp_path}", "run.experiment=x", "run.name=run", "report.tensorboard=false", "report.page=false")
    few = ("sampling.workers=1", "sampling.envs_per_worker=4", "sampling.rollout=16", "learning.batch_size=64")
    config = load_config(TrainConfig, [Path(name)], [*place, *few, *SERIAL, "stop.batches=1", "learning.device=cpu"])
    outcome = train(config, Request(command=("test",), console="off"))
    assert outcome.state == "finished"
    model = saved_state(RunFolder(outcome.folder))["learners"][0]["model"]
    assert any("critic_trunk" in part for part in model) == name.endswith("two_networks")


def test_a_specialist_goes_on_from_a_checkpoint_with_a_task_of_its_own(tmp_path: Path) -> None:
    words = (*SERIAL, *SMALL, "report.every_frames=1", "stop.frames=0")
    parent, folder = train_here(tmp_path / "parent", *words, "stop.batches=2")
    saved = Checkpoints(folder.checkpoints).newest()
    assert saved is not None
    own = ("env.args.treasure_id=[4, 9]", "env.args.max_step=10", "stop.batches=8")
    _, folder = train_here(tmp_path / "own", *words, *own, restore=saved.path)
    rows, state = rows_of(folder), saved_state(folder)
    assert rows[0]["frames"] > parent.frames, "frames count on"
    assert rows[-1]["episode/treasures_placed"] == 2, "its own, in all episodes that have ended"
    assert state["config"]["env"]["args"]["treasure_id"] == [4, 9]
    assert state["learners"][0]["version"] == 8, "batches of the parent included"


def test_two_networks_differ_from_the_shipped_settings_in_nothing_else() -> None:
    one, two = (load_config(TrainConfig, [Path(name)], []) for name in ("treasure_hunt", "treasure_hunt_two_networks"))
    assert two.model.separate_critic
    assert replace(two.model, separate_critic=False) == one.model
    for block in ("env", "sampling", "learning", "stop"):
        assert getattr(one, block) == getattr(two, block)
    assert two.learning.normalize_returns
    assert two.learning.collapse_patience > 0


def weights(tmp_path: Path, *words: str) -> dict[str, Any]:
    _, run = train_here(tmp_path, *SERIAL, *SMALL, "stop.batches=4", *words)
    model: dict[str, Any] = saved_state(run)["learners"][0]["model"]
    return model


def count(model: dict[str, Any], word: str) -> int:
    return sum(np.size(array) for name, array in model.items() if word in name)


def test_the_critic_has_its_own_eyes(tmp_path: Path) -> None:
    shared = weights(tmp_path / "shared")
    apart = weights(tmp_path / "apart", "model.separate_critic=true")
    assert count(apart, "convnets") == 2 * count(shared, "convnets") > 0
    assert count(apart, ".mlp.") == 2 * count(shared, ".mlp.") > 0
    first = (apart[f"{trunk}.encoder.convnets.0.body.0.weight"] for trunk in ("trunk", "critic_trunk"))
    assert not np.array_equal(*first)


def test_values_are_of_scaled_returns(tmp_path: Path) -> None:
    model = weights(tmp_path, "env.args.reward_scale=100")
    assert model["return_moments.count"] > 0
    assert model["return_moments.std"] > 10, "rewards a thousand times the usual ones"


def test_values_of_no_use_stop_the_run(tmp_path: Path) -> None:
    """They begin far too large, and hardly learn: their errors vary more than the rewards that they should predict."""
    far = (
        "model.value_gain=1000",
        "learning.gamma=0.01",
        "learning.learning_rate=1e-9",
        "learning.collapse_patience=5",
    )
    words = (*SERIAL, *SMALL, *far, "learning.normalize_returns=false", "stop.batches=50")
    with pytest.raises(RollmillError, match=r"for 5 batches .*collapse_patience=5 stops the run"):
        train_here(tmp_path, *words)
