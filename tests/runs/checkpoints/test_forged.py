"""Whole checkpoints that do not hold what they should: each is refused in one line that names the file and a field."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dreaming import corner_encoder, line_store
from forging import forgeries
from image_stores import image_store
from offlining import skilled_store
from running import SERIAL, config_of, train_here

from rollmill.core import tree_file
from rollmill.core.checkpoints import Checkpoints, Loaded, load_checkpoint
from rollmill.core.config.load import load_config
from rollmill.core.errors import CheckpointError
from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.envs.probe import probe_here
from rollmill.envs.settings import EnvSettings
from rollmill.runs.lifecycle import Life, Request, open_diary
from rollmill.runs.offline.run import OfflineRun, train_offline
from rollmill.runs.offline.task import prepare
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.policies.load import load_policy
from rollmill.runs.policies.offline import require_offline
from rollmill.runs.policies.online_state import require_online
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.settings.world import VaeConfig
from rollmill.runs.train.build import build_parts
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.reporting import TrainMetrics
from rollmill.runs.world import controller as world_controller
from rollmill.runs.world.controller import train_controller
from rollmill.runs.world.dynamics import train_dynamics
from rollmill.runs.world.encoder import train_vae
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.worldmodel.controller.model import load_controller
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.dynamics.model import load_dynamics
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.encoder.file import load_encoder

ONLINE = {
    "appo": (*SERIAL, "env=toy_target", "stop.batches=3", "recording=all", "model.memory=gru", "learning.recurrence=8"),
    "sac": (
        *(*SERIAL, "env=toy_reach", "stop.frames=256", "learning.algorithm=sac", "learning.minibatches=4"),
        *("learning.epochs=4", "model.action_distribution=tanh_gaussian", "model.log_std=state", "sac.warmup=64"),
        *("sac.minibatch=16", "sac.capacity=200", "sac.save_replay=true"),
    ),
}


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of forged files need not survive a power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def taken(tree: Any, path: Path, load: Callable[[Any], None]) -> set[str]:
    """The forgeries that ``load`` does not refuse; every refusal is one line that begins with the file's name."""
    answers = {name: answer(name, forged, load) for name, forged in forgeries(tree)}
    for name, said in answers.items():
        assert not said or said.startswith(str(path)), name
        assert "\n" not in said, name
    return {name for name, said in answers.items() if not said}


def answer(name: str, forged: Any, load: Callable[[Any], None]) -> str:
    """The refusal in words, or empty."""
    try:
        load(forged)
    except CheckpointError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__} instead of CheckpointError") from error
    return ""


def harmless(found: set[str], *patterns: str) -> set[str]:
    """What is left without the forgeries that a reader may take: fields that it does not need."""
    assert [p for p in patterns if not any(re.fullmatch(p, name) for name in found)] == [], "it is no exception"
    return {name for name in found if not any(re.fullmatch(p, name) for p in patterns)}


