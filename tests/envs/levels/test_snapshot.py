"""Values to bytes and back, with nothing run on the way."""

from __future__ import annotations

import enum
import json
import zlib
from typing import Any

import numpy as np
import pytest

from rollmill.envs.levels.snapshot import decode, encode

HERE = (__name__,)


class Thing:
    def __init__(self, **attributes: Any) -> None:
        raise AssertionError("constructors are not run")


class Colour(enum.Enum):
    RED = "r"


def make(**attributes: Any) -> Thing:
    thing = object.__new__(Thing)
    thing.__dict__.update(attributes)
    return thing


VALUES = [
    None,
    True,
    -5,
    2**70,
    0.1,
    "text",
    [],
    [1, [2.5, None], False],
    (1, "a", (2,)),
    {1: "a", "b": [3], (0, 1): {}},
    {3, 1, 2},
    frozenset({"x"}),
    Colour.RED,
    np.int64(7),
    np.float32(0.1),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back(value: Any) -> None:
    again = decode(encode(value, HERE), HERE)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3)[:, ::2], np.zeros((0, 2), bool), np.array(1.5)])
def test_an_array_comes_back(array: Any) -> None:
    again = decode(encode([array]))[0]
    np.testing.assert_array_equal(again, array)
    assert (again.dtype, again.shape, again.flags.writeable) == (array.dtype, array.shape, True)


def test_objects_keep_who_they_are() -> None:
    shared: list[Any] = [1]
    thing = make(name="door", around=shared, place=(1, 2))
    shared.append(thing)
    one, two, its = decode(encode((thing, thing, shared), HERE), HERE)
    assert one is two
    assert one.around is its
    assert its[1] is one
    assert (one.name, one.place) == ("door", (1, 2))


def test_who_decodes_puts_its_own_in_the_place_of_what_is_known() -> None:
    mine, other = object(), object()
    assert decode(encode([mine, 1], known=[mine]), known=[other]) == [other, 1]


def test_random_numbers_go_on_where_they_were() -> None:
    rng = np.random.default_rng(3)
    rng.random(5)
    rng.integers(5, dtype=np.int32)  # half of a number is kept for the next
    again = decode(encode(rng))
    assert again.random() == rng.random()
    assert again.integers(100, size=9, dtype=np.int32).tolist() == rng.integers(100, size=9, dtype=np.int32).tolist()


@pytest.mark.parametrize(
    "value", [object(), print, np.array([object()]), make(a=1)], ids=["object", "code", "array", "thing"]
)
def test_what_cannot_be_written_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be written"):
        encode([value])


def forged(root: Any, nodes: Any = (), shapes: Any = ()) -> bytes:
    return zlib.compress(json.dumps({"root": root, "nodes": nodes, "shapes": shapes}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        zlib.compress(b"[]"),
        forged(5),
        forged(0, [["object", 0]], [["os", "system"]]),
        forged(0, [["enum", "subprocess", "Popen", "x"]]),
        forged(0, [["object", 0]], [["test_snapshot", "VALUES"]]),
        forged(0, [["unheard of"]]),
        forged(0, [["known", 0]]),
        forged(0, [["tuple", 0]]),
    ],
)
def test_nothing_but_a_snapshot_is_read(data: bytes) -> None:
    with pytest.raises(ValueError, match="no snapshot"):
        decode(data, HERE)
