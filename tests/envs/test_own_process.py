"""An environment in a process of its own is the same environment, and its end is told, not shared."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_envs import Misbehave
from running import wait_until

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import Obs
from rollmill.core.janitor_main import is_alive
from rollmill.core.protocols import Env
from rollmill.envs.make import EnvInstance, check_env_settings, make_env
from rollmill.envs.own_process import OwnProcessEnv
from rollmill.envs.settings import EnvSettings
from rollmill.envs.variables import EnvVariables


def built(name: str, own: bool = True, **args: Any) -> Env:
    return make_env(EnvSettings(id=name, args=args, own_process=own), EnvInstance(index=3))


def own(name: str, **args: Any) -> OwnProcessEnv:
    env = built(name, **args)
    assert isinstance(env, OwnProcessEnv)
    return env


def blank(env: Env) -> Obs:
    return {field.name: np.zeros((env.spec.agents, *field.shape), field.dtype) for field in env.spec.observation}


@pytest.mark.parametrize("name", ["toy_target", "toy_agents", "toy_masked", "toy_reach", "CartPole-v1"])
def test_it_plays_as_in_this_process(name: str) -> None:
    here, there = built(name, own=False), own(name)
    try:
        assert there.spec == here.spec
        ours, theirs = blank(here), blank(there)
        rng = np.random.default_rng(0)
        for seed in range(3):
            here.reset(seed, ours)
            there.reset(seed, theirs)
            for _ in range(8):
                for field in ours:
                    np.testing.assert_array_equal(ours[field], theirs[field])
                action = here.spec.action.field
                low = rng.integers(2, size=(here.spec.agents, *action.shape))
                actions = low.astype(action.dtype)
                if name == "toy_masked":
                    actions[...] = ours["action_mask"].argmax()
                for one, two in zip(here.step(actions, ours), there.step(actions, theirs), strict=True):
                    assert np.array_equal(one, two)
        assert os.getpid() != there.process_pid
    finally:
        there.close()
    wait_until(lambda: not is_alive(there.process_pid), what="the process to end")
    there.close()  # again


def test_it_renders_and_offers_what_others_ask_for() -> None:
    env = make_env(EnvSettings(id="CartPole-v1", args={"render_mode": "rgb_array"}, own_process=True))
    env.reset(0, blank(env))
    image = env.render()
    assert image is not None
    assert image.dtype == np.uint8
    with pytest.raises(AttributeError):
        env.nothing  # type: ignore[attr-defined]  # noqa: B018
    env.close()


def test_variables_travel_with_every_reset() -> None:
    source = np.array([2.0])
    variables = EnvVariables(("gain",), source)
    settings = EnvSettings(id=f"{__name__}:Gain", variables={"gain": 1.0}, own_process=True)
    env = make_env(settings, variables=variables)
    obs = blank(env)
    for value in (2.0, 5.0):
        source[0] = value
        variables.take()
        env.reset(0, obs)
        assert obs["obs"][0, 0] == value
    env.close()


def Gain(variables: EnvVariables) -> Any:
    from rollmill.core.fields import ActionSpec, EnvSpec, Field

    class Shows:
        spec = EnvSpec("gain", (Field("obs", "float32", (1,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))

        def reset(self, seed: int, obs: Obs) -> None:
            obs["obs"][0, 0] = variables["gain"]

        def step(self, action: Any, obs: Obs) -> Any:
            return 0.0, False, False, {}

        def render(self) -> None: ...

        def close(self) -> None: ...

    return Shows()


def play(env: Env) -> None:
    obs = blank(env)
    env.reset(0, obs)
    for _ in range(3):
        env.step(np.array([0]), obs)


MISBEHAVE = f"{Misbehave.__module__}:Misbehave"


@pytest.mark.parametrize(
    ("what", "how"),
    [("kill", "SIGKILL"), ("exit", "exit code 7"), ("segfault", "SIGSEGV"), ("sys_exit", "exit code 0")],
)
@pytest.mark.parametrize("where", ["step", "reset"])
def test_its_end_is_told_with_the_way_it_ended(what: str, how: str, where: str) -> None:
    env = own(MISBEHAVE, what=what, where=where)
    obs = blank(env)
    said = rf"the process of faulty_envs:Misbehave \(pid \d+\) .*{how}.* in {where}\(\)"
    with pytest.raises(EnvError, match=said):
        play(env)
    with pytest.raises(EnvError, match="the process of"):
        env.step(np.array([0]), obs)
    env.close()


def test_killed_from_outside_between_two_calls() -> None:
    env = own("toy_target")
    env.reset(0, blank(env))
    os.kill(env.process_pid, signal.SIGKILL)
    with pytest.raises(EnvError, match="SIGKILL"):
        play(env)
    env.close()


def test_what_it_raises_is_raised_here_and_it_goes_on() -> None:
    env = own(MISBEHAVE, what="raise", where="step", at_step=2)
    obs = blank(env)
    env.reset(0, obs)
    env.step(np.array([0]), obs)
    with pytest.raises(EnvError, match="RuntimeError: told to raise in step") as caught:
        env.step(np.array([0]), obs)
    assert "faulty_envs.py" in caught.value.__notes__[0]
    env.reset(1, obs)
    env.close()


def test_a_constructor_that_fails_leaves_no_process() -> None:
    with pytest.raises(EnvError, match="told to raise in constructor"):
        built(MISBEHAVE, what="raise", where="constructor")
    with pytest.raises(ConfigError, match="MiniGrid has no task 'MiniGrid-Nope'"):
        built("minigrid", task="MiniGrid-Nope")
    with pytest.raises(EnvError, match=r"exit code 7.* in the constructor"):
        built(MISBEHAVE, what="exit", where="constructor")


def test_however_much_it_prints_nobody_waits(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    env = own(f"{__name__}:chatty")
    obs = blank(env)
    env.reset(0, obs)
    env.step(np.array([0]), obs)
    env.close()
    assert capfd.readouterr().err.count("chatter") >= 3000


def chatty() -> Any:
    from rollmill.envs.toy import Target

    class Chatty(Target):
        def step(self, action: Any, obs: Obs) -> Any:
            for _ in range(3000):
                print("chatter " * 20)
            return super().step(action, obs)

    return Chatty()


def test_what_cannot_travel_is_said() -> None:
    env = own(f"{__name__}:secretive")
    obs = blank(env)
    env.reset(0, obs)
    with pytest.raises(EnvError, match="pickle"):
        env.step(np.array([0]), obs)
    env.close()


def secretive() -> Any:
    from rollmill.envs.toy import Target

    class Secretive(Target):
        def step(self, action: Any, obs: Obs) -> Any:
            return 0.0, False, False, {"function": lambda: None}

    return Secretive()


def test_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="own_process is for single environments"):
        EnvSettings(vector=True, own_process=True)
    check_env_settings(EnvSettings(own_process=True))
