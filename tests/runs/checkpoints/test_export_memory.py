"""Exported Decision Transformers, clones and controllers: others open them, memory goes in and comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dreaming import corner_latents, corner_model
from offlining import skilled_store
from running import ROOT
from world_stages import corner_models, search

from rollmill.core.config.load import load_config
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.envs.make import make_env
from rollmill.offline.model import Scales, SequencePolicy
from rollmill.offline.portable import PortableSequence
from rollmill.offline.settings import SequenceSettings
from rollmill.runs.checkpoints.export import SUFFIX, Format, export_policy
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import collect
from rollmill.runs.evaluate.video import blank
from rollmill.runs.lifecycle import Request
from rollmill.runs.offline.run import train_offline
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.policies.load import load_policy
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.worldmodel.controller.settings import RetrievalSettings
from rollmill.worldmodel.files import CONTROLLER

onnxruntime = pytest.importorskip("onnxruntime")

TARGET = 6.0
SMALL = (
    "model.context=3",
    "model.size=16",
    "model.layers=2",
    "model.mlp=[16]",
    "model.dropout=0",
    "fit.precision=float32",
)
FITTED = (
    "fit.steps=30",
    "fit.patience=0",
    "data.validation=0",
    "fit.batch_size=16",
    "fit.learning_rate=1e-2",
    "fit.warmup_steps=1",
    "fit.threads=1",
)
QUIET = ("evaluation.episodes=0", "report.tensorboard=false", "checkpoints.min_free_mb=1")
CASES: dict[str, tuple[str, ...]] = {
    "dt, vectors": ("toy_target", "algorithm=dt", "model.heads=2"),
    "dt, images": ("toy_image", "algorithm=dt", "model.fc=[16]"),
    "bc, mask, convolution": ("toy_masked", "algorithm=bc", "model.mixer=convolution"),
    "bc, continuous": ("toy_reach", "algorithm=bc"),
}


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(", ", "-"))
def sequence(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    env, *words = CASES[request.param]
    folder = tmp_path_factory.mktemp("offline")
    if env == "toy_target":
        skilled_store(folder / "store", 40)
    else:
        options = CollectOptions(out=folder / "store", episodes=12, seed=0)
        collect(options, overrides=(f"env={env}", "sampling.mode=serial"))
    place = (f"run.dir={folder}", "run.name=it", f"store={folder / 'store'}")
    config = load_config(OfflineConfig, [], [*place, *SMALL, *FITTED, *QUIET, *words])
    return train_offline(config, Request(command=("test",), console="off")).folder


@pytest.fixture(scope="module", params=["lstm", "transformer", "alone"])
def controller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    corner_models(folder)
    more: dict[str, Any] = {"inputs": "zh"}
    if request.param == "transformer":
        corner_model(folder / "dynamics.bin", "transformer")
    elif request.param == "lstm":
        store = corner_latents(folder / "latents")
        more["retrieval"] = RetrievalSettings(neighbours=3, store=store, size=50)
    else:
        more["inputs"] = "z"
    search(folder, folder / "found", generations=2, population=4, final_episodes=0, sigma=2.0, **more)
    return folder / "found"


def exported(run: Path, to: Format) -> Path:
    """The file, made when it is first asked for: tracing a network takes seconds."""
    path = run / f"policy{SUFFIX[to]}"
    if not path.exists():
        export_policy(run, to, path, overwrite=True)
    return path


def play(path: Path, ours: LoadedPolicy) -> list[Any]:
    """Three episodes: at every step ONNX Runtime says what our policy says. Returns the actions."""
    session = onnxruntime.InferenceSession(str(path))
    card = json.loads(path.with_suffix(".json").read_text())
    outputs = [output.name for output in session.get_outputs()]
    assert outputs == list(card["outputs"])
    shapes = {given["name"]: (np.dtype(given["dtype"]), given["shape"]) for given in card["inputs"]}
    env, found = make_env(ours.require_env()), []
    obs = blank(env)
    for seed in range(3):
        env.reset(seed, obs)
        ours.reset()
        memory = {name: np.zeros((1, *shapes[name][1]), shapes[name][0]) for name in card["memory"]}
        reward: Any = 0.0
        left, ended = TARGET, False
        while not ended:
            asked = {"target": np.array([left], np.float32)} if "target" in shapes else {}
            said = dict(zip(outputs, session.run(None, {**obs, **asked, **memory})))
            expected = ours.act({name: array[0] for name, array in obs.items()}, float(np.sum(reward)))
            assert said["action"].shape[1:] == env.spec.action.field.shape
            bounded = np.clip(expected, env.spec.action.low, env.spec.action.high) if env.spec.action.low else expected
            np.testing.assert_allclose(said["action"][0], bounded, atol=1e-4)
            memory = {name: said[f"next_{name}"] for name in memory}
            reward, terminated, truncated, _ = env.step(said["action"], obs)
            left, ended = left - float(np.sum(reward)), bool(np.any(terminated) or np.any(truncated))
            found.append(said["action"][0].tolist())
    env.close()
    return found


def test_sequence_policies_play_as_ours_do(sequence: Path) -> None:
    path = exported(sequence, "onnx")
    ours = load_policy(sequence, deterministic=True, target=TARGET, device="cpu")
    actions = play(path, ours)
    assert len(actions) > 12, "longer than the context"
    assert len({str(action) for action in actions}) > 1
    card = json.loads(path.with_suffix(".json").read_text())
    assert card["memory"] == ["last_action", "step", "state"]
    assert card["algorithm"] in ("dt", "bc")
    assert (card["step"], card["unit"]) == (30, "updates")
    assert ("target" in card["normalisation"]) == (card["algorithm"] == "dt")


@pytest.mark.parametrize("sequence", ["dt, vectors"], indirect=True)
def test_torch_export_keeps_the_memory_outside_too(sequence: Path) -> None:
    network, program = exported(sequence, "onnx"), torch.export.load(exported(sequence, "torch-export")).module()
    card = json.loads(network.with_suffix(".json").read_text())
    rng = np.random.default_rng(0)
    rows = {given["name"]: some_rows(given, rng) for given in card["inputs"]}
    theirs = program(*(torch.from_numpy(array) for array in rows.values()))
    session = onnxruntime.InferenceSession(str(network))
    for one, two in zip(theirs, session.run(None, rows)):
        np.testing.assert_allclose(one.numpy(), two, atol=1e-4)


def some_rows(given: dict[str, Any], rng: np.random.Generator, rows: int = 5) -> np.ndarray:
    """Lanes in different steps of their episodes."""
    shape = (rows, *given["shape"])
    if given["name"] == "step":
        return np.arange(rows)
    return rng.integers(0, 2, shape).astype(given["dtype"])


def test_controllers_play_as_ours_do(controller: Path) -> None:
    path = exported(controller, "onnx")
    actions = play(path, load_policy(controller, device="cpu"))
    assert len(actions) == 30
    assert len(set(actions)) > 1
    card = json.loads(path.with_suffix(".json").read_text())
    assert card["unit"] == "generations"
    weights = export_policy(controller / CONTROLLER.name, "safetensors", controller / "c.safetensors")
    assert weights.checkpoint == controller / CONTROLLER.name


@pytest.mark.parametrize("mixer", ["attention", "convolution"])
def test_the_state_is_all_that_a_lane_remembers(mixer: Any) -> None:
    """Step by step with memory outside, lanes restarting apart: as whole windows are read in training."""
    spec = EnvSpec("x", (Field("obs", "float32", (3,)),), ActionSpec("discrete", nvec=(4,), start=(0,)))
    torch.manual_seed(0)
    settings = SequenceSettings(context=3, size=16, layers=2, heads=1, mlp=(8,), mixer=mixer)
    network = SequencePolicy(spec, settings, Scales(2.0, 3.0, 6), True).eval()
    portable = PortableSequence(network, spec)
    memory = network.trunk.memory(2)
    obs = torch.randn(9, 2, 3)
    state = [torch.zeros_like(x) for x in portable.example()][2:]
    for t in range(9):
        first = torch.tensor([t == 0, t in (0, 5)])
        for x in state:
            x[first] = 0
        before = [x.clone() for x in state]
        target, action = torch.full((2,), 4.0 - t), state[0].clone()
        expected = network.step({"obs": obs[t]}, action, target, first, torch.arange(2), memory)
        _, parameters, *following = portable(obs[t], target, *state)
        torch.testing.assert_close(parameters, expected)
        assert all(torch.equal(one, two) for one, two in zip(state, before)), "what went in stays as it was"
        state = following
        assert state[1].tolist() == memory.age.tolist()


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vizdoom")
    monkeypatch.chdir(tmp_path)
    export_policy(Path("policy:doom_basic_dt"), "onnx", Path("dt.onnx"))
    block = (ROOT / "docs" / "export.md").read_text().split("```py\n")[2].split("```")[0]
    names: dict[str, Any] = {}
    exec(block, names)
    names["env"].close()
    assert names["total"] > 40, "it shoots the monster"
