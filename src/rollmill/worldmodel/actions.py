"""Actions as numbers, both ways: what a dynamics model reads of them, and what a controller's outputs mean."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.worldmodel.controller.settings import Squash


class Bounds:
    """Bounds of continuous actions, on every device that asked for them: a copy for every step would make it wait."""

    def __init__(self, action: ActionSpec) -> None:
        low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(
                f"continuous actions need finite bounds here, these reach from {action.low} to {action.high}"
            )
        self.count = len(low)
        self.low, self.high = torch.from_numpy(low), torch.from_numpy(high)
        self._on: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return low and high ``[count]`` on a device."""
        if device not in self._on:
            with torch.inference_mode(False):  # they serve learning, too
                self._on[device] = (self.low.to(device), self.high.to(device))
        return self._on[device]


class ActionCode:
    """Actions ``[..., *shape]`` to ``[..., size]`` floats: choices one-hot, numbers scaled to -1 .. 1."""

    def __init__(self, action: ActionSpec) -> None:
        self.action = action
        self._bounds = Bounds(action)
        self.size = sum(action.nvec) + self._bounds.count

    def __call__(self, actions: Tensor) -> Tensor:
        axes = len(self.action.field.shape)
        flat = actions.reshape(*actions.shape[: actions.ndim - axes], -1)
        choices, numbers = flat[..., : len(self.action.nvec)], flat[..., len(self.action.nvec) :]
        parts = [functional.one_hot(choices[..., k].long(), n).float() for k, n in enumerate(self.action.nvec)]
        if self._bounds.count:
            low, high = self._bounds.on(numbers.device)
            parts.append(2 * (numbers.float() - low) / (high - low) - 1)
        return torch.cat(parts, -1)


class ActionMap:
    """Outputs ``[n, outputs]`` of a controller to actions ``[n, *shape]``: the largest of a choice's numbers, and
    numbers squashed into their bounds (``controller_settings.Squash``).
    """

    def __init__(self, action: ActionSpec, squash: Squash) -> None:
        self.action, self.squash = action, squash
        self._bounds = Bounds(action)
        numbers = self._bounds.count
        if squash == "pedal" and (numbers < 2 or bool((self._bounds.low[-2:] != 0).any())):
            raise ConfigError("squash=pedal needs two last actions that begin at 0, such as gas and brake")
        self.outputs = sum(action.nvec) + numbers - (squash == "pedal")

    def __call__(self, outputs: Tensor) -> Tensor:
        parts, first = [], 0
        for n in self.action.nvec:
            parts.append(outputs[:, first : first + n].argmax(-1, keepdim=True))
            first += n
        if self._bounds.count:
            parts.append(self._squashed(outputs[:, first:]))
        flat = torch.cat([part.to(parts[-1].dtype) for part in parts], -1)
        return flat.reshape(outputs.shape[0], *self.action.field.shape)

    def _squashed(self, numbers: Tensor) -> Tensor:
        low, high = self._bounds.on(numbers.device)
        if self.squash == "pedal":
            numbers = torch.cat([numbers, -numbers[:, -1:]], -1)
        if self.squash == "sigmoid":
            return low + (high - low) * torch.sigmoid(numbers)
        largest = torch.maximum(low.abs(), high.abs())
        return torch.minimum(torch.maximum(largest * torch.tanh(numbers), low), high)
