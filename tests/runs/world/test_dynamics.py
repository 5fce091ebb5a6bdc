"""The dynamics stage as a whole: folder, model, resume, refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from dreaming import line_store, poison_store
from world_stages import dynamics_settings as settings

from rollmill.core import run_folder
from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError, NonFiniteError, RunFolderError, RunFolderLost
from rollmill.core.run_folder import RunFolder
from rollmill.core.tree_file import load_tree, save_tree
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.world.dynamics import choose_devices, train_dynamics
from rollmill.worldmodel.dynamics.model import load_dynamics


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return line_store(tmp_path_factory.mktemp("line") / "store", 20)


def test_a_fit_leaves_a_model_metrics_and_no_cache(store: Path, tmp_path: Path) -> None:
    seen = []
    outcome = train_dynamics(settings(), store, tmp_path / "dyn", progress=lambda share, metrics: seen.append(share))
    assert outcome.steps == 8
    assert not outcome.interrupted
    assert seen == [0.5, 1.0]
    model = load_dynamics(outcome.model)
    assert model.metadata["steps"] == 8
    assert model.axes is not None
    assert model.axes.directions.shape == (model.memory_size, model.memory_size)
    rows = read_jsonl(tmp_path / "dyn" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [4, 8]
    assert rows[-1]["validation/loss"] is not None
    assert RunFolder(tmp_path / "dyn").read_state()["state"] == "finished"  # type: ignore[index]
    assert not (tmp_path / "dyn" / "cache").exists()
    assert json.dumps(outcome.to_dict())


def test_an_interrupted_fit_goes_on_as_if_nothing_had_been(store: Path, tmp_path: Path) -> None:
    whole = train_dynamics(settings(), store, tmp_path / "whole")
    half = train_dynamics(
        settings(), store, tmp_path / "half", progress=lambda share, metrics: os.kill(os.getpid(), signal.SIGTERM)
    )
    assert half.interrupted
    assert half.steps == 4
    rest = train_dynamics(settings(), store, tmp_path / "half")
    assert rest.steps == 8
    one, other = (load_tree(outcome.model)["weights"] for outcome in (whole, rest))
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_fit_whose_folder_is_removed_fails(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    def remove(done: float, _: object) -> None:
        if done == share:
            shutil.rmtree(tmp_path / "dyn")

    monkeypatch.setattr(run_folder, "LOOK_SECONDS", 0.0)
    with pytest.raises(RunFolderLost, match="dyn: the folder of the run is lost"):
        train_dynamics(settings(), store, tmp_path / "dyn", progress=remove)
    assert not (tmp_path / "dyn").exists()


@pytest.mark.parametrize("name", ["config.yaml", "state.json"])
def test_a_fit_goes_on_without_one_of_its_files(store: Path, tmp_path: Path, name: str) -> None:
    train_dynamics(settings(steps=4), store, tmp_path / "dyn")
    (tmp_path / "dyn" / name).unlink()
    assert train_dynamics(settings(), store, tmp_path / "dyn").steps == 8
    assert [row["step"] for row in read_jsonl(tmp_path / "dyn" / "metrics.jsonl")] == [4, 8]


def test_an_untrained_model_is_an_ablation(store: Path, tmp_path: Path) -> None:
    outcome = train_dynamics(settings(steps=0), store, tmp_path / "dyn")
    assert outcome.steps == 0
    assert len(load_dynamics(outcome.model).starts.mean)


def test_other_settings_and_other_data_are_refused(store: Path, tmp_path: Path) -> None:
    train_dynamics(settings(steps=1), store, tmp_path / "dyn")
    with pytest.raises(ConfigError, match=r"other settings \(size: 8 -> 16\)"):
        train_dynamics(settings(size=16), store, tmp_path / "dyn")
    assert train_dynamics(settings(steps=2), store, tmp_path / "dyn").steps == 2  # more of the same is welcome
    newest = Checkpoints(tmp_path / "dyn" / "checkpoints").newest()
    assert newest is not None
    tree = load_tree(newest.path)
    del tree["state"]["config"]["mixtures"]  # as if it were newer than the checkpoint
    save_tree(newest.path, tree)
    with pytest.raises(ConfigError, match="mixtures: 5 -> 2"):
        train_dynamics(settings(steps=2), store, tmp_path / "dyn")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty"):
        train_dynamics(settings(), store, tmp_path / "other")


def test_a_nan_ends_the_stage_and_the_folder_says_why(tmp_path: Path) -> None:
    path = poison_store(tmp_path / "store")
    with pytest.raises(NonFiniteError, match="latents at index"):
        train_dynamics(settings(validation=0.0), path, tmp_path / "dyn")
    state = RunFolder(tmp_path / "dyn").read_state()
    assert state is not None
    assert state["state"] == "failed"
    assert "latents at index" in state["reason"]


def test_devices() -> None:
    assert [str(device) for device in choose_devices("cpu,cpu")] == ["cpu", "cpu"]
    with pytest.raises(ConfigError):
        choose_devices("cpu,cuda:99")
    assert to_dict(settings())["device"] == "auto"