# -- online runs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=sorted(ONLINE))
def online(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, Path]:
    """The settings of a finished run, and its checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    train_here(folder, *ONLINE[request.param])
    config = config_of(folder, *ONLINE[request.param])
    return config, newest(config.folder)


def newest(folder: Path) -> Path:
    found = Checkpoints(RunFolder(folder).checkpoints).newest()
    assert found is not None
    return found.path


class Resuming:
    """Loads states into a run that is about to go on; a run that was begun is not used again."""

    def __init__(self, config: TrainConfig, path: Path, folder: Path) -> None:
        self._config, self._path, self._folder = config, path, RunFolder(folder)
        self._good = load_checkpoint(path)
        self._spec = probe_here(config.env)
        self._run: OnlineRun | None = None

    def load(self, state: Any) -> None:
        loaded = require_online(Loaded(self._path, self._good.step, self._good.metric, state))
        if state["config"] != self._good.state["config"]:
            open_diary(Life("online", self._folder, self._config, loaded=loaded), "new", ("test",))
        if self._run is None:
            parts = build_parts(self._config, self._spec, {})
            life = Life("online", self._folder, self._config)
            self._run = OnlineRun(self._config, parts, life, TrainMetrics(self._config, life), ())
        state_before = self._run.parts.sampler.steps
        try:
            self._run.load_state(loaded)
        finally:
            if self._run.parts.sampler.steps != state_before:
                self.close()

    def close(self) -> None:
        if self._run is not None:
            self._run.parts.sampler.stop()
            self._run = None


def test_a_run_does_not_go_on_from_a_forged_checkpoint(online: tuple[TrainConfig, Path], tmp_path: Path) -> None:
    config, path = online
    with contextlib.closing(Resuming(config, path, tmp_path)) as resuming:
        resuming.load(load_checkpoint(path).state)
        found = taken(load_checkpoint(path).state, path, resuming.load)
    left = harmless(
        found,
        r"config\.run\.(dir|experiment|name|temp_dir) \w+",  # compared, not used
        r"learners\.0\.optimizer\S* missing",  # of a parameter that had no gradient yet
        r"reporter\.(workers|policies|tasks|sums)\S* missing",
        r"sampler\.(variables|first_frames|steps_of|envs\.0\.variables) missing",  # earlier versions had none
        r"((ranks|recorder|observers|cluster)\S*|learners\.0\.alarms) missing",
    )
    assert left == set()


def build(policy: LoadedPolicy) -> None:
    assert policy.spec is not None
    policy.build(policy.spec, EpisodeSchedule(Seeds(0), 1), 0, [1.0] * policy.spec.agents)


def test_a_forged_checkpoint_does_not_play(online: tuple[TrainConfig, Path], tmp_path: Path) -> None:
    _, path = online
    forged = tmp_path / "forged.ckpt"
    content = tree_file.load_tree(path)

    def play(state: Any) -> None:
        tree_file.save_tree(forged, {**content, "state": state})
        build(load_policy(forged))

    play(content["state"])
    needed = {name: content["state"][name] for name in ("kind", "config", "spec", "learners")}
    needed["learners"] = [{name: needed["learners"][0][name] for name in ("model", "version")}]
    needed["config"] = {name: needed["config"][name] for name in ("env", "model")}
    left = harmless(
        taken(needed, forged, play),
        r"config\.(env|model)\.\S+ missing",  # earlier versions did not know all settings: they have their defaults
        r"spec\.action\.(start|nvec|shape|low|high) missing",  # where the kind of action does without
    )
    assert left == set()


def test_other_files_than_checkpoints(online: tuple[TrainConfig, Path], tmp_path: Path) -> None:
    content = tree_file.load_tree(online[1])
    forged = tmp_path / "forged.ckpt"

    def load(tree: Any) -> None:
        tree_file.save_tree(forged, tree)
        require_online(load_checkpoint(forged))

    small = {**content, "state": {"kind": "online"}}
    assert taken(small, forged, load) == set()
    assert taken({"frames": 1, "metric": None, "state": {"format": 99, **small["state"]}}, forged, load) == set()
    with pytest.raises(CheckpointError, match=r"written by a newer version of rollmill \(format 99"):
        load({**content, "state": {**content["state"], "format": 99}})


# -- offline runs ------------------------------------------------------------------------------------------


def test_forged_checkpoints_of_offline_runs(tmp_path: Path) -> None:
    store = skilled_store(tmp_path / "store", 30).path
    small = ["model.context=2", "model.size=8", "model.layers=1", "model.mlp=[8]", "fit.steps=4", "fit.warmup_steps=1"]
    words = [f"run.dir={tmp_path}", f"store={store}", "evaluation.episodes=0", "report.tensorboard=false", *small]
    config = load_config(OfflineConfig, [], [*words, "run.name=run", "fit.batch_size=4", "fit.every_steps=2"])
    outcome = train_offline(config, Request(command=("test",), console="off"))
    path = newest(outcome.folder)
    content = tree_file.load_tree(path)
    task = prepare(config, {})
    device = torch.device("cpu")
    run = OfflineRun(task, Life("offline", RunFolder(tmp_path / "again"), config), device)

    def resume(state: Any) -> None:
        run.load_state(require_offline(Loaded(path, content["step"], content["metric"], state)))

    def play(state: Any) -> None:
        tree_file.save_tree(path, {**content, "state": state})
        build(load_policy(path, target=1.0, device="cpu"))

    resume(content["state"])
    play(content["state"])
    whole = content["state"]
    state = {**whole, "config": {name: whole["config"][name] for name in ("algorithm", "model")}}
    optional = (r"config\.\S+ missing", r"env\.\S+ missing", r"held_out missing")
    compared = (r"(config|env)\.\S+ retyped",)
    assert harmless(taken(state, path, resume), *optional, *compared) == {"fit.optimizer.0 missing"}
    going_on = (r"fit\.(?!step|model).*", r"evaluations.*")
    unused = (*going_on, r"fit\.model\..* missing", r"spec\.action\.(start|shape|low|high) missing")
    assert harmless(taken(state, path, play), *optional, *unused) == set()
    run.fitter.close()
    task.store.close()


# -- world models ------------------------------------------------------------------------------------------


def forge_newest(folder: Path) -> tuple[Any, Path, Callable[[Any], None]]:
    """The state of a folder's newest checkpoint, its path, and what writes another one there."""
    path = newest(folder)
    content = tree_file.load_tree(path)
    return content["state"], path, lambda state: tree_file.save_tree(path, {**content, "state": state})


