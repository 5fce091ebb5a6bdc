"""Several envs as one batch: rows at ends and faults, seeds, random walks, replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import SEEDS, Drive
from faulty_envs import Marker
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.core.errors import EnvError, MissingExtraError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import Env, StepReturn
from rollmill.core.slots import CARRIED_FIELDS, WORKER_FIELDS
from rollmill.envs.batch import CLOSE, MAKE, PHASES, RESET, STEP, random_actions
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.variables import EnvVariables

NAN = float("nan")
Outcome = tuple[Any, Any, Any] | Exception
Journal = list[str]


class Scripted:
    """Plays one list of outcomes after the other, ``(reward, terminated, truncated)`` or an error to raise.

    The observation is (episodes begun, steps of the episode); the last list is repeated.
    """

    def __init__(self, script: list[list[Outcome]], journal: Journal | None = None, info: Any = None) -> None:
        self.script, self.info = script, {} if info is None else info
        self.journal = [] if journal is None else journal
        self.episode, self.t = -1, 0
        self.spec = EnvSpec("scripted", (Field("at", "float32", (2,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))
        self.journal.append("make")

    def reset(self, seed: int, obs: Obs) -> None:
        self.journal.append("reset")
        self.episode, self.t = self.episode + 1, 0
        obs["at"][0] = (self.episode, 0)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        outcome = self.script[min(self.episode, len(self.script) - 1)][self.t]
        self.t += 1
        obs["at"][0] = (self.episode, self.t)
        if isinstance(outcome, Exception):
            raise outcome
        return (*outcome, self.info)

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        self.journal.append("close")


GOOD = (1.0, False, False)
END = (2.0, True, False)


def scripted(*script: list[Outcome], env: EnvSettings | None = None, **values: Any) -> Drive:
    """One env that plays ``script``, and starts again with it when it is built anew."""
    setup = {name: values.pop(name) for name in ("keep_actions", "decorrelate_steps", "watch") if name in values}
    make = lambda index: Scripted(list(script), **values)  # noqa: E731
    return Drive(env or EnvSettings(id="scripted"), range(1), make=make, **setup)


def steps_of(drive: Drive, count: int) -> Drive:
    drive.reset()
    for _ in range(count):
        drive.step(0)
    return drive


# -- ends ------------------------------------------------------------------------------------------------


def test_an_end_row_by_row() -> None:
    """Episodes of 2 and 3 steps; the final observation stands in a row of its own that does not count."""
    drive = steps_of(scripted([GOOD, END], [GOOD, GOOD, (5.0, False, True)]), 8)
    assert drive.column("obs:at") == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1]]
    assert drive.column("first") == [True, False, False, True, False, False, False, True, False]
    assert drive.column("step") == [0, 1, 2, 0, 1, 2, 3, 0, 1]
    assert drive.column("episode") == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert drive.column("reward") == [1, 2, 0, 1, 1, 5, 0, 1]
    assert drive.column("terminated") == [False, True, False, False, False, False, False, False]
    assert drive.column("truncated") == [False, False, False, False, False, True, False, False]
    assert drive.column("valid") == [True, True, False, True, True, True, False, True]
    np.testing.assert_array_equal(drive.column("episode_return"), [NAN, 3, NAN, NAN, NAN, 7, NAN, NAN])


def test_an_env_that_says_both_keeps_both() -> None:
    drive = steps_of(scripted([(1.0, True, True)]), 1)
    assert drive.column("terminated") == drive.column("truncated") == [True]


def test_an_episode_of_one_step() -> None:
    drive = steps_of(scripted([END]), 5)
    assert drive.column("valid") == [True, False, True, False, True]
    assert drive.column("episode") == [0, 0, 1, 1, 2, 2]


def test_the_limit_truncates() -> None:
    env = EnvSettings(max_episode_steps=3)
    drive = steps_of(scripted([GOOD] * 9, env=env), 8)
    assert drive.column("truncated") == [False, False, True, False, False, False, True, False]
    assert drive.column("terminated") == [False] * 8
    assert drive.column("valid") == [True, True, True, False, True, True, True, False]
    assert drive.column("obs:at")[:5] == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0]]
    assert drive.column("episode_return")[2] == 3


def test_a_termination_on_the_limit_is_no_truncation() -> None:
    drive = steps_of(scripted([GOOD, END], env=EnvSettings(max_episode_steps=2)), 2)
    assert drive.column("terminated") == [False, True]
    assert drive.column("truncated") == [False, False]


def test_lanes_end_independently() -> None:
    drive = Drive("faulty_envs:Marker", range(3))
    drive.reset().walk(30)
    for lane in range(3):
        begins = [row for row, first in enumerate(drive.column("first", lane)) if first]
        lengths = [Marker.length(lane, episode) + 1 for episode in range(len(begins) - 1)]
        assert np.diff(begins).tolist() == lengths


def test_agents_wait_for_the_last_one() -> None:
    """Agents of 1 and 3 steps: the first one's rows stop counting until both begin again."""
    drive = Drive(EnvSettings(id="faulty_envs:Marker", args={"agents": 2}), range(1))
    drive.reset()
    for _ in range(5):
        drive.step([1, 2])
    assert drive.column("valid", 0) == [True, False, False, False, True]
    assert drive.column("valid", 1) == [True, True, True, False, True]
    assert drive.column("terminated", 0) == [True, False, False, False, False]
    assert drive.column("terminated", 1) == [False, False, True, False, False]
    assert drive.column("step", 0) == [0, 1, 1, 1, 0, 1]
    assert drive.column("step", 1) == [0, 1, 2, 3, 0, 1]
    assert drive.column("first", 0) == drive.column("first", 1) == [True, False, False, False, True, False]
    assert drive.column("episode", 0) == drive.column("episode", 1) == [0, 0, 0, 0, 1, 1]
    assert drive.column("reward", 0)[1:4] == [0, 0, 0]
    rewards = drive.column("reward", 1)
    np.testing.assert_allclose(drive.column("episode_return", 1), [NAN, NAN, sum(rewards[:3]), NAN, NAN])
    assert np.isfinite(drive.column("episode_return", 0)).tolist() == [True, False, False, False, False]


