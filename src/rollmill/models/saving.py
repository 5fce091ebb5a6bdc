"""Turns networks, optimizers and random generators into plain arrays, for checkpoints.

What does not fit is a CheckpointError; ``checkpoints.restoring`` adds the name of the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.core.errors import MESSAGE_CHARACTERS, CheckpointError
from rollmill.core.fields import Array
from rollmill.core.shapes import ARRAY, BYTES, FLOATS, Shape, check_shape
from rollmill.core.text import cut

WEIGHTS_SHAPE: Shape = {str: ARRAY}
"""The shape of ``weights_of``."""
OPTIMIZER_SHAPE: Shape = {str: {str: ARRAY}}
"""The shape of ``optimizer_state``."""
POLICY_SHAPE: Shape = {"states": FLOATS, "generator": BYTES}
"""The shape of ``policy_state``."""


class HasState(Protocol):
    """An optimizer, as far as checkpoints are concerned."""

    param_groups: list[dict[str, Any]]

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def to_numpy(x: Tensor) -> Array:
    """Return a copy of the tensor as an array."""
    array: Array = x.detach().cpu().numpy().copy()
    return array


def weights_of(model: nn.Module) -> dict[str, Array]:
    """Return all parameters and buffers that belong into a checkpoint, by name."""
    return {name: to_numpy(x) for name, x in model.state_dict().items()}


def load_weights(model: nn.Module, weights: Mapping[str, Array]) -> None:
    """Copy saved weights into a network; raises CheckpointError unless both have the same names and shapes."""
    with _explained("the saved weights do not fit this network (were model settings changed?)"):
        model.load_state_dict({name: _tensor(x) for name, x in weights.items()}, strict=True)


def optimizer_state(optimizer: HasState) -> dict[str, Any]:
    """Return what the optimizer has gathered about each parameter, by the parameter's number."""
    return {
        str(index): {name: to_numpy(x) for name, x in entry.items()}
        for index, entry in optimizer.state_dict()["state"].items()
    }


def load_optimizer(optimizer: HasState, state: Mapping[str, Any]) -> None:
    """Load what ``optimizer_state`` gave; rates and other settings stay as they are."""
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    with _explained("the saved state of the optimizer does not fit this network"):
        entries = {int(k): {name: _tensor(x) for name, x in entry.items()} for k, entry in state.items()}
        for index, entry in entries.items():
            for name in ("exp_avg", "exp_avg_sq"):
                if entry[name].shape != parameters[index].shape:
                    raise ValueError(
                        f"{name} of parameter {index} has shape {list(entry[name].shape)}, "
                        f"not {list(parameters[index].shape)}"
                    )
            if entry["step"].numel() != 1:
                raise ValueError(f"step of parameter {index} is no single number")
        optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})


@torch.no_grad()
def adopt_optimizer(optimizer: HasState, state: Mapping[str, Any]) -> None:
    """Load as ``load_optimizer`` does, but in place, in the middle of a run: a CUDA graph knows what was gathered by
    its address in memory.
    """
    own = optimizer.state_dict()["state"]
    if {str(index) for index in own} != state.keys():
        load_optimizer(optimizer, state)
        return
    with _explained("the saved state of the optimizer does not fit this network"):
        for index, entry in own.items():
            for name, x in entry.items():
                x.copy_(_tensor(state[str(index)][name]))


@torch.no_grad()
def clear_optimizer(optimizer: HasState) -> None:
    """Forget what was gathered, as if no step had been taken; in place, for the sake of CUDA graphs."""
    for entry in optimizer.state_dict()["state"].values():
        for x in entry.values():
            x.zero_()


def load_generator(set_state: Callable[[Tensor], object], state: Array) -> None:
    """Set a random generator to a state that was saved: ``set_state`` is its method, or that of a device."""
    with _explained("the saved state of a random generator cannot be used"):
        set_state(_tensor(state))


@torch.no_grad()
def load_tensor(target: Tensor, values: Array) -> None:
    """Copy saved numbers into a tensor of the same shape."""
    if tuple(values.shape) != tuple(target.shape):
        raise CheckpointError(f"an array of shape {list(values.shape)} does not fit {list(target.shape)}")
    target.copy_(_tensor(values))


def policy_state(states: Tensor, generator: torch.Generator) -> dict[str, Any]:
    """Return what a policy that acts remembers: the memories of all lanes, and the generator that draws actions."""
    return {"states": to_numpy(states), "generator": to_numpy(generator.get_state())}


def load_policy_state(state: Mapping[str, Any], states: Tensor, generator: torch.Generator) -> None:
    """Load what ``policy_state`` gave."""
    check_shape(state, POLICY_SHAPE)
    load_tensor(states, state["states"])
    load_generator(generator.set_state, state["generator"])


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array))


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{what}: {cut(' '.join(reason.split()), MESSAGE_CHARACTERS)}") from error
