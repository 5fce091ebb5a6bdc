"""Policies for collecting: that they stay within the action space, repeat, last, and complain."""

from __future__ import annotations

import bdb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.core.errors import ConfigError, PolicyError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import ActRequest
from rollmill.core.seeds import Seeds
from rollmill.sampling.policies.episode import AHEAD, EpisodePolicy, EpisodeRandom, OwnPolicy, SmoothedRandom
from rollmill.sampling.schedule import EpisodeSchedule

OBS = Field("obs", "float32", (2,))
PLAIN = EnvSpec("x", (OBS,), ActionSpec("discrete", nvec=(4,), start=(2,)))
SEVERAL = EnvSpec("x", (OBS,), ActionSpec("multi_discrete", nvec=(3, 2), start=(0, 0)))
REAL = EnvSpec("x", (OBS,), ActionSpec("continuous", shape=(2,), low=(-1, 0), high=(1, 9)))
ENDLESS = EnvSpec("x", (OBS,), ActionSpec("continuous", shape=(1,), low=(-np.inf,), high=(np.inf,)))
MASKED = EnvSpec("x", (OBS, Field(MASK_FIELD, "int8", (5,))), SEVERAL.action)
MIXED_ACTION = ActionSpec("mixed", nvec=(3, 2), start=(0, 0), shape=(2,), low=(-1, 0), high=(1, 9))
MIXED = EnvSpec("x", (OBS,), MIXED_ACTION)
MASKED_MIX = EnvSpec("x", MASKED.observation, MIXED_ACTION)
SPECS = {"plain": PLAIN, "several": SEVERAL, "real": REAL, "masked": MASKED, "mixed": MIXED, "masked mix": MASKED_MIX}


class Play:
    """A policy that is asked about one group of lanes, step by step."""

    def __init__(self, policy: EpisodePolicy, lanes: int = 3, episode: int = 0) -> None:
        self.policy, self.lanes, self.episode = policy, lanes, np.full(lanes, episode)

    def act(self, first: bool = False, mask: Array | None = None, lanes: Array | None = None) -> Array:
        obs: Obs = {"obs": np.zeros((self.lanes, 2), np.float32)}
        if self.policy.spec.masked:
            obs[MASK_FIELD] = np.ones((self.lanes, 5), np.int8) if mask is None else mask
        request = ActRequest.outside(np.full(self.lanes, first), obs, self.episode, np.zeros(self.lanes))
        if lanes is not None:
            request.lanes = lanes
        return self.policy.act(request).action

    def acts(self, steps: int, **options: Any) -> Array:
        """[steps, lanes, ...]: an episode from its first step on."""
        return np.stack([self.act(first=t == 0, **options) for t in range(steps)])


def schedule(envs: int = 3, seed: int = 0) -> EpisodeSchedule:
    return EpisodeSchedule(Seeds(seed), envs)


KINDS = {"random": EpisodeRandom, "smoothed": SmoothedRandom}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", SPECS)
def test_actions_fit_and_reach_everything(kind: str, spec: str) -> None:
    action = SPECS[spec].action
    acts = Play(KINDS[kind](SPECS[spec], schedule())).acts(1500)
    assert acts.shape == (1500, 3, *action.field.shape)
    assert acts.dtype == action.field.dtype
    choices, numbers = np.split(acts.reshape(4500, -1), [len(action.nvec)], axis=1)
    if action.low:
        assert (numbers >= action.low).all()
        assert (numbers <= action.high).all()
        assert (np.ptp(numbers, axis=0) > 0.8 * (np.array(action.high) - action.low)).all()
        assert np.allclose(numbers.mean(axis=0), [0, 4.5], atol=[0.2, 0.9])
    for column, n in zip(choices.T, action.nvec, strict=True):
        assert np.array_equal(column, column.round())
        counts = np.bincount(column.astype(int), minlength=n)
        assert len(counts) == n
        assert counts.min() > 4500 / n / 1.5


def test_without_bounds_it_stays_finite() -> None:
    acts = Play(EpisodeRandom(ENDLESS, schedule())).acts(200)
    assert np.isfinite(acts).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_episode_alone_decides(kind: str) -> None:
    """Whatever lane plays it, whatever was played there before, and however lanes are asked together."""
    steps = 2 * AHEAD + 5
    together = Play(KINDS[kind](REAL, schedule())).acts(steps)
    alone = Play(KINDS[kind](REAL, schedule(envs=1)), lanes=1, episode=2)
    alone.acts(7)  # an interrupted try
    assert np.array_equal(alone.acts(steps)[:, 0], together[:, 2])
    assert not np.array_equal(together[:, 0], together[:, 1])
    other = Play(KINDS[kind](REAL, schedule(seed=1))).acts(steps)
    assert not np.array_equal(other, together)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_is_kept(kind: str) -> None:
    play = Play(KINDS[kind](MASKED, schedule()))
    masks = np.array([[1, 0, 0, 0, 1], [0, 1, 1, 1, 0]] * 2, np.int8)[:3]
    play.act(first=True)
    for t in range(100):
        action = play.act(mask=np.roll(masks, t % 2, axis=0))
        rows = np.roll(masks, t % 2, axis=0)
        assert (rows[np.arange(3), action[:, 0]] == 1).all()
        assert (rows[np.arange(3), 3 + action[:, 1]] == 1).all()


