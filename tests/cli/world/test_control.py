"""``rollmill world dynamics``, ``controller``, ``dream``, ``video`` and ``eval`` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dreaming import corner_encoder, corner_model, line_store
from running import Call

SEARCH = (
    *("env=toy_image", "controller.population=4", "controller.trials=1", "controller.generations=2"),
    *("controller.mode=serial", "controller.evaluate_episodes=2", "controller.final_episodes=2", "controller.envs=4"),
)
FIT = ("size=8", "mixtures=2", "sequence_length=6", "batch_size=8", "steps=4", "report_steps=2", "threads=1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    corner_encoder(folder / "encoder.bin")
    corner_model(folder / "dynamics.bin")
    return folder


def test_dynamics(call: Call, tmp_path: Path) -> None:
    store = line_store(tmp_path / "latents", 10)
    said = call("world", "dynamics", str(store), "--out", "dyn", *FIT)
    assert said.code == 0, said.err
    assert "held-out loss" in said.err
    assert "4 updates" in said.out
    more = call("world", "dynamics", str(store), "--out", "dyn", *FIT, "steps=6", "--json")
    assert json.loads(more.out)["steps"] == 6
    wrong = call("world", "dynamics", str(store), "--out", "dyn", *FIT, "size=16")
    assert wrong.code == 2
    assert "size: 8 -> 16" in wrong.err


def test_controller_and_eval(call: Call, models: Path) -> None:
    said = call("world", "controller", str(models), "--dynamics", str(models), "--out", "ctl", *SEARCH, "--json")
    assert said.code == 0, said.err
    metrics = json.loads(said.out)
    assert metrics["generations"] == 2
    assert metrics["final_episodes"] == 2
    moved = call("world", "eval", "ctl", "--episodes", "3")
    assert moved.code == 2
    assert moved.err == "rollmill world: 'eval' is now `rollmill eval ctl --episodes 3`\n"
    played = call("eval", "ctl", "--episodes", "3", "--envs", "3", "--workers", "1", "--json")
    assert played.code == 0, played.err
    assert json.loads(played.out)["episodes"] == 3
    typo = call("world", "controller", str(models), "--out", "x", *SEARCH, "controller.populaton=8")
    assert typo.code == 2
    assert "population" in typo.err
    nowhere = call("world", "controller", str(models), "--out", "x", "controller.inputs=z")
    assert nowhere.code == 2
    assert "which environment" in nowhere.err


def test_dream(call: Call, models: Path) -> None:
    # The environment is the one that the model was fitted to.
    said = call("world", "dream", str(models), str(models), "--out", "d", *SEARCH[1:], "dream.max_steps=5")
    assert said.code == 0, said.err
    assert "2 generations" in said.out
    assert " env.id=toy_image " in said.out


def test_video(call: Call, models: Path, tmp_path: Path) -> None:
    store = line_store(tmp_path / "latents", 3)
    wrong = call("world", "video", str(store), str(models), str(models), "--out", "video.mp4")
    assert wrong.code == 2
    assert "latents of 2 numbers" in wrong.err
