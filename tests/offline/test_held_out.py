"""The lowest held-out loss is remembered with its weights, a rise is told once, and patience ends."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rollmill.core.tree_file import load_tree, save_tree
from rollmill.offline.held_out import HeldOut


def watched(losses: list[float], patience: int = 0) -> HeldOut:
    """A loss every ten updates; the weights say after which one they are."""
    held_out = HeldOut(patience)
    for k, loss in enumerate(losses, 1):
        held_out.note(10 * k, loss, lambda k=k: {"w": np.array([10 * k])})  # type: ignore[misc]
    return held_out


def test_the_weights_of_the_lowest_loss_are_kept() -> None:
    held_out = watched([3.0, 1.0, 2.0, math.nan, 1.0])
    assert (held_out.best_step, held_out.best_loss, held_out.since) == (20, 1.0, 3)
    assert held_out.weights is not None
    assert held_out.weights["w"] == [20]
    assert held_out.metrics() == {"validation/best_loss": 1.0, "validation/best_update": 20.0, "validation/rising": 0.0}
    assert HeldOut().metrics() == {}


def test_a_rise_is_told_once_for_every_lowest_loss() -> None:
    told = []
    held_out = HeldOut()
    for k, loss in enumerate([3.0, 1.0, 1.5, 1.6, 1.7, 1.8, 0.9, 1.0, 1.1, 1.2, 1.3], 1):
        held_out.note(10 * k, loss, dict)
        warning = held_out.warning()
        if warning:
            told.append((k, warning))
    assert [k for k, _ in told] == [5, 10], "after three validations above it, not at the first"
    assert held_out.metrics()["validation/rising"] == 1.0
    assert told[0][1].startswith("held-out loss has risen since update 20 (1 there, 1.7 now)")
    assert told[1][1].startswith("held-out loss has risen since update 70 (0.9 there, 1.2 now)")


def test_a_plateau_is_no_rise() -> None:
    assert not watched([1.0, 1.0, 1.0, 1.0, 1.0]).rising
    assert watched([1.0, 1.1, 1.1, 1.1]).rising
    assert not watched([0.8495, 0.8497, 0.8496, 0.8498]).rising, "a fit that has come to rest wavers"
    assert watched([-2.0, -1.9, -1.9, -1.9]).rising, "the logarithm of a density may be above 0"


@pytest.mark.parametrize(("patience", "ends_after"), [(2, 4), (3, 5), (0, None)])
def test_patience(patience: int, ends_after: int | None) -> None:
    held_out = HeldOut(patience)
    ended = []
    for k, loss in enumerate([3.0, 1.0, 2.0, 2.0, 2.0, 2.0], 1):
        held_out.note(k, loss, dict)
        ended += [k] if held_out.exhausted else []
    assert (ended[0] if ended else None) == ends_after


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    before = watched([3.0, 1.0, 2.0, 2.5, 2.6], patience=4)
    assert before.warning()
    for name, held_out in (("used", before), ("fresh", HeldOut(4))):
        save_tree(tmp_path / name, held_out.state())
        again = HeldOut(4)
        again.load_state(load_tree(tmp_path / name))
        assert again.metrics() == held_out.metrics()
        assert (again.since, again.warning()) == (held_out.since, ""), "told already, or nothing to tell"
    again.load_state(None)  # version 0.1 has none
    assert again.weights is None
