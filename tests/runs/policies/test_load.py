"""Every kind of policy through ``load_policy``: asked step by step, and evaluated."""

import re
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from offlining import skilled_store
from running import train_here

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate, evaluate_all
from rollmill.runs.evaluate.video import blank
from rollmill.runs.lifecycle import Request
from rollmill.runs.offline.run import train_offline
from rollmill.runs.policies.load import load_policy
from rollmill.runs.settings.offline import OfflineConfig

SERIAL = ("sampling.mode=serial", "stop.batches=2", "learning.batch_size=64", "sampling.rollout=16")
FEW = EvalOptions(episodes=4, workers=1, envs=4)


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_here(tmp_path_factory.mktemp("online"), *SERIAL, "env=toy_target", "model.memory=gru")[1]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offline")
    store = skilled_store(folder / "store", 40).path
    small = ("model.context=3", "model.size=8", "model.layers=1", "model.mlp=[8]", "fit.batch_size=8", "fit.steps=3")
    quiet = ("fit.threads=1", "report.tensorboard=false", "evaluation.episodes=0", "evaluation.targets=[2, 9]")
    words = (f"run.dir={folder}", f"store={store}", "run.name=dt", *small, *quiet)
    return train_offline(load_config(OfflineConfig, [], words), Request(command=("test",), console="off")).folder


def test_steps_by_hand_are_those_of_an_evaluation(online: RunFolder) -> None:
    """The same seeds: what ``act`` plays is what ``evaluate`` counts."""
    policy = load_policy(online.path, deterministic=True)
    found = evaluate(policy, EvalOptions(episodes=3, workers=1, envs=1)).policy
    env = make_env(EnvSettings(id="toy_target"))
    obs = blank(env)
    for row in found.rows:
        assert row.seed is not None
        env.reset(row.seed, obs)
        policy.reset()
        total, ended = 0.0, False
        while not ended:
            action = policy.act(obs["obs"][0])
            assert action.shape == ()
            reward, ended, _, _ = env.step(np.asarray([action]), obs)
            total += float(np.sum(reward))
        assert total == pytest.approx(row.episode_return)


def test_lanes_of_a_batch_have_memories_of_their_own(online: RunFolder) -> None:
    one, two = (load_policy(online.path, deterministic=True) for _ in range(2))
    assert one.spec is not None
    obs = np.random.default_rng(0).normal(size=(6, 3, *one.spec.observation[0].shape)).astype(np.float32)
    both = [one.act(seen) for seen in obs]
    alone = [two.act(seen[1]) for seen in obs]
    assert [actions[1] for actions in both] == alone
    one.reset(np.array([False, True, False]))
    two.reset()
    assert one.act(obs[0])[1] == two.act(obs[0][1])
    with pytest.raises(ConfigError, match="2 observations, there were 3"):
        one.act(obs[0][:2])
    with pytest.raises(ConfigError, match=r"has shape .* expected"):
        one.act(np.zeros((3, 99)))
    with pytest.raises(ConfigError, match="a dict of"):
        one.act({"else": obs[0]})


def test_a_transformer_is_asked_for_a_return(offline: Path) -> None:
    policy = load_policy(offline, target=4.0)
    assert (policy.targets, policy.asked, policy.run) == ((4.0,), True, "dt")
    assert policy.spec is not None
    obs = np.zeros(policy.spec.observation[0].shape, np.float32)
    first, second = policy.act(obs), policy.act(obs, reward=1.0)
    assert first.shape == second.shape == ()
    assert load_policy(offline).targets == (2.0, 9.0)
    assert [result.target for result in evaluate_all([offline], FEW)] == [2.0, 9.0]
    assert evaluate(policy, FEW).target == 4.0
    assert [result.target for result in evaluate_all([policy], replace(FEW, targets=(1.0, 3.0)))] == [1.0, 3.0]


def test_random_and_own_policies_need_an_environment(online: RunFolder, tmp_path: Path) -> None:
    alone = evaluate("random", EvalOptions(episodes=4, workers=1, envs=4, overrides=("env=toy_target",)))
    beside = evaluate_all([online.path, "random"], EvalOptions(episodes=4, workers=1, envs=4, random=True))
    assert alone.policy == beside[1].policy == beside[0].random
    with pytest.raises(ConfigError, match=r"random: which environment\? Name it with env="):
        evaluate("random")
    (tmp_path / "own.py").write_text("def zero(spec):\n    return lambda obs: 0\n")
    own = load_policy(f"{tmp_path}/own.py:zero", env="toy_target")
    assert own.act(np.zeros((2, 4))).tolist() == [0, 0]
    assert evaluate(own, FEW).env == "toy_target"
    with pytest.raises(ConfigError, match="did you mean 'random'"):
        load_policy("rndom")


def test_it_says_what_it_is_in_a_line(online: RunFolder) -> None:
    assert re.fullmatch(r"<OnlinePolicy \S+\.ckpt for toy_\w+, [\d,]+ frames>", repr(load_policy(online.path)))
    assert repr(load_policy("random")) == "<BuiltInPolicy random>"


def test_a_past_version(online: RunFolder) -> None:
    first, last = (checkpoint for checkpoint in Checkpoints(online.checkpoints).list())
    assert load_policy(f"{online.path}@{last.step}").path == last.path
    assert load_policy(f"{online.path}@{last.step - 1}").path == first.path
    results = evaluate_all([f"{online.path}@{first.step}", online.path], FEW)
    assert [result.frames for result in results] == [first.step, last.step]
    assert [result.name for result in results] == [f"run/{c.path.stem}" for c in (first, last)]
    with pytest.raises(CheckpointError, match="neither a checkpoint nor a run folder"):
        load_policy("nowhere@100")


def test_an_environment_of_gymnasium(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, "env=CartPole-v1")
    policy, env = load_policy(folder.path), gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        obs, *_ = env.step(policy.act(obs))
    env.close()


def test_a_policy_that_sees_what_it_did_is_asked_like_any_other(tmp_path: Path) -> None:
    """``act`` shows it its last action and the reward by itself: it plays as in an evaluation, episode by episode."""
    words = (*SERIAL, "env=rooms_env:Rooms", "env.previous_action=true", "env.previous_reward=true", "model.memory=gru")
    folder = train_here(tmp_path, *words)[1]
    policy = load_policy(folder.path, deterministic=True, trust_code=True)
    found = evaluate(policy, EvalOptions(episodes=3, workers=1, envs=1)).policy
    from rooms_env import Rooms

    env = Rooms()
    for row in found.rows:
        obs, _ = env.reset(seed=row.seed)
        policy.reset()
        total, reward, ended = 0.0, 0.0, False
        while not ended:
            obs, reward, ended, _, _ = env.step(int(policy.act(obs, reward)))
            total += reward
        assert total == row.episode_return
