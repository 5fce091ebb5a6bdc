"""The environment of a trial: parking, patience, limits, and who meets which world."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.core.seeds import Seeds
from rollmill.worldmodel.controller.trial_env import TrialEnv, TrialSchedule, parked


class Payer:
    """Pays what the action says; shows how often it was stepped, after the seed."""

    spec = EnvSpec(
        "payer", (Field("obs", "float32", (2,)),), ActionSpec("continuous", shape=(1,), low=(-1,), high=(1,))
    )

    def __init__(self, length: int = 100) -> None:
        self._length, self._t = length, 0

    def reset(self, seed: int, obs: Obs) -> None:
        self._t = 0
        obs["obs"][0] = (seed, 0)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self._t += 1
        obs["obs"][0, 1] = self._t
        return float(action[0, 0]), self._t >= self._length, False, {}

    def render(self) -> None:
        return None

    def close(self) -> None:
        return None


def trial(**options: Any) -> tuple[TrialEnv, Obs]:
    env = TrialEnv(settings={"id": f"{__name__}:Payer", "args": options.pop("args", {})}, **options)
    obs = {"obs": np.zeros((1, 2), np.float32)}
    env.reset(7, obs)
    return env, obs


def pay(env: TrialEnv, obs: Obs, amount: float) -> StepReturn:
    return env.step(np.array([[amount]], np.float32), obs)


def test_a_parked_environment_stays_where_it_is() -> None:
    env, obs = trial(max_steps=2)
    for _ in range(5):
        obs["obs"][:] = -1
        assert pay(env, obs, np.nan) == (0.0, False, False, {})
        assert obs["obs"].tolist() == [[7, 0]]
    assert pay(env, obs, 1.0)[2] is False
    assert pay(env, obs, 1.0)[2] is True  # parking has not used up the steps


def test_parking_of_choices() -> None:
    assert parked(ActionSpec("discrete", nvec=(2,), start=(0,))) == -1
    env = TrialEnv(settings={"id": "toy_target"})
    obs = {"obs": np.zeros((1, 4), np.float32)}
    env.reset(1, obs)
    first = obs["obs"].copy()
    assert env.step(np.array([-1]), obs)[:3] == (0.0, False, False)
    assert np.array_equal(obs["obs"], first)
    env.close()


def test_without_hope_the_return_is_what_waiting_would_have_brought() -> None:
    cut, obs = trial(max_steps=20, patience=4)
    total, steps, over = 0.0, 0, False
    while not over:
        reward, _, over, _ = pay(cut, obs, 0.5 if steps < 3 else -0.25)
        total, steps = total + reward, steps + 1
    assert steps == 3 + 4
    assert total == pytest.approx(3 * 0.5 - 0.25 * 17)


def test_a_reward_renews_patience_and_ends_of_the_env_pass_through() -> None:
    env, obs = trial(max_steps=50, patience=3, args={"length": 9})
    outcomes = [pay(env, obs, 1.0 if t % 3 == 2 else 0.0)[1:3] for t in range(9)]
    assert outcomes == [(False, False)] * 8 + [(True, False)]


def test_members_of_a_generation_meet_the_same_worlds() -> None:
    schedule = TrialSchedule(seeds=Seeds(1), envs=4, members=4, trials=3, first_generation=0)
    seeds: dict[tuple[int, int], set[int]] = {}
    for episode in range(6):
        for env in range(4):
            position = schedule.position(env, episode)
            generation, place = divmod(position, 12)
            seeds.setdefault((generation, place // 4), set()).add(schedule.env_seed(env, episode))
    assert all(len(found) == 1 for found in seeds.values())  # four members, one world
    assert len(set.union(*seeds.values())) == 6  # two generations of three trials
    later = TrialSchedule(seeds=Seeds(1), envs=2, members=4, trials=3, first_generation=1)
    assert later.env_seed(0, 0) == schedule.env_seed(0, 3)  # a resumed search, with other numbers of envs
