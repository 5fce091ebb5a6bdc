"""The bare simulator loop that sampling is measured against."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs import simulate as module
from rollmill.envs.settings import EnvSettings
from rollmill.envs.simulate import BareLoop


class Relay:
    """Three agents that end one after the other, each told once; in turns terminated and truncated."""

    def __init__(self) -> None:
        self.resets: list[int] = []
        self.steps_of: list[int] = []
        self.closed = False
        self.spec = EnvSpec("relay", (Field("t", "float32"),), ActionSpec("discrete", nvec=(2,)), 3, frames_per_step=4)

    def reset(self, seed: int, obs: Obs) -> None:
        self.resets.append(seed)
        self.steps_of.append(0)
        obs["t"][:] = 0

    def step(self, action: Array, obs: Obs) -> StepReturn:
        assert action.shape == (3,)
        self.steps_of[-1] += 1
        over = np.arange(3) == self.steps_of[-1] - 1
        return np.ones(3), over & (np.arange(3) % 2 == 0), over & (np.arange(3) % 2 == 1), {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        self.closed = True


def test_an_episode_is_over_when_every_agent_is(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Relay()
    monkeypatch.setattr(module, "make_env", lambda settings, instance: env)
    loop = BareLoop(EnvSettings(), index=2)
    found = [loop.run(0.01), loop.run(0.01)]
    loop.close()
    assert set(env.steps_of[:-1]) == {3}
    assert env.resets == list(range(2 << 16, (2 << 16) + len(env.resets))), "instances never share a seed"
    assert env.closed
    assert sum(run["steps"] for run in found) == sum(env.steps_of) - module.WARM_UP_STEPS
    for run in found:
        assert run["frames"] == run["steps"] * 3 * 4
        assert run["seconds"] >= 0.01


class Alternating(Relay):
    """One agent, whose episodes of three steps end in turns by their goal and by their time."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = replace(self.spec, agents=1)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self.steps_of[-1] += 1
        over, even = self.steps_of[-1] == 3, len(self.resets) % 2 == 0
        return 1.0, over and even, over and not even, {}


def test_an_episode_of_one_agent_is_over_at_its_goal_and_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Alternating()
    monkeypatch.setattr(module, "make_env", lambda settings, instance: env)
    loop = BareLoop(EnvSettings(), index=0)
    loop.run(0.01)
    assert len(env.resets) > 2
    assert set(env.steps_of[:-1]) == {3}


@pytest.mark.parametrize("name", ["toy_masked", "toy_reach", "CartPole-v1", "faulty_envs:Zoo"])
def test_it_steps_every_kind_of_env(name: str) -> None:
    """Masked actions, too: the toy raises for a forbidden one."""
    loop = BareLoop(EnvSettings(id=name), index=0)
    assert loop.run(0.01)["steps"] > 0
    loop.close()


def test_as_a_process_it_waits_for_the_word_and_keeps_to_its_core() -> None:
    core = max(os.sched_getaffinity(0))
    setup: dict[str, Any] = {
        "env": {"id": "toy_target"},
        "index": 1,
        "core": core,
        "path": sys.path,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "rollmill.envs.simulate", json.dumps(setup)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert os.sched_getaffinity(process.pid) == {core}
    text, _ = process.communicate("0.05\n0.1\n", timeout=300)
    for line, seconds in zip(text.splitlines(), (0.05, 0.1), strict=True):
        found = json.loads(line)
        assert found["frames"] == found["steps"] > 0
        assert found["seconds"] >= seconds
    assert process.returncode == 0
