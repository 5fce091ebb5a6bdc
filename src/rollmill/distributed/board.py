"""A network's weights as bytes in a ``WeightBuffer``: written by the learner, taken over by who acts on a node."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollmill.core.fields import Array
from rollmill.distributed.weight_buffer import WeightBuffer
from rollmill.models.acting.weights import tensors_of

ALIGNMENT = 64


def weight_bytes(tensors: Sequence[Tensor]) -> int:
    """What a buffer for a network of these must hold (``tensors_of``)."""
    return sum(_room(tensor) for tensor in tensors)


def weight_views(tensors: Sequence[Tensor], weights: Array) -> list[Tensor]:
    """Tensors over a buffer's bytes, of the shapes and types of a network's, in their order."""
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
