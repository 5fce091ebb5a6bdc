"""Gymnasium environments behind the Env role."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from faulty_envs import Zoo

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import MASK_FIELD, Obs
from rollmill.envs.gym_env import GymEnv
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings


class Scripted(gym.Env):
    """Gives what it is told; remembers what it was given."""

    def __init__(self, reset: Any = None, step: Any = None, info: Any = None) -> None:
        self.observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3, start=5)
        self.frames_per_step = 4
        self.seen: list[Any] = []
        self._reset = (np.zeros(2, np.float32), info or {}) if reset is None else reset
        self._step = (np.ones(2, np.float32), 1.5, False, True, info or {}) if step is None else step

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seen.append(("reset", seed))
        return self._reset

    def step(self, action: Any) -> Any:
        self.seen.append(("step", action))
        return self._step

    def render(self) -> Any:
        return self._reset

    def close(self) -> None:
        self.seen.append("close")


def arrays(env: GymEnv) -> Obs:
    return {f.name: np.full((1, *f.shape), 55, f.dtype) for f in env.spec.observation}


def test_seeds_actions_and_outcomes_pass_through() -> None:
    inner = Scripted()
    env = GymEnv(inner, name="scripted")
    obs = arrays(env)
    env.reset(77, obs)
    assert obs["obs"].tolist() == [[0, 0]]
    assert env.step(np.array([2]), obs) == (1.5, False, True, {})
    assert obs["obs"].tolist() == [[1, 1]]
    env.close()
    assert inner.seen == [("reset", 77), ("step", 7), "close"]


def test_the_spec_of_an_env() -> None:
    spec = GymEnv(Scripted(), name="scripted").spec
    assert (spec.name, spec.agents, spec.frames_per_step, spec.masked) == ("scripted", 1, 4, False)
    assert spec.action.start == (5,)


def test_the_frame_skip_is_found_through_wrappers() -> None:
    wrapped = gym.wrappers.TimeLimit(Scripted(), 10)
    assert GymEnv(wrapped, name="x").spec.frames_per_step == 4


@pytest.mark.parametrize("answer", [None, np.zeros(2), (np.zeros(2),), [np.zeros(2), {}]])
def test_a_reset_of_the_wrong_form_is_named(answer: Any) -> None:
    env = GymEnv(Scripted(reset=answer if answer is not None else "nothing"), name="x")
    with pytest.raises(ValueError, match=r"reset\(\) returned .*expected \(observation, info\)"):
        env.reset(0, arrays(env))


@pytest.mark.parametrize("answer", ["nothing", (np.zeros(2), 1.0, False, {}), [1, 2, 3, 4, 5]])
def test_a_step_of_the_wrong_form_is_named(answer: Any) -> None:
    """The 4-tuple of the old Gym API among them."""
    env = GymEnv(Scripted(step=answer), name="x")
    with pytest.raises(ValueError, match=r"step\(\) returned .*terminated, truncated, info"):
        env.step(np.array([0]), arrays(env))


def test_an_image_or_nothing() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    assert GymEnv(Scripted(reset=image), name="x").render() is image
    assert GymEnv(Scripted(reset="text"), name="x").render() is None


# -- masks --------------------------------------------------------------------------------------------------


def test_a_mask_from_info() -> None:
    env = GymEnv(Scripted(info={MASK_FIELD: np.array([1, 0, 1], np.int8)}), name="x", mask_in_info=True)
    assert env.spec.masked
    obs = arrays(env)
    env.reset(0, obs)
    assert obs[MASK_FIELD].tolist() == [[1, 0, 1]]
    obs[MASK_FIELD][:] = 9
    env.step(np.array([0]), obs)
    assert obs[MASK_FIELD].tolist() == [[1, 0, 1]]


@pytest.mark.parametrize("mask", [1, [1, 1], None])
def test_a_mask_of_the_wrong_form_is_refused(mask: Any) -> None:
    """One number would silently spread over all actions."""
    env = GymEnv(Scripted(info={MASK_FIELD: mask}), name="x", mask_in_info=True)
    with pytest.raises(ValueError, match=MASK_FIELD):
        env.reset(0, arrays(env))


def test_a_missing_mask_is_named() -> None:
    env = GymEnv(Scripted(), name="x", mask_in_info=True)
    with pytest.raises(ValueError, match="mask_in_info is set"):
        env.reset(0, arrays(env))


def test_taxi_gives_its_mask() -> None:
    name = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gym.registry)
    env = GymEnv(gym.make(name), name=name, mask_in_info=True)
    obs = arrays(env)
    env.reset(3, obs)
    assert obs["obs"].sum() == 1
    assert 0 < obs[MASK_FIELD].sum() < 6
    env.close()


def test_a_mask_that_does_not_fit_the_actions_is_refused() -> None:
    inner = Scripted()
    mask = gym.spaces.Box(0, 1, (4,), np.int8)
    inner.observation_space = gym.spaces.Dict({"obs": inner.observation_space, MASK_FIELD: mask})
    with pytest.raises(ConfigError, match=r"mask has shape \(4,\), the action space needs \(3,\)"):
        GymEnv(inner, name="x")


def test_a_mask_in_the_observation_needs_no_flag() -> None:
    env = GymEnv(Zoo(), name="zoo")
    assert env.spec.masked
    assert MASK_FIELD not in [f.name for f in env.spec.inputs]
    obs = arrays(env)
    env.reset(0, obs)
    assert obs[MASK_FIELD].tolist() == [[1, 1, 1, 1, 0]]
    env.step(np.array([[1, 0]]), obs)
    assert obs[MASK_FIELD].tolist() == [[1, 1, 1, 0, 1]]


def test_two_masks_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match=r"zoo has its action mask in the observation; set env\.mask_in_info=false"):
        GymEnv(Zoo(), name="zoo", mask_in_info=True)


def test_continuous_actions_cannot_be_masked() -> None:
    inner = Scripted()
    inner.action_space = gym.spaces.Box(-1, 1, (2,))
    with pytest.raises(ConfigError, match="masks need an action space with choices"):
        GymEnv(inner, name="x", mask_in_info=True)


def test_the_time_limit_of_gymnasium_truncates() -> None:
    env = make_env(EnvSettings(id="Pendulum-v1", args={"max_episode_steps": 3}))
    obs = {"obs": np.zeros((1, 3), np.float32)}
    env.reset(0, obs)
    ends = [env.step(np.zeros((1, 1), np.float32), obs)[1:3] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env.close()


def test_a_robot_that_cannot_be_drawn_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    env = GymEnv(gym.make("InvertedPendulum-v5", render_mode="rgb_array"), name="InvertedPendulum-v5")

    env.env.reset(seed=0)

    def fail() -> None:
        raise RuntimeError("no OpenGL context")

    monkeypatch.setattr(env.env.unwrapped, "render", fail)
    with pytest.raises(EnvError, match=r"cannot be drawn with MUJOCO_GL=.*no OpenGL context\n.*MUJOCO_GL=egl"):
        env.render()
    env.close()
