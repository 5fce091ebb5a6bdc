"""One optimizer step in two halves: gradients of a minibatch, then their application.

Between the halves the learner looks at the gradient norm, so that a NaN never reaches the weights.
``Step`` runs kernel by kernel. ``GraphStep`` records each half as a CUDA graph after a few steps: the
launches then cost no interpreter time, which acting needs.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rollmill.core.fields import MASK_FIELD
from rollmill.learning.batch import Pieces, micro_batches
from rollmill.learning.knobs import DeviceKnobs, Knobs
from rollmill.learning.losses import Number, ppo_policy_loss, ratio_metrics, value_loss
from rollmill.learning.metrics import row_sums
from rollmill.learning.normalise import normalise_advantages
from rollmill.learning.ranks import Ranks, SingleRank, share_gradients, shared_moments
from rollmill.learning.settings import LearningSettings
from rollmill.learning.targets import vtrace
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.memory import RecurrentMemory
from rollmill.models.precision import autocast
from rollmill.optim.adam import Optimizer


class RowMetrics(NamedTuple):
    """What is reported as means over the rows that count (``learn/<name>``), each ``[T, B]``."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor
    ratio_deviation: Tensor
    value_mean: Tensor


METRICS = (*RowMetrics._fields, "target", "error", "target_square", "error_square", "grad_norm")
"""What ``gradients`` returns, in this order."""


def learning_dtype(settings: LearningSettings) -> torch.dtype | None:
    """Return the type that matrices are multiplied in (``learning.precision``); None: float32."""
    return torch.bfloat16 if settings.precision == "bfloat16" else None


