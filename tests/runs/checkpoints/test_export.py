"""Exported policies, opened by those who read them: ONNX Runtime, torch.export and safetensors."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from running import ROOT, SERIAL, train_here

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD, EnvSpec
from rollmill.core.run_folder import RunFolder
from rollmill.envs.make import make_env
from rollmill.models.actor_critic import ActorCritic, build_model
from rollmill.models.saving import load_weights
from rollmill.runs.checkpoints.export import CARD, Format, export_policy
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.settings.train import TrainConfig

onnxruntime = pytest.importorskip("onnxruntime")
safetensors = pytest.importorskip("safetensors")

Arrays = Mapping[str, np.ndarray]
Network = Callable[[Arrays], dict[str, np.ndarray]]

GRU = ("model.memory=gru", "model.hidden_size=8")
LSTM = ("model.memory=lstm", "model.hidden_size=8")
CASES: dict[str, tuple[str, ...]] = {
    "discrete vectors": ("env=toy_target",),
    "mask, gru": ("env=toy_masked", *GRU),
    "memory, lstm of two layers": ("env=toy_memory", *LSTM, "model.memory_layers=2"),
    "a board": ("env=connect_four", "model.encoder=convnet_board", "model.fc=[8]"),
    "images, lstm": ("env=toy_image", "model.encoder=impala", *LSTM),
    "continuous, own critic": ("env=toy_reach", "model.separate_critic=true"),
    "continuous, squashed, gru": ("env=toy_reach", "model.action_distribution=tanh_gaussian", *GRU),
    "continuous, squashed mean": ("env=toy_reach", "model.action_distribution=bounded_gaussian"),
    "multi-binary": ("env=action_envs:Buttons",),
    "choices and numbers": ("env=action_envs:Toolbox",),
}


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "-"))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = CASES[request.param]
    return train_here(tmp_path_factory.mktemp("run"), *SERIAL, *words, "stop.batches=3", "model.policy_gain=1")[1].path


def model_of(run: Path) -> tuple[ActorCritic, TrainConfig, EnvSpec]:
    state = Checkpoints(RunFolder(run).checkpoints).load_newest().state
    config = load_config(TrainConfig, [], [], base=state["config"])
    spec = EnvSpec.from_dict(state["spec"])
    model = build_model(spec, config.model)
    load_weights(model, state["learners"][0]["model"])
    return model.eval(), config, spec


def exported(run: Path, to: Format, suffix: str) -> tuple[Path, dict[str, Any]]:
    path = run / f"policy{suffix}"
    done = export_policy(run, to, path, overwrite=True, trust_code=True)
    assert done.path.stat().st_size == done.nbytes
    return path, json.loads(path.with_suffix(".json").read_text())


def onnx_network(path: Path) -> Network:
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, dict(inputs))))


def torch_network(path: Path, card: dict[str, Any]) -> Network:
    program = torch.export.load(path).module()
    names, order = list(card["outputs"]), [given["name"] for given in card["inputs"]]

    def call(inputs: Arrays) -> dict[str, np.ndarray]:
        return dict(zip(names, (x.numpy() for x in program(*(torch.from_numpy(inputs[name]) for name in order)))))

    return call


def play(network: Network, run: Path) -> int:
    """Three episodes, played by the exported network: at every step it says what ours says. Returns the steps."""
    model, config, spec = model_of(run)
    env = make_env(config.env)
    obs = {f.name: np.zeros((spec.agents, *f.shape), f.dtype) for f in spec.observation}
    steps = 0
    for seed in range(3):
        env.reset(seed, obs)
        ours = torch.ones(spec.agents, model.state_size)  # what a memory held before counts as zero in the first step
        memory = {"state": np.zeros((spec.agents, model.state_size), np.float32)} if model.state_size else {}
        begins, ended = True, False
        while not ended:
            said = network({**obs, **memory})
            ours = _agree(said, model, spec, obs, begins, ours)
            memory = {"state": said["next_state"]} if memory else {}
            _, terminated, truncated, _ = env.step(said["action"], obs)
            begins, ended = False, bool(np.any(terminated) or np.any(truncated))
            steps += 1
    env.close()
    return steps


def _agree(
    said: Arrays, model: ActorCritic, spec: EnvSpec, obs: Arrays, first: bool, state: torch.Tensor
) -> torch.Tensor:
    """The state after our own step."""
    given = {name: torch.from_numpy(array.copy()) for name, array in obs.items()}
    with torch.no_grad():
        output = model.step(given, torch.full((spec.agents,), first), state)
        action = model.head.sample(output.params, given.get(MASK_FIELD), deterministic=True).numpy()
        value = model.denormalise(output.value).numpy()
    numbers = action.reshape(1, -1)[:, len(spec.action.nvec) :] if not spec.action.discrete else action[:0]
    numbers[:] = np.clip(numbers, spec.action.low, spec.action.high) if numbers.size else numbers
    assert said["action"].dtype == action.dtype == np.dtype(spec.action.field.dtype)
    np.testing.assert_allclose(said["action"], action, atol=1e-5)
    np.testing.assert_allclose(said["parameters"], output.params.numpy(), atol=1e-4)
    np.testing.assert_allclose(said["value"], value, rtol=1e-4, atol=1e-4)
    return output.state


def test_onnx_runtime_plays_as_we_do(run: Path) -> None:
    path, card = exported(run, "onnx", ".onnx")
    assert play(onnx_network(path), run) >= 3
    session = onnxruntime.InferenceSession(str(path))
    assert json.loads(session.get_modelmeta().custom_metadata_map[CARD]) == card
    assert [given.name for given in session.get_inputs()] == [given["name"] for given in card["inputs"]]
    assert [given.shape[1:] for given in session.get_inputs()] == [given["shape"] for given in card["inputs"]]
    blank = {x.name: np.ones((7, *x.shape[1:]), _DTYPES[x.type]) for x in session.get_inputs()}
    assert {len(output) for output in session.run(None, blank)} == {7}, "any number of rows at once"


_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
    "tensor(int64)": np.int64,
}


def test_torch_export_plays_as_we_do(run: Path) -> None:
    path, card = exported(run, "torch-export", ".pt2")
    assert play(torch_network(path, card), run) >= 3
    inside = {f"{CARD}.json": ""}
    torch.export.load(path, extra_files=inside)
    assert json.loads(inside[f"{CARD}.json"]) == card


def test_safetensors_and_the_card_are_enough_to_build_the_network_again(run: Path) -> None:
    from safetensors.numpy import load_file

    path, card = exported(run, "safetensors", ".safetensors")
    with safetensors.safe_open(path, "np") as file:
        assert json.loads(file.metadata()[CARD]) == card
    model, config, spec = model_of(run)
    again = build_model(
        EnvSpec.from_dict(card["spec"]), load_config(TrainConfig, [], [], base={"model": card["model"]}).model
    )
    load_weights(again, load_file(path))
    for (name, one), two in zip(model.state_dict().items(), again.state_dict().values()):
        assert torch.equal(one, two), name
    assert (card["env"]["id"], card["state_size"]) == (config.env.id, model.state_size)
    scaled = card["normalisation"]["observations"]
    for name, moments in zip(model.observation_moments.names, model.observation_moments.moments):
        assert scaled[name] == {"mean": moments.shift.tolist(), "std": moments.std.tolist(), "clip": 10.0}
    assert set(scaled) == {f.name for f in spec.inputs if f.is_float or f.is_image}


# -- the whole way ----------------------------------------------------------------------------------------------


SAC = (
    *("learning.algorithm=sac", "learning.minibatches=4", "learning.epochs=4", "sac.warmup=100", "sac.minibatch=16"),
    *("model.action_distribution=tanh_gaussian", "model.log_std=state"),
)


@pytest.mark.parametrize(("env", "words"), [("CartPole-v1", (*GRU, "stop.batches=20")), ("Pendulum-v1", SAC)])
def test_episodes_in_gymnasium_alone_have_the_returns_of_eval(tmp_path: Path, env: str, words: tuple[str, ...]) -> None:
    """Trained here, played by nothing but Gymnasium and ONNX Runtime: the same seeds give the same returns."""
    run = train_here(tmp_path, *SERIAL, f"env={env}", "stop.frames=400", *words)[1].path
    options = EvalOptions(episodes=3, envs=1, workers=1, deterministic=True, csv=tmp_path / "e.csv")
    evaluate(run, options)
    network = onnx_network(exported(run, "onnx", ".onnx")[0])
    size = json.loads((run / "policy.json").read_text())["state_size"]
    with open(tmp_path / "e.csv", newline="") as file:
        for row in csv.DictReader(file):
            total = _gymnasium_return(network, gymnasium.make(env), int(row["seed"]), size)
            assert total == pytest.approx(float(row["episode_return"]), rel=1e-4)


def _gymnasium_return(network: Network, env: gymnasium.Env[Any, Any], seed: int, state_size: int) -> float:
    obs, _ = env.reset(seed=seed)
    memory = {"state": np.zeros((1, state_size), np.float32)} if state_size else {}
    total, ended = 0.0, False
    while not ended:
        said = network({"obs": obs[None].astype(np.float32), **memory})
        memory = {"state": said["next_state"]} if memory else {}
        obs, reward, terminated, truncated, _ = env.step(said["action"][0])
        total, ended = total + float(reward), bool(terminated or truncated)
    return total


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train_here(tmp_path, *SERIAL, "env=CartPole-v1", *GRU, "stop.batches=2")[1].path
    monkeypatch.chdir(tmp_path)
    export_policy(run, "onnx", Path("pole.onnx"))
    block = (ROOT / "docs" / "export.md").read_text().split("```py\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["total"] > 1


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected one of"):
        export_policy(tmp_path, "pickle", tmp_path / "p.pkl")  # type: ignore[arg-type]
