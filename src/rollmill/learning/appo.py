"""The learner: asynchronous PPO on finished segments.

``train`` is the whole step, top to bottom: load the batch, compute targets, then for each epoch and
minibatch add up gradients over micro-batches, check them, and step the optimizer. Every piece below
is small enough to read alone; the maths are pure functions in ``targets`` and ``losses``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollmill.core.errors import NonFiniteError
from rollmill.core.fields import MASK_FIELD, Array
from rollmill.learning.batch import (
    Batch,
    Pieces,
    cut_pieces,
    load_batch,
    micro_batches,
    minibatches,
    whole_segments,
)
from rollmill.learning.figures import Sums, value_moments
from rollmill.learning.guards import Alarms, explain_non_finite
from rollmill.learning.losses import (
    approximate_kl,
    clip_fraction,
    masked_mean,
    ppo_policy_loss,
    value_loss,
)
from rollmill.learning.normalise import normalise_advantages
from rollmill.learning.schedules import KlAdaptiveRate, Schedule
from rollmill.learning.settings import LearningSettings
from rollmill.learning.targets import gae, vtrace
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.weights import WeightBoard


class Appo:
    """Improves one policy. ``version`` counts the batches it has learnt from."""

    def __init__(
        self,
        model: ActorCritic,
        board: WeightBoard,
        settings: LearningSettings,
        seed: int,
        policy_id: int = 0,
    ) -> None:
        self.model = model
        self.settings = settings
        self.policy_id = policy_id
        self.version = 0
        self.optimizer_steps = 0
        self._board = board
        self._device = next(model.parameters()).device
        self._optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate, eps=settings.adam_eps)
        self._generator = torch.Generator().manual_seed(seed)
        self._alarms = Alarms(settings.collapse_patience, settings.max_grad_norm)
        self._sums = Sums()
        self._rate = settings.learning_rate

    # -- one training step ---------------------------------------------------------------------

    def train(self, segments: Mapping[str, Array | Tensor], progress: float = 0.0) -> dict[str, float]:
        """Learn from segments ``[T + 1, B, ...]``; ``progress`` (0..1) moves the schedules."""
        self.model.train()
        self._set_rate(progress)
        self._sums = Sums()
        batch = load_batch(segments, self.settings, self.policy_id, self.version, self._device)
        pieces = self._prepare(batch)
        epochs = 0
        for _ in range(self.settings.epochs):
            epochs += 1
            kl_before = self._sums.total("kl")
            for minibatch in minibatches(pieces, self.settings.minibatches, self._generator):
                self._step(minibatch, progress)
            if self._moved_enough(kl_before):
                break
        self._finish(batch)
        return self._report(batch, epochs)

    def _prepare(self, batch: Batch) -> Pieces:
        """Targets for the whole batch (GAE), or segments to compute them on in passing (V-trace)."""
        s = self.settings
        if s.targets == "vtrace":
            return whole_segments(batch)
        advantage, target = gae(batch.reward, batch.value, batch.terminated, batch.valid, s.gamma, s.lam)
        if s.normalize_returns:
            self.model.return_moments.update(target, batch.valid)
        if s.normalize_advantages:
            advantage = normalise_advantages(advantage, batch.valid)
        steps = batch.reward.shape[0]
        length = (s.recurrence or steps) if self.model.state_size else 1
        return cut_pieces(batch, length, advantage, target)

    def _step(self, minibatch: Pieces, progress: float) -> None:
        """One optimizer step: gradients of all micro-batches, checked, clipped, applied."""
        self._optimizer.zero_grad(set_to_none=True)
        rows = minibatch.valid.sum().clamp(min=1)
        for pieces in micro_batches(minibatch, self.settings.micro_batch):
            terms = self._losses(pieces, progress)
            share = pieces.valid.sum() / rows
            torch.autograd.backward(terms["loss"] * share)
            self._sums.add({name: term.detach() * share for name, term in terms.items()})
        grad_norm = self._clip_gradients()
        self._sums.add({"grad_norm": grad_norm, "minibatches": torch.ones(())})
        if not math.isfinite(float(grad_norm)):
            self._stop_at_non_finite(minibatch, progress)
        self._optimizer.step()
        self.optimizer_steps += 1

    def _losses(self, pieces: Pieces, progress: float) -> dict[str, Tensor]:
        """All loss terms and figures of some pieces, each a mean over the rows that count."""
        s, head, valid = self.settings, self.model.head, pieces.valid
        with torch.autocast(self._device.type, torch.bfloat16, enabled=s.precision == "bfloat16"):
            output = self.model.unroll(pieces.obs, pieces.first, pieces.state)
        steps = pieces.reward.shape[0]
        params, values = output.params[:steps].float(), output.value.float()
        mask = pieces.obs[MASK_FIELD][:steps] if MASK_FIELD in pieces.obs else None
        log_ratio = head.log_prob(params, pieces.action, mask) - pieces.log_prob
        log_ratio = torch.where(valid, log_ratio, 0.0)
        advantage, target = self._targets(pieces, log_ratio, values)
        entropy = head.entropy(params, mask)
        explore = entropy if s.exploration == "entropy" else -head.symmetric_kl_uniform(params, mask)
        policy = masked_mean(ppo_policy_loss(log_ratio, advantage, s.clip), valid)
        value = masked_mean(self._value_loss(values[:steps], pieces.value[:steps], target), valid)
        exploration = masked_mean(explore, valid)
        loss = policy + s.value_coefficient * value - self._entropy_weight(progress) * exploration
        predicted = self.model.denormalise(values[:steps].detach())
        return {
            "loss": loss,
            "policy_loss": policy,
            "value_loss": value,
            "entropy": masked_mean(entropy, valid),
            "kl": approximate_kl(log_ratio.detach(), valid),
            "clip_fraction": clip_fraction(log_ratio.detach(), s.clip, valid),
            "value_mean": masked_mean(predicted, valid),
            **value_moments(predicted, target, valid),
            "ratio_deviation": masked_mean((log_ratio.detach().exp() - 1).abs(), valid),
        }

    def _targets(self, pieces: Pieces, log_ratio: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """(advantages, value targets in units of the return) of some pieces."""
        s = self.settings
        if s.targets == "gae":
            return pieces.advantage, pieces.target
        current = self.model.denormalise(values.detach())
        advantage, target = vtrace(
            log_ratio.detach(),
            pieces.reward,
            current,
            pieces.terminated,
            pieces.valid,
            s.gamma,
            s.lam,
            s.rho_bar,
            s.c_bar,
        )
        if s.normalize_returns:
            self.model.return_moments.update(target, pieces.valid)
        if s.normalize_advantages:
            advantage = normalise_advantages(advantage, pieces.valid)
        return advantage, target

    def _value_loss(self, values: Tensor, old: Tensor, target: Tensor) -> Tensor:
        model = self.model
        clip = self.settings.value_clip or None
        return value_loss(values, model.normalise(old), model.normalise(target), clip)

    def _clip_gradients(self) -> Tensor:
        limit = self.settings.max_grad_norm or math.inf
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def _finish(self, batch: Batch) -> None:
        """Only now may the scaling of observations change: acting and learning saw the same one."""
        rows = {name: x[:-1] for name, x in batch.obs.items()}
        self.model.update_normalizer(rows, batch.valid)
        self.version += 1

    # -- rates and stops -----------------------------------------------------------------------

    def _set_rate(self, progress: float) -> None:
        s = self.settings
        if s.lr_schedule != "kl_adaptive":
            self._rate = Schedule(s.learning_rate, s.lr_end, s.lr_schedule).at(progress)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate

    def _entropy_weight(self, progress: float) -> float:
        s = self.settings
        if s.entropy_end is None:
            return s.entropy_coefficient
        return Schedule(s.entropy_coefficient, s.entropy_end, "linear").at(progress)

    def _moved_enough(self, kl_before: float) -> bool:
        """Whether the last epoch's mean KL passed ``target_kl``."""
        if not self.settings.target_kl:
            return False
        return (self._sums.total("kl") - kl_before) / self.settings.minibatches > self.settings.target_kl

    def _stop_at_non_finite(self, minibatch: Pieces, progress: float) -> None:
        with torch.no_grad():
            terms = {name: float(term) for name, term in self._losses(minibatch, progress).items()}
        place = explain_non_finite(self.model, minibatch, terms)
        raise NonFiniteError(
            f"NaN or infinity while learning (policy {self.policy_id}, batch {self.version + 1}, optimizer step "
            f"{self.optimizer_steps + 1}): first seen in {place}. The weights were not changed by this step."
        )

    # -- figures -------------------------------------------------------------------------------

    def _report(self, batch: Batch, epochs: int) -> dict[str, float]:
        metrics = self._sums.means()
        valid = batch.valid
        lag = torch.where(valid, batch.lag, 0)
        metrics |= {
            "learning_rate": self._rate,
            "epochs": float(epochs),
            "rows": float(valid.sum()),
            "policy_lag": float(masked_mean(batch.lag.double(), valid)),
            "policy_lag_max": float(lag.max()),
        }
        if self.settings.lr_schedule == "kl_adaptive":
            rate = KlAdaptiveRate(self.settings.kl_target)
            self._rate = rate.next(self._rate, metrics["kl"])
        spread = float(self.model.return_moments.std) if self.settings.normalize_returns else 0.0
        self._alarms.check(metrics, spread, self.version)
        metrics["alarms"] = float(self._alarms.active)
        return metrics

    def publish(self) -> None:
        self._board.publish(self.model, self.version)

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        optimizer = self._optimizer.state_dict()
        return {
            "version": self.version,
            "optimizer_steps": self.optimizer_steps,
            "rate": self._rate,
            "model": {name: _to_numpy(x) for name, x in self.model.state_dict().items()},
            "optimizer": {
                str(index): {name: _to_numpy(x) for name, x in entry.items()}
                for index, entry in optimizer["state"].items()
            },
            "generator": _to_numpy(self._generator.get_state()),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        load_weights(self.model, state["model"])
        current = self._optimizer.state_dict()
        current["state"] = {
            int(index): {name: torch.from_numpy(np.array(x)) for name, x in entry.items()}
            for index, entry in state["optimizer"].items()
        }
        self._optimizer.load_state_dict(current)
        self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
        self.version = state["version"]
        self.optimizer_steps = state["optimizer_steps"]
        self._rate = state["rate"] if self.settings.lr_schedule == "kl_adaptive" else self.settings.learning_rate
        self.publish()


def load_weights(model: torch.nn.Module, weights: Mapping[str, Array]) -> None:
    """Copy saved weights into a network; both must have the same names and shapes."""
    model.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in weights.items()}, strict=True)


def _to_numpy(x: Tensor) -> Array:
    return x.detach().cpu().numpy().copy()
