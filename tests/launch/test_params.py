from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.errors import ConfigError
from rollmill.launch.params import (
    Choice,
    Integers,
    LogUniform,
    ParamGrid,
    ParamList,
    RandomSearch,
    Uniform,
    product,
    total,
)


def test_a_grid_is_every_combination_the_last_key_fastest() -> None:
    assert list(ParamGrid({"env": ["a", "b"], "x": [1, 2]})) == [
        {"env": "a", "x": 1},
        {"env": "a", "x": 2},
        {"env": "b", "x": 1},
        {"env": "b", "x": 2},
    ]


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(), min_size=1, max_size=4), min_size=1))
def test_a_grid_has_as_many_settings_as_a_product(values: dict[str, list[int]]) -> None:
    made = list(ParamGrid(values))
    assert [tuple(setting.values()) for setting in made] == list(itertools.product(*values.values()))


def test_products_and_sums() -> None:
    grid, rows = ParamGrid({"a": [1, 2]}), ParamList([{"b": 3}, {"b": 4, "c": 5}])
    assert len(list(grid * rows)) == 4
    assert list(grid + rows) == [{"a": 1}, {"a": 2}, {"b": 3}, {"b": 4, "c": 5}]
    assert list(product([])) == [{}]
    assert list(total([grid, grid])) == [*grid, *grid]


def test_random_search_repeats_and_more_samples_only_add() -> None:
    draws = {"lr": LogUniform(1e-4, 1e-2), "gamma": Uniform(0.9, 1.0), "n": Integers(1, 3), "m": Choice(["x", "y"])}
    few, many = list(RandomSearch(draws, 5, seed=3)), list(RandomSearch(draws, 50, seed=3))
    assert many[:5] == few
    assert list(RandomSearch(draws, 5, seed=4)) != few
    assert all(1e-4 <= s["lr"] <= 1e-2 and 0.9 <= s["gamma"] <= 1 and s["n"] in (1, 2, 3) for s in many)
    assert sum(s["lr"] < 1e-3 for s in many) > 10, "half of the logarithm's range"
    without = list(RandomSearch({"gamma": draws["gamma"]}, 5, seed=3))
    assert [s["gamma"] for s in without] == [s["gamma"] for s in few], "another key does not change what this one draws"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ParamGrid({}), "at least one key"),
        (lambda: ParamGrid({"a": []}), "a: the list of values is empty"),
        (lambda: ParamGrid({"a": "text"}), "expected a list"),
        (lambda: ParamGrid({"a": 3}), "expected a list"),
        (lambda: ParamGrid({"run.name": ["a"]}), "run.name cannot be a parameter"),
        (lambda: ParamGrid({"a=b": [1]}), "not the key of a setting"),
        (lambda: ParamGrid({3: [1]}), "not the key of a setting"),
        (lambda: ParamList([]), "must not be empty"),
        (lambda: ParamList(["a"]), "expected a mapping"),
        (lambda: RandomSearch({}, 3), "at least one key"),
        (lambda: RandomSearch({"a": Uniform(0, 1)}, 0), "no run at all"),
        (lambda: RandomSearch({"a": [1, 2]}, 1), "expected one of uniform"),
        (lambda: Uniform(1, 1), "smaller one"),
        (lambda: LogUniform(0, 1), "positive"),
        (lambda: Integers(3, 2), "smaller one"),
        (lambda: Choice([]), "nothing to choose from"),
        (lambda: list(ParamGrid({"a": [1]}) * ParamGrid({"a": [2]})), "a: set by two factors"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()