class Step:
    """Loss, gradients and update of one minibatch."""

    compact = True
    """Whether minibatches may leave out columns without a row that counts (then their size varies)."""

    def __init__(
        self,
        model: ActorCritic,
        optimizer: Optimizer,
        settings: LearningSettings,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.settings = settings
        self.knobs: Knobs = settings
        """The numbers of the settings, where those that may change are read from."""
        self.ranks: Ranks = ranks or SingleRank()
        self.device = next(model.parameters()).device
        self.entropy_weight = torch.zeros((), device=self.device)
        """Weight of the exploration term; a tensor, because it changes while graphs do not."""
        self._moments_lock = threading.Lock()

    def take(self, settings: LearningSettings) -> None:
        """Go on with other numbers (``knobs.LIVE``); what is on stays on, and off stays off."""
        self.settings = self.knobs = settings

    def gradients(self, minibatch: Pieces) -> Tensor:
        """Compute the gradients of a minibatch (of all ranks), clipped; returns ``METRICS`` as ``[n]``."""
        with self._moments_in_passing():
            metrics = self.own_gradients(minibatch)
        return self._close(metrics, minibatch)

    def _moments_in_passing(self) -> contextlib.AbstractContextManager[None]:
        """Share the moments of returns between ranks, if V-trace updates them while it computes the targets."""
        updates = self.settings.targets == "vtrace" and self.settings.normalize_returns
        return shared_moments(self.ranks, self.model.return_moments) if updates else contextlib.nullcontext()

    def own_gradients(self, minibatch: Pieces) -> Tensor:
        """Compute this rank's gradients of a minibatch, by micro-batches; returns all metrics but the norm."""
        self.optimizer.zero_grad(set_to_none=True)
        rows = minibatch.valid.sum().clamp(min=1)
        parts = micro_batches(minibatch, self.settings.micro_batch)
        total = self.add_gradients(self.model, parts, rows)
        assert total is not None, "a minibatch has at least one piece"
        return total

    def _close(self, metrics: Tensor, minibatch: Pieces) -> Tensor:
        """Turn own gradients and metrics into those of all ranks; clips and appends the norm."""
        metrics = share_gradients(self.ranks, self.model, metrics, minibatch.valid.sum())
        return torch.cat([metrics, self._clip_gradients().detach().double()[None]])

    def add_gradients(self, model: ActorCritic, parts: Iterable[Pieces], rows: Tensor) -> Tensor | None:
        """Add the gradients of micro-batches to ``model``'s; returns their share of the metrics (None: no parts).

        ``rows``: rows of the whole minibatch that count.
        """
        total: Tensor | None = None
        for pieces in parts:
            loss, metrics = self.losses(pieces, model)
            torch.autograd.backward(loss / rows)
            total = metrics if total is None else total + metrics
        return None if total is None else total / rows

    def grad_norm(self, metrics: Tensor) -> float:
        """Return the gradient norm among ``METRICS``, once it is known."""
        return float(metrics[-1])

    def apply(self) -> None:
        """Let the optimizer use the gradients."""
        self.optimizer.step()

    def losses(self, pieces: Pieces, model: ActorCritic) -> tuple[Tensor, Tensor]:
        """Return (loss, ``METRICS`` but the last as ``[n]``) of some pieces, each the sum over the rows that count."""
        s, knobs, head, valid = self.settings, self.knobs, model.head, pieces.valid
        with autocast(self.device, learning_dtype(s), cache=self.compact):
            output = model.unroll(pieces.obs, pieces.first, pieces.state)
        steps = pieces.reward.shape[0]
        params, values = output.params[:steps].float(), output.value.float()
        rows = {name: x[:steps] for name, x in pieces.obs.items()}  # without a bootstrap row
        mask = rows.get(MASK_FIELD)
        log_ratio = head.log_prob(params, pieces.action, mask) - pieces.log_prob
        log_ratio = torch.where(valid, log_ratio, 0.0)
        advantage, target = self._targets(pieces, log_ratio, values, rows)
        entropy = head.entropy(params, mask)
        explore = entropy if s.exploration == "entropy" else -head.symmetric_kl_uniform(params, mask)
        policy = ppo_policy_loss(log_ratio, advantage, knobs.clip)
        value = self._value_loss(values[:steps], pieces.value[:steps], target, rows)
        loss = policy + knobs.value_coefficient * value - self.entropy_weight * explore
        predicted = self.model.denormalise(values[:steps].detach(), rows)
        kl, clipped, deviation = ratio_metrics(log_ratio.detach(), knobs.clip)
        means = RowMetrics(
            loss=loss,
            policy_loss=policy,
            value_loss=value,
            entropy=entropy,
            kl=kl,
            clip_fraction=clipped,
            ratio_deviation=deviation,
            value_mean=predicted,
        )
        metrics = row_sums([*(x.detach() for x in means), target.detach(), target - predicted], valid)
        return torch.where(valid, loss, 0.0).sum(), metrics

    def _targets(
        self, pieces: Pieces, log_ratio: Tensor, values: Tensor, rows: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return (advantages, value targets in units of the return) of some pieces."""
        s, knobs = self.settings, self.knobs
        if s.targets == "gae":
            return pieces.advantage, pieces.target
        current = self.model.denormalise(values.detach(), pieces.obs)
        advantage, target = vtrace(
            log_ratio.detach(),
            pieces.reward,
            current,
            pieces.terminated,
            pieces.valid,
            knobs.gamma,
            knobs.gae_lambda,
            knobs.rho_bar,
            knobs.c_bar,
        )
        if s.normalize_returns:
            with self._moments_lock:
                self.model.update_returns(target, pieces.valid, rows)
        advantage = self.model.advantages_by_task(advantage, rows)
        if s.normalize_advantages:
            advantage = normalise_advantages(advantage, pieces.valid)
        return advantage, target

    def _value_loss(self, values: Tensor, old: Tensor, target: Tensor, obs: dict[str, Tensor]) -> Tensor:
        model = self.model
        clip = self.knobs.value_clip if self.settings.value_clip else None
        return value_loss(values, model.normalise(old, obs), model.normalise(target, obs), clip)

    def _clip_gradients(self) -> Tensor:
        if not self.settings.max_grad_norm:
            return torch.nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)
        return clip_gradients(self.model.parameters(), self.knobs.max_grad_norm)


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], limit: Number) -> Tensor:
    """Scale gradients down to the norm ``limit``; returns the norm they had. ``clip_grad_norm_`` for any ``limit``:
    torch's own makes a number of a tensor, which no graph can record.
    """
    if not isinstance(limit, Tensor):
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
    gradients = [x.grad for x in parameters if x.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0).to(norm))
    return norm


class GraphStep(Step):
    """The same two halves as CUDA graphs. Batches must keep their shapes; the first ones run plainly."""

    compact = False
    WARM_UP = 3
    """Plain steps before recording: the optimizer builds its state, libraries choose their algorithms."""

    def __init__(
        self,
        model: ActorCritic,
        optimizer: Optimizer,
        settings: LearningSettings,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(model, optimizer, settings, ranks)
        self._on_device = self.knobs = DeviceKnobs(settings, self.device)
        for module in model.modules():
            if isinstance(module, RecurrentMemory):
                module.by_steps = True  # packing fragments needs the host to look at the data
        self._plain_steps = 0
        self._alone = False
        """Whether clipping is part of the graph: there were no other ranks when it was recorded."""
        self._inputs: Pieces | None = None
        self._metrics: Tensor | None = None
        self._backward = torch.cuda.CUDAGraph()
        self._update = torch.cuda.CUDAGraph()
        # A thread that spins for the GPU takes a core from the simulators; this event lets it sleep.
        self._known = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def take(self, settings: LearningSettings) -> None:
        self.settings = settings
        self._on_device.take(settings)

    def gradients(self, minibatch: Pieces) -> Tensor:
        if self._plain_steps < self.WARM_UP:
            self._plain_steps += 1
            return super().gradients(minibatch)
        if self._inputs is None:
            self._record(minibatch)
        assert self._inputs is not None
        assert self._metrics is not None
        with self._moments_in_passing():
            self._inputs.copy_(minibatch)
            self._backward.replay()
        metrics = self._metrics.clone()
        return metrics if self._alone else self._close(metrics, minibatch)

    def grad_norm(self, metrics: Tensor) -> float:
        self._known.record()
        self._known.synchronize()
        return super().grad_norm(metrics)

    def apply(self) -> None:
        if self._inputs is None:
            super().apply()
        else:
            self._update.replay()

    def _record(self, example: Pieces) -> None:
        """Record both graphs, which runs nothing: weights, optimizer and moments stay as they are."""
        self._inputs = example.clone()
        torch.cuda.synchronize(self.device)
        # thread_local: the sampler's thread goes on acting on this GPU meanwhile.
        with torch.cuda.graph(self._backward, capture_error_mode="thread_local"):
            # What goes to other ranks stays outside: a graph that waits for a dead one could not be stopped.
            self._alone = self.ranks.count == 1
            self._metrics = super().gradients(self._inputs) if self._alone else self.own_gradients(self._inputs)
        with torch.cuda.graph(self._update, capture_error_mode="thread_local"):
            super().apply()
