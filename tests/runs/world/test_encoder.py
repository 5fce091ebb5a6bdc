import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from image_stores import image_schema, image_store
from running import Run, assert_same, wait_until

from rollmill.core import run_folder
from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.errors import (
    CheckpointError,
    ConfigError,
    NonFiniteError,
    RunFolderError,
    RunFolderLost,
    StoreError,
)
from rollmill.core.run_folder import RunFolder
from rollmill.models.saving import weights_of
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.world import VaeConfig
from rollmill.runs.world import encoder as world_vae
from rollmill.runs.world.encoder import VaeOutcome, train_vae
from rollmill.store.writer import StoreWriter
from rollmill.worldmodel.encoder.file import load_encoder

SMALL = (
    *("encoder.size=4", "encoder.channels=[4, 8]", "images.per_rollout=4", "images.shuffle_buffer=32"),
    *("images.validation=0.2", "fit.batch_size=16", "fit.device=cpu", "fit.precision=float32", "fit.threads=1"),
    *("fit.save_steps=5", "fit.report_steps=4", "tensorboard=false"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_store(tmp_path_factory.mktemp("vae") / "store", 20)


def fit(store: Path, out: Path, *overrides: str, mode: Any = "new", **more: Any) -> VaeOutcome:
    config = load_config(VaeConfig, [], (*SMALL, *overrides))
    return train_vae(config, store, out, Request(mode, None, ("test",), "off"), **more)


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> VaeOutcome:
    """An uninterrupted training of 12 steps."""
    return fit(store, tmp_path_factory.mktemp("runs") / "whole", "fit.steps=12")


def test_a_training_leaves_encoder_metrics_images_and_page(store: Path, whole: VaeOutcome) -> None:
    assert (whole.state, whole.steps, whole.exit_code) == ("finished", 12, 0)
    assert whole.encoder is not None
    encoder = load_encoder(whole.encoder)
    assert (encoder.size, encoder.image_shape) == (4, (16, 16, 3))
    assert encoder.metadata["store"] == str(store)
    folder = RunFolder(whole.folder)
    rows = list(read_jsonl(folder.metrics))
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert {"learn/reconstruction", "learn/kl", "validation/pixel_error"} <= rows[-1].keys()
    assert sorted(path.name for path in (whole.folder / "images").iterdir()) == [
        f"reconstructions-{step:08d}.png" for step in (5, 10, 12)
    ]
    page = (whole.folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "update 12" in page
    assert '<span class="good">finished</span>: reached fit.steps=12' in page
    found = folder.read_state()
    assert found is not None
    assert (found["state"], found["step"]) == ("finished", 12)


def test_a_training_that_was_killed_goes_on_from_its_checkpoint(store: Path, tmp_path: Path, rollmill: Run) -> None:
    words = ("world", "vae", str(store), "--out", "run", *SMALL, "fit.steps=1000000")
    command = rollmill(*words)
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    wait_until(lambda: checkpoints.newest() or command.process.poll() is not None, what="a checkpoint")
    command.send(signal.SIGKILL)
    command.wait()
    newest = checkpoints.newest()
    assert newest is not None, command.text
    outcome = fit(store, tmp_path / "run", f"fit.steps={newest.step + 3}", mode="resume")
    assert (outcome.state, outcome.steps) == ("finished", newest.step + 3)
    assert f"({newest.step:,} updates)" in (tmp_path / "run" / "log.txt").read_text()
    rows = [row["step"] for row in read_jsonl(RunFolder(tmp_path / "run").metrics)]
    assert rows == sorted(set(rows))


def test_going_on_gives_the_same_bits(store: Path, whole: VaeOutcome, tmp_path: Path, monkeypatch: Any) -> None:
    """Stopped by a signal at step 7, and continued."""
    stopping = world_vae.EncoderFitter.train_step

    def train_step(self: Any) -> None:
        stopping(self)
        if self.step == 7:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(world_vae.EncoderFitter, "train_step", train_step)
    first = fit(store, tmp_path / "run", "fit.steps=12")
    assert (first.state, first.steps, first.exit_code, first.encoder) == ("interrupted", 7, 128 + 15, None)
    monkeypatch.undo()
    second = fit(store, tmp_path / "run", "fit.steps=12", mode="resume")
    assert second.steps == 12
    assert second.encoder is not None
    assert whole.encoder is not None
    assert_same(weights_of(load_encoder(second.encoder)), weights_of(load_encoder(whole.encoder)))


def test_killed_before_the_first_checkpoint_begins_again(store: Path, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:  # what a training leaves behind at once
        folder.set_state("running", "starting", 0)
        folder.config.write_text("seed: 0\n")
    assert fit(store, tmp_path / "run", "fit.steps=2", mode="resume").steps == 2


def test_a_start_that_fails_does_not_block_its_name(store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def broken(*_: Any) -> None:
        raise StoreError("no images")

    monkeypatch.setattr(world_vae, "ImageBatches", broken)
    with pytest.raises(StoreError, match="no images"):
        fit(store, tmp_path / "run", "fit.steps=2")
    state = RunFolder(tmp_path / "run").read_state()
    assert state is not None
    assert (state["state"], state["reason"]) == ("failed", "StoreError: no images")
    monkeypatch.undo()
    assert fit(store, tmp_path / "run", "fit.steps=2").state == "finished"


def test_killed_before_its_first_own_checkpoint_it_goes_on(store: Path, whole: VaeOutcome, tmp_path: Path) -> None:
    fit(store, tmp_path / "run", "fit.steps=4")
    untrained, last = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert untrained.name == "updates-000000000000.ckpt"
    last.unlink()
    again = fit(store, tmp_path / "run", "fit.steps=12", mode="resume")
    assert again.encoder is not None
    assert whole.encoder is not None
    assert_same(weights_of(load_encoder(again.encoder)), weights_of(load_encoder(whole.encoder)))


def test_a_training_whose_folder_is_removed_fails(store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(run_folder, "LOOK_SECONDS", 0.0)
    with pytest.raises(RunFolderLost, match="run: the folder of the run is lost"):
        fit(store, tmp_path / "run", "fit.steps=12", progress=lambda *_: shutil.rmtree(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_nan_stops_the_training_and_the_folder_says_where(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = world_vae.EncoderFitter.train_step

    def train_step(self: Any) -> None:
        if self.step == 6:
            with torch.no_grad():
                self.model.painter.begin.weight[2, 1] = torch.nan
        stopping(self)

    monkeypatch.setattr(world_vae.EncoderFitter, "train_step", train_step)
    with pytest.raises(NonFiniteError, match=r"step 7: .*painter.begin.weight at index \[2, 1\]"):
        fit(store, tmp_path / "run", "fit.steps=12")
    found = RunFolder(tmp_path / "run").read_state()
    assert found is not None
    assert (found["state"], found["step"]) == ("failed", 6)
    assert "painter.begin.weight" in found["reason"]
    monkeypatch.undo()
    assert fit(store, tmp_path / "run", "fit.steps=12", mode="resume").steps == 12  # from step 5, which was good


def test_progress_is_told(store: Path, tmp_path: Path) -> None:
    told: list[float] = []
    fit(store, tmp_path / "run", "fit.steps=8", progress=lambda share, metrics: told.append(share))
    assert told == [0.5, 1.0]


def test_tensorboard_gets_the_images(store: Path, tmp_path: Path) -> None:
    fit(store, tmp_path / "run", "fit.steps=2", "tensorboard=true")
    data = b"".join(path.read_bytes() for path in (tmp_path / "run" / "tb").iterdir())
    assert b"reconstructions" in data
    assert b"\x89PNG" in data


def test_what_cannot_be_trained_on_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"images.field=nothing"):
        fit(store, tmp_path / "a", "images.field=nothing")
    assert not (tmp_path / "a").exists()
    with StoreWriter(tmp_path / "empty", image_schema()):
        pass
    with pytest.raises(StoreError, match="has no episodes"):
        fit(tmp_path / "empty", tmp_path / "a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").write_text("")
    with pytest.raises(RunFolderError, match="not empty"):
        fit(store, tmp_path / "a")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "diary.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint to continue from"):
        fit(store, tmp_path / "c", mode="resume")
