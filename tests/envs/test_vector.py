"""Vector environments as a batch: agreement with Gymnasium, rows at ends and faults, seeds."""

from __future__ import annotations

import bdb
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from driving import SEEDS, Drive
from gymnasium.vector import VectorEnv
from vector_envs import Counter

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import EnvSpec
from rollmill.envs.batch import CLOSE, MAKE, RESET, STEP
from rollmill.envs.make import check_env_settings, make_env, make_vector_env
from rollmill.envs.probe import probe_here
from rollmill.envs.settings import EnvSettings
from rollmill.envs.variables import EnvVariables
from rollmill.envs.vector import VectorLane

COUNTER = "vector_envs:Counter"
OUTCOMES = ("reward", "terminated", "truncated", "valid", "episode_return", "first", "step", "episode")


def vector(name: str = "CartPole-v1", **values: Any) -> EnvSettings:
    return EnvSettings(id=name, vector=True, **values)


def counter(
    lanes: int = 2, steps: int = 40, env: dict[str, Any] | None = None, setup: Any = None, **args: Any
) -> Drive:
    return Drive(vector(COUNTER, args=args, **(env or {})), range(lanes), steps, **(setup or {}))


def steps_of(drive: Drive, count: int) -> Drive:
    drive.reset()
    for _ in range(count):
        drive.step(0)
    return drive


def inner(drive: Drive) -> Any:
    """The vector env itself."""
    return drive.batch._env.unwrapped  # type: ignore[union-attr]


# -- agreement with Gymnasium ----------------------------------------------------------------------------


def test_it_is_the_spec_of_the_single_env() -> None:
    assert probe_here(vector()) == probe_here(EnvSettings(id="CartPole-v1"))


def test_physics_are_those_of_the_single_env() -> None:
    drive = Drive(vector(), range(3), 60).reset()
    singles = [gym.make("CartPole-v1").unwrapped for _ in range(3)]
    rng = np.random.default_rng(0)
    checked = 0
    for t in range(60):
        states, over = inner(drive).state.T.copy(), inner(drive).prev_done.copy()
        drive.step(actions := rng.integers(2, size=3))
        for lane, single in enumerate(singles):
            if over[lane]:
                continue
            single.reset()
            single.state = states[lane]  # type: ignore[attr-defined]
            obs, reward, terminated, *_ = single.step(int(actions[lane]))
            np.testing.assert_allclose(drive.rows["obs:obs"][t + 1, lane], obs, rtol=1e-6, atol=1e-7)
            assert drive.rows["reward"][t, lane] == reward
            assert drive.rows["terminated"][t, lane] == terminated
            checked += 1
    assert checked > 100
    assert np.count_nonzero(drive.rows["terminated"]) > 2


@pytest.mark.parametrize("name", ["CartPole-v1", COUNTER])
def test_rows_are_what_the_vector_env_shows(name: str) -> None:
    settings, lanes, steps = vector(name), 4, 80
    drive = Drive(settings, range(lanes), steps).reset()
    peer = make_vector_env(settings, lanes)
    obs, _ = peer.reset(seed=drive.batch._seed())  # type: ignore[union-attr]
    np.testing.assert_array_equal(drive.rows["obs:obs"][0], obs)
    rng, over = np.random.default_rng(1), np.zeros(lanes, bool)
    start = int(getattr(peer.single_action_space, "start", 0))
    for t in range(steps):
        actions = rng.integers(2, size=lanes)
        drive.step(actions)
        obs, reward, terminated, truncated, _ = peer.step(actions + start)
        np.testing.assert_array_equal(drive.rows["obs:obs"][t + 1], obs)
        np.testing.assert_array_equal(drive.rows["reward"][t], np.where(over, 0, reward))
        np.testing.assert_array_equal(drive.rows["terminated"][t], terminated)
        np.testing.assert_array_equal(drive.rows["truncated"][t], truncated)
        np.testing.assert_array_equal(drive.rows["valid"][t], ~over)
        over = terminated | truncated


