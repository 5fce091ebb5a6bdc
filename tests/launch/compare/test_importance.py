"""Shares of parameters, and sentences where the runs cannot tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.launch.compare.importance import Importance, importance


def found(params: list[dict[str, Any]], scores: list[float], lower: bool = False) -> tuple[Importance, ...]:
    settings = {repr({key: value for key, value in setting.items() if key != "run.seed"}) for setting in params}
    return importance(params, scores, len(settings), lower).items


def why_not(params: list[dict[str, Any]], scores: list[float], groups: int) -> str:
    shares = importance(params, scores, groups, False)
    assert shares.items == ()
    return shares.why_not


def grid(seeds: int) -> list[dict[str, Any]]:
    return [{"gamma": g, "rate": r, "run.seed": s} for g in (0.9, 0.99) for r in (1, 2) for s in range(seeds)]


def test_shares_go_by_effect() -> None:
    params = grid(3)
    gamma, rate = found(params, [1000 * p["gamma"] + p["rate"] + 0.1 * p["run.seed"] for p in params])
    assert (gamma.param, rate.param) == ("gamma", "rate")
    assert gamma.share > 0.98
    assert rate.share < 0.01
    assert [level[0] for level in gamma.levels] == ["0.99", "0.9"]
    assert gamma.seen


def test_the_lowest_level_is_the_best_of_a_loss() -> None:
    params = grid(3)
    gamma = found(params, [1000 * p["gamma"] + 0.1 * p["run.seed"] for p in params], lower=True)[0]
    assert [level[0] for level in gamma.levels] == ["0.9", "0.99"]


def test_small_effects_are_seen_beside_large_ones_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    params = [
        {"a": a, "b": b, "noise": n, "run.seed": s}
        for a in (0, 1)
        for b in (0, 1, 2)
        for n in ("x", "y")
        for s in range(3)
    ]
    items = {
        item.param: item for item in found(params, [10 * p["a"] + 3 * p["b"] + rng.normal(0, 0.1) for p in params])
    }
    assert sum(item.share for item in items.values()) == pytest.approx(1, abs=0.01)
    assert items["b"].share == pytest.approx(9 * (2 / 3) / (9 * (2 / 3) + 25), abs=0.02)
    assert items["b"].seen
    assert items["noise"].share < 0.01
    assert not items["noise"].seen


def test_many_numbers_become_quarters() -> None:
    items = found([{"a": x / 10, "b": x % 2} for x in range(40)], [float(x) for x in range(40)])
    assert [len(item.levels) for item in items] == [4, 2]


def test_shares_are_near_nothing_where_there_is_only_chance() -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(50):
        items = found([{"a": k % 6} for k in range(30)], [rng.normal() for _ in range(30)])
        shares.append(items[0].share if items else 0.0)
    assert np.mean(shares) < 0.05, "six levels explain 5 of 29 parts of any noise; that is taken off"
    assert shares.count(0.0) > 40, "and mostly it is said that nothing can be told"


def test_parameters_that_change_together_are_one() -> None:
    params = [{"gamma": g, "epochs": int(100 * g), "run.seed": s} for g in (0.9, 0.95, 0.99) for s in range(3)]
    (item,) = found(params, [100 * p["gamma"] + 0.01 * p["run.seed"] for p in params])
    assert item.param == "gamma + epochs"
    assert item.levels[0][0] == "0.99, 99"
    assert item.seen


def test_where_the_runs_cannot_tell_it_is_said() -> None:
    assert why_not([{"a": 1}, {"a": 2}], [1.0, 2.0], 2).startswith("2 groups of runs cannot tell")
    single = [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 2}]
    assert why_not(single, [1.0, 2.0, 3.0], 3).startswith("3 runs cannot tell which parameter matters: there are as")
    same = [{"rate": r, "run.seed": s} for r in (1, 2, 3) for s in range(2)]
    assert why_not(same, [0.0, 9.0, 1.0, 8.0, 2.0, 7.0], 3).startswith("6 runs cannot tell which parameter matters")
    assert why_not(same, [5.0] * 6, 3).startswith("6 runs cannot tell")
    assert why_not([{"run.seed": s} for s in range(4)], [1.0, 2.0, 3.0, 4.0], 1) == "", "nothing was varied"