def test_forged_checkpoints_of_an_encoder(tmp_path: Path) -> None:
    store = image_store(tmp_path / "store", 4)
    words = ["encoder.size=2", "encoder.channels=[4]", "fit.batch_size=4", "fit.steps=2", "fit.report_steps=2"]
    config = load_config(VaeConfig, [], [*words, "fit.threads=1", "tensorboard=false", "fit.warmup_steps=1"])
    outcome = train_vae(config, store, tmp_path / "vae", Request("new", None, ("test",), "off"))
    assert outcome.encoder is not None

    def go_on() -> None:
        train_vae(config, store, outcome.folder, Request("resume", None, ("test",), "off"))

    assert of_a_stage(outcome.folder, go_on) == {"fit.optimizer.0 missing"}
    file, tree = outcome.encoder, tree_file.load_tree(outcome.encoder)
    tree["metadata"] = {}

    def load(forged: Any) -> None:
        tree_file.save_tree(file, forged)
        load_encoder(file)

    assert harmless(taken(tree, file, load), r"architecture\.\w+ missing") == set()


def of_a_stage(folder: Path, go_on: Callable[[], object]) -> set[str]:
    """The forgeries that a stage of a world model goes on from. Other settings and inputs are no matter of shape."""
    state, path, write = forge_newest(folder)
    begun = {name: state.pop(name) for name in ("config", "inputs")}

    def resume(forged: Any) -> None:
        write({**begun, **forged})
        go_on()

    resume(state)
    resume({**state, "facts": {"settings": begun["config"], "inputs": begun["inputs"]}})  # as version 0.1 wrote them
    for name, wrong in (("config", 7), ("inputs", 7), ("facts", 7), ("facts", {"settings": 7, "inputs": {}})):
        with pytest.raises(CheckpointError, match=f"field {name}"):
            resume({**state, name: wrong})
    return taken(state, path, resume)


def test_forged_checkpoints_of_a_dynamics_model(tmp_path: Path) -> None:
    store = line_store(tmp_path / "store", 6)
    settings = DynamicsSettings(size=4, mixtures=2, sequence_length=4, batch_size=4, steps=2, report_steps=2, threads=1)

    def fit() -> Path:
        return train_dynamics(settings, store, tmp_path / "dynamics").model

    file = fit()
    assert of_a_stage(file.parent, fit) == {"fit.optimizer.0 missing"}
    tree = tree_file.load_tree(file)
    tree["metadata"] = {}

    def load(forged: Any) -> None:
        tree_file.save_tree(file, forged)
        load_dynamics(file)

    left = harmless(
        taken(tree, file, load),
        *(r"settings\.\w+ missing", r"origin\.(reward_\w+|remembered|env_settings) missing", "axes missing"),
        r"origin\.env_settings retyped",  # read as settings where an environment is made of them
    )
    assert harmless(left, r"origin\.spec\.action\.(start|shape|low|high) missing") == set()


def test_forged_checkpoints_of_a_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No process is started here, so none has to be cleaned up after.
    monkeypatch.setattr(world_controller, "process_scope", lambda inside: contextlib.nullcontext({}))
    corner_encoder(tmp_path / "encoder.bin")
    settings = ControllerSettings(
        inputs="z", population=4, trials=1, generations=1, envs=2, mode="serial", evaluate_every=0, final_episodes=0
    )

    def search() -> Path:
        return train_controller(settings, EnvSettings(id="toy_image"), tmp_path, None, tmp_path / "search").controller

    file = search()
    assert of_a_stage(file.parent, search) == {"search.origin.shrink missing"}
    tree = tree_file.load_tree(file)
    tree["metadata"] = tree["env"] = {}

    def load(forged: Any) -> None:
        tree_file.save_tree(file, forged)
        load_controller(file)

    assert harmless(taken(tree, file, load), r"settings\.\S+ missing") == set()
