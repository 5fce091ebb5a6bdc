"""The networks of controllers: features in, outputs out, each row with weights of its own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rollmill.core.errors import ConfigError
from rollmill.core.imports import check_arguments, import_object


class Net(Protocol):
    """How a controller of given weights decides."""

    @property
    def features(self) -> int:
        """Numbers that it reads (F)."""
        ...

    @property
    def weights(self) -> int:
        """Numbers of one controller (P)."""
        ...

    def __call__(self, features: Tensor, weights: Tensor) -> Tensor:
        """Return ``[n, outputs]`` of n controllers ``[n, P]``, each for its own features ``[n, F]``, in one pass."""
        ...


@dataclass(frozen=True)
class Layers:
    """One layer, or two: ``hidden`` 0 is a linear controller."""

    features: int
    hidden: int
    outputs: int

    @property
    def weights(self) -> int:
        if not self.hidden:
            return (self.features + 1) * self.outputs
        return (self.features + 1) * self.hidden + (self.hidden + 1) * self.outputs

    def __call__(self, features: Tensor, weights: Tensor) -> Tensor:
        if not self.hidden:
            return _layer(features, weights, self.outputs)
        first = (self.features + 1) * self.hidden
        hidden = torch.tanh(_layer(features, weights[:, :first], self.hidden))
        return _layer(hidden, weights[:, first:], self.outputs)


def _layer(x: Tensor, weights: Tensor, size: int) -> Tensor:
    """Apply a layer; ``weights`` ``[n, (F + 1) * size]``: a matrix ``[size, F]``, then offsets ``[size]``."""
    count, width = x.shape
    matrix = weights[:, : width * size].reshape(count, size, width)
    return torch.einsum("noi,ni->no", matrix, x) + weights[:, width * size :]


class OwnNet:
    """A module of the user's own: its parameters, side by side, are the weights."""

    def __init__(self, module: nn.Module, features: int) -> None:
        self.features, self._module = features, module.eval()
        self._shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]

    @property
    def weights(self) -> int:
        return sum(self._sizes)

    def __call__(self, features: Tensor, weights: Tensor) -> Tensor:
        out: Tensor = torch.vmap(self._one)(features, weights)
        return out

    def _one(self, features: Tensor, weights: Tensor) -> Tensor:
        parts = zip(self._shapes.items(), torch.split(weights, self._sizes), strict=True)
        out: Tensor = functional_call(self._module, {n: part.reshape(shape) for (n, shape), part in parts}, (features,))
        return out


def build_own(custom: str, args: Mapping[str, Any], features: int, outputs: int, device: torch.device | str) -> OwnNet:
    """Build the network that ``controller.custom`` names; raises ConfigError where it is none, or does not fit."""
    label = f"controller.custom={custom}"
    found = import_object(custom, "controller.custom", _is_module)
    check_arguments(found, label, {"features": features, "outputs": outputs}, args)
    net = OwnNet(found(features, outputs, **args).to(device), features)
    if not net.weights:
        raise ConfigError(f"{label} has no parameters: there is nothing to search for")
    with torch.no_grad():
        given = net(torch.zeros(2, features, device=device), torch.zeros(2, net.weights, device=device))
    if tuple(given.shape) != (2, outputs):
        raise ConfigError(f"{label}: forward gives {tuple(given.shape[1:])} for one row of features, not ({outputs},)")
    return net


def _is_module(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, nn.Module)