def test_the_zoo_is_written_as_single_envs_are() -> None:
    """Gymnasium batches every kind of space; what arrives is what ``GymEnv`` writes of the same env."""
    drive = Drive(vector("vector_envs:zoo"), range(2)).reset()
    seed = drive.batch._seed()  # type: ignore[union-attr]
    for lane in range(2):
        single = make_env(EnvSettings(id="faulty_envs:Zoo", args={"length": 4 + lane}))
        obs = {f.name: np.zeros((1, *f.shape), f.dtype) for f in single.spec.observation}
        single.reset(seed + lane, obs)
        for name, array in obs.items():
            np.testing.assert_array_equal(drive.rows[f"obs:{name}"][0, lane], array[0], name)


# -- ends ------------------------------------------------------------------------------------------------


def test_an_end_row_by_row() -> None:
    drive = steps_of(counter(2, shortest=3), 6)
    assert drive.column("terminated") == [False, False, True, False, False, False]
    assert drive.column("valid") == [True, True, True, False, True, True]
    assert drive.column("first") == [True, False, False, False, True, False, False]
    assert drive.column("step") == [0, 1, 2, 3, 0, 1, 2]
    assert drive.column("episode") == [0, 0, 0, 0, 1, 1, 1]
    assert drive.column("reward") == [1, 1, 1, 0, 1, 1]
    assert [row[2] for row in drive.column("obs:obs")] == [0, 1, 2, 3, 0, 1, 2], "row 3 is the final observation"
    np.testing.assert_array_equal(drive.rows["episode_return"][:6, 0], [np.nan, np.nan, 3, np.nan, np.nan, np.nan])
    assert drive.rows["episode_return"][3, 1] == 8, "lane 1 ends on its own"


def test_a_truncation_is_none_other() -> None:
    drive = steps_of(counter(1, shortest=2), 5)
    assert drive.column("terminated") == [False, True, False, False, False]
    assert drive.column("truncated") == [False, False, False, False, True]
    assert drive.rows["episode_return"][4, 0] == 2


def test_cartpole_is_truncated_at_500() -> None:
    drive = Drive(vector(), range(2), 510).reset()
    for t in range(505):
        inner(drive).state[:] = 0.0  # a pole that never falls
        drive.step(t % 2)
    assert np.nonzero(drive.rows["truncated"][:505, 0])[0].tolist() == [499]
    assert not drive.rows["terminated"][:505].any()
    assert drive.rows["episode_return"][499].tolist() == [500, 500]
    assert drive.rows["step"][500].tolist() == [500, 500]
    assert drive.rows["first"][501].all()


@pytest.mark.parametrize(
    "env",
    [
        vector(max_episode_steps=5),
        vector(args={"max_episode_steps": 5}),
        vector(max_episode_steps=5, args={"max_episode_steps": 9}),
        vector(max_episode_steps=9, args={"max_episode_steps": 5}),
    ],
)
def test_the_smallest_limit_truncates(env: EnvSettings) -> None:
    drive = steps_of(Drive(env, range(2)), 6)
    assert drive.column("truncated") == [False] * 4 + [True, False]
    assert drive.column("terminated") == [False] * 6


def test_a_vector_env_that_ignores_the_limit_is_found_out() -> None:
    drive = counter(env={"max_episode_steps": 2}, deaf=True)
    with pytest.raises(EnvError, match=r"max_episode_steps=2 and lets episodes run on"):
        steps_of(drive, 3)


def test_statistics_are_told_for_the_lanes_that_ended() -> None:
    drive = steps_of(Drive(vector(COUNTER, args={"stats": True}), range(4, 6)), 9)
    assert drive.stats == [
        (4, 0, {"steps": 3.0}),
        (5, 0, {"steps": 4.0}),
        (4, 1, {"steps": 3.0}),
        (5, 1, {"steps": 4.0}),
    ]


# -- seeds -----------------------------------------------------------------------------------------------


