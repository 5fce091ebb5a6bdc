"""Actions as numbers, and numbers as actions."""

from __future__ import annotations

import pytest
import torch

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.worldmodel.actions import ActionCode, ActionMap

CAR = ActionSpec("continuous", shape=(3,), low=(-1, 0, 0), high=(1, 1, 1))
CHOICE = ActionSpec("discrete", nvec=(3,), start=(0,))
CHOICES = ActionSpec("multi_discrete", nvec=(2, 3), start=(0, 0))
MIXED = ActionSpec("mixed", nvec=(2,), start=(0,), shape=(1,), low=(-2,), high=(2,))


def test_choices_are_one_hot_and_numbers_scaled() -> None:
    assert ActionCode(CHOICE)(torch.tensor([[2, 0]])).tolist() == [[[0, 0, 1], [1, 0, 0]]]
    assert ActionCode(CHOICES)(torch.tensor([[1, 2]])).tolist() == [[0, 1, 0, 0, 1]]
    assert ActionCode(CAR)(torch.tensor([[0.5, 0.0, 1.0]])).tolist() == [[0.5, -1.0, 1.0]]
    assert ActionCode(MIXED)(torch.tensor([[1.0, -2.0]])).tolist() == [[0, 1, -1]]


def test_the_largest_number_is_the_choice() -> None:
    assert ActionMap(CHOICE, "clip")(torch.tensor([[0.1, 3.0, -1.0]])).tolist() == [1]
    chosen = ActionMap(CHOICES, "clip")(torch.tensor([[0.0, 1.0, 5.0, 0.0, 0.0]]))
    assert chosen.tolist() == [[1, 0]]
    assert chosen.dtype == torch.int64
    assert ActionMap(MIXED, "clip")(torch.tensor([[0.0, 1.0, 0.0]])).tolist() == [[1.0, 0.0]]


def test_clip_cuts_at_one_sided_bounds() -> None:
    act = ActionMap(CAR, "clip")
    assert act.outputs == 3
    assert act(torch.tensor([[-9.0, -1.0, 9.0]])).tolist() == [pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)]


def test_sigmoid_has_the_middle_at_zero() -> None:
    assert ActionMap(CAR, "sigmoid")(torch.zeros(1, 3)).tolist() == [[0.0, 0.5, 0.5]]


def test_pedal_is_gas_or_brake() -> None:
    act = ActionMap(CAR, "pedal")
    assert act.outputs == 2
    gas, brake = act(torch.tensor([[0.0, 0.7], [0.0, -0.7]])).unbind(0)
    assert gas[1] > 0 == gas[2]
    assert brake[2] > 0 == brake[1]


def test_what_cannot_be_mapped_is_refused() -> None:
    with pytest.raises(ConfigError, match="finite bounds"):
        ActionCode(ActionSpec("continuous", shape=(1,), low=(-float("inf"),), high=(1,)))
    with pytest.raises(ConfigError, match="pedal"):
        ActionMap(CHOICE, "pedal")
