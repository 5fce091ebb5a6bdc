"""SAC on the same sampling engine: whole runs in every mode, warm-up, resume, evaluation, refusals."""

import re
from pathlib import Path

import numpy as np
import pytest
from running import ROOT, SAC, SERIAL, assert_same, config_of, rows_of, saved_state, train_here

from rollmill.core.config.load import load_config
from rollmill.core.config.shipped import FOLDER
from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.runs.settings import learning_checks
from rollmill.runs.settings.train import TrainConfig, check, segments_per_batch
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer


class Watch(Observer):
    """Keeps the actions and versions of every batch."""

    def __init__(self) -> None:
        self.actions: list[np.ndarray] = []
        self.versions: list[np.ndarray] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.actions.append(run.segments["action"][:-1].copy())
        self.versions.append(run.segments["version"][:-1].copy())


@pytest.mark.parametrize("mode", ["serial", "sync", "async"])
def test_a_run_warms_up_with_random_actions_and_then_learns(tmp_path: Path, mode: str) -> None:
    watch = Watch()
    # Batches, not frames: in async mode a learner that is kept waiting has seen few of those.
    words = (f"sampling.mode={mode}", "stop.frames=0", "stop.batches=20")
    outcome, folder = train_here(tmp_path, *SAC, *words, observers=[watch])
    assert outcome.state == "finished"
    actions, versions = np.concatenate(watch.actions, axis=1), np.concatenate(watch.versions, axis=1)
    first = actions[versions == 0]
    assert len(first) >= 100
    assert np.abs(first).max() <= 2
    assert np.abs(first).std() == pytest.approx(2 / 12**0.5, rel=0.25), "uniform over -2..2"
    assert versions.max() >= 1, "its own policy acts afterwards"
    rows = rows_of(folder)
    assert rows[-1]["learn/updates"] == 8
    assert rows[-1]["learn/replay_rows"] >= 300
    assert rows[-1]["sample/dropped_segments"] == 0
    explained = re.findall(r"^\| `(learn/\w+)`", (ROOT / "docs/sac.md").read_text(), re.MULTILINE)
    assert set(explained) == {name for name in rows[-1] if name.startswith("learn/")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The end of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return saved_state(train_here(folder, *SAC, *SERIAL, "stop.frames=512")[1])


@pytest.mark.parametrize("stop", [64, 256])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, whole: dict, stop: int) -> None:
    """Stopped while warming up, or while learning."""
    train_here(tmp_path, *SAC, *SERIAL, f"stop.frames={stop}")
    _, folder = train_here(tmp_path, *SAC, *SERIAL, "stop.frames=512", mode="resume")
    state = saved_state(folder)
    assert_same(state["learners"], whole["learners"])
    assert_same(state["policies"], whole["policies"])


def test_a_run_resumed_without_its_replay_fills_it_again(tmp_path: Path) -> None:
    options = (*SAC, *SERIAL, "sac.save_replay=false")
    _, folder = train_here(tmp_path, *options, "stop.frames=256")
    before = saved_state(folder)["learners"][0]
    assert before["replay"] is None
    watch = Watch()
    _, folder = train_here(tmp_path, *options, "stop.frames=448", mode="resume", observers=[watch])
    after = saved_state(folder)["learners"][0]
    assert min(versions.min() for versions in watch.versions) > 0, "its own policy acts"
    assert after["version"] > before["version"]
    assert after["optimizer_steps"] - before["optimizer_steps"] < (448 - 256) * 0.25, "nothing is learnt meanwhile"


# ------------------------------------------------------------------- choices, memory, a network of one's own

KINDS = {
    "choices": ("env=CartPole-v1",),
    "masked choices": ("env=toy_masked",),
    "memory": ("env=toy_memory", "model.memory=gru", "sac.burn_in=2"),
    "memory and numbers": ("env=Pendulum-v1", "model.memory=lstm", "model.memory_layers=2"),
    "own encoder": ("env=CartPole-v1", "model.custom=own_networks:Wide"),
    "own network": ("env=Pendulum-v1", "model.custom=own_networks:Whole", "model.memory=gru"),
    "what it did before": ("env=toy_memory", "env.previous_action=true", "env.previous_reward=true"),
}


