"""Optimizes by Adam, without the compiler that ``torch.optim`` drags in.

The first call into any optimizer of ``torch.optim`` imports ``torch._dynamo`` and, with it, a thousand modules:
about 65 MB of memory and a second or more at the start of every run. The arithmetic is one function that needs none
of that. CUDA graphs need what the class offers beyond it, so there ``torch.optim.Adam`` stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.optim.adam import adam

BETAS = (0.9, 0.999)
TRACED = "Optimizer.step#Adam.step"
"""What traces call an update; the name that ``torch.optim`` gives it."""


class Optimizer(Protocol):
    """What learning and checkpoints need of an optimizer; every one of ``torch.optim`` offers it."""

    param_groups: list[dict[str, Any]]

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def step(self) -> object: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Adam:
    """One call for all parameters (``fused``); the same numbers and the same state as ``torch.optim.Adam``."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, eps: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": lr}]
        self._eps = eps
        self._state: dict[int, dict[str, Tensor]] = {}
        """By the number of a parameter; it is there from its first gradient on."""

    @property
    def _parameters(self) -> list[Tensor]:
        found: list[Tensor] = self.param_groups[0]["params"]
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def step(self, skip: Tensor | None = None) -> None:
        """Move every parameter that has a gradient; none where ``skip``, a tensor on their device, is 1."""
        moved = [(k, x, x.grad) for k, x in enumerate(self._parameters) if x.grad is not None]
        if not moved:
            return
        entries = [self._state.get(k) or self._begin(k, x) for k, x, _ in moved]
        with record_function(TRACED):
            adam(
                [x for _, x, _ in moved],
                [grad for _, _, grad in moved],
                [entry["exp_avg"] for entry in entries],
                [entry["exp_avg_sq"] for entry in entries],
                [],
                [entry["step"] for entry in entries],
                fused=True,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=self.param_groups[0]["lr"],
                weight_decay=0.0,
                eps=self._eps,
                maximize=False,
                found_inf=skip,
            )

    def _begin(self, index: int, parameter: Tensor) -> dict[str, Tensor]:
        self._state[index] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
        return self._state[index]

    def state_dict(self) -> dict[str, Any]:
        """Return what was gathered about each parameter; the tensors themselves, not copies."""
        return {"state": {index: dict(entry) for index, entry in self._state.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy what ``state_dict`` gave; the rate stays."""
        parameters = self._parameters
        self._state.clear()
        for index, entry in state_dict["state"].items():
            own = self._begin(index, parameters[index])
            for name, x in own.items():
                x.copy_(entry[name])
