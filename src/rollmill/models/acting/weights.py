"""The board on which a learner publishes its weights and policies pick them up.

A publication is a plain copy of every parameter and buffer under a lock, so a policy never sees half
of an update. Only the version number is read without the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn


class Board(Protocol):
    """The place where those who act find the newest weights."""

    @property
    def version(self) -> int: ...

    def load_into(self, model: nn.Module) -> int:
        """Copy the newest weights into ``model``; returns their version."""


class WeightBoard:
    """Newest weights of one policy; written by its learner, read by everyone who acts with it."""

    def __init__(self, model: nn.Module, version: int = 0) -> None:
        self._lock = threading.Lock()
        self._tensors = [tensor.detach().clone() for tensor in tensors_of(model)]
        self.version = version

    @torch.no_grad()
    def publish(self, model: nn.Module, version: int) -> None:
        with self._lock:
            torch._foreach_copy_(self._tensors, tensors_of(model))
            self._wait(model)
            self.version = version

    @torch.no_grad()
    def load_into(self, model: nn.Module) -> int:
        """Copy the newest weights into ``model``; returns their version."""
        with self._lock:
            torch._foreach_copy_(tensors_of(model), self._tensors)
            self._wait(model)
            return self.version

    @property
    def tensors(self) -> Sequence[Tensor]:
        """What is published, in the order of ``tensors_of``: for their shapes and types."""
        return self._tensors

    @torch.no_grad()
    def copy_to(self, targets: Sequence[Tensor]) -> int:
        """Copy the newest weights into tensors in host memory; returns their version."""
        with self._lock:
            for target, tensor in zip(targets, self._tensors, strict=True):
                target.copy_(tensor)
            return self.version

    @staticmethod
    def _wait(model: nn.Module) -> None:
        """Wait, on a GPU, until copies are done: they run behind our back, and the lock is held meanwhile."""
        device = next(model.parameters()).device
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Return all that makes a network what it is, always in the same order."""
    return [*model.parameters(), *model.buffers()]