def test_the_same_seeds_give_the_same_rows_and_groups_differ() -> None:
    one, two = (Drive(vector(), range(3)).reset().walk(40) for _ in range(2))
    other = Drive(vector(), range(3, 6)).reset().walk(40)
    for name in (*OUTCOMES, "obs:obs"):
        np.testing.assert_array_equal(one.rows[name], two.rows[name], name)
    assert not np.array_equal(one.rows["obs:obs"][0], other.rows["obs:obs"][0])


def test_a_later_worker_goes_on_with_episodes_that_were_never_used() -> None:
    first = Drive(vector(), range(2)).reset().walk(40)
    unused = first.batch.next_episode
    assert unused.min() > 1
    later = Drive(vector(), range(2), first_episode=unused).reset()
    assert later.rows["episode"][0].tolist() == unused.tolist()
    assert not np.array_equal(later.rows["obs:obs"][0], first.rows["obs:obs"][0])


def test_numbered_episodes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot play numbered episodes; set env.vector=false"):
        Drive(vector(), seed_of=lambda env, episode: 0)


def test_the_walk_belongs_to_the_episodes() -> None:
    drives = [
        Drive(vector(COUNTER, args={"shortest": 5}), range(s, s + 2), decorrelate_steps=30) for s in range(0, 12, 2)
    ]
    for drive in drives:
        drive.reset()
    assert len({drive.rows["step"][0, 0] for drive in drives}) > 2, "groups are in different phases"
    for drive in drives:
        assert drive.rows["obs:obs"][0, :, 2].tolist() == drive.rows["step"][0].tolist()
        assert (drive.rows["first"][0] == (drive.rows["step"][0] == 0)).all()
        drive.step(0)
        over = drive.rows["obs:obs"][0, :, 2] == [5, 6]
        assert drive.rows["valid"][0].tolist() == (~over).tolist()


# -- faults ----------------------------------------------------------------------------------------------

NONSENSE = [
    ("raise", "OSError: no step today", 0),
    ("nan", "observation 'obs' is NaN or infinite", 1),
    ("nan_reward", "reward is NaN or infinite: inf", 1),
    ("shape", "has shape (1, 4), the space says (2, 4)", 0),
    ("dtype", "has dtype complex128", 0),
    ("flags", "terminations have shape () and dtype object", 0),
    ("tuple", "step() returned ndarray, expected (observations,", 0),
]


@pytest.mark.parametrize(("what", "error", "env"), NONSENSE)
def test_a_fault_row_by_row(tmp_path: Path, what: str, error: str, env: int) -> None:
    """All lanes begin anew, the row does not count, and nothing of the nonsense is left."""
    drive = steps_of(counter(2, what=what, lane=1, at_step=2, once=str(tmp_path / "once"), shortest=5), 4)
    (fault,) = drive.faults
    assert error in fault.error
    assert (fault.env, fault.phase, fault.episode, fault.step) == (env, "step", 0, 1)
    for lane in range(2):
        assert drive.column("valid", lane) == [True, False, True, True]
        assert drive.column("first", lane) == [True, False, True, False, False]
        assert drive.column("step", lane) == [0, 1, 0, 1, 2]
        assert drive.column("episode", lane) == [0, 0, 1, 1, 1]
        assert drive.column("reward", lane) == [lane + 1, 0, lane + 1, lane + 1]
    assert not drive.rows["terminated"][:4].any()
    assert not drive.rows["truncated"][:4].any()
    assert np.isnan(drive.rows["episode_return"][:4]).all()
    assert np.isfinite(drive.rows["obs:obs"][:5]).all()


def test_after_a_fault_the_seed_is_another(tmp_path: Path) -> None:
    drive = steps_of(counter(2, what="raise", at_step=1, once=str(tmp_path / "once")), 1)
    before, after = drive.rows["obs:obs"][0, :, 3], drive.rows["obs:obs"][1, :, 3]
    assert not np.array_equal(before, after)