def test_statistics_of_an_episode_are_told_as_plain_numbers() -> None:
    info = {"episode_stats": {"kills": np.float32(1.5), "ammo": np.int64(3)}}
    drive = steps_of(scripted([END], info=info), 3)
    assert drive.stats == [(0, 0, {"kills": 1.5, "ammo": 3.0}), (0, 1, {"kills": 1.5, "ammo": 3.0})]
    assert all(type(value) is float for _, _, stats in drive.stats for value in stats.values())


class Pair(Scripted):
    """Two agents, whose episodes end at once."""

    def __init__(self, info: Any) -> None:
        super().__init__([[END]], info=info)
        self.spec = replace(self.spec, agents=2)

    def reset(self, seed: int, obs: Obs) -> None:
        super().reset(seed, obs)
        obs["at"][1] = obs["at"][0]

    def step(self, action: Array, obs: Obs) -> StepReturn:
        answer = super().step(action, obs)
        obs["at"][1] = obs["at"][0]
        return answer


def test_statistics_may_be_one_number_per_agent() -> None:
    info = {"episode_stats": {"frags": np.array([2, 5]), "rounds": 3.0}}
    drive = Drive("toy_target", range(1), make=lambda index: Pair(info)).reset().step([0, 0])
    assert drive.stats == [(0, 0, {"frags": 2.0, "rounds": 3.0}), (1, 0, {"frags": 5.0})]
    assert not drive.faults
    wrong = {"episode_stats": {"frags": np.array([2, 5, 7])}}
    drive = Drive("toy_target", range(1), make=lambda index: Pair(wrong)).reset().step([0, 0])
    assert [fault.phase for fault in drive.faults] == ["step"]


# -- rows, bit by bit ------------------------------------------------------------------------------------


