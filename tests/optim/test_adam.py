"""Our Adam gives the numbers and the state of torch's, and does without the compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from rollmill.models.saving import load_optimizer, optimizer_state
from rollmill.optim.adam import Adam


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 3), (7,), (4, 3, 2, 2))
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def set_gradients(tensors: list[Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=generator)


def test_it_steps_like_torchs_to_the_bit() -> None:
    mine, theirs = parameters(), parameters()
    own, other = Adam(mine, 1e-2, 1e-6), torch.optim.Adam(theirs, 1e-2, eps=1e-6, fused=True)
    for seed in range(4):
        own.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 1e-2 / (seed + 1)
        set_gradients(mine, seed)
        set_gradients(theirs, seed)
        own.step()
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_parameters_without_gradient_stay_and_have_no_state() -> None:
    tensors = parameters()
    before = tensors[1].detach().clone()
    optimizer = Adam(tensors, 1e-2, 1e-6)
    optimizer.step()
    assert optimizer.state_dict()["state"] == {}
    set_gradients(tensors, 0)
    tensors[1].grad = None
    optimizer.step()
    assert torch.equal(tensors[1], before)
    assert set(optimizer.state_dict()["state"]) == {0, 2}


@pytest.mark.parametrize("to_torch", [True, False])
def test_states_are_exchanged_with_torchs(to_torch: bool) -> None:
    mine, theirs = parameters(), parameters()
    own, other = Adam(mine, 1e-2, 1e-6), torch.optim.Adam(theirs, 1e-2, eps=1e-6, fused=True)
    source, target = ((own, mine), (other, theirs)) if to_torch else ((other, theirs), (own, mine))
    set_gradients(source[1], 0)
    source[0].step()
    load_optimizer(target[0], optimizer_state(source[0]))
    with torch.no_grad():
        for to, x in zip(target[1], source[1], strict=True):
            to.copy_(x)
    for optimizer, tensors in (source, target):
        set_gradients(tensors, 1)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_cleared(to_none: bool) -> None:
    tensors = parameters()
    set_gradients(tensors[:2], 0)
    Adam(tensors, 1e-2, 1e-6).zero_grad(set_to_none=to_none)
    assert tensors[2].grad is None
    assert all(x.grad is None if to_none else not x.grad.any() for x in tensors[:2])  # type: ignore[union-attr]


def test_a_step_does_not_import_the_compiler() -> None:
    program = """
import sys, torch
from rollmill.optim.adam import Adam
x = torch.ones(3, requires_grad=True)
optimizer = Adam([x], 0.1, 1e-8)
x.sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