def test_an_end_in_the_step_that_resets_is_a_fault(tmp_path: Path) -> None:
    drive = steps_of(counter(2, what="restless", at_step=4, once=str(tmp_path / "once"), shortest=3), 5)
    assert "ended in the very step that reset the lane" in drive.faults[0].error
    assert drive.column("valid") == [True, True, True, False, True]


@pytest.mark.parametrize("what", ["raise", "nan", "shape", "tuple"])
def test_nonsense_in_reset_is_tried_again(tmp_path: Path, what: str) -> None:
    drive = counter(2, what=what, where="reset", once=str(tmp_path / "once")).reset()
    assert [fault.phase for fault in drive.faults] == ["reset"]
    assert drive.rows["episode"][0].tolist() == [1, 1]
    assert np.isfinite(drive.rows["obs:obs"][0]).all()
    assert drive.rows["obs:obs"][0, 0, 1] == 1, "a new instance, which has begun its first episodes"


def test_a_constructor_that_fails_is_tried_again() -> None:
    settings = vector(COUNTER)
    spec = VectorLane(settings).spec
    flaky = Flaky(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollmill.envs.vector.make_vector_env", flaky)
        patch.setattr("driving.VectorLane", lambda settings: Look(spec))
        drive = Drive(settings).reset()
    assert [fault.phase for fault in drive.faults] == ["constructor"]
    assert flaky.calls == 2


class Flaky:
    """Fails the first ``failures`` times."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    def __call__(self, settings: EnvSettings, lanes: int, variables: EnvVariables | None = None) -> VectorEnv:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError("no constructor today")
        return make_vector_env(settings, lanes)


class Look:
    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    def close(self) -> None:
        """Nothing to close."""


def test_another_number_of_lanes_than_asked_for_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = counter(env={"fault_limit": 0})
    monkeypatch.setattr("rollmill.envs.vector.make_vector_env", lambda settings, lanes, variables: Counter(lanes + 1))
    with pytest.raises(EnvError, match="this instance promises 3 times"):
        type(drive.batch)(drive.batch._settings, drive.batch._setup)  # type: ignore[arg-type]


def test_too_many_faults_raise_and_say_where() -> None:
    drive = counter(env={"fault_limit": 2}, what="raise", at_step=2)
    with pytest.raises(EnvError, match=r"env 0 \(vector_envs:Counter\) failed in step[\s\S]*fault 3 of its group"):
        steps_of(drive, 20)
    assert len(drive.faults) == 3


def test_faults_are_forgotten_after_enough_good_steps() -> None:
    drive = counter(env={"fault_limit": 1, "fault_window": 2}, what="raise", at_step=3)
    steps_of(drive, 12)
    assert len(drive.faults) == 4


def test_an_env_that_does_not_close_is_reported_and_left() -> None:
    drive = Drive(vector("CartPole-v1"))
    inner(drive).close = lambda **kwargs: (_ for _ in ()).throw(OSError("cannot close"))
    drive.batch.close()
    assert [fault.phase for fault in drive.faults] == ["close"]
    drive.batch.close()
    assert len(drive.faults) == 1


def test_leaving_the_debugger_is_no_fault() -> None:
    drive = Drive(vector()).reset()
    inner(drive).step = lambda actions: (_ for _ in ()).throw(bdb.BdbQuit())
    with pytest.raises(bdb.BdbQuit):
        drive.step(0)
    assert drive.faults == []


class Notes:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def enter(self, env: int, phase: int, episode: int, step: int) -> None:
        self.seen.append((env, phase, episode, step))

    def leave(self) -> None:
        self.seen.append(None)


def test_the_watch_knows_what_the_group_is_doing() -> None:
    watch = Notes()
    drive = Drive(vector(), range(4, 6), watch=watch).reset()
    drive.step(0)
    drive.step(1)
    drive.batch.close()
    calls = [(4, MAKE, 0, 0), (4, RESET, 0, 0), (4, STEP, 0, 0), (4, STEP, 0, 1), (4, CLOSE, 0, 0)]
    assert watch.seen == [entry for call in calls for entry in (call, None)]


def test_a_mask_that_forbids_everything_is_a_fault_but_not_at_the_end() -> None:
    drive = Drive(vector("vector_envs:zoo"), range(2)).reset()
    env = inner(drive)
    step = env.step

    def forbid(actions: Any) -> Any:
        obs, *rest = step(actions)
        obs["action_mask"][0] = 0
        return (obs, *rest)

    env.step = forbid
    for single in env.envs:
        single._t = 3  # lane 0 ends with the next step
    drive.step((0, 0))
    assert drive.faults == []
    assert drive.rows["truncated"][0].tolist() == [True, False]
    drive.step((0, 0))
    assert "forbids every choice" in drive.faults[0].error


# -- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (vector("Pendulum-v1"), r"Pendulum-v1 has no vectorised form \(vector_entry_point\); set env.vector=false"),
        (vector("toy_target"), "toy_target has no vectorised form of its own"),
        (vector("CartPole-v9"), "no such environment"),
        (vector("faulty_envs:Marker"), "takes no num_envs"),
        (vector(args={"num_envs": 3}), r"env.args.num_envs: CartPole-v1 takes no such argument"),
        (vector(args={"sutton": True}), r"env.args.sutton: .*takes: max_episode_steps, render_mode, sutton_barto"),
        (vector("vector_envs:zoo", max_episode_steps=3), "vectorised form of vector_envs:zoo takes no such limit"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(env: EnvSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_env_settings(env)


def test_good_settings_pass() -> None:
    check_env_settings(vector(args={"sutton_barto_reward": True}, max_episode_steps=3))


def test_a_vectorised_form_that_cannot_be_imported_is_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = gym.envs.registration.EnvSpec("Lacking-v0", vector_entry_point="lacking_form:Env")
    monkeypatch.setitem(gym.registry, "Lacking-v0", spec)
    (tmp_path / "lacking_form.py").write_text("import lacking_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtraError, match="cannot be imported: No module named 'lacking_module'"):
        check_env_settings(vector("Lacking-v0"))


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_other_ways_of_restarting_are_refused(mode: str) -> None:
    with pytest.raises(ConfigError, match=r"autoreset_mode (SAME_STEP|DISABLED), only NEXT_STEP can be used"):
        probe_here(vector(COUNTER, args={"mode": mode}))


def test_what_is_no_vector_env_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"built a Zoo, which is no gymnasium.vector.VectorEnv"):
        probe_here(vector("vector_envs:not_a_vector"))


def test_a_callable_of_vectors_has_no_single_env() -> None:
    with pytest.raises(ConfigError, match="there is no single one of it"):
        make_env(vector(COUNTER))


def test_masks_of_infos_are_refused() -> None:
    with pytest.raises(ValueError, match="the mask must be in the observation"):
        vector(mask_in_info=True)


# -- one lane --------------------------------------------------------------------------------------------


def test_one_lane_plays_episodes_as_a_single_env_does() -> None:
    env = VectorLane(vector(COUNTER, args={"shortest": 2}))
    obs = {f.name: np.zeros((1, *f.shape), f.dtype) for f in env.spec.observation}
    for _ in range(2):
        env.reset(5, obs)
        assert obs["obs"][0, 2] == 0
        assert env.step(np.array([1]), obs)[:1] == (1.0,)
        reward, terminated, truncated, _ = env.step(np.array([0]), obs)
        assert (reward, terminated or truncated, obs["obs"][0, 2]) == (1.0, True, 2)
    assert env.render() is None
    env.close()


def test_the_seeds_of_a_group_hang_on_its_first_env() -> None:
    drive = Drive(vector(), range(3, 5)).reset()
    peer = make_vector_env(vector(), 2)
    obs, _ = peer.reset(seed=SEEDS.branch(3).branch("vector").branch(0).integer())
    np.testing.assert_array_equal(drive.rows["obs:obs"][0], obs)
