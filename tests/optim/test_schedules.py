"""Schedules by progress and by KL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.errors import NonFiniteError
from rollmill.optim.schedules import KlAdaptiveRate, Schedule, WarmupCosine


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("constant", [4, 4, 4, 4]), ("linear", [4, 3.5, 3, 2]), ("cosine", [4, 3 + 0.5**0.5, 3, 2])],
)
def test_values_on_the_way(kind, expected):
    schedule = Schedule(4.0, 2.0, kind)
    assert [schedule.at(p) for p in (0, 0.25, 0.5, 1)] == pytest.approx(expected)


def test_overshooting_the_plan_stays_at_the_end():
    assert Schedule(1.0, 0.1, "linear").at(1.3) == pytest.approx(0.1)


@pytest.mark.parametrize("progress", [-0.1, float("nan")])
def test_impossible_progress_is_refused(progress):
    with pytest.raises(ValueError, match="progress must be 0 or more"):
        Schedule(1.0).at(progress)


def test_the_rate_warms_up_in_a_line_and_falls_along_a_cosine():
    rate = WarmupCosine(2.0, 0.1, warmup=4)
    assert [rate.at(step, 0.0) for step in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert rate.at(9, 0.5) == pytest.approx(2.0 * 0.55)
    assert rate.at(9, 1.0) == rate.at(9, 1.5) == pytest.approx(0.2)
    assert WarmupCosine(2.0, 0.1).at(0, 0.0) == 2.0


@given(st.floats(0, 1))
def test_the_highest_rate_is_the_one_asked_for_to_the_last_bit(end):
    assert WarmupCosine(3e-4, end).at(0, 0.0) == 3e-4


def test_the_rate_follows_the_kl():
    adapt = KlAdaptiveRate(target=0.01, minimum=1e-5, maximum=1e-2, factor=2.0)
    assert adapt.next(1e-3, 0.021) == pytest.approx(5e-4)
    assert adapt.next(1e-3, 0.004) == pytest.approx(2e-3)
    assert adapt.next(1e-3, 0.005) == adapt.next(1e-3, 0.02) == 1e-3
    assert adapt.next(1.5e-5, 1.0) == 1e-5
    assert adapt.next(9e-3, 0.0) == 1e-2


@given(st.lists(st.floats(0, 1), max_size=50))
def test_the_rate_never_leaves_its_bounds(kls):
    adapt, rate = KlAdaptiveRate(target=0.01, minimum=1e-5, maximum=1e-3), 1e-4
    for kl in kls:
        rate = adapt.next(rate, kl)
        assert 1e-5 <= rate <= 1e-3


@pytest.mark.parametrize("kl", [float("nan"), float("inf")])
def test_a_kl_that_is_no_number_stops_the_run(kl):
    with pytest.raises(NonFiniteError, match="KL divergence is"):
        KlAdaptiveRate(target=0.01).next(1e-3, kl)


@pytest.mark.parametrize(
    "values", [{"target": 0.0}, {"target": 0.1, "factor": 1.0}, {"target": 0.1, "minimum": 0.0},
               {"target": 0.1, "minimum": 1e-2, "maximum": 1e-3}]
)  # fmt: skip
def test_impossible_bounds_are_refused(values):
    with pytest.raises(ValueError):
        KlAdaptiveRate(**values)
