"""The gradients of a minibatch by several threads, each taking micro-batches as it gets free.

On a CPU acting, workers and simulators leave part of the cores idle, in pieces too small for a parallel
operator, whose threads would wait for each other at every layer. Whole micro-batches need to meet only once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from rollmill.learning.batch import Pieces, micro_batches
from rollmill.learning.ranks import Ranks
from rollmill.learning.settings import LearningSettings
from rollmill.learning.step import Step
from rollmill.models.actor_critic import ActorCritic
from rollmill.optim.adam import Optimizer
from rollmill.optim.replicas import Replicas


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
        self._replicas = Replicas.on_threads(model, settings.threads, "learner")

    def own_gradients(self, minibatch: Pieces) -> Tensor:
        rows = minibatch.valid.sum().clamp(min=1)
        parts = deque(micro_batches(minibatch, self._part_rows(minibatch)))
        shares = [_take(parts) for _ in range(self.settings.threads)]
        found = self._replicas.gradients(lambda model, share: self.add_gradients(model, share, rows), shares)
        return torch.stack([metrics for metrics in found if metrics is not None]).sum(dim=0)

    def _part_rows(self, minibatch: Pieces) -> int:
        """Return the rows of a micro-batch: as set, or else one part for each thread."""
        rows = minibatch.reward.numel()
        return self.settings.micro_batch or -(-rows // self.settings.threads)


def _take(parts: deque[Pieces]) -> Iterator[Pieces]:
    """Yield parts until there are none left; several threads may take from the same queue."""
    while True:
        try:
            yield parts.popleft()
        except IndexError:
            return