class Player:
    """Plays outcomes one after the other, whatever the episode; a new instance goes on where the last one failed."""

    def __init__(self, outcomes: Iterator[Outcome], dtype: str) -> None:
        self._outcomes = outcomes
        self.spec = EnvSpec("player", (Field("at", dtype, (2,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))

    def reset(self, seed: int, obs: Obs) -> None:
        obs["at"][:] = 0

    def step(self, action: Array, obs: Obs) -> StepReturn:
        obs["at"][:] = 1
        outcome = next(self._outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return (*outcome, {})

    def render(self) -> Array | None:
        return None

    def close(self) -> None: ...


def random_outcomes(rng: np.random.Generator, count: int) -> list[Outcome]:
    """Rewards of all sizes, as plain numbers and as numpy's; ends of both kinds, errors and nonsense."""
    found: list[Outcome] = []
    for _ in range(count):
        reward, terminated, truncated = (
            rng.normal() * 10.0 ** rng.integers(-9, 9),
            rng.random() < 0.1,
            rng.random() < 0.1,
        )
        kinds: list[Outcome] = [
            (float(reward), bool(terminated), bool(truncated)),
            (float(reward), bool(terminated), bool(truncated)),
            (float(reward), np.bool_(terminated), False),
            (np.float32(reward), terminated, int(truncated)),
            (np.array([reward]), np.array([terminated]), [truncated]),
            (int(reward), False, bool(truncated)),
        ]
        nonsense: list[Outcome] = [RuntimeError("oh"), (NAN, False, True), (-1e39, False, False), (1.0, None, False)]
        found.append(nonsense[rng.integers(4)] if rng.random() < 0.1 else kinds[rng.integers(6)])
    return found


def plain_rows(outcomes: list[Outcome], limit: int) -> dict[str, Array]:
    """What one lane's rows must be, by the words of ``core.slots`` and ``envs.batch``; one row per step, and row T."""
    rows: dict[str, list[Any]] = {field.name: [] for field in WORKER_FIELDS}
    script = iter(outcomes)
    step, episode, total, over = 0, 0, np.float64(0), False
    while True:
        rows["first"].append(step == 0)
        rows["step"].append(step)
        rows["episode"].append(episode)
        row: tuple[Any, ...] = (0, False, False, False, NAN)
        outcome = None if over else next(script, StopIteration())
        if isinstance(outcome, StopIteration):
            return {field.name: np.array(rows[field.name], field.dtype) for field in WORKER_FIELDS}
        reward = np.float32(0)
        if isinstance(outcome, tuple) and None not in outcome[1:]:
            with np.errstate(over="ignore"):
                reward = np.float32(np.asarray(outcome[0], np.float64).item())
        if outcome is None or isinstance(outcome, Exception) or None in outcome[1:] or not np.isfinite(reward):
            step, episode, total, over = 0, episode + 1, np.float64(0), False
        else:
            step, total = step + 1, total + np.float64(reward)
            terminated, truncated = bool(np.all(outcome[1])), bool(np.all(outcome[2]))
            truncated = truncated or (step == limit and not terminated)
            over = terminated or truncated
            row = (reward, terminated, truncated, True, np.float32(total) if over else NAN)
        for name, value in zip(("reward", "terminated", "truncated", "valid", "episode_return"), row, strict=True):
            rows[name].append(value)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("limit", [0, 4])
@pytest.mark.parametrize("seed", range(6))
def test_every_bit_of_the_rows_is_as_the_words_say(seed: int, limit: int, dtype: str) -> None:
    steps, lanes = 300, 1 + seed % 3
    rng = np.random.default_rng(seed)
    scripts = [random_outcomes(rng, steps) for _ in range(lanes)]
    players = [iter(script) for script in scripts]
    env = EnvSettings(id="player", max_episode_steps=limit, fault_limit=steps)
    drive = Drive(env, range(lanes), steps, make=lambda index: Player(players[index], dtype)).reset()
    for _ in range(steps):
        drive.step(0)
    for lane, script in enumerate(scripts):
        for name, expected in plain_rows(script, limit).items():
            rows = steps + (name in CARRIED_FIELDS)
            assert drive.rows[name][:rows, lane].tobytes() == expected[:rows].tobytes(), name
    assert drive.column("first").count(True) > 40
    assert {fault.phase for fault in drive.faults} == {"step"}


def player(*outcomes: Outcome, **values: Any) -> Drive:
    """One env with an observation of integers, the leanest kind there is."""
    return Drive(EnvSettings(id="player"), range(1), make=lambda index: Player(iter(outcomes), "uint8"), **values)


@pytest.mark.parametrize(("reward", "said"), [(NAN, "[nan]"), (float("-inf"), "[-inf]"), (1e39, "[inf]")])
def test_a_reward_that_is_no_float32_is_a_fault(reward: float, said: str) -> None:
    """Also where there is nothing else to check, and at the end of an episode."""
    for ends in (False, True):
        drive = steps_of(player(GOOD, (reward, ends, False)), 2)
        assert [(fault.phase, fault.step) for fault in drive.faults] == [("step", 1)]
        assert f"reward is NaN or infinite: {said}" in drive.faults[0].error
        assert drive.column("valid") == [True, False]
        assert drive.column("reward") == [1, 0]
        assert drive.column("first") == [True, False, True]
        assert drive.column("episode") == [0, 0, 1]


class Team:
    """Two agents of 1 and 3 steps; ``rewards`` by step."""

    def __init__(self, rewards: list[list[float]]) -> None:
        self.rewards, self.t = rewards, 0
        action = ActionSpec("discrete", nvec=(2,), start=(0,))
        self.spec = EnvSpec("team", (Field("at", "uint8"),), action, agents=2)

    def reset(self, seed: int, obs: Obs) -> None:
        self.t, obs["at"][:] = 0, 0

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self.t += 1
        obs["at"][:] = self.t
        return self.rewards[self.t - 1], [self.t == 1, self.t == 3], False, {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None: ...


def test_what_an_agent_is_paid_while_it_waits_does_not_matter() -> None:
    drive = Drive("team", range(1), make=lambda index: Team([[1.0, 2.0], [NAN, 3.0], [7.0, 4.0]]))
    drive.reset()
    for _ in range(3):
        drive.step(0)
    assert drive.faults == []
    assert drive.column("reward", 0) == [1, 0, 0]
    assert drive.column("reward", 1) == [2, 3, 4]
    np.testing.assert_array_equal(drive.column("episode_return", 0), [1, NAN, NAN])
    np.testing.assert_array_equal(drive.column("episode_return", 1), [NAN, NAN, 9])


def test_nonsense_for_one_agent_is_a_fault_of_the_whole_env() -> None:
    drive = Drive("team", range(1), make=lambda index: Team([[1.0, 2.0], [5.0, NAN]])).reset().step(0).step(0)
    assert [(fault.phase, fault.step) for fault in drive.faults] == [("step", 1)]
    assert "reward is NaN or infinite: [0.0, nan]" in drive.faults[0].error
    for lane in (0, 1):
        assert drive.column("valid", lane) == [True, False]
        assert drive.column("first", lane) == [True, False, True]
        assert drive.column("step", lane) == [0, 1, 0]
        assert drive.column("episode", lane) == [0, 0, 1]


def test_returns_add_up_float32_rewards_in_float64() -> None:
    drive = steps_of(player((0.1, False, False), (1e8, False, False), (0.1, True, False)), 3)
    tenth = float(np.float32(0.1))
    assert drive.column("reward") == [tenth, 1e8, tenth]
    assert drive.column("episode_return")[-1] == np.float32(tenth + 1e8 + tenth)
    assert drive.batch.replay_state()["returns"].tolist() == [tenth + 1e8 + tenth]


def test_a_return_beyond_float32_is_infinite() -> None:
    drive = steps_of(player((3e38, False, False), (3e38, False, True)), 2)
    assert drive.column("episode_return")[-1] == float("inf")
    assert drive.faults == []


def test_a_step_that_failed_has_no_statistics() -> None:
    drive = steps_of(scripted([(NAN, True, False)], info={"episode_stats": {"kills": 1}}), 1)
    assert len(drive.faults) == 1
    assert drive.stats == []


# -- seeds -----------------------------------------------------------------------------------------------


def episode_seeds(drive: Drive, env: int) -> dict[int, int]:
    lane = env - drive.batch.envs.start
    return dict(zip(drive.column("episode", lane), drive.column("obs:seed", lane)))


def test_a_seed_depends_on_worker_env_and_episode_alone() -> None:
    whole = Drive("faulty_envs:Marker", range(4)).reset().walk(30)
    part = Drive("faulty_envs:Marker", range(2, 4)).reset().walk(12, np.random.default_rng(9))
    other = Drive("faulty_envs:Marker", range(4), seeds=SEEDS.branch("else")).reset().walk(30)
    for env in (2, 3):
        seeds = episode_seeds(whole, env)
        assert len(set(seeds.values())) == len(seeds) > 2
        for episode, seed in seeds.items():
            assert seed == SEEDS.branch(env).branch("episode", episode).integer()
        common = episode_seeds(part, env)
        assert common == {episode: seeds[episode] for episode in common}
        assert not set(seeds.values()) & set(episode_seeds(other, env).values())


def test_a_later_worker_goes_on_with_episodes_that_were_never_used() -> None:
    drive = Drive("faulty_envs:Marker", range(2), first_episode=np.array([7, 30])).reset()
    assert drive.rows["episode"][0].tolist() == [7, 30]
    assert drive.batch.next_episode.tolist() == [8, 31]
    assert drive.rows["obs:seed"][0, 1] == SEEDS.branch(1).branch("episode", 30).integer()


# -- decorrelation ---------------------------------------------------------------------------------------


def test_random_walks_put_lanes_into_different_phases_the_same_way_each_time() -> None:
    def start(**setup: Any) -> Drive:
        return Drive(EnvSettings(id="CartPole-v1"), range(12), decorrelate_steps=20, **setup).reset()

    one, two, other = start(), start(), start(seeds=SEEDS.branch("else"))
    steps = one.rows["step"][0]
    assert len(set(steps.tolist())) > 4
    assert steps.max() <= 20
    for name in ("obs:obs", "step", "episode", "first"):
        np.testing.assert_array_equal(one.rows[name][0], two.rows[name][0])
    assert not np.array_equal(steps, other.rows["step"][0])
    np.testing.assert_array_equal(one.rows["first"][0], steps == 0)
    for drive in (one, two, other):
        drive.batch.close()


def test_what_happened_on_the_walk_belongs_to_the_episode() -> None:
    drive = scripted([GOOD] * 30, decorrelate_steps=10, env=EnvSettings(max_episode_steps=12)).reset()
    walked = drive.column("step")[0]
    assert 0 < walked <= 10
    assert drive.column("obs:at") == [[0, walked]]
    for _ in range(12 - walked):
        drive.step(0)
    assert drive.column("truncated")[-1]
    assert drive.column("episode_return")[-1] == 12


@pytest.mark.parametrize("env", [EnvSettings(), EnvSettings(max_episode_steps=2)])
def test_an_episode_that_ends_on_the_walk_is_followed_by_the_next(env: EnvSettings) -> None:
    """No lane starts in a final observation."""
    script: list[Outcome] = [GOOD, GOOD, END] if not env.max_episode_steps else [GOOD] * 50
    starts = []
    for seed in range(10):
        drive = scripted(script, env=env, decorrelate_steps=40)
        drive.batch._setup = replace(drive.batch._setup, seeds=SEEDS.branch(seed))
        drive.reset()
        starts.append(drive.column("step")[0])
        assert drive.column("episode") == [drive.column("obs:at")[0][0]]
        drive.step(0)
        assert drive.column("valid") == [True]
    assert set(starts) <= {0, 1, 2}
    assert len(set(starts)) > 1


def test_the_walk_keeps_to_the_mask() -> None:
    """A forbidden action would be a fault of this env."""
    drive = Drive("toy_masked", range(8), decorrelate_steps=30).reset().walk(30)
    assert drive.faults == []


def test_a_fault_on_the_walk_is_a_fault_like_any_other() -> None:
    for script in ([GOOD, RuntimeError("oh")], [GOOD, (NAN, False, False)]):
        drive = scripted(script, decorrelate_steps=9, env=EnvSettings(fault_limit=9)).reset()
        assert drive.faults
        assert drive.column("episode") == [len(drive.faults)]
        assert np.isfinite(drive.rows["obs:at"][0]).all()


# -- faults ----------------------------------------------------------------------------------------------


def test_a_fault_row_by_row() -> None:
    """It raises in its second step: that row does not count, and a new env begins the next episode."""
    journal: Journal = []
    error = RuntimeError("the engine is gone")
    drive = scripted([GOOD, error], journal=journal)
    del journal[:]
    steps_of(drive, 4)
    assert journal == ["reset", *("close", "make", "reset") * 2]
    assert drive.column("valid") == [True, False, True, False]
    assert drive.column("reward") == [1, 0, 1, 0]
    assert drive.column("first") == [True, False, True, False, True]
    assert drive.column("episode") == [0, 0, 1, 1, 2]
    assert drive.column("step") == [0, 1, 0, 1, 0]
    assert not any(drive.column("terminated") + drive.column("truncated"))
    assert np.isnan(drive.column("episode_return")).all()
    fault = drive.faults[0]
    seed = SEEDS.branch(0).branch("episode", 0).integer()
    assert (fault.env, fault.phase, fault.seed, fault.episode, fault.step) == (0, "step", seed, 0, 1)
    assert fault.describe() == (
        f"env 0 (scripted) failed in step (seed {seed}, episode 0, step 1): RuntimeError: the engine is gone"
    )
    assert "test_batch.py" in fault.trace
    assert type(fault)(**fault.to_dict()) == fault


MISBEHAVIOUR = {
    "raise": "RuntimeError: told to raise in step",
    "none": "observation 'obs' is None",
    "nan": "observation 'obs' is NaN or infinite",
    "shape": "observation 'obs' has shape (3,)",
    "dtype": "observation 'obs' has dtype <U1",
    "nan_reward": "reward is NaN or infinite: [nan]",
    "none_reward": "reward is None, expected a number",
    "mask": "action_mask forbids every choice: [[0, 0, 0]]",
}


@pytest.mark.parametrize(("what", "error"), MISBEHAVIOUR.items())
def test_nonsense_is_a_fault_of_the_env_that_made_it(tmp_path: Path, what: str, error: str) -> None:
    """Env 1 of 3 misbehaves once, in its third step; the others do not notice."""
    args = {"what": what, "env": 1, "at_step": 3, "once": str(tmp_path / "once"), "masked": what == "mask"}
    drive = Drive(EnvSettings(id="faulty_envs:Misbehave", args=args), range(3)).reset().walk(8)
    assert [(fault.env, fault.step) for fault in drive.faults] == [(1, 2)]
    assert error in drive.faults[0].error
    obs = "obs:obs"
    for lane in (0, 2):
        assert drive.column("valid", lane) == [True] * 5 + [False] + [True] * 2
        assert [t for _, t in drive.column(obs, lane)] == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert drive.column("valid", 1) == [True, True, False, True, True, True, True, True]
    assert [t for _, t in drive.column(obs, 1)] == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert drive.column("episode", 1) == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert drive.column("reward", 1) == [1, 1, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("what", ["raise", "none", "nan", "shape", "dtype", "mask"])
def test_nonsense_in_reset_is_a_fault_and_the_next_episode_is_tried(tmp_path: Path, what: str) -> None:
    args = {"what": what, "where": "reset", "once": str(tmp_path / "once"), "masked": what == "mask"}
    drive = Drive(EnvSettings(id="faulty_envs:Misbehave", args=args), range(2)).reset().walk(3)
    assert [(fault.env, fault.phase, fault.episode) for fault in drive.faults] == [(0, "reset", 0)]
    assert drive.rows["episode"][0].tolist() == [1, 0]
    assert drive.rows["valid"][:3].all()
    assert np.isfinite(drive.rows["obs:obs"][:4]).all()


@pytest.mark.parametrize("outcome", [(1.0, None, False), (1.0, False, None), ("much", False, False), (1.0, [1, 0], 0)])
def test_outcomes_that_are_none_or_no_numbers_are_faults(outcome: Any) -> None:
    drive = steps_of(scripted([GOOD, outcome]), 2)
    assert [fault.phase for fault in drive.faults] == ["step"]
    assert drive.column("valid") == [True, False]


@pytest.mark.parametrize("info", [["not", "a", "mapping"], {"episode_stats": 3}, {"episode_stats": {"kills": "many"}}])
def test_an_info_that_is_nonsense_is_a_fault(info: Any) -> None:
    drive = steps_of(scripted([GOOD], info=info), 1)
    assert [fault.phase for fault in drive.faults] == ["step"]
    assert drive.column("valid") == [False]
    assert drive.stats == []


def test_infinity_is_nonsense_too() -> None:
    drive = steps_of(scripted([(float("inf"), False, False)]), 1)
    assert "reward is NaN or infinite: [inf]" in drive.faults[0].error


class LastMask:
    """One step long; the mask of its final observation is empty."""

    def __init__(self, agents: int = 1, lengths: tuple[int, ...] = (1,)) -> None:
        self.lengths, self.t = np.array(lengths), 0
        action = ActionSpec("discrete", nvec=(3,), start=(0,))
        self.spec = EnvSpec("last", (Field(MASK_FIELD, "int8", (3,)),), action, agents=agents)

    def reset(self, seed: int, obs: Obs) -> None:
        self.t = 0
        obs[MASK_FIELD][:] = 1

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self.t += 1
        over = self.t >= self.lengths
        obs[MASK_FIELD][:] = ~over[:, None]
        return np.ones(len(over)), over, False, {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None: ...


def test_a_final_observation_may_forbid_everything() -> None:
    """There is nothing left to choose, neither for one agent nor for one that waits for another."""
    drive = Drive("last", range(1), make=lambda index: LastMask())
    drive.reset().walk(6)
    assert drive.faults == []
    assert drive.column("valid") == [True, False] * 3
    drive = Drive("last", range(1), make=lambda index: LastMask(2, (1, 3)))
    drive.reset().walk(8)
    assert drive.faults == []
    assert drive.column("valid", 1) == [True, True, True, False] * 2


def test_too_many_faults_raise_and_say_where() -> None:
    journal: Journal = []
    drive = scripted([GOOD, RuntimeError("again")], journal=journal, env=EnvSettings(id="scripted", fault_limit=2))
    steps_of(drive, 4)
    assert len(drive.faults) == 2
    drive.step(0)
    with pytest.raises(EnvError) as failure:
        drive.step(0)
    text = str(failure.value)
    seed = SEEDS.branch(0).branch("episode", 2).integer()
    assert text.startswith(f"env 0 (scripted) failed in step (seed {seed}, episode 2, step 1): RuntimeError: again\n")
    assert "That is fault 3 of this env within 1000 steps; env.fault_limit is 2." in text
    assert "Traceback" in text
    assert len(drive.faults) == 3
    drive.batch.close()
    drive.batch.close()
    assert journal.count("make") == journal.count("close")


def test_no_fault_is_forgiven_with_a_limit_of_zero() -> None:
    with pytest.raises(EnvError, match=r"fault 1 .* env\.fault_limit is 0"):
        steps_of(scripted([RuntimeError("once")], env=EnvSettings(fault_limit=0)), 1)


def test_faults_are_forgotten_after_enough_good_steps() -> None:
    """A fault in every fifth step: with a window of 4 steps it goes on for ever, with 5 it does not."""
    script = [GOOD] * 4 + [RuntimeError("every fifth")]
    drive = steps_of(scripted(script, env=EnvSettings(fault_limit=1, fault_window=4)), 40)
    assert len(drive.faults) == 8
    with pytest.raises(EnvError, match="fault 2 of this env within 5 steps"):
        steps_of(scripted(script, env=EnvSettings(fault_limit=1, fault_window=5)), 40)


def test_every_env_has_faults_of_its_own() -> None:
    args = {"at_step": 1, "length": 3}
    drive = Drive(EnvSettings(id="faulty_envs:Misbehave", args=args, fault_limit=2), range(4)).reset().walk(2)
    assert len(drive.faults) == 8
    with pytest.raises(EnvError, match="env 0 "):
        drive.walk(1)


def test_every_attempt_to_begin_an_episode_sees_the_variables_of_its_moment() -> None:
    """They change while a reset is under way, which then fails: the next episode is one with the new values."""
    source = np.array([1.0])
    variables = EnvVariables(("level",), source)
    seen: list[float] = []

    class Changes(Scripted):
        def reset(self, seed: int, obs: Obs) -> None:
            super().reset(seed, obs)
            seen.append(variables["level"])
            if len(seen) == 1:
                source[0] = 2.0
                raise RuntimeError("failed")

    drive = Drive(EnvSettings(id="scripted"), range(1), make=lambda _: Changes([[END]]), variables=(variables,))
    assert drive.reset().column("episode") == [1]
    assert seen == [1.0, 2.0]


# -- building and closing --------------------------------------------------------------------------------


def failing_makes(count: int, journal: Journal, wrong: Callable[[Env], Any]) -> Callable[[int], Env]:
    """Good envs, but ``wrong`` is done to env 1 the first ``count`` times (the very first make is a look)."""
    left = [count]

    def make(index: int) -> Env:
        env = Scripted([[GOOD] * 50], journal)
        if index == 1 and left[0]:
            left[0] -= 1
            wrong(env)
        return env

    return make


def refuse(env: Env) -> None:
    env.close()
    raise OSError("no display")


def pretend(env: Env) -> None:
    env.spec = replace(env.spec, name="another")


@pytest.mark.parametrize(("wrong", "error"), [(refuse, "no display"), (pretend, "this instance promises")])
def test_a_constructor_that_fails_is_tried_again(wrong: Callable[[Env], Any], error: str) -> None:
    journal: Journal = []
    drive = Drive("scripted", range(3), make=failing_makes(2, journal, wrong))
    assert [(fault.env, fault.phase, fault.episode) for fault in drive.faults] == [(1, "constructor", 0)] * 2
    assert error in drive.faults[0].error
    drive.reset().walk(3)
    assert drive.rows["valid"][:3].all()
    drive.batch.close()
    assert journal.count("make") == journal.count("close"), "those that were refused are closed, too"


@pytest.mark.parametrize("wrong", [refuse, pretend])
def test_a_batch_that_cannot_be_built_closes_what_stands(wrong: Callable[[Env], Any]) -> None:
    journal: Journal = []
    with pytest.raises(EnvError, match=r"env 1 \(scripted\) failed in constructor"):
        Drive("scripted", range(3), make=failing_makes(99, journal, wrong))
    assert journal.count("make") == journal.count("close") > 3


def test_a_constructor_that_can_never_succeed_is_not_tried_again() -> None:
    journal: Journal = []

    def make(index: int) -> Env:
        if index == 1:
            journal.append("refused")
            raise MissingExtraError("scripted: Box2D is not installed")
        return Scripted([[GOOD]], journal)

    with pytest.raises(MissingExtraError, match=r"^scripted: Box2D is not installed$"):
        Drive("scripted", range(3), make=make)
    assert journal.count("refused") == 1
    assert journal.count("make") == journal.count("close"), "what stands is closed"


def test_an_env_that_does_not_close_is_reported_and_left() -> None:
    class Sticky(Scripted):
        def close(self) -> None:
            super().close()
            if self.t:
                raise OSError("still busy")

    make = lambda index: Sticky([[GOOD, RuntimeError("oh")]])  # noqa: E731
    drive = Drive(EnvSettings(fault_limit=2), range(1), make=make)
    steps_of(drive, 4)
    assert [fault.phase for fault in drive.faults] == ["step", "close"] * 2, "closing does not count for the limit"
    drive.step(0)
    drive.batch.close()
    assert drive.faults[-1].error == "OSError: still busy"


class Looking:
    """A watch that writes everything down."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, int] | None] = []

    def enter(self, env: int, phase: int, episode: int, step: int) -> None:
        self.seen.append((env, phase, episode, step))

    def leave(self) -> None:
        self.seen.append(None)


def test_the_watch_knows_what_every_env_is_doing() -> None:
    watch = Looking()
    drive = Drive("scripted", range(4, 5), make=lambda index: Scripted([[GOOD, END]]), watch=watch)
    drive.reset()
    for _ in range(3):
        drive.step(0)
    drive.batch.close()
    assert [entry for entry in watch.seen if entry] == [
        (4, MAKE, 0, 0),
        (4, RESET, 0, 0),
        (4, STEP, 0, 0),
        (4, STEP, 0, 1),
        (4, RESET, 1, 0),
        (4, CLOSE, 1, 0),
    ]
    assert watch.seen[1::2] == [None] * 6, "every call is left before the next"
    assert set(PHASES) == {MAKE, RESET, STEP, CLOSE}


def test_after_a_fault_the_watch_is_left() -> None:
    watch = Looking()
    steps_of(scripted([RuntimeError("oh")], watch=watch), 1)
    assert watch.seen[-1] is None
    assert [entry[1] for entry in watch.seen if entry] == [MAKE, RESET, STEP, CLOSE, MAKE, RESET]


# -- replay ----------------------------------------------------------------------------------------------

REPLAYED = [
    ("toy_target", 0),
    ("toy_memory", 3),
    ("toy_masked", 25),
    ("toy_image", 0),
    ("toy_reach", 7),
    ("toy_agents", 4),
    ("CartPole-v1", 15),
    ("Pendulum-v1", 5),
    ("faulty_envs:Zoo", 2),
]


@pytest.mark.parametrize("steps", [0, 1, 10, 24])
@pytest.mark.parametrize(("name", "walk"), REPLAYED)
def test_replayed_envs_go_on_as_the_interrupted_ones(name: str, walk: int, steps: int) -> None:
    """Brought back from seeds and actions, both give the same rows from then on, ends and resets included."""
    env = EnvSettings(id=name, max_episode_steps=11)
    setup: dict[str, Any] = {"keep_actions": True, "decorrelate_steps": walk}
    one = Drive(env, range(3), **setup).reset().walk(steps, np.random.default_rng(1))
    two = Drive(env, range(3), **setup)
    two.row = one.row - 1
    two.batch.replay(one.batch.replay_state(), two.out())
    two.row = one.row
    for field in (f"obs:{f.name}" for f in one.spec.observation):
        np.testing.assert_array_equal(two.rows[field][two.row], one.rows[field][one.row])
    assert two.batch.next_episode.tolist() == one.batch.next_episode.tolist()
    one.walk(15)
    two.walk(15)
    for field in (name for name in one.rows if name not in ("log_prob", "value", "version", "policy_id", "frames")):
        opening = field.startswith("obs:") or field in ("first", "step", "episode")
        rows = slice(steps + opening, steps + 15 + opening)
        np.testing.assert_array_equal(one.rows[field][rows], two.rows[field][rows], field)
    assert one.faults == two.faults == []
    for drive in (one, two):
        drive.batch.close()


def test_faults_are_counted_on_after_a_replay() -> None:
    env = EnvSettings(fault_limit=1, fault_window=4)
    script: list[Outcome] = [GOOD, GOOD, RuntimeError("oh")]
    one = steps_of(scripted(script, env=env, keep_actions=True), 4)
    assert len(one.faults) == 1
    two = scripted(script, env=env, keep_actions=True)
    two.batch.replay(one.batch.replay_state(), two.out())
    two.row = 0
    two.step(0)
    with pytest.raises(EnvError, match="fault 2"):
        two.step(0)


def test_an_env_that_cannot_be_brought_back_says_so() -> None:
    one = steps_of(scripted([GOOD] * 9, keep_actions=True), 3)
    two = scripted([GOOD, RuntimeError("another world")], keep_actions=True)
    with pytest.raises(EnvError, match="cannot be brought back") as failure:
        two.batch.replay(one.batch.replay_state(), two.out())
    text = str(failure.value)
    assert f"(seed {SEEDS.branch(0).branch('episode', 0).integer()}, episode 0, step 1)" in text
    assert "another world" in text
    assert "resume with sampling.mode=sync" in text


def test_good_steps_are_counted_on_after_a_replay() -> None:
    """A fault, three good steps, the replay, one more: the fault is forgotten."""
    env = EnvSettings(fault_limit=1, fault_window=4)
    script: list[Outcome] = [GOOD] * 4 + [RuntimeError("every fifth")]
    one = steps_of(scripted(script, env=env, keep_actions=True), 8)
    two = scripted(script, env=env, keep_actions=True)
    two.batch.replay(one.batch.replay_state(), two.out())
    two.row = 0
    two.step(0).step(0)
    assert len(two.faults) == 1


def test_actions_are_kept_as_copies_and_only_where_somebody_asked() -> None:
    drive = scripted([GOOD] * 9, keep_actions=True).reset().step(1).step(0)
    drive.rows["action"][:] = 7  # the slot is used again
    assert drive.batch.replay_state()["actions"][0].tolist() == [[1], [0]]
    assert steps_of(scripted([GOOD] * 9), 3).batch.replay_state()["actions"][0].size == 0


# -- random actions --------------------------------------------------------------------------------------


def masked_spec(nvec: list[int]) -> EnvSpec:
    kind = "discrete" if len(nvec) == 1 else "multi_discrete"
    action = ActionSpec(kind, nvec=tuple(nvec), start=(0,) * len(nvec))  # type: ignore[arg-type]
    return EnvSpec("x", (Field(MASK_FIELD, "int8", (sum(nvec),)),), action)


@settings(max_examples=60, deadline=None)
@given(nvec=st.lists(st.integers(1, 5), min_size=1, max_size=3), lanes=st.integers(1, 6), seed=st.integers(0, 99))
def test_random_actions_keep_to_the_mask(nvec: list[int], lanes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    allowed = [rng.integers(2, size=(lanes, n)) for n in nvec]
    for part in allowed:
        part[np.arange(lanes), rng.integers(part.shape[1], size=lanes)] = 1
    obs = {MASK_FIELD: np.concatenate(allowed, axis=1).astype(np.int8)}
    spec = masked_spec(nvec)
    action = random_actions(spec, rng, obs, lanes)
    assert action.dtype == np.int64
    assert action.shape == (lanes, *spec.action.field.shape)
    for k, part in enumerate(allowed):
        assert part[np.arange(lanes), action.reshape(lanes, -1)[:, k]].all()


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    obs = {MASK_FIELD: np.tile(np.array([1, 0, 1, 1, 1, 0], np.int8), (6000, 1))}
    found = random_actions(masked_spec([4, 2]), np.random.default_rng(0), obs, 6000)
    assert np.bincount(found[:, 0], minlength=4) / 6000 == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3], abs=0.03)
    assert (found[:, 1] == 0).all()
    spec = EnvSpec("x", (), ActionSpec("discrete", nvec=(5,), start=(0,)))
    found = random_actions(spec, np.random.default_rng(0), {}, 6000)
    assert np.bincount(found) / 6000 == pytest.approx([0.2] * 5, abs=0.03)


def test_random_continuous_actions_fill_the_box() -> None:
    action = ActionSpec("continuous", shape=(3,), low=(-1.0, 2.0, -np.inf), high=(1.0, 2.5, np.inf))
    found = random_actions(EnvSpec("x", (), action), np.random.default_rng(0), {}, 4000)
    assert found.dtype == np.float32
    assert found.shape == (4000, 3)
    assert np.isfinite(found).all()
    assert found[:, :2].min(axis=0) == pytest.approx([-1, 2], abs=0.01)
    assert found[:, :2].max(axis=0) == pytest.approx([1, 2.5], abs=0.01)


def test_instances_are_numbered_over_the_run() -> None:
    drive = Drive(EnvSettings(id="faulty_envs:Marker"), range(6, 9)).reset()
    assert drive.rows["obs:where"][0, :, 0].tolist() == [6, 7, 8]
    assert make_env(EnvSettings(id="faulty_envs:Marker"), EnvInstance(3)).spec == drive.spec
