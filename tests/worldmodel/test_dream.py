"""Dreams: where they begin, how they go on, how they end; generations inside of them; the Gymnasium form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dreaming import LATENT_SPEC, corner_encoder, corner_model, line_model
from gymnasium.utils.env_checker import check_env

from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.worldmodel.controller.model import ControllerState
from rollmill.worldmodel.controller.settings import ControllerSettings, DreamSettings
from rollmill.worldmodel.dream import Dream, DreamTrials
from rollmill.worldmodel.dream_env import DreamEnv, LatentEnv, action_space
from rollmill.worldmodel.dynamics.model import Dynamics, Starts, save_dynamics


def begin(dream: Dream) -> torch.Tensor:
    lanes = torch.arange(dream.lanes)
    dream.reset(lanes, torch.zeros_like(lanes), torch.zeros(dream.lanes, 2))
    dream.generator.manual_seed(0)
    return lanes


def never_ending(model: Dynamics, logit: float = -50.0) -> Dynamics:
    with torch.no_grad():
        model.outcome_head.weight[1] = 0
        model.outcome_head.bias[1] = logit
    return model


def test_a_dream_begins_where_episodes_began_and_is_truncated_in_the_end() -> None:
    dream = Dream(never_ending(line_model()), DreamSettings(max_steps=3), 2)
    lanes = begin(dream)
    assert dream.latents.tolist() == [[0, 0], [0, 0]]
    outcomes = [dream.step(lanes, torch.tensor([0, 2])) for _ in range(3)]
    assert [o[2].tolist() for o in outcomes] == [[False] * 2, [False] * 2, [True] * 2]
    assert not any(o[1].any() for o in outcomes)


def test_certain_ends_end_and_thresholds_hold() -> None:
    dream = Dream(never_ending(line_model(), 50.0), DreamSettings(), 2)
    assert dream.step(begin(dream), torch.tensor([0, 0]))[1].all()
    half = never_ending(line_model(), 0.4)  # a chance of 0.6
    for threshold, ended in ((0.5, True), (0.7, False)):
        dream = Dream(half, DreamSettings(done_threshold=threshold), 2)
        assert dream.step(begin(dream), torch.tensor([0, 0]))[1].all().item() is ended


def test_survival_pays_but_not_the_last_step() -> None:
    for logit, paid in ((-50.0, 4.0), (50.0, 0.0)):
        dream = Dream(never_ending(line_model(), logit), DreamSettings(survival_reward=4.0), 1)
        assert dream.step(begin(dream), torch.tensor([0]))[0].item() == paid


def test_differences_are_added_to_where_one_is() -> None:
    ends = {}
    for differences in (False, True):
        model = never_ending(line_model(differences=differences))
        with torch.no_grad():
            model.latent_head.weight[:] = 0
            model.latent_head.bias[:] = 0
            model.latent_head.bias.view(3, 2, 2)[1] = 0.5
        dream = Dream(model, DreamSettings(temperature=0.0), 1)
        lanes = begin(dream)
        for _ in range(3):
            dream.step(lanes, torch.tensor([1]))
        ends[differences] = dream.latents[0].tolist()
    assert ends == {False: [0.5, 0.5], True: [1.5, 1.5]}


def test_temperature_makes_dreams_differ() -> None:
    def spread(temperature: float) -> float:
        dream = Dream(never_ending(line_model()), DreamSettings(temperature=temperature), 200)
        lanes = begin(dream)
        dream.step(lanes, torch.ones(200, dtype=torch.int64))
        return float(dream.latents.std(0).mean())

    assert spread(0.0) < 1e-6 < spread(0.5) < spread(2.0)


def test_a_model_without_starts_is_refused() -> None:
    model = line_model()
    model.starts = Starts(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32))
    with pytest.raises(CheckpointError, match="without first latents"):
        Dream(model, DreamSettings(), 1)


def trials(model: Dynamics, first: int = 0) -> DreamTrials:
    settings = ControllerSettings(population=4, trials=3, seed=2)
    state = ControllerState(settings, LATENT_SPEC.action, 2, model, 12, torch.device("cpu"))
    return DreamTrials(settings, DreamSettings(max_steps=15), model, state, first)


def test_generations_in_dreams_follow_from_their_number() -> None:
    model = line_model()
    members = np.random.default_rng(0).normal(size=(4, 33))
    one = trials(model)
    first, second = one.play(members), one.play(members)
    assert first.returns.shape == (4, 3)
    assert 12 <= first.steps <= 12 * 15
    assert not np.array_equal(first.returns, second.returns)
    assert np.array_equal(trials(model, first=1).play(members).returns, second.returns)
    one.close()


def test_equal_members_in_a_dream_without_chance_get_equal_returns() -> None:
    settings = ControllerSettings(population=4, trials=3, seed=2)
    model = never_ending(line_model())
    state = ControllerState(settings, LATENT_SPEC.action, 2, model, 12, torch.device("cpu"))
    played = DreamTrials(settings, DreamSettings(max_steps=5, temperature=0.0), model, state, 0).play(np.zeros((4, 33)))
    assert np.allclose(played.returns, played.returns[:1])
    assert not np.allclose(played.returns[:, 0], played.returns[:, 1])  # trials begin at other places


# -- as environments --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    corner_encoder(folder / "encoder.bin")
    corner_model(folder / "dynamics.bin")
    return folder


def test_the_gymnasium_form_keeps_gymnasiums_rules(models: Path) -> None:
    env = DreamEnv(str(models), encoder=str(models), max_steps=10, render_mode="rgb_array")
    check_env(env, skip_render_check=True)
    env.reset(seed=3)
    assert env.render().shape == (36, 36, 3)
    first, again = (np.stack([env.reset(seed=5)[0], *(env.step(1)[0] for _ in range(4))]) for _ in range(2))
    assert np.array_equal(first, again)
    assert DreamEnv(str(models)).render() is None


def test_a_training_can_use_it(models: Path) -> None:
    env = make_env(EnvSettings(id="rollmill.worldmodel.dream_env:DreamEnv", args={"dynamics": str(models)}))
    assert [f.shape for f in env.spec.observation] == [(4 + 6,)]
    obs = {f.name: np.zeros((1, *f.shape), f.dtype) for f in env.spec.observation}
    env.reset(1, obs)
    env.step(np.array([2]), obs)
    assert obs[env.spec.observation[0].name].any()
    env.close()


def test_the_real_world_is_shown_in_the_same_way(models: Path) -> None:
    env = LatentEnv(env="toy_image", encoder=str(models), dynamics=str(models), max_episode_steps=3)
    dream = DreamEnv(str(models))
    assert env.spec.observation[0].shape == dream.observation_space.shape
    obs = {"obs": np.zeros((1, 10), np.float32)}
    env.reset(0, obs)
    assert not obs["obs"][0, 4:].any()  # no memory yet
    outcomes = [env.step(np.array([1]), obs) for _ in range(3)]
    assert obs["obs"][0, 4:].any()
    assert [bool(o[2]) for o in outcomes] == [False, False, True]
    assert env.render() is not None, "the render of the environment itself"
    env.close()


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (ActionSpec("discrete", nvec=(3,), start=(0,)), gym.spaces.Discrete),
        (ActionSpec("multi_discrete", nvec=(3, 2), start=(0, 0)), gym.spaces.MultiDiscrete),
        (ActionSpec("continuous", shape=(2,), low=(0, 0), high=(1, 1)), gym.spaces.Box),
    ],
)
def test_spaces(action: ActionSpec, kind: type[Any]) -> None:
    assert isinstance(action_space(action), kind)


def test_what_dreams_cannot_be_is_refused(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mixed"):
        action_space(ActionSpec("mixed", nvec=(2,), start=(0,), shape=(1,), low=(0,), high=(1,)))
    with pytest.raises(ConfigError, match="temperature"):
        DreamEnv(str(models), temperature=-1.0)
    with pytest.raises(ValueError, match="done_threshold"):
        DreamSettings(done_threshold=1.0)
    with pytest.raises(ValueError, match="max_steps"):
        DreamSettings(max_steps=0)
    save_dynamics(tmp_path / "dynamics.bin", line_model(), {})
    assert DreamEnv(str(tmp_path)).action_space.n == 3  # type: ignore[attr-defined]
