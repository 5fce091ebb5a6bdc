"""Who decides on a node: the network of the run, on the CPU, with weights that come as bytes in a ``WeightBuffer``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollmill.core.fields import Array
from rollmill.core.machine import has_fast_bfloat16
from rollmill.core.protocols import Policy
from rollmill.distributed.messages import NodePlan
from rollmill.distributed.weight_buffer import WeightBuffer
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.weights import tensors_of
from rollmill.models.actor_critic import build_model

ALIGNMENT = 64


def weight_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes that a buffer for a network of these tensors must hold (``tensors_of``)."""
    return sum(_room(tensor) for tensor in tensors)


def weight_views(tensors: Sequence[Tensor], weights: Array) -> list[Tensor]:
    """Return tensors over a buffer's bytes, of the shapes and types of a network's, in their order."""
    views, at = [], 0
    for tensor in tensors:
        count = math.prod(tensor.shape) * tensor.element_size()
        views.append(torch.from_numpy(weights[at : at + count]).view(tensor.dtype).reshape(tensor.shape))
        at += _room(tensor)
    return views


def _room(tensor: Tensor) -> int:
    return -(-math.prod(tensor.shape) * tensor.element_size() // ALIGNMENT) * ALIGNMENT


class BufferBoard:
    """The board (``models.acting.weights.Board``) of a node: its weights come through shared memory."""

    def __init__(self, buffer: WeightBuffer) -> None:
        self._buffer = buffer

    @property
    def version(self) -> int:
        return self._buffer.version

    @torch.no_grad()
    def load_into(self, model: nn.Module) -> int:
        found = self._buffer.read()
        assert found.weights is not None
        tensors = tensors_of(model)
        torch._foreach_copy_(tensors, weight_views(tensors, found.weights))
        return found.version


def build_actor(plan: NodePlan, weights: WeightBuffer, lanes: int, seed: int) -> Policy:
    """Build the policy of a node's sampler; ``lanes``: of this node."""
    torch.set_num_threads(1)  # threads inside an operator wait for each other
    model = build_model(plan.spec, plan.model)
    found = weight_bytes(tensors_of(model))
    if found != plan.weight_bytes:
        raise ValueError(f"the network has {found:,} bytes here, and {plan.weight_bytes:,} at the learner")
    # The learner's choice goes by its GPU; without units for it bfloat16 is many times slower than float32.
    dtype = torch.bfloat16 if plan.bfloat16 and has_fast_bfloat16() else None
    return TorchPolicy(model, BufferBoard(weights), lanes, seed, dtype=dtype)
