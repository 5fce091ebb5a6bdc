"""The alarms; what ``explain_non_finite`` names is tested with the learner."""

import logging

import pytest

from rollmill.core.errors import RollmillError
from rollmill.learning.guards import Alarms, ValueCollapseError

GOOD = {"target_deviation": 2.0, "error_deviation": 1.0, "grad_norm": 0.5}
COLLAPSED = {**GOOD, "error_deviation": 3.0}
STEEP = {**GOOD, "grad_norm": 11.0}


def test_a_good_value_function_raises_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    alarms = Alarms(collapse_patience=3, max_grad_norm=1.0)
    for version in range(200):
        alarms.check(GOOD, 1.0, version)
    assert alarms.active == 0
    assert not caplog.records


def test_collapse_warns_once_and_then_stops_the_run(caplog: pytest.LogCaptureFixture) -> None:
    alarms = Alarms(collapse_patience=120, max_grad_norm=1.0)
    with caplog.at_level(logging.WARNING, "rollmill"):
        for version in range(119):
            alarms.check(COLLAPSED, 1.0, version)
    assert caplog.text.count("the value function is collapsing") == 1
    assert alarms.active == 1
    with pytest.raises(ValueCollapseError, match=r"for 120 batches \(now batch 119\).*collapse_patience=120"):
        alarms.check(COLLAPSED, 1.0, 119)
    assert issubclass(ValueCollapseError, RollmillError)


def test_a_good_batch_ends_the_spell() -> None:
    alarms = Alarms(collapse_patience=3, max_grad_norm=1.0)
    for version in range(50):
        alarms.check(COLLAPSED if version % 3 else GOOD, 1.0, version)
    assert alarms.active == 0


def test_patience_0_never_stops() -> None:
    alarms = Alarms(collapse_patience=0, max_grad_norm=1.0)
    for version in range(500):
        alarms.check(COLLAPSED, 1.0, version)
    assert alarms.active == 1


def test_a_solved_task_is_judged_by_the_returns_of_the_run() -> None:
    """Targets of one batch hardly vary, errors are small beside the returns: no collapse."""
    alarms = Alarms(collapse_patience=1, max_grad_norm=1.0)
    alarms.check({**GOOD, "target_deviation": 1e-4, "error_deviation": 0.3}, 1.0, 0)
    with pytest.raises(ValueCollapseError):
        alarms.check({**GOOD, "target_deviation": 1e-4, "error_deviation": 0.3}, 0.0, 1)


def test_lasting_steep_gradients_warn(caplog: pytest.LogCaptureFixture) -> None:
    alarms = Alarms(collapse_patience=3, max_grad_norm=1.0)
    with caplog.at_level(logging.WARNING, "rollmill"):
        for version in range(60):
            alarms.check(STEEP, 1.0, version)
    assert caplog.text.count("gradient norm above ten times max_grad_norm for 50 batches (now 11 against 1)") == 1
    assert alarms.active == 1


def test_without_a_limit_no_gradient_is_steep() -> None:
    alarms = Alarms(collapse_patience=3, max_grad_norm=0.0)
    for version in range(60):
        alarms.check(STEEP, 1.0, version)
    assert alarms.active == 0
