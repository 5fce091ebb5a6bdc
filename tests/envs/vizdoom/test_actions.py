"""From actions to buttons, without a game."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import EnvSpec
from rollmill.envs.batch import random_actions
from rollmill.envs.vizdoom.actions import EXCLUSIVE, make_controls

BUTTONS = ("TURN_LEFT", "ATTACK", "TURN_RIGHT", "MOVE_FORWARD")
DELTA = "TURN_LEFT_RIGHT_DELTA"


def controls(actions, buttons=BUTTONS, steps=5, largest=10.0):  # type: ignore[no-untyped-def]
    return make_controls(buttons, actions, steps, largest)


def test_single_presses_one_button_at_a_time() -> None:
    single = controls("single")
    assert single.spec.nvec == (5,)
    assert single.presses(np.array([0])) == [0, 0, 0, 0]
    assert single.presses(np.array([3])) == [0, 0, 1, 0]


def test_groups_keep_apart_what_excludes_each_other() -> None:
    groups = controls("groups")
    assert groups.spec.kind == "multi_discrete"
    assert groups.spec.nvec == (3, 2, 2)  # turn, attack, walk: in the order of their first buttons
    assert groups.presses(np.array([[2, 1, 0]])) == [0, 1, 1, 0]
    assert groups.presses(np.array([[0, 0, 0]])) == [0, 0, 0, 0]


def test_combinations_are_the_groups_in_one_choice() -> None:
    combined = controls("combinations")
    assert combined.spec.nvec == (12,)
    pressed = [tuple(combined.presses(np.array([k]))) for k in range(12)]
    assert len(set(pressed)) == 12
    assert pressed[0] == (0, 0, 0, 0)
    assert not any(turn_left and turn_right for turn_left, _, turn_right, _ in pressed)


def test_a_list_of_the_users_own() -> None:
    own = controls([["ATTACK"], ["ATTACK", "MOVE_FORWARD"]])
    assert own.spec.nvec == (3,)
    assert [own.presses(np.array([k])) for k in range(3)] == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]


def test_delta_buttons_are_steps_or_numbers() -> None:
    steps = controls("groups", (DELTA, "ATTACK"))
    assert steps.spec.nvec == (5, 2)
    assert steps.presses(np.array([[0, 1]])) == [-10, 1]
    assert steps.presses(np.array([[2, 0]])) == [0, 0]
    mixed = controls("continuous", (DELTA, "ATTACK"))
    assert mixed.spec.kind == "mixed"
    assert (mixed.spec.nvec, mixed.spec.low, mixed.spec.high) == ((2,), (-10,), (10,))
    assert mixed.presses(np.array([[1, 99.5]], np.float32)) == [10, 1]  # clipped, as for any continuous action
    plain = controls("continuous", (DELTA,))
    assert plain.spec.kind == "continuous"
    assert plain.presses(np.array([[-2.5]], np.float32)) == [-2.5]


@pytest.mark.parametrize(
    ("actions", "buttons", "message"),
    [
        ("singel", BUTTONS, "did you mean 'single'"),
        ("single", (DELTA,), "takes a number"),
        ("continuous", BUTTONS, "needs delta buttons"),
        ("combinations", (*(f"SELECT_WEAPON{n}" for n in range(9)), *"ABCDEFGHI"),
         "5,120 combinations"),
        ([], BUTTONS, "the list is empty"),
        (["ATTACK"], BUTTONS, "each entry is a list"),
        ([["JUMP"]], BUTTONS, "entry 1 presses 'JUMP'"),
        ([["ATTACK"], [DELTA]], (*BUTTONS, DELTA), "entry 2: TURN_LEFT_RIGHT_DELTA takes a number"),
    ],
)  # fmt: skip
def test_what_the_buttons_do_not_allow(actions: object, buttons: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        controls(actions, buttons)


@pytest.mark.parametrize(("steps", "largest", "message"), [(4, 1, "odd"), (1, 1, "at least 3"), (3, 0, "positive")])
def test_wrong_numbers_for_delta_buttons(steps: int, largest: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        controls("groups", steps=steps, largest=largest)


def test_actions_outside_of_the_space_are_refused() -> None:
    with pytest.raises(EnvError, match="action 5 is not one of 0 to 4"):
        controls("single").presses(np.array([5]))
    for wrong in ([[3, 0, 0]], [[-1, 0, 0]], [[0, 0]]):
        with pytest.raises(EnvError, match=r"does not fit: the choices are 0 to \[2, 1, 1\]"):
            controls("groups").presses(np.array(wrong))
    with pytest.raises(EnvError, match="does not fit"):
        controls("continuous", (DELTA, "ATTACK")).presses(np.array([[0.5, 1.0]], np.float32))


NAMES = [*sorted(frozenset().union(*EXCLUSIVE)), "ATTACK", "SPEED", "USE", DELTA, "LOOK_UP_DOWN_DELTA"]


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=9, unique=True), st.sampled_from(["groups", "continuous"]))
def test_any_action_presses_at_most_one_of_a_group(buttons: list[str], kind: str) -> None:
    if kind == "continuous" and not any(name.endswith("_DELTA") for name in buttons):
        kind = "groups"
    made = controls(kind, buttons)
    spec = EnvSpec("doom", (), made.spec)
    rng = np.random.default_rng(0)
    for _ in range(5):
        values = dict(zip(buttons, made.presses(random_actions(spec, rng, {}, 1)), strict=True))
        for group in EXCLUSIVE:
            assert sum(values.get(name, 0) for name in group) <= 1
        assert all(abs(value) <= 10 for value in values.values())
