"""Decision Transformer, cloning, VAE, dynamics and controller on the device; what they save loads on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from dreaming import line_store
from gpu_device import DEVICE
from image_stores import image_store
from offlining import skilled_store
from world_stages import corner_models, dynamics_settings, search

from rollmill.core.config.load import load_config
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import collect
from rollmill.runs.lifecycle import Request
from rollmill.runs.offline.run import train_offline
from rollmill.runs.policies.load import load_policy
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.settings.world import VaeConfig
from rollmill.runs.world.dynamics import train_dynamics
from rollmill.runs.world.encoder import train_vae
from rollmill.worldmodel.dynamics.model import load_dynamics
from rollmill.worldmodel.encoder.file import load_encoder

REQUEST = Request("new", None, ("test",), "off")


@pytest.mark.parametrize("algorithm", ["dt", "bc"])
@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_offline_learning(tmp_path: Path, algorithm: str, precision: str) -> None:
    store = skilled_store(tmp_path / "store", 60)
    words = [f"algorithm={algorithm}", f"store={store.path}", f"run.dir={tmp_path}", "run.name=fit"]
    words += [f"fit.device={DEVICE}", f"fit.precision={precision}", "fit.steps=60", "fit.batch_size=32"]
    words += ["model.size=32", "model.heads=2", "model.layers=1", "model.context=5", "evaluation.episodes=4"]
    outcome = train_offline(load_config(OfflineConfig, [], words), REQUEST)
    rows = list(read_jsonl(outcome.folder / "metrics.jsonl"))
    losses = [row["learn/loss"] for row in rows if "learn/loss" in row]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("algorithm", ["iql", "td3bc"])
@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_offline_learning_by_values(tmp_path: Path, algorithm: str, precision: str) -> None:
    store = tmp_path / "store"
    collect(CollectOptions(out=store, episodes=30, seed=0), overrides=("env=toy_reach", "sampling.workers=1"))
    words = [f"algorithm={algorithm}", f"store={store}", f"run.dir={tmp_path}", "run.name=fit", "fit.warmup_steps=1"]
    words += [f"fit.device={DEVICE}", f"fit.precision={precision}", "fit.steps=200", "fit.batch_size=32"]
    words += [
        "model.mlp=[16,16]",
        "value.gamma=0.1",
        "fit.learning_rate=0.003",
        "evaluation.episodes=4",
        "data.validation=0.2",
    ]
    outcome = train_offline(load_config(OfflineConfig, [], words), REQUEST)
    assert outcome.results is not None
    assert np.isfinite(outcome.results.rows[0].mean)
    rows = [row for row in read_jsonl(outcome.folder / "metrics.jsonl") if "learn/critic_loss" in row]
    assert rows[-1]["learn/critic_loss"] < rows[0]["learn/critic_loss"]
    here, there = (load_policy(outcome.folder, device=device, deterministic=True) for device in ("cpu", str(DEVICE)))
    seen = {field.name: np.ones(field.shape, field.dtype) for field in here.require_spec().observation}
    np.testing.assert_allclose(here.act(seen), there.act(seen), rtol=1e-3, atol=1e-4)


def test_an_encoder(tmp_path: Path) -> None:
    store = image_store(tmp_path / "store", 20)
    words = [*("encoder.size=4", "encoder.channels=[4, 8]", "images.per_rollout=4", "images.shuffle_buffer=32")]
    words += ["images.validation=0.2", "fit.batch_size=16", f"fit.device={DEVICE}", "fit.steps=30", "fit.threads=1"]
    words += ["fit.report_steps=10", "tensorboard=false"]
    outcome = train_vae(load_config(VaeConfig, [], words), store, tmp_path / "vae", REQUEST)
    assert outcome.encoder is not None
    encoder = load_encoder(outcome.encoder)
    assert all(torch.isfinite(p).all() for p in encoder.parameters())
    rows = list(read_jsonl(outcome.folder / "metrics.jsonl"))
    assert rows[-1]["learn/reconstruction"] < rows[0]["learn/reconstruction"]


def test_a_controller(tmp_path: Path) -> None:
    outcome = search(corner_models(tmp_path), tmp_path / "out", generations=2, device=str(DEVICE))
    assert outcome.generations == 2
    assert outcome.final is not None
    assert all(np.isfinite(row.episode_return) for row in outcome.final.rows)


@pytest.mark.parametrize("memory", ["lstm", "transformer"])
def test_a_dynamics_model(tmp_path: Path, memory: str) -> None:
    store = line_store(tmp_path / "store", 20)
    chosen = dynamics_settings(memory=memory, device=str(DEVICE), steps=300, report_steps=50, learning_rate=0.01)
    outcome = train_dynamics(chosen, store, tmp_path / "dynamics")
    rows = list(read_jsonl(tmp_path / "dynamics" / "metrics.jsonl"))
    assert rows[-1]["learn/loss"] < rows[0]["learn/loss"]
    model = load_dynamics(outcome.model)
    assert all(torch.isfinite(p).all() for p in model.parameters())
