"""Ranges of tuned settings: parsing, steps, reflection."""

import numpy as np
import pytest

from rollmill.pbt.space import Range, from_units, parse_space, perturbed, reflect, sampled, spread, units

SPACE = parse_space({"rate": [1e-5, 1e-1], "gamma": [0.9, 0.999], "term": [-1, 1], "weight": [0, 4]})


@pytest.mark.parametrize(
    ("key", "described", "scale"),
    [
        ("rate", [1e-5, 1e-1], "log"),
        ("rate", [1, 9.9], "linear"),
        ("rate", [0, 1], "linear"),
        ("learning.gamma", [0.9, 0.999], "horizon"),
        ("learning.gamma", [0.9, 0.999, "linear"], "linear"),
        ("rate", (1, 2, "log"), "log"),
    ],
)
def test_the_scale_follows_from_bounds_and_name(key: str, described: object, scale: str) -> None:
    assert Range.parse(key, described).scale == scale


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (0.1, r"rate: expected bounds"),
        ([0.1], r"expected bounds such as \[0.001, 0.1\]"),
        ([0.1, float("inf")], r"expected bounds"),
        (["a", 1], r"expected bounds"),
        ([1, 2, "cubic"], r"expected bounds"),
        ([2, 1], r"lower bound 2 must be below"),
        ([0, 1, "log"], r"factors never reach 0"),
        ([0.5, 1, "horizon"], r"below 1"),
    ],
)
def test_what_is_no_range_is_refused(described: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Range.parse("rate", described)


@pytest.mark.parametrize("bounds", SPACE.values(), ids=list(SPACE))
def test_units_go_there_and_back_and_every_step_stays_inside(bounds: Range) -> None:
    rng = np.random.default_rng(0)
    for u in np.linspace(0, 1, 11).tolist():
        assert bounds.unit(bounds.value(u)) == pytest.approx(u, abs=1e-9)
    value = bounds.low
    for _ in range(1000):
        value = bounds.perturb(value, rng.uniform(1.1, 3), rng.random() < 0.5)
        assert value in bounds


def test_factors_are_factors_and_those_of_gamma_are_of_its_distance_from_one() -> None:
    assert SPACE["rate"].perturb(0.01, 1.5, up=True) == pytest.approx(0.015)
    assert SPACE["rate"].perturb(0.01, 1.5, up=False) == pytest.approx(0.01 / 1.5)
    assert 1 - SPACE["gamma"].perturb(0.99, 2.0, up=True) == pytest.approx(0.005)


def test_what_would_leave_the_bounds_is_reflected() -> None:
    assert SPACE["rate"].perturb(0.1, 2.0, up=True) == pytest.approx(0.05)
    assert [reflect(x, 0, 1) for x in (0.25, 1.25, -0.25, 2.25, -1.25)] == [0.25, 0.75, 0.25, 0.25, 0.75]


def test_a_zero_can_move_and_a_sign_can_change() -> None:
    rng = np.random.default_rng(0)
    own = {"rate": 0.01, "gamma": 0.99, "term": 0.0, "weight": 0.0}
    first = perturbed(SPACE, own, rng, (1.1, 1.5))
    assert first["term"] != 0
    assert first["weight"] > 0
    seen = set()
    for _ in range(200):
        own = perturbed(SPACE, own, rng, (1.1, 1.5))
        seen.add(own["term"] > 0)
    assert seen == {True, False}


def test_rates_of_mutation_and_of_drawing_anew() -> None:
    rng = np.random.default_rng(0)
    own = {key: bounds.value(0.5) for key, bounds in SPACE.items()}
    drawn = [perturbed(SPACE, own, rng, (1.1, 1.1), rate=0.15, resample=0.5) for _ in range(2000)]
    moved = [sum(new[key] != own[key] for new in drawn) / len(drawn) for key in SPACE]
    assert moved == pytest.approx([0.15] * len(SPACE), abs=0.03)
    far = [new for new in drawn if abs(SPACE["rate"].unit(new["rate"]) - 0.5) > 0.1]
    assert 0.02 < len(far) / len(drawn) < 0.1


def test_beginnings() -> None:
    rng = np.random.default_rng(0)
    even = spread(SPACE, 5, rng)
    assert [own["rate"] for own in even] == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
    assert sorted(own["term"] for own in even) == pytest.approx([-1, -0.5, 0, 0.5, 1])
    assert all(own[key] in bounds for own in sampled(SPACE, 50, rng) for key, bounds in SPACE.items())


def test_points_beyond_the_corner_come_back() -> None:
    inside = from_units(SPACE, [1.2, -0.1, 0.5, 3.0])
    assert units(SPACE, inside) == pytest.approx([0.8, 0.1, 0.5, 1.0])


WHOLE = parse_space({"epochs": [1, 8, "integer"], "width": [1, 64, "integer"], "level": [0, 1, 5, 20, "choice"]})


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ([0.5, 8, "integer"], "bounds of whole numbers must be whole numbers, not 0.5 and 8"),
        ([1, "choice"], "at least two different numbers"),
        ([1, 1, "choice"], "at least two different numbers"),
        ([1, "b", "choice"], "at least two different numbers"),
    ],
)
def test_what_is_no_set_of_numbers_is_refused(described: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Range.parse("level", described)


@pytest.mark.parametrize("name", WHOLE)
def test_only_what_was_listed_is_reached_and_all_of_it(name: str) -> None:
    bounds, rng = WHOLE[name], np.random.default_rng(0)
    allowed = {float(x) for x in ([0, 1, 5, 20] if name == "level" else range(1, int(bounds.high) + 1))}
    value, seen = bounds.low, set()
    for _ in range(2000):
        moved = bounds.perturb(value, rng.uniform(1.1, 1.5), rng.random() < 0.5)
        assert moved != value, "every step leads away"
        value = moved
        seen.add(value)
    assert seen == allowed
    assert {bounds.value(u) for u in np.linspace(0, 1, 500)} == allowed
    assert all(bounds.value(bounds.unit(x)) == x for x in allowed)
    assert all(x in bounds for x in allowed)
    assert bounds.low + 0.5 not in bounds


def test_a_choice_steps_to_a_neighbour() -> None:
    level = WHOLE["level"]
    assert [level.perturb(x, 1.2, True) for x in (0.0, 1.0, 5.0, 20.0)] == [1.0, 5.0, 20.0, 5.0]
    assert [level.perturb(x, 1.2, False) for x in (0.0, 1.0, 5.0, 20.0)] == [1.0, 0.0, 1.0, 5.0]


def test_whole_numbers_a_factor_apart_move_by_factors() -> None:
    assert WHOLE["width"].scale == "log"
    assert WHOLE["width"].perturb(40, 1.5, up=False) == 27
    assert WHOLE["width"].perturb(2, 1.1, up=True) == 3
