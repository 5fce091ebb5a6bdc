"""Networks and optimizers as plain arrays, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.core.errors import CheckpointError
from rollmill.core.fields import Array
from rollmill.optim.adam import Optimizer


def to_numpy(x: Tensor) -> Array:
    """A copy of the tensor."""
    return x.detach().cpu().numpy().copy()


def weights_of(model: nn.Module) -> dict[str, Array]:
    """All parameters and buffers that belong into a checkpoint, by name."""
    return {name: to_numpy(x) for name, x in model.state_dict().items()}


def load_weights(model: nn.Module, weights: Mapping[str, Array]) -> None:
    """Copy saved weights into a network; CheckpointError unless both have the same names and shapes."""
    try:
        model.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in weights.items()}, strict=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"the saved weights do not fit this network (were model settings changed?): {error}"
        ) from error


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """What the optimizer has gathered about each parameter, by the parameter's number."""
    return {
        str(index): {name: to_numpy(x) for name, x in entry.items()}
        for index, entry in optimizer.state_dict()["state"].items()
    }


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """The inverse of ``optimizer_state``; rates and other settings stay as they are."""
    current = optimizer.state_dict()
    current["state"] = {
        int(index): {name: torch.from_numpy(np.array(x)) for name, x in entry.items()} for index, entry in state.items()
    }
    optimizer.load_state_dict(current)