def test_smoothed_choices_last() -> None:
    acts = Play(SmoothedRandom(EnvSpec("x", (OBS,), ActionSpec("discrete", nvec=(1000,), start=(0,))), schedule(), 5))
    lane = acts.acts(5000)[:, 0]
    changes = np.flatnonzero(np.diff(lane)) + 1
    holds = np.diff(changes)
    assert holds.max() == 9
    assert holds.min() == 1
    assert abs(holds.mean() - 5) < 0.3


def test_smoothed_motion_is_a_chain_of_straight_lines() -> None:
    lane = Play(SmoothedRandom(REAL, schedule(), hold=6)).acts(3000)[:, 0]
    jumps = np.abs(np.diff(lane[:, 0]))
    assert jumps.max() <= 2.0
    bends = np.flatnonzero(np.abs(np.diff(lane, n=2, axis=0)).max(axis=1) > 1e-4)
    assert abs(len(bends) / 3000 - 1 / 6) < 0.03
    uniform = Play(EpisodeRandom(REAL, schedule())).acts(3000)[:, 0]
    assert jumps.mean() < 0.5 * np.abs(np.diff(uniform[:, 0])).mean()


def test_hold_of_one_step_is_plain_random() -> None:
    lane = Play(SmoothedRandom(REAL, schedule(), hold=1)).acts(500)[:, 0, 0]
    assert abs(np.corrcoef(lane[1:], lane[:-1])[0, 1]) < 0.15


# -- the user's own ----------------------------------------------------------------------------------------

SOURCE = """
import bdb

import numpy as np

made = []

class Counter:
    def __init__(self, spec):
        made.append(spec)
        self.seed, self.t = None, 0

    def reset(self, seed):
        self.seed, self.t = seed, 0

    def __call__(self, obs):
        self.t += 1
        return (self.seed + self.t) % 4

def by_field(spec):
    return lambda obs: int(obs["obs"].shape == (2,) and obs["action_mask"].shape == (5,)) * np.array([1, 1])

def answer(value):
    return lambda spec: lambda obs: value

too_large, negative, floating, vector = answer(4), answer(-1), answer(1.0), answer([1])
ragged, nothing, text = answer([[1], [1, 2]]), answer(None), answer("left")
nan, right = answer([np.nan, 1.0]), answer([1, 2])

def raises(spec):
    def act(obs):
        raise KeyError("no such thing")
    return act

def quits(spec):
    def act(obs):
        raise bdb.BdbQuit
    return act

def broken_maker(spec):
    raise ValueError("cannot make it")

def no_callable(spec):
    return 3

def two_arguments(spec, other):
    return lambda obs: 0

class BadReset(Counter):
    def reset(self, seed):
        raise OSError("no reset")

NUMBER = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(SOURCE)
    return f"{tmp_path}/own.py"


def test_an_own_policy_is_made_once_per_lane_and_told_of_episodes(own: str) -> None:
    policy = OwnPolicy(PLAIN, schedule(), f"{own}:Counter")
    play = Play(policy)
    acts = play.acts(6)
    seeds = [schedule().policy_seeds(lane, 0, 0).integer() for lane in range(3)]
    assert acts.tolist() == [[(seed + t) % 4 for seed in seeds] for t in range(1, 7)]
    assert np.array_equal(play.acts(6), acts)
    assert [type(act).__name__ for act in policy._acts] == ["Counter"] * 3
    assert len({id(act) for act in policy._acts}) == 3


def test_several_fields_come_as_a_dict(own: str) -> None:
    assert (Play(OwnPolicy(MASKED, schedule(), f"{own}:by_field")).act(first=True) == [1, 1]).all()


def test_integers_are_fine_for_continuous_actions(own: str) -> None:
    action = Play(OwnPolicy(REAL, schedule(), f"{own}:right")).act(first=True)
    assert action.dtype == np.float32
    assert action.tolist() == [[1, 2]] * 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too_large", "answered 4, expected 0 up to below 4"),
        ("negative", "answered -1, expected 0 up to below 4"),
        ("floating", r"answered 1.0 \(float64 of shape \(\)\), expected int64 of shape \(\)"),
        ("vector", r"answered \[1\] \(int64 of shape \(1,\)\)"),
        ("ragged", "which is no action"),
        ("nothing", "answered None"),
        ("text", "answered 'left'"),
        ("raises", "failed: KeyError: 'no such thing'"),
        ("BadReset", "failed in reset: OSError: no reset"),
        ("broken_maker", "could not be made: ValueError: cannot make it"),
    ],
)
def test_what_goes_wrong_in_an_own_policy_is_named(own: str, name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message) as failure:
        Play(OwnPolicy(PLAIN, schedule(), f"{own}:{name}")).act(first=True)
    assert f"--policy {own}:{name}" in str(failure.value)


def test_not_a_number_is_no_action(own: str) -> None:
    with pytest.raises(PolicyError, match="expected finite numbers"):
        Play(OwnPolicy(REAL, schedule(), f"{own}:nan")).act(first=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_callable", "it returned int, expected a callable"),
        ("two_arguments", "one argument, the env's spec, and cannot be: missing a required argument: 'other'"),
        ("Kounter", "did you mean 'Counter'"),
        ("NUMBER", "has nothing fitting under the name 'NUMBER'"),
    ],
)
def test_factories_that_do_not_fit(own: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OwnPolicy(PLAIN, schedule(), f"{own}:{name}")


def test_leaving_the_debugger_is_no_fault_of_the_policy(own: str) -> None:
    with pytest.raises(bdb.BdbQuit):
        Play(OwnPolicy(PLAIN, schedule(), f"{own}:quits")).act(first=True)
