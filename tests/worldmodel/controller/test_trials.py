"""A generation in many environments against the same episodes played one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dreaming import corner_encoder

from rollmill.core.fields import ActionSpec, Array, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.settings import EnvSettings
from rollmill.envs.toy import Image
from rollmill.worldmodel.controller.model import ControllerAgent, ControllerState
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.controller.trial_env import TrialEnv
from rollmill.worldmodel.controller.trials import Played, Trials, layout_of
from rollmill.worldmodel.encoder.file import ImageEncoder, load_encoder

ACTION = ActionSpec("discrete", nvec=(4,), start=(0,))
SHOWN = {"obs": np.zeros((1, 36, 36, 3), np.uint8)}
steps_taken = 0


class Uneven(Image):
    """Episodes of 3 to 12 steps, by their seed; pays more in later steps."""

    def reset(self, seed: int, obs: Obs) -> None:
        self.length = 3 + seed % 10
        super().reset(seed, obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        global steps_taken
        steps_taken += 1
        reward, *rest = super().step(action, obs)
        return float(reward) * self._t, *rest  # type: ignore[return-value]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> ImageEncoder:
    return load_encoder(corner_encoder(tmp_path_factory.mktemp("encoder") / "encoder.bin"))


def stubborn() -> Array:
    """Five members, of whom k always takes action k (and the last one action 0)."""
    members = np.zeros((5, 20))
    members[np.arange(5), 16 + np.array([0, 1, 2, 3, 0])] = 9.0
    return members


def trials(encoder: ImageEncoder, first: int = 0, **values: Any) -> Trials:
    settings = ControllerSettings(**{"inputs": "z", "population": 5, "trials": 4, "mode": "serial", **values})
    made = Trials(settings, EnvSettings(id=f"{__name__}:Uneven"), Uneven().spec, first, {})
    agent = ControllerAgent(encoder, ControllerState(settings, ACTION, 4, None, made.layout.envs, torch.device("cpu")))
    made.start(agent, "obs")
    return made


def by_hand(made: Trials, generation: int) -> tuple[Array, int]:
    """Returns ``[5, 4]`` and steps, one episode after the other."""
    schedule = made._schedule
    returns, steps = np.zeros((5, 4)), 0
    for place in range(20):
        episode, lane = divmod(generation * 20 + place, schedule.envs)
        trial, member = divmod(place, 5)
        env = Uneven()
        env.reset(schedule.env_seed(lane, episode), SHOWN)
        ended = False
        while not ended:
            reward, ended, _, _ = env.step(np.array([member % 4]), SHOWN)
            returns[member, trial] += reward
            steps += 1
    return returns, steps


def check(made: Trials, generation: int, played: Played) -> None:
    expected, steps = by_hand(made, generation)
    assert np.allclose(played.returns, expected)
    assert played.steps == steps


@pytest.mark.parametrize("envs", [1, 5, 10, 20])
def test_every_member_gets_its_own_returns_of_its_own_episodes(encoder: ImageEncoder, envs: int) -> None:
    global steps_taken
    made = trials(encoder, envs=envs)
    assert made.layout.envs == envs
    for generation in range(3):
        steps_taken = 0
        played = made.play(stubborn())
        assert steps_taken == played.steps  # who waits is not stepped
        check(made, generation, played)
    assert made.faults == 0
    made.close()


def test_a_later_session_plays_the_same_generations(encoder: ImageEncoder) -> None:
    whole, later = trials(encoder, envs=10), trials(encoder, first=2, envs=4)
    for _ in range(2):
        whole.play(stubborn())
    assert np.array_equal(whole.play(stubborn()).returns, later.play(stubborn()).returns)
    whole.close()
    later.close()


def test_a_group_that_waits_is_left_alone(encoder: ImageEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    parkings = 0
    step = TrialEnv.step

    def listen(self: TrialEnv, action: Array, obs: Obs) -> StepReturn:
        nonlocal parkings
        parkings += int(action.flat[0]) == -1
        return step(self, action, obs)

    monkeypatch.setattr(TrialEnv, "step", listen)
    made = trials(encoder, envs=2)
    assert (made.layout.envs, made.layout.groups) == (2, 2)
    for _ in range(3):
        made.play(stubborn())
    assert parkings == 0  # each group is one environment: it never waits for another one's sake
    made.close()


def test_steps_are_limited(encoder: ImageEncoder, tmp_path: Path) -> None:
    made = trials(encoder, envs=5, max_steps=3)
    assert made.play(stubborn()).steps == 20 * 3
    made.close()


@pytest.mark.parametrize(
    ("population", "trials", "gpu", "workers"),
    [
        (45, 2, True, 15),  # 90 episodes for 15 workers: the 16th core is left to the process that decides
        (45, 2, False, 15),  # 16 do not divide 90
        (32, 2, True, 16),  # 15 do not divide 64, and 8 would leave half of the machine idle
        (32, 2, False, 16),
    ],
)
def test_a_core_is_left_to_the_deciding_process_where_a_gpu_decides(
    population: int, trials: int, gpu: bool, workers: int
) -> None:
    settings = ControllerSettings(population=population, trials=trials, envs=96)
    layout = layout_of(settings, 16, gpu)
    assert layout.workers == workers
    assert (population * trials) % layout.envs == 0


def test_workers_that_are_set_are_used_with_a_gpu_too() -> None:
    assert layout_of(ControllerSettings(population=32, trials=2, workers=4), 16, gpu=True).workers == 4


def test_a_share_of_the_environments_that_still_play_is_waited_for(encoder: ImageEncoder) -> None:
    made = trials(encoder, mode="processes", workers=5, envs=20)
    sampler, policy = made._sampler, made._policy
    assert sampler is not None
    assert policy is not None
    assert (made.layout.workers, made.layout.groups) == (5, 2)
    for generation in range(2):
        check(made, generation, made.play(stubborn()))
    sampler._servable()
    assert sampler.box.wanted[0] == 1  # all wait for the next generation
    policy.begin(stubborn())
    sampler._servable()
    assert sampler.box.wanted[0] == 3  # a quarter of ten groups: it rises again
    made.close()
