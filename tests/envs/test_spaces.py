"""Gymnasium's spaces as fields, and actions on their way back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field, Obs
from rollmill.envs.batch import random_actions
from rollmill.envs.spaces import ALL, action_layout, batch_actions, batch_writer, mask_field, observation_layout

LANES = 3


def arrays(fields: tuple[Field, ...]) -> Obs:
    """Lanes full of 77, so that what was not written shows."""
    return {f.name: np.full((LANES, *f.shape), 77, f.dtype) for f in fields}


def written(space: gs.Space[Any], value: Any, lane: int = 1) -> Obs:
    """The one lane that was written; the others must be untouched."""
    fields, write = observation_layout(space)
    obs = arrays(fields)
    write(value, obs, lane)
    for name, untouched in arrays(fields).items():
        np.testing.assert_array_equal(np.delete(obs[name], lane, 0), np.delete(untouched, lane, 0))
    return {name: array[lane] for name, array in obs.items()}


def refusal(space: gs.Space[Any], value: Any) -> str:
    with pytest.raises(ValueError) as caught:
        written(space, value)
    return str(caught.value)


# -- observations: fields ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "field"),
    [
        (gs.Box(0, 255, (72, 128, 3), np.uint8), Field("obs", "uint8", (72, 128, 3))),
        (gs.Box(-1, 1, (4,), np.float32), Field("obs", "float32", (4,))),
        (gs.Box(-1, 1, (4,), np.float64), Field("obs", "float32", (4,))),
        (gs.Box(-1, 1, (4,), np.float16), Field("obs", "float32", (4,))),
        (gs.Box(-9, 9, (2, 2), np.int16), Field("obs", "int16", (2, 2))),
        (gs.Box(-1, 1, (), np.float32), Field("obs", "float32", ())),
        (gs.Discrete(5), Field("obs", "uint8", (5,))),
        (gs.Discrete(5, start=-2), Field("obs", "uint8", (5,))),
        (gs.MultiDiscrete([3, 2]), Field("obs", "uint8", (5,))),
        (gs.MultiDiscrete([[3, 2], [4, 1]]), Field("obs", "uint8", (10,))),
        (gs.MultiBinary(6), Field("obs", "uint8", (6,))),
        (gs.MultiBinary((2, 3)), Field("obs", "uint8", (2, 3))),
    ],
)
def test_every_space_is_one_field_that_takes_its_samples(space: gs.Space[Any], field: Field) -> None:
    fields, _ = observation_layout(space)
    assert fields == (field,)
    space.seed(0)
    for _ in range(20):
        found = written(space, space.sample())["obs"]
        assert found.shape == field.shape
        assert (found != 77).any()


def test_nested_entries_are_joined_by_dots() -> None:
    space = gs.Dict(
        {
            "camera": gs.Dict({"left": gs.Box(0, 255, (2, 2, 3), np.uint8), "right": gs.Discrete(2)}),
            "parts": gs.Tuple((gs.MultiBinary(2), gs.Tuple((gs.Discrete(3, start=4),)))),
        }
    )
    fields, _ = observation_layout(space)
    assert [(f.name, f.shape) for f in fields] == [
        ("camera.left", (2, 2, 3)),
        ("camera.right", (2,)),
        ("parts.0", (2,)),
        ("parts.1.0", (3,)),
    ]
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    found = written(space, {"camera": {"left": image, "right": 1}, "parts": (np.array([0, 1], np.int8), (5,))})
    np.testing.assert_array_equal(found["camera.left"], image)
    assert found["camera.right"].tolist() == [0, 1]
    assert found["parts.0"].tolist() == [0, 1]
    assert found["parts.1.0"].tolist() == [0, 1, 0]


def test_a_tuple_alone() -> None:
    found = written(gs.Tuple((gs.Discrete(2), gs.Box(0, 1, (1,), np.float32))), (0, np.float32([0.5])))
    assert found["0"].tolist() == [1, 0]
    assert found["1"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (gs.Text(5), r"Text\(.*\) \(obs\) is not supported"),
        (gs.Sequence(gs.Discrete(2)), r"Sequence\(.*\) \(obs\) is not supported"),
        (gs.Dict({"a": gs.Dict({"words": gs.Text(5)})}), r"Text\(.*\) \(a.words\) is not supported"),
        (gs.Graph(gs.Box(-1, 1, (1,)), None), r"Graph\(.*\) is not supported"),
        (gs.Dict({}), r"Dict\(\) is empty"),
        (gs.Tuple(()), r"Tuple\(\) is empty"),
        (gs.Box(-1, 1, (0,)), r"'obs' has shape \(0,\), there is nothing in it; leave it out"),
        (gs.Dict({"a": gs.Box(-1, 1, (2,)), "b": gs.Box(-1, 1, (3, 0))}), r"'b' has shape \(3, 0\)"),
        (gs.Dict({"a.b": gs.Discrete(2), "a": gs.Dict({"b": gs.Discrete(2)})}), r"several entries .* 'a.b'"),
    ],
)
def test_other_spaces_are_refused_by_name(space: gs.Space[Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        observation_layout(space)


# -- observations: values ----------------------------------------------------------------------------------


def test_one_hot() -> None:
    assert written(gs.Discrete(4), 2)["obs"].tolist() == [0, 0, 1, 0]
    assert written(gs.Discrete(4), np.int64(3))["obs"].tolist() == [0, 0, 0, 1]
    assert written(gs.Discrete(4), np.uint64(1))["obs"].tolist() == [0, 1, 0, 0]
    assert written(gs.Discrete(4), np.array([1]))["obs"].tolist() == [0, 1, 0, 0]
    assert written(gs.Discrete(3, start=-1), -1)["obs"].tolist() == [1, 0, 0]
    assert written(gs.MultiDiscrete([3, 2]), np.array([2, 0]))["obs"].tolist() == [0, 0, 1, 1, 0]
    assert written(gs.MultiDiscrete([2, 2], start=[5, -5]), np.array([6, -5]))["obs"].tolist() == [0, 1, 1, 0]
    assert written(gs.MultiDiscrete([[2, 2], [1, 3]]), np.array([[1, 0], [0, 2]]))["obs"].tolist() == [
        *(0, 1),
        *(1, 0),
        *(1,),
        *(0, 0, 1),
    ]


def test_what_is_harmless_is_converted() -> None:
    box = gs.Box(-10, 10, (2,), np.float32)
    assert written(box, np.array([0.25, -3], np.float64))["obs"].tolist() == [0.25, -3]
    assert written(box, [0.25, -3])["obs"].tolist() == [0.25, -3]
    assert written(box, np.array([1, 2]))["obs"].tolist() == [1, 2]
    assert written(gs.Box(0, 1, (), np.float32), 0.5)["obs"] == 0.5
    assert written(gs.Box(-9, 9, (2,), np.int16), np.array([7, -7]))["obs"].tolist() == [7, -7]
    assert written(gs.MultiBinary(2), np.array([True, False]))["obs"].tolist() == [1, 0]


def test_arrays_that_are_not_contiguous_are_written_by_value() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(3, 2, 4).T[:, ::-1]
    np.testing.assert_array_equal(written(gs.Box(0, 255, (4, 2, 3), np.uint8), image)["obs"], image)


BOX = gs.Box(-1, 1, (2,), np.float32)
IMAGE = gs.Box(0, 255, (2, 2, 3), np.uint8)
NESTED = gs.Dict({"a": gs.Dict({"b": BOX}), "c": gs.Tuple((gs.Discrete(2),))})


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (BOX, None, "observation 'obs' is None"),
        (BOX, np.zeros(3, np.float32), "observation 'obs' has shape (3,), the space says (2,)"),
        (BOX, np.zeros((1, 2), np.float32), "observation 'obs' has shape (1, 2), the space says (2,)"),
        (BOX, np.float32(1), "observation 'obs' has shape (), the space says (2,)"),
        (BOX, np.array(["a", "b"]), "observation 'obs' has dtype <U1, the space says float32"),
        (BOX, np.array([None, None]), "observation 'obs' has dtype object, the space says float32"),
        (BOX, np.array([1j, 0]), "observation 'obs' has dtype complex128, the space says float32"),
        (IMAGE, np.zeros((2, 2, 3)), "observation 'obs' has dtype float64, the space says uint8"),
        (IMAGE, np.zeros((2, 2, 3), int), "observation 'obs' has dtype int64, the space says uint8"),
        (IMAGE, np.zeros((3, 2, 2), np.uint8), "observation 'obs' has shape (3, 2, 2), the space says (2, 2, 3)"),
        (gs.Box(-9, 9, (2,), np.int8), np.array([300, 0]), "is array([300,   0]), which does not fit into int8"),
        (gs.Discrete(4), 4, "observation 'obs' is 4, outside its space of [4] choices"),
        (gs.Discrete(4), -1, "observation 'obs' is -1, outside its space of [4] choices"),
        (gs.Discrete(4, start=2), 1, "observation 'obs' is 1, outside its space of [4] choices"),
        (gs.Discrete(4), 1.0, "observation 'obs' is 1.0, outside its space of [4] choices"),
        (gs.Discrete(4), None, "observation 'obs' is None, outside its space of [4] choices"),
        (gs.Discrete(4), "1", "observation 'obs' is '1', outside its space of [4] choices"),
        (gs.Discrete(4), [1, 2], "observation 'obs' is [1, 2], outside its space of [4] choices"),
        (gs.MultiDiscrete([3, 2]), np.array([0, 2]), "is array([0, 2]), outside its space of [3, 2] choices"),
        (gs.MultiDiscrete([3, 2]), np.array([0]), "is array([0]), outside its space of [3, 2] choices"),
        (gs.MultiBinary(2), np.array([0, 2], np.int8), "observation 'obs' is array([0, 2], dtype=int8), expected"),
        (gs.MultiBinary(2), np.array([0, -1], np.int8), "observation 'obs' is array([ 0, -1], dtype=int8), expected"),
        (gs.MultiBinary(2), np.zeros(3, np.int8), "zeros and ones of shape (2,)"),
        (gs.MultiBinary(2), np.zeros(2), "observation 'obs' is array([0., 0.]), expected"),
        (gs.MultiBinary(2), None, "observation 'obs' is None, expected"),
        (NESTED, {"a": {"b": None}, "c": (0,)}, "observation 'a.b' is None"),
        (NESTED, {"a": {"b": [0.0, 0.0]}, "c": (2,)}, "observation 'c.0' is 2, outside its space of [2] choices"),
        (NESTED, {"a": {"b": [0.0, 0.0]}}, "observation lacks entry 'c'"),
        (NESTED, {"a": {"b": [0.0, 0.0]}, "c": ()}, "observation lacks entry 0"),
        (NESTED, {"a": {}, "c": (0,)}, "observation lacks entry 'b'"),
        (NESTED, None, "observation lacks entry 'a': None"),
    ],
)
def test_nonsense_is_refused_by_name(space: gs.Space[Any], value: Any, message: str) -> None:
    assert message in refusal(space, value)


def test_the_message_about_a_huge_value_is_short() -> None:
    assert len(refusal(gs.MultiDiscrete([2] * 500), np.full(500, 9))) < 3000
    assert len(refusal(NESTED, {"wrong": "x" * 10_000})) < 300


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_one_hot_marks_one_choice_per_component(nvec: list[int], data: st.DataObject) -> None:
    choice = [data.draw(st.integers(0, n - 1)) for n in nvec]
    found = written(gs.MultiDiscrete(nvec), np.array(choice))["obs"]
    parts = np.split(found, np.cumsum(nvec)[:-1])
    assert [int(part.argmax()) for part in parts] == choice
    assert [int(part.sum()) for part in parts] == [1] * len(nvec)


# -- actions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 3, -4])
def test_discrete_actions(start: int) -> None:
    spec, to_env = action_layout(gs.Discrete(5, start=start))
    assert spec == ActionSpec("discrete", nvec=(5,), start=(start,))
    assert spec.field == Field("action", "int64", ())
    stored = np.arange(5)
    assert [to_env(a) for a in stored] == list(range(start, start + 5))
    assert all(type(to_env(a)) is int for a in stored), "some envs look actions up in dicts or JSON"


def test_multi_discrete_actions() -> None:
    space = gs.MultiDiscrete([3, 2], start=[0, 10])
    spec, to_env = action_layout(space)
    assert spec == ActionSpec("multi_discrete", nvec=(3, 2), start=(0, 10))
    assert spec.field == Field("action", "int64", (2,))
    stored = np.array([2, 1])
    action = to_env(stored)
    assert action.tolist() == [2, 11]
    assert space.contains(action)
    action[:] = 0
    assert stored.tolist() == [2, 1], "an env that changes its action must not change the stored one"


def test_box_actions_are_clipped_for_the_env_only() -> None:
    space = gs.Box(np.float32([-1, 0]), np.float32([1, 5]))
    spec, to_env = action_layout(space)
    assert spec == ActionSpec("continuous", shape=(2,), low=(-1, 0), high=(1, 5))
    assert spec.field == Field("action", "float32", (2,))
    stored = np.float32([-3.5, 7.25])
    assert to_env(stored).tolist() == [-1, 5]
    assert stored.tolist() == [-3.5, 7.25]
    inside = np.float32([0.5, 0.5])
    action = to_env(inside)
    action += 1
    assert inside.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_box_actions_come_back_in_the_shape_and_dtype_of_the_space(dtype: Any) -> None:
    space = gs.Box(-2, 2, (2, 3), dtype)
    spec, to_env = action_layout(space)
    assert spec.shape == (6,)
    action = to_env(np.arange(6, dtype=np.float32))
    assert action.tolist() == [[0, 1, 2], [2, 2, 2]]
    assert action.dtype == dtype
    assert space.contains(action)


def test_unbounded_boxes_are_not_clipped() -> None:
    spec, to_env = action_layout(gs.Box(-np.inf, np.inf, (1,)))
    assert (spec.low, spec.high) == ((-np.inf,), (np.inf,))
    assert to_env(np.float32([1e20])).tolist() == [np.float32(1e20)]


MIXED = gs.Dict(
    {
        "move": gs.Box(-2, 2, (2, 1), np.float64),
        "tool": gs.Tuple((gs.Discrete(3, start=4), gs.MultiBinary(2))),
        "grid": gs.MultiDiscrete([[2, 3]], start=[[1, 0]]),
    }
)


def test_binary_actions_are_choices_of_two() -> None:
    spec, to_env = action_layout(gs.MultiBinary((2, 2)))
    assert spec == ActionSpec("multi_discrete", nvec=(2,) * 4, start=(0,) * 4)
    action = to_env(np.array([1, 0, 0, 1]))
    assert action.dtype == np.int8
    assert action.tolist() == [[1, 0], [0, 1]]


def test_nested_actions_are_one_row_of_choices_then_numbers() -> None:
    spec, to_env = action_layout(MIXED)
    # Gymnasium sorts the keys of a Dict: grid, move, tool.
    assert spec == ActionSpec(
        "mixed", nvec=(2, 3, 3, 2, 2), start=(1, 0, 4, 0, 0), shape=(2,), low=(-2, -2), high=(2, 2)
    )
    assert spec.field == Field("action", "float32", (7,))
    assert mask_field(spec).shape == (12,)
    action = to_env(np.float32([1, 2, 2, 0, 1, 0.5, -9]))
    assert action["grid"].tolist() == [[2, 2]]
    assert action["move"].tolist() == [[0.5], [-2.0]]
    assert type(action["tool"][0]) is int
    assert action["tool"][0] == 6
    assert action["tool"][1].tolist() == [0, 1]
    assert MIXED.contains(action)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (gs.Tuple((gs.Discrete(2),)), "multi_discrete"),
        (gs.Dict({"a": gs.MultiBinary(2), "b": gs.Discrete(3)}), "multi_discrete"),
        (gs.Tuple((gs.Box(-1, 1, (2,)), gs.Dict({"x": gs.Box(0, 1, ())}))), "continuous"),
        (gs.Tuple((gs.Discrete(3), gs.Box(-1, 1, (2,)))), "mixed"),
        (MIXED, "mixed"),
    ],
    ids=str,
)
def test_random_nested_actions_are_in_their_space(space: gs.Space[Any], kind: str) -> None:
    spec, to_env = action_layout(space)
    assert spec.kind == kind
    env = EnvSpec("nested", (Field("obs", "float32", (1,)),), spec)
    assert EnvSpec.from_dict(env.to_dict()) == env
    rows = random_actions(env, np.random.default_rng(0), {}, 50)
    assert rows.shape == (50, *spec.field.shape)
    assert rows.dtype == spec.field.dtype
    for row in rows:
        assert space.contains(to_env(row)), row
    batched = batch_actions(space, batch_space(space, 50))(rows)
    for one, row in zip(iterate(batch_space(space, 50), batched), rows, strict=True):
        assert str(one) == str(to_env(row)) or space.contains(one)


@pytest.mark.parametrize(
    "space",
    [
        gs.Box(0, 9, (2,), np.int32),
        gs.Text(3),
    ],
)
def test_other_action_spaces_are_refused_by_name(space: gs.Space[Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        action_layout(space)
    assert str(caught.value).startswith(f"action space {space} is not supported")


def test_the_entry_that_is_not_supported_is_named() -> None:
    with pytest.raises(ConfigError, match=r"action space Text\(.*\) \(a\.1\) is not supported"):
        action_layout(gs.Dict({"a": gs.Tuple((gs.Discrete(2), gs.Text(3)))}))
    with pytest.raises(ConfigError, match=r"action space Tuple\(\) is empty"):
        action_layout(gs.Tuple(()))


def test_a_mask_has_a_place_for_every_choice() -> None:
    assert mask_field(action_layout(gs.Discrete(4))[0]) == Field("action_mask", "int8", (4,))
    assert mask_field(action_layout(gs.MultiDiscrete([3, 2]))[0]) == Field("action_mask", "int8", (5,))
    with pytest.raises(ConfigError, match="masks need an action space with choices"):
        mask_field(action_layout(gs.Box(-1, 1, (2,)))[0])


# -- all lanes at once -------------------------------------------------------------------------------------

BATCHED = [
    gs.Box(-1, 1, (4,), np.float32),
    gs.Box(-1, 1, (), np.float64),
    gs.Box(0, 255, (3, 2, 1), np.uint8),
    gs.Discrete(5),
    gs.Discrete(5, start=-2),
    gs.MultiDiscrete([3, 2], start=[1, -4]),
    gs.MultiDiscrete([[3, 2], [4, 1]]),
    gs.MultiBinary(6),
    gs.MultiBinary((2, 3)),
    gs.Dict({"a": gs.Discrete(3), "b": gs.Tuple((gs.MultiBinary(2), gs.Box(-1, 1, (2,))))}),
]


@pytest.mark.parametrize("space", BATCHED, ids=str)
def test_a_batch_is_written_as_its_lanes_are(space: gs.Space[Any]) -> None:
    batch = batch_space(space, LANES)
    batch.seed(4)
    for _ in range(5):
        values = batch.sample()
        fields, write = observation_layout(space)
        one_by_one, at_once = arrays(fields), arrays(fields)
        for lane, value in enumerate(iterate(batch, values)):
            write(value, one_by_one, lane)
        batch_writer(space, LANES)(values, at_once, ALL)
        for name, array in one_by_one.items():
            np.testing.assert_array_equal(at_once[name], array, name)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (gs.Box(-1, 1, (4,)), np.zeros((2, 4), np.float32), "has shape (2, 4), the space says (3, 4)"),
        (gs.Box(0, 9, (1,), np.uint8), np.zeros((3, 1)), "has dtype float64, the space says uint8"),
        (gs.Discrete(4), np.array([0, 4, 1]), "outside its space of [4] choices"),
        (gs.Discrete(4, start=1), np.array([1, 0, 1]), "outside its space of [4] choices"),
        (gs.Discrete(4), np.array([0.0, 1.0, 1.0]), "shape (3,) and dtype float64, expected integers (3,)"),
        (gs.MultiDiscrete([2, 2]), np.zeros(3, int), "shape (3,) and dtype int64, expected integers (3, 2)"),
        (gs.MultiBinary(2), np.full((3, 2), 2), "expected zeros and ones of shape (3, 2)"),
        (gs.Dict({"a": gs.Discrete(2)}), {}, "observation lacks entry 'a'"),
    ],
)
def test_nonsense_in_a_batch_is_refused_by_name(space: gs.Space[Any], value: Any, message: str) -> None:
    fields, _ = observation_layout(space)
    with pytest.raises(ValueError) as caught:
        batch_writer(space, LANES)(value, arrays(fields), ALL)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "space",
    [
        gs.Discrete(3),
        gs.Discrete(3, start=-2),
        gs.MultiDiscrete([3, 2], start=[1, -4]),
        gs.Box(np.array([[-1.0, -1.0]]), np.array([[1.0, 2.0]]), dtype=np.float64),
    ],
    ids=str,
)
def test_a_batch_of_actions_is_that_of_its_lanes(space: gs.Space[Any]) -> None:
    spec, to_env = action_layout(space)
    batch = batch_space(space, LANES)
    size = (LANES, *spec.field.shape)
    stored = np.random.default_rng(0).normal(0, 2, size).astype(np.float32)
    if spec.kind != "continuous":
        stored = np.random.default_rng(0).integers(
            0, spec.nvec if spec.kind == "multi_discrete" else spec.nvec[0], size
        )
    before = stored.copy()
    actions = batch_actions(space, batch)(stored)
    assert batch.contains(actions)
    np.testing.assert_array_equal(actions, np.stack([to_env(action) for action in stored]))
    actions[...] = 0
    np.testing.assert_array_equal(stored, before, "what the env gets is a copy")
