"""Actions as numbers, both ways: what a dynamics model reads of them, and what a controller's outputs mean."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.worldmodel.controller_settings import Squash


def _bounds(action: ActionSpec) -> tuple[Tensor, Tensor]:
    low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(f"continuous actions need finite bounds here, these reach from {action.low} to {action.high}")
    return torch.from_numpy(low), torch.from_numpy(high)


class ActionCode:
    """Actions ``[..., *shape]`` to ``[..., size]`` floats: choices one-hot, numbers scaled to -1 .. 1."""

    def __init__(self, action: ActionSpec) -> None:
        self.action = action
        self._low, self._high = _bounds(action)
        self.size = sum(action.nvec) + len(self._low)

    def __call__(self, actions: Tensor) -> Tensor:
        axes = len(self.action.field.shape)
        flat = actions.reshape(*actions.shape[: actions.ndim - axes], -1)
        choices, numbers = flat[..., : len(self.action.nvec)], flat[..., len(self.action.nvec) :]
        parts = [functional.one_hot(choices[..., k].long(), n).float() for k, n in enumerate(self.action.nvec)]
        if len(self._low):
            low, high = self._low.to(numbers.device), self._high.to(numbers.device)
            parts.append(2 * (numbers.float() - low) / (high - low) - 1)
        return torch.cat(parts, -1)


class ActionMap:
    """Outputs ``[n, outputs]`` of a controller to actions ``[n, *shape]``: the largest of a choice's numbers, and
    numbers squashed into their bounds (``controller_settings.Squash``).
    """

    def __init__(self, action: ActionSpec, squash: Squash) -> None:
        self.action, self.squash = action, squash
        self._low, self._high = _bounds(action)
        numbers = len(self._low)
        if squash == "pedal" and (numbers < 2 or bool((self._low[-2:] != 0).any())):
            raise ConfigError("squash=pedal needs two last actions that begin at 0, such as gas and brake")
        self.outputs = sum(action.nvec) + numbers - (squash == "pedal")

    def __call__(self, outputs: Tensor) -> Tensor:
        parts, first = [], 0
        for n in self.action.nvec:
            parts.append(outputs[:, first : first + n].argmax(-1, keepdim=True))
            first += n
        if len(self._low):
            parts.append(self._squashed(outputs[:, first:]))
        flat = torch.cat([part.to(parts[-1].dtype) for part in parts], -1)
        return flat.reshape(len(outputs), *self.action.field.shape)

    def _squashed(self, numbers: Tensor) -> Tensor:
        low, high = self._low.to(numbers.device), self._high.to(numbers.device)
        if self.squash == "pedal":
            numbers = torch.cat([numbers, -numbers[:, -1:]], -1)
        if self.squash == "sigmoid":
            return low + (high - low) * torch.sigmoid(numbers)
        largest = torch.maximum(low.abs(), high.abs())
        return torch.minimum(torch.maximum(largest * torch.tanh(numbers), low), high)
