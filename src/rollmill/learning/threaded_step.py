"""The gradients of a minibatch by several threads, each taking micro-batches as it gets free.

On a CPU acting, workers and simulators leave part of the cores idle, in pieces too small for a parallel
operator, whose threads would wait for each other at every layer. Whole micro-batches need to meet only once.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from rollmill.learning.batch import Pieces, micro_batches
from rollmill.learning.ranks import Ranks
from rollmill.learning.settings import LearningSettings
from rollmill.learning.step import Step
from rollmill.models.actor_critic import ActorCritic
from rollmill.optim.adam import Optimizer


class ThreadedStep(Step):
    """Like ``Step``, with ``settings.threads`` threads. Sums depend on who finishes first, in their last digits."""

    def __init__(
        self,
        model: ActorCritic,
        optimizer: Optimizer,
        settings: LearningSettings,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(model, optimizer, settings, ranks)
        self._twins = [_twin(model) for _ in range(settings.threads - 1)]
        self._pool = ThreadPoolExecutor(len(self._twins), thread_name_prefix="learner")

    def own_gradients(self, minibatch: Pieces) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        for twin in self._twins:
            twin.zero_grad(set_to_none=True)
        rows = minibatch.valid.sum().clamp(min=1)
        parts = deque(micro_batches(minibatch, self._part_rows(minibatch)))
        others = [self._pool.submit(self.add_gradients, twin, _take(parts), rows) for twin in self._twins]
        found = [self.add_gradients(self.model, _take(parts), rows), *(other.result() for other in others)]
        for twin in self._twins:
            _move_gradients(twin, self.model)
        return torch.stack([figures for figures in found if figures is not None]).sum(dim=0)

    def _part_rows(self, minibatch: Pieces) -> int:
        """Rows of a micro-batch: as set, or else one part for each thread."""
        rows = minibatch.reward.numel()
        return self.settings.micro_batch or -(-rows // self.settings.threads)


def _twin(model: ActorCritic) -> ActorCritic:
    """A network over the same weights and buffers, with gradients of its own."""
    twin = copy.deepcopy(model)
    mine, theirs = (*twin.parameters(), *twin.buffers()), (*model.parameters(), *model.buffers())
    for own, other in zip(mine, theirs, strict=True):
        own.data = other.data
    return twin


def _take(parts: deque[Pieces]) -> Iterator[Pieces]:
    """Parts until there are none left; several threads may take from the same queue."""
    while True:
        try:
            yield parts.popleft()
        except IndexError:
            return


@torch.no_grad()
def _move_gradients(source: ActorCritic, target: ActorCritic) -> None:
    for theirs, own in zip(source.parameters(), target.parameters(), strict=True):
        if theirs.grad is None:
            continue
        if own.grad is None:
            own.grad = theirs.grad
        else:
            own.grad += theirs.grad
