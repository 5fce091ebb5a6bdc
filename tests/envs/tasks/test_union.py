"""The union of tasks: what is shown and what can be done, by its definition and with the real environments."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import MASK_FIELD, TASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import Env, StepReturn
from rollmill.envs.batch import random_actions
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.env import TaskEnv
from rollmill.envs.tasks.suite import tasks_of
from rollmill.envs.tasks.union import TaskSpace, union_of


def discrete(n: int) -> ActionSpec:
    return ActionSpec("discrete", nvec=(n,), start=(0,))


def groups(*nvec: int) -> ActionSpec:
    return ActionSpec("multi_discrete", nvec=nvec, start=(0,) * len(nvec))


def spec(action: ActionSpec, *fields: Field, frames: int = 1, agents: int = 1) -> EnvSpec:
    return EnvSpec("x", fields or (Field("obs", "float32", (3,)),), action, agents, frames)


class Probe:
    """Remembers the action it is given; shows ones."""

    def __init__(self, spec: EnvSpec, mask: tuple[int, ...] = ()) -> None:
        self.spec, self.mask = spec, mask
        self.taken: list[object] = []

    def reset(self, seed: int, obs: Obs) -> None:
        for name, array in obs.items():
            array[...] = 1 if name != MASK_FIELD else self.mask

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self.taken.append(action.tolist())
        self.reset(0, obs)
        return 0.0, False, False, {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None


def suite(*spaces: TaskSpace, masks: tuple[tuple[int, ...], ...] = ()) -> list[tuple[Probe, TaskEnv]]:
    union = union_of("suite", spaces)
    made = []
    for number, space in enumerate(spaces):
        probe = Probe(space.spec, masks[number] if masks else ())
        env: Env = probe
        made.append((probe, TaskEnv(env, space, number, union)))
    return made


def seen(env: TaskEnv) -> Obs:
    obs = {f.name: np.full((env.spec.agents, *f.shape), 9, f.dtype) for f in env.spec.observation}
    env.reset(0, obs)
    return obs


def test_equal_spaces_stay_as_they_are_but_for_the_task() -> None:
    own = spec(discrete(4))
    (_, a), (probe, b) = suite(TaskSpace("a", own), TaskSpace("b", own))
    assert a.spec.action == own.action
    assert [f.name for f in a.spec.observation] == ["obs", TASK_FIELD]
    assert seen(a)[TASK_FIELD].tolist() == [[1, 0]]
    obs = seen(b)
    assert obs[TASK_FIELD].tolist() == [[0, 1]]
    b.step(np.array([3]), obs)
    assert probe.taken == [[3]]


def test_fields_are_padded_and_missing_ones_are_zero() -> None:
    words, more = Field("words", "uint8", (2, 3)), Field("words", "uint8", (4, 3))
    only = Field("extra", "float32", (2,))
    (_, a), (_, b) = suite(TaskSpace("a", spec(discrete(2), words)), TaskSpace("b", spec(discrete(2), more, only)))
    shown = seen(a)
    assert shown["words"].shape == (1, 4, 3)
    assert shown["words"][0].sum(1).tolist() == [3, 3, 0, 0]
    assert shown["extra"].tolist() == [[0, 0]]
    assert seen(b)["extra"].tolist() == [[1, 1]]


def test_images_of_different_sizes_are_refused() -> None:
    a, b = (TaskSpace(n, spec(discrete(2), Field("image", "uint8", (n_px, 7, 3)))) for n, n_px in (("a", 7), ("b", 9)))
    with pytest.raises(ConfigError, match=r"field 'image' is uint8 \(7, 7, 3\) in a and uint8 \(9, 7, 3\) in b"):
        union_of("x", [a, b])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (spec(discrete(2), frames=4), "frames_per_step"),
        (spec(discrete(2), agents=2), "agents"),
        (spec(groups(2, 2)), "different kinds"),
        (spec(ActionSpec("continuous", shape=(2,), low=(-1, -1), high=(1, 1))), "different kinds"),
    ],
)
def test_what_has_no_union_is_refused(other: EnvSpec, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        union_of("x", [TaskSpace("a", spec(discrete(2))), TaskSpace("b", other)])


def test_choices_without_names_are_joined_by_number() -> None:
    (probe, a), (_, b) = suite(TaskSpace("a", spec(discrete(2))), TaskSpace("b", spec(discrete(4))))
    assert a.spec.action.nvec == (4,)
    obs = seen(a)
    assert obs[MASK_FIELD].tolist() == [[1, 1, 0, 0]]
    assert seen(b)[MASK_FIELD].tolist() == [[1, 1, 1, 1]]
    a.step(np.array([1]), obs)
    assert probe.taken == [[1]]
    with pytest.raises(EnvError, match="the mask forbids it"):
        a.step(np.array([2]), obs)


def test_choices_with_names_are_joined_by_name() -> None:
    one = TaskSpace("a", spec(discrete(3)), ("idle", "left", "fire"))
    two = TaskSpace("b", spec(discrete(3)), ("idle", "fire", "up"))
    (_, a), (probe, b) = suite(one, two)
    assert a.spec.action.choices == ("idle", "left", "fire", "up")
    obs = seen(b)
    assert obs[MASK_FIELD].tolist() == [[1, 0, 1, 1]]
    b.step(np.array([2]), obs)
    b.step(np.array([3]), obs)
    assert probe.taken == [[1], [2]]


def test_groups_of_buttons_are_joined_by_what_they_press() -> None:
    turn = TaskSpace("turn", spec(groups(3, 2)), ("idle", "left", "right", "idle", "fire"))
    walk = TaskSpace("walk", spec(groups(2, 2)), ("idle", "forward", "idle", "right"))
    (probe, a), (other, b) = suite(turn, walk)
    assert a.spec.action.nvec == (3, 2, 2)
    obs = seen(b)
    assert obs[MASK_FIELD].tolist() == [[1, 0, 1, 1, 0, 1, 1]]
    b.step(np.array([[2, 0, 1]]), obs)
    assert other.taken == [[[1, 1]]]
    obs = seen(a)
    assert obs[MASK_FIELD].tolist() == [[1, 1, 1, 1, 1, 1, 0]]
    a.step(np.array([[1, 1, 0]]), obs)
    assert probe.taken == [[[1, 1]]]


def test_a_mask_of_a_task_is_kept() -> None:
    masked = spec(discrete(3), Field("obs", "float32", (3,)), Field(MASK_FIELD, "int8", (3,)))
    free = spec(discrete(4))
    (_, a), (_, b) = suite(TaskSpace("a", masked), TaskSpace("b", free), masks=((1, 0, 1), ()))
    assert seen(a)[MASK_FIELD].tolist() == [[1, 0, 1, 0]]
    assert seen(b)[MASK_FIELD].tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize(("suite_name", "package"), [("minigrid_five", "minigrid"), ("atari_five", "ale_py")])
def test_real_tasks_are_the_same_alone_and_in_a_suite(suite_name: str, package: str) -> None:
    pytest.importorskip(package)
    settings = EnvSettings(id=suite_name)
    for number, task in enumerate(tasks_of(settings)[:2]):
        joined = make_env(settings, EnvInstance(index=number))
        alone = make_env(task.settings(settings))
        assert joined.spec.frames_per_step == alone.spec.frames_per_step
        outer, inner = (
            {f.name: np.zeros((1, *f.shape), f.dtype) for f in env.spec.observation} for env in (joined, alone)
        )
        joined.reset(5, outer)
        alone.reset(5, inner)
        rng = np.random.default_rng(number)
        for _ in range(30):
            action = random_actions(alone.spec, rng, inner, 1)
            got, wanted = joined.step(action, outer), alone.step(action, inner)
            assert got[:3] == wanted[:3]
            for name, array in inner.items():
                np.testing.assert_array_equal(outer[name], array)
            if got[1] or got[2]:
                break
        joined.close()
        alone.close()


def test_dooms_buttons_have_one_meaning_in_all_tasks() -> None:
    pytest.importorskip("vizdoom")
    settings = EnvSettings(id="doom_six")
    basic = make_env(settings, EnvInstance(index=0))
    spec = basic.spec
    assert {"MOVE_LEFT", "TURN_LEFT", "MOVE_FORWARD", "ATTACK"} <= set(spec.action.choices)
    try:
        obs = {f.name: np.zeros((1, *f.shape), f.dtype) for f in spec.observation}
        basic.reset(1, obs)
        allowed = {c for c, flag in zip(spec.action.choices, obs[MASK_FIELD][0].tolist()) if flag}
        assert allowed == {"idle", "MOVE_LEFT", "MOVE_RIGHT", "ATTACK"}
        basic.step(random_actions(spec, np.random.default_rng(0), obs, 1), obs)
    finally:
        basic.close()
