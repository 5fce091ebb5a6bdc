"""EnvPool's tasks: seeds, ends, spaces and what is refused. CartPole is built in a millisecond."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import Array, EnvSpec, Obs
from rollmill.envs.make import check_env_settings, make_env, make_vector_env
from rollmill.envs.settings import EnvSettings

pytest.importorskip("envpool")
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered")

from rollmill.envs.envpool import EnvPoolEnv, EnvPoolVector  # noqa: E402


def views(spec: EnvSpec) -> Obs:
    return {f.name: np.zeros((1, *f.shape), f.dtype) for f in spec.observation}


def episode(env: EnvPoolEnv, seed: int, steps: int = 8) -> Array:
    obs, rows = views(env.spec), []
    env.reset(seed, obs)
    for t in range(steps):
        rows.append(obs["obs"].copy())
        env.step(np.array([t % 2]), obs)
    return np.concatenate(rows)


def test_a_seed_fixes_an_episode_also_in_the_middle_of_another() -> None:
    """Although EnvPool's own reset ignores seeds."""
    env = make_env(EnvSettings(id="envpool:CartPole-v1"))
    assert isinstance(env, EnvPoolEnv)
    first = episode(env, 5)
    assert not np.array_equal(episode(env, 6), first)
    np.testing.assert_array_equal(episode(env, 5), first)
    np.testing.assert_array_equal(episode(EnvPoolEnv(task="CartPole-v1"), 5 + 2**31 - 1), first, "seeds wrap around")
    env.close()
    env.close()


def test_a_truncated_episode_shows_its_true_last_observation_and_then_a_new_one() -> None:
    env = EnvPoolVector(3, task="CartPole-v1", max_episode_steps=4)
    env.reset(seed=1)
    push = np.array([0, 1, 0], np.int32)
    rows = [env.step(push) for _ in range(5)]
    obs, reward, terminated, truncated, _ = rows[3]
    assert truncated.all()
    assert not terminated.any()
    assert (reward == 1).all()
    moved = np.abs(obs[:, 0] - rows[2][0][:, 0])
    assert (moved < 0.1).all(), "one step on, no jump back to the start"
    after = rows[4]
    assert (after[1] == 0).all()
    assert not (after[2] | after[3]).any()
    assert (np.abs(after[0]) <= 0.05).all(), "the start of the next episode"
    env.close()


def test_an_end_by_itself_is_no_truncation() -> None:
    env = EnvPoolEnv(task="CartPole-v1")
    obs = views(env.spec)
    env.reset(0, obs)
    outcome: tuple[Any, ...] = (0.0, False, False, {})
    for _ in range(20):
        outcome = env.step(np.array([0]), obs)
        if outcome[1] or outcome[2]:
            break
    assert outcome[:3] == (1.0, True, False)
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0]), obs)
    env.close()


def test_frames_are_counted_for_games_and_not_for_robots() -> None:
    pong = EnvPoolEnv(task="Pong-v5", img_height=42, img_width=42)
    assert pong.spec.frames_per_step == 4
    assert pong.spec.observation[0].shape == (4, 42, 42)
    assert EnvPoolEnv(task="HalfCheetah-v4").spec.frames_per_step == 1


def test_dicts_become_fields() -> None:
    env = EnvPoolEnv(task="MiniGrid-DoorKey-5x5-v0")
    assert {f.name: f.shape for f in env.spec.observation} == {
        "direction": (4,),
        "image": (7, 7, 3),
        "mission": (96,),
    }
    obs = views(env.spec)
    env.reset(3, obs)
    assert obs["direction"].sum() == 1
    assert obs["image"].any()
    env.close()


def test_lanes_out_of_order_are_noticed() -> None:
    env = EnvPoolVector(2, task="CartPole-v1")
    with pytest.raises(EnvError, match=r"answered for lanes \[1, 0\]"):
        env._check_order({"env_id": np.array([1, 0])})
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.zeros(2, np.int32))
    with pytest.raises(EnvError, match="one seed for all"):
        env.reset(seed=[1, 2])


def test_the_number_of_lanes_is_not_the_users() -> None:
    with pytest.raises(ConfigError, match=r"env.args.num_envs: sampling.envs_per_worker says"):
        make_env(EnvSettings(id="envpool:CartPole-v1", args={"num_envs": 3}))


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("envpool:CartPol-v1", {}, "EnvPool has no task 'CartPol-v1'; .*CartPole-v1"),
        ("envpool:CartPole-v1", {"max_episode_step": 3}, "env.args.max_episode_step: .*max_episode_steps"),
        ("envpool:CartPole-v1", {"seed": 3}, "env.args.seed: EnvPool's CartPole-v1 has no such setting"),
        ("envpool:CartPole-v1", {"batch_size": 3}, "env.args.batch_size: .*no such setting"),
        ("envpool:CartPole-v1", {"num_threads": "x"}, "env.args={'num_threads': 'x'}: .*cannot be built"),
    ],
)
def test_what_there_is_not_is_refused_with_the_nearest(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(EnvSettings(id=name, args=args))
    with pytest.raises(ConfigError, match=message):
        make_vector_env(EnvSettings(id=name, args=args, vector=True), 2)


def test_both_forms_pass_the_check_of_settings() -> None:
    check_env_settings(EnvSettings(id="envpool:CartPole-v1", args={"max_episode_steps": 9}))
    check_env_settings(EnvSettings(id="envpool:CartPole-v1", vector=True, max_episode_steps=9))
    check_env_settings(EnvSettings(id="envpool", args={"task": "CartPole-v1"}, vector=True))


def test_without_the_package_the_install_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rollmill\[envpool\]"'):
        EnvPoolEnv(task="CartPole-v1")
