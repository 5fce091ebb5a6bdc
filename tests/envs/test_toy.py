"""The toys: best returns can be reached, random ones are as documented."""

from typing import Any

import numpy as np
import pytest

from rollmill.core.fields import MASK_FIELD, Array, Obs
from rollmill.core.protocols import Env
from rollmill.envs.batch import random_actions
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings

TOYS = ["toy_target", "toy_memory", "toy_masked", "toy_image", "toy_reach", "toy_agents"]


class Best:
    """The known best policy of each toy."""

    def __init__(self) -> None:
        self.cue = 0

    def toy_target(self, obs: Obs) -> Array:
        return obs["obs"].argmax(axis=1)

    toy_agents = toy_target

    def toy_memory(self, obs: Obs) -> Array:
        shown, first, _ = obs["obs"][0]
        if first:
            self.cue = int(shown > 0)
        return np.array([self.cue])

    def toy_masked(self, obs: Obs) -> Array:
        return np.where(obs[MASK_FIELD] == 1, obs["worth"], -1).argmax(axis=1)

    def toy_image(self, obs: Obs) -> Array:
        image = obs["obs"][0, :, :, 0]
        half = image.shape[0] // 2
        corners = [image[y : y + half, x : x + half].mean() for y in (0, half) for x in (0, half)]
        return np.array([int(np.argmax(corners))])

    def toy_reach(self, obs: Obs) -> Array:
        return np.clip(-2 * obs["obs"], -1, 1).astype(np.float32)


def arrays(env: Env) -> Obs:
    return {f.name: np.zeros((env.spec.agents, *f.shape), f.dtype) for f in env.spec.observation}


def play(env: Env, act: Any, seed: int) -> tuple[float, int]:
    """Return (mean over agents) and length of one episode."""
    obs = arrays(env)
    env.reset(seed, obs)
    total, steps, over = 0.0, 0, False
    while not over:
        reward, terminated, truncated, _ = env.step(act(obs), obs)
        total += float(np.mean(reward))
        steps += 1
        over = bool(np.all(terminated) or np.all(truncated))
    return total, steps


@pytest.mark.parametrize(
    ("name", "best"), [("toy_target", 10), ("toy_memory", 1), ("toy_masked", 10), ("toy_image", 10), ("toy_agents", 10)]
)
def test_the_best_policy_gets_the_best_return(name: str, best: float) -> None:
    env, policy = make_env(EnvSettings(id=name)), Best()
    for seed in range(20):
        assert play(env, getattr(policy, name), seed)[0] == best


def test_reach_is_left_with_its_first_moves() -> None:
    env, policy = make_env(EnvSettings(id="toy_reach")), Best()
    returns = [play(env, policy.toy_reach, seed)[0] for seed in range(20)]
    assert -3 < min(returns) <= max(returns) <= 0


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("toy_target", 2.3, 2.7),
        ("toy_memory", -0.15, 0.15),
        ("toy_masked", 4.1, 4.7),
        ("toy_image", 2.3, 2.7),
        ("toy_agents", 2.3, 2.7),
        ("toy_reach", -28, -23),
    ],
)
def test_random_returns_are_as_documented(name: str, low: float, high: float) -> None:
    env, rng = make_env(EnvSettings(id=name)), np.random.default_rng(0)
    act = lambda obs: random_actions(env.spec, rng, obs, env.spec.agents)  # noqa: E731
    returns = [play(env, act, seed)[0] for seed in range(600)]
    assert low < np.mean(returns) < high


@pytest.mark.parametrize("name", TOYS)
def test_the_same_seed_plays_the_same_episode(name: str) -> None:
    def record(env: Env, seed: int) -> list[Any]:
        rng, obs, seen = np.random.default_rng(1), arrays(env), []
        env.reset(seed, obs)
        for _ in range(5):
            seen.append({n: a.tolist() for n, a in obs.items()})
            reward, *_ = env.step(random_actions(env.spec, rng, obs, env.spec.agents), obs)
            seen.append(np.asarray(reward).tolist())
        return seen

    one, two = make_env(EnvSettings(id=name)), make_env(EnvSettings(id=name))
    record(one, 3)
    assert record(one, 5) == record(two, 5)
    assert any(record(one, seed) != record(two, 5) for seed in range(6, 12))


def test_lengths() -> None:
    assert play(make_env(EnvSettings(id="toy_target", args={"length": 3})), Best().toy_target, 0)[1] == 3
    assert play(make_env(EnvSettings(id="toy_memory", args={"delay": 7})), Best().toy_memory, 0)[1] == 8
    with pytest.raises(ValueError, match="length must be at least 1"):
        make_env(EnvSettings(id="toy_target", args={"length": 0}))


def test_reach_is_truncated_and_the_others_end() -> None:
    env = make_env(EnvSettings(id="toy_reach", args={"length": 1}))
    obs = arrays(env)
    env.reset(0, obs)
    assert env.step(np.zeros((1, 2), np.float32), obs)[1:3] == (False, True)
    env = make_env(EnvSettings(id="toy_image", args={"length": 1}))
    obs = arrays(env)
    env.reset(0, obs)
    assert env.step(np.zeros(1, np.int64), obs)[1:3] == (True, False)


def test_a_forbidden_action_raises() -> None:
    env = make_env(EnvSettings(id="toy_masked"))
    obs = arrays(env)
    env.reset(0, obs)
    with pytest.raises(ValueError, match="is forbidden by the mask"):
        env.step(obs[MASK_FIELD].argmin(axis=1), obs)


def test_blank_steps_of_memory_tell_nothing() -> None:
    env = make_env(EnvSettings(id="toy_memory"))
    shown = []
    for seed in range(30):
        obs = arrays(env)
        env.reset(seed, obs)
        shown.append(float(obs["obs"][0, 0]))
        for _ in range(4):
            env.step(np.array([0]), obs)
            assert obs["obs"][0].tolist() == [0, 0, 0]
        env.step(np.array([0]), obs)
        assert obs["obs"][0].tolist() == [0, 0, 1]
    assert set(shown) == {-1.0, 1.0}


def test_agents_have_numbers_of_their_own() -> None:
    env = make_env(EnvSettings(id="toy_agents"))
    obs = arrays(env)
    env.reset(1, obs)
    seen = set()
    for _ in range(30):
        seen.add(tuple(obs["obs"].argmax(axis=1).tolist()))
        reward, *_ = env.step(np.array([0, 1]), obs)
        assert np.asarray(reward).shape == (2,)
    assert any(a != b for a, b in seen)