@pytest.mark.parametrize("words", KINDS.values(), ids=KINDS)
def test_every_kind_learns_and_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, words: tuple[str, ...]) -> None:
    states = []
    for place, stops in (("whole", (512,)), ("parts", (256, 512))):
        for stop in stops:
            mode = "resume" if stop != stops[0] else "new"
            folder = train_here(tmp_path / place, *SAC, *SERIAL, *words, f"stop.frames={stop}", mode=mode)[1]
        states.append(saved_state(folder))
    assert_same(states[0]["learners"], states[1]["learners"])
    assert states[0]["learners"][0]["optimizer_steps"] > 50
    last = rows_of(folder)[-1]
    assert all(np.isfinite(value) for name, value in last.items() if name.startswith("learn/"))


def test_memory_knows_what_happened_while_actions_were_random(tmp_path: Path) -> None:
    """States of the warm-up are those that the policy had, not zeros: sequences begin from them."""
    words = ("env=Pendulum-v1", "model.memory=gru", "sac.warmup=1000", "stop.frames=256")
    _, folder = train_here(tmp_path, *SAC, *SERIAL, *words)
    rows = saved_state(folder)["learners"][0]["replay"]["rows"]
    assert rows["opens"].sum() == len(set(zip(np.flatnonzero(rows["opens"]))))
    begins = np.abs(rows["state"]).sum(axis=1) > 0
    assert begins.sum() > 10, "rollouts in the middle of episodes"
    assert not (begins & rows["opens"]).any()


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sac.burn_in=4", "is for networks with memory"),
        ("sac.burn_in=8", r"leaves nothing of sampling\.rollout=8"),
        ("model.separate_critic=true", "critics of its own"),
        ("learning.lr_schedule=kl_adaptive", "follows the steps of PPO"),
        ("learning.precision=bfloat16", "bfloat16 is not supported"),
        ("learning.ranks=2", r"use learning\.ranks=1"),
        ("learning.clip=0.1", r"learning\.clip=0\.1 is about PPO"),
        ("learning.max_grad_norm=0.5", r"learning\.max_grad_norm=0\.5 is about PPO"),
        ("learning.entropy_end=0.1", r"learning\.entropy_end=0\.1 is about PPO"),
        ("learning.algorithm=appo", r"sac\.\* is set"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(override: str, message: str) -> None:
    check(config_of(Path(), *SAC))
    with pytest.raises(ConfigError, match=message):
        check(config_of(Path(), *SAC, override))


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (ActionSpec("multi_discrete", nvec=(3, 2), start=(0, 0)), "has multi-discrete ones"),
        (ActionSpec("mixed", nvec=(3,), start=(0,), shape=(1,), low=(0,), high=(1,)), "has mixed ones"),
    ],
)
def test_actions_must_be_numbers_or_one_choice(action: ActionSpec, what: str) -> None:
    spec = EnvSpec("game", (Field("x", "float32", (1,)),), action)
    with pytest.raises(ConfigError, match=f"game {what}: .*; use learning.algorithm=appo"):
        segments_per_batch(config_of(Path(), *SAC), spec)


def test_numbers_must_be_squashed() -> None:
    spec = EnvSpec("e", (Field("x", "float32", (1,)),), ActionSpec("continuous", shape=(1,), low=(0,), high=(1,)))
    with pytest.raises(ConfigError, match=r"set model\.action_distribution=tanh_gaussian"):
        segments_per_batch(config_of(Path(), *SAC, "model.action_distribution=gaussian"), spec)


def test_several_steps_are_for_networks_without_memory() -> None:
    with pytest.raises(ConfigError, match=r"use sac\.n_step=1"):
        check(config_of(Path(), *SAC, "model.memory=gru", "sac.n_step=3"))


def test_the_replay_buffer_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    action = ActionSpec("continuous", shape=(1,), low=(0,), high=(1,))
    spec = EnvSpec("video", (Field("image", "uint8", (100, 100, 10)),), action, frames_per_step=4)
    monkeypatch.setattr(learning_checks, "available_memory", lambda: 4e7)
    segments_per_batch(config_of(Path(), *SAC, "stop.frames=1200"), spec)  # 300 rows will ever be there
    with pytest.raises(ConfigError, match=r"sac.capacity=1000: 1,000 rows of video take 100 MB, 40.0 MB of memory"):
        segments_per_batch(config_of(Path(), *SAC, "stop.frames=0", "stop.batches=9"), spec)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*_sac.yaml")), ids=lambda file: file.stem)
def test_the_shipped_configs_are_accepted(file: Path) -> None:
    check(load_config(TrainConfig, [file], []))
