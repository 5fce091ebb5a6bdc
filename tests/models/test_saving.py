"""Optimizers, generators and tensors that do not fit what was saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rollmill.core.errors import CheckpointError
from rollmill.models.saving import load_generator, load_optimizer, load_tensor, load_weights, optimizer_state


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    model = nn.Linear(3, 2)
    made = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    made.step()
    return made


def test_an_optimizer_takes_its_own_state(optimizer: torch.optim.Optimizer) -> None:
    load_optimizer(optimizer, optimizer_state(optimizer))


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("0", "exp_avg"), np.zeros((3, 2), np.float32), r"exp_avg of parameter 0 has shape \[3, 2\], not \[2, 3\]"),
        (("1", "step"), np.zeros(2, np.float32), "step of parameter 1 is no single number"),
        (("7",), {"exp_avg": np.zeros(1), "exp_avg_sq": np.zeros(1), "step": np.zeros(1)}, "list index out of range"),
        (("one",), {}, "invalid literal"),
        (("0",), {}, "there is no 'exp_avg'"),
    ],
)
def test_another_state_is_refused(
    optimizer: torch.optim.Optimizer, place: tuple[str, ...], value: Any, reason: str
) -> None:
    state: Any = optimizer_state(optimizer)
    below = state
    for name in place[:-1]:
        below = below[name]
    below[place[-1]] = value
    with pytest.raises(
        CheckpointError, match=f"the saved state of the optimizer does not fit this network: .*{reason}"
    ):
        load_optimizer(optimizer, state)


def test_other_numbers_are_refused() -> None:
    with pytest.raises(CheckpointError, match="random generator cannot be used"):
        load_generator(torch.Generator().set_state, np.zeros(7, np.uint8))
    with pytest.raises(CheckpointError, match=r"an array of shape \[2\] does not fit \[3\]"):
        load_tensor(torch.zeros(3), np.zeros(2))
    with pytest.raises(CheckpointError, match="do not fit this network") as error:
        load_weights(nn.Linear(1, 1), {f"name {k}": np.zeros(1) for k in range(1000)})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1200
