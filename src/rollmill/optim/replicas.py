"""Networks that share the gradients of one batch: the threads of a CPU, or several devices.

Threads take whole pieces of a batch. Inside an operator they would wait for each other at every layer, and they would
suffer far more when other processes want the cores.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import torch
from torch import nn

from rollmill.core.machine import available_cores

Model = TypeVar("Model", bound=nn.Module)
Share = TypeVar("Share")
Result = TypeVar("Result")


class Replicas(Generic[Model]):
    """A network and others like it, each with gradients of its own; the first is the one that learns."""

    def __init__(
        self, networks: Sequence[Model], name: str = "fit", shared_weights: bool = True, caller_works: bool = True
    ) -> None:
        """Take one network for each share; ``name``: of the threads; ``caller_works``: whether the calling thread takes
        the first share.

        What the main thread frees goes back to the system more readily, and is paged in again at the next step: for
        networks with large activations it is cheaper to leave all shares to other threads.
        """
        self.networks = list(networks)
        self._shared_weights, self._caller_works = shared_weights, caller_works
        self._parameters = [list(network.parameters()) for network in networks]
        self._pool = ThreadPoolExecutor(max(1, len(networks) - caller_works), thread_name_prefix=name)

    @classmethod
    def on_threads(cls, model: Model, count: int, name: str = "fit", caller_works: bool = True) -> Replicas[Model]:
        """Make one network for each of ``count`` threads, all over the same weights and buffers."""
        return cls([model, *(_same_weights(model) for _ in range(count - 1))], name, True, caller_works)

    @classmethod
    def on_devices(cls, model: Model, devices: Sequence[torch.device]) -> Replicas[Model]:
        """Copy ``model`` to every device but the first, where it is; ``refresh`` them when its weights have changed."""
        copies = (copy.deepcopy(model).to(device) for device in devices[1:])
        return cls([model, *copies], shared_weights=False, caller_works=False)

    def train(self) -> None:
        """Put all networks into training mode."""
        for network in self.networks:
            network.train()

    def gradients(self, work: Callable[[Model, Share], Result], shares: Sequence[Share]) -> list[Result]:
        """Call ``work(network, share)`` for all shares at the same time.

        The gradients that it leaves in each network add up in the first one, always in the same order. There are at
        most as many shares as networks; the results are in the order of the shares.
        """
        for parameters in self._parameters:
            for parameter in parameters:
                parameter.grad = None
        pairs = list(zip(self.networks, shares))
        others = [self._pool.submit(work, *pair) for pair in pairs[self._caller_works :]]
        own = [work(*pair) for pair in pairs[: self._caller_works]]
        results = [*own, *(other.result() for other in others)]
        for parameters in self._parameters[1:]:
            _add_gradients(parameters, self._parameters[0])
        return results

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights of the first network to the others, unless they share them anyway."""
        if self._shared_weights:
            return
        for parameters in self._parameters[1:]:
            for own, first in zip(parameters, self._parameters[0], strict=True):
                own.copy_(first)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def thread_count(device: torch.device, wanted: int, most: int = sys.maxsize) -> int:
    """Return how many threads share a batch: ``wanted`` (0: one per core), but not above ``most``; a GPU needs one."""
    return max(1, min(wanted or available_cores(), most)) if device.type == "cpu" else 1


def _same_weights(model: Model) -> Model:
    """Make a network over the same weights and buffers, with gradients of its own."""
    other = copy.deepcopy(model)
    mine, theirs = (*other.parameters(), *other.buffers()), (*model.parameters(), *model.buffers())
    for own, source in zip(mine, theirs, strict=True):
        own.data = source.data
    return other


@torch.no_grad()
def _add_gradients(sources: Sequence[nn.Parameter], targets: Sequence[nn.Parameter]) -> None:
    for source, target in zip(sources, targets, strict=True):
        if source.grad is None:
            continue
        if target.grad is None:
            target.grad = source.grad.to(target.device)
        else:
            target.grad += source.grad.to(target.device)
