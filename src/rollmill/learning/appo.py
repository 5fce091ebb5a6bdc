"""Learns by asynchronous PPO from finished segments.

``train`` is the whole step, top to bottom: load the batch, compute targets, then for each epoch and
minibatch compute gradients, look at them, and step the optimizer (``learning.step``). Every piece below
is small enough to read alone; the maths are pure functions in ``targets`` and ``losses``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rollmill.core.fields import Array
from rollmill.core.shapes import BYTES, Shape, check_shape
from rollmill.learning.batch import Batch, Pieces, cut_pieces, load_batch, minibatches, whole_segments
from rollmill.learning.guards import ALARMS_SHAPE, Alarms, explain_non_finite, stopped_by_nan
from rollmill.learning.metrics import Sums
from rollmill.learning.normalise import normalise_advantages
from rollmill.learning.ranks import Ranks, SingleRank, require_equal, rows_and_lag, shared_moments
from rollmill.learning.settings import WHOLE, LearningSettings
from rollmill.learning.step import METRICS, GraphStep, Step
from rollmill.learning.targets import gae
from rollmill.learning.threaded_step import ThreadedStep
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.saving import (
    OPTIMIZER_SHAPE,
    WEIGHTS_SHAPE,
    adopt_optimizer,
    clear_optimizer,
    load_generator,
    load_weights,
    optimizer_state,
    to_numpy,
    weights_of,
)
from rollmill.optim.adam import Adam, Optimizer
from rollmill.optim.schedules import KlAdaptiveRate, Schedule

STATE_SHAPE: Shape = {
    "version": int,
    "optimizer_steps": int,
    "rate": float,
    "model": WEIGHTS_SHAPE,
    "optimizer": OPTIMIZER_SHAPE,
    "generator": BYTES,
    "alarms?": ALARMS_SHAPE,
}
CHECK_EVERY = 100
"""Batches between two looks at whether all ranks still hold the same weights (the first is one of them)."""


class Appo:
    """Improves one policy. ``version`` counts the batches it has learnt from."""

    def __init__(
        self,
        model: ActorCritic,
        board: WeightBoard,
        settings: LearningSettings,
        seed: int,
        policy_id: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.policy_id = policy_id
        self.version = 0
        self.optimizer_steps = 0
        self._board = board
        self._ranks: Ranks = ranks or SingleRank()
        self.device = next(model.parameters()).device
        graph = self.device.type == "cuda" and not settings.eager
        self._optimizer: Optimizer
        if graph:
            rate = torch.tensor(settings.learning_rate, device=self.device)
            self._optimizer = torch.optim.Adam(model.parameters(), rate, eps=settings.adam_eps, capturable=True)
        else:
            self._optimizer = Adam(model.parameters(), settings.learning_rate, settings.adam_eps)
        self._step: Step
        if graph:
            self._step = GraphStep(model, self._optimizer, settings, self._ranks)
        elif settings.threads > 1 and self.device.type == "cpu":
            self._step = ThreadedStep(model, self._optimizer, settings, self._ranks)
        else:
            self._step = Step(model, self._optimizer, settings, self._ranks)
        self._generator = torch.Generator().manual_seed(seed)
        self._alarms = self._fresh_alarms()
        self._sums = Sums(METRICS)
        self._rate = settings.learning_rate

    # -- one training step ---------------------------------------------------------------------

    def train(self, segments: Mapping[str, Array | Tensor], progress: float = 0.0) -> dict[str, float]:
        """Learn from segments ``[T + 1, B, ...]``; ``progress`` (0..1) moves the schedules.

        Where not one row is its own to learn from, nothing moves: a step by momentum alone would be one nobody taught.
        """
        batch = load_batch(segments, self.settings, self.policy_id, self.version, self.device)
        if not self._rows_anywhere(batch):
            return {"rows": 0.0, "stale_rows": float(batch.stale)}
        self.model.train()
        self._set_rates(progress)
        self._sums = Sums(METRICS)
        pieces = self._prepare(batch)
        # All ranks must take as many steps: they count columns, not what is in them.
        compact = self._step.compact and self._ranks.count == 1
        epochs = 0
        for _ in range(self.settings.epochs):
            epochs += 1
            before = self._sums.copy()
            for minibatch in minibatches(pieces, self.settings.minibatches, self._generator, compact):
                self._optimize(minibatch)
            if self._moved_enough(before):
                break
        self._finish(batch)
        return self._report(batch, epochs)

    def _rows_anywhere(self, batch: Batch) -> int:
        """Return how many rows there are to learn from on all ranks: they step together, each with what it has."""
        if self._ranks.count == 1:
            return batch.rows
        return int(self._ranks.total(torch.tensor([float(batch.rows)], device=self.device)))

    def _prepare(self, batch: Batch) -> Pieces:
        """Compute targets for the whole batch (GAE), or leave segments whole to compute them later (V-trace)."""
        s = self.settings
        if s.targets == "vtrace":
            return whole_segments(batch)
        advantage, target = gae(batch.reward, batch.value, batch.terminated, batch.valid, s.gamma, s.gae_lambda)
        rows = {name: x[:-1] for name, x in batch.obs.items()}
        if s.normalize_returns:
            with shared_moments(self._ranks, self.model.return_moments):
                self.model.update_returns(target, batch.valid, rows)
        advantage = self.model.advantages_by_task(advantage, rows)
        if s.normalize_advantages:
            advantage = normalise_advantages(advantage, batch.valid, self._ranks)
        steps = batch.reward.shape[0]
        length = (s.recurrence or steps) if self.model.state_size else 1
        return cut_pieces(batch, length, advantage, target)

    def _optimize(self, minibatch: Pieces) -> None:
        """Take one optimizer step: compute gradients, look at their norm, and only then update."""
        metrics = self._step.gradients(minibatch)
        self._sums.add(metrics)
        if not math.isfinite(self._step.grad_norm(metrics)):
            self._stop_at_non_finite(minibatch)
        self._step.apply()
        self.optimizer_steps += 1

    def _finish(self, batch: Batch) -> None:
        """Update the scaling of observations and count the batch.

        The scaling may change only now: acting and learning saw the same one.
        """
        rows = {name: x[:-1] for name, x in batch.obs.items()}
        with shared_moments(self._ranks, self.model.observation_moments):
            self.model.update_normalizer(rows, batch.valid)
        self.version += 1
        if self.version % CHECK_EVERY == 1:
            require_equal(self._ranks, self.model, f"batch {self.version} (optimizer step {self.optimizer_steps})")

    # -- rates and stops -----------------------------------------------------------------------

    def _set_rates(self, progress: float) -> None:
        """Set the learning rate and the weight of exploration for this point of the run."""
        s = self.settings
        if s.lr_schedule != "kl_adaptive":
            self._rate = Schedule(s.learning_rate, s.lr_end, s.lr_schedule).at(progress)
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self._rate)
            else:
                group["lr"] = self._rate
        self._step.entropy_weight.fill_(self._entropy_weight(progress))

    def _entropy_weight(self, progress: float) -> float:
        s = self.settings
        if s.entropy_end is None:
            return s.entropy_coefficient
        return Schedule(s.entropy_coefficient, s.entropy_end, "linear").at(progress)

    def _moved_enough(self, before: Sums) -> bool:
        """Return whether the mean KL since ``before`` passed ``target_kl``."""
        target = self.settings.target_kl
        return bool(target) and self._sums.since(before)["kl"] > target

    def _stop_at_non_finite(self, minibatch: Pieces) -> None:
        with torch.no_grad():
            _, sums = self._step.losses(minibatch, self.model)
        terms = dict(zip(METRICS[:-1], sums.tolist(), strict=True))
        place = self._ranks_say(explain_non_finite(self.model, minibatch, terms))
        raise stopped_by_nan(self, f"first seen in {place}", self.optimizer_steps + 1)

    def _ranks_say(self, place: str) -> str:
        """Return ``place``, and where each rank stopped if there are several.

        All ranks have come here, for gradients are shared; where it began is what one of them knows.
        """
        if self._ranks.count == 1:
            return place
        told = zip(self._ranks.present, self._ranks.gather_notes(place), strict=True)
        return "; ".join(f"rank {rank}: {text}" for rank, text in told)

    # -- metrics -------------------------------------------------------------------------------

    def _report(self, batch: Batch, epochs: int) -> dict[str, float]:
        metrics = self._sums.means()
        rows, lag, lag_max = rows_and_lag(self._ranks, batch.lag, batch.valid)
        metrics |= {
            "learning_rate": self._rate,
            "epochs": float(epochs),
            "rows": rows,
            "stale_rows": float(batch.stale),
            "policy_lag": lag,
            "policy_lag_max": lag_max,
        }
        if self.settings.lr_schedule == "kl_adaptive":
            rate = KlAdaptiveRate(self.settings.kl_target)
            self._rate = rate.next(self._rate, metrics["kl"])
        spread = float(self.model.return_moments.std.max()) if self.settings.normalize_returns else 0.0
        self._alarms.check(metrics, spread, self.version)
        metrics["alarms"] = float(self._alarms.active)
        return metrics

    # -- as one of a population ----------------------------------------------------------------

    def set_knobs(self, values: dict[str, Any]) -> None:
        """Go on with other settings (``knobs.LIVE``); nothing else of the learner changes."""
        values = {name: round(value) if name in WHOLE else value for name, value in values.items()}
        self.settings = replace(self.settings, **values)
        self._step.take(self.settings)

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Go on from the ``state`` of another: its weights, moments and optimizer; the own random numbers stay.

        The version jumps, so that all experience which is on its way is too old: other weights have made it.
        """
        check_shape(state, STATE_SHAPE)
        load_weights(self.model, state["model"])
        adopt_optimizer(self._optimizer, state["optimizer"])
        self._rate = state["rate"]
        self._alarms = self._fresh_alarms()
        self.version += self.settings.max_policy_lag + 1
        self.publish()

    def set_back(self) -> None:
        """Go back to the weights that act, which are the ones that are judged: a batch could not be learnt from.

        What the optimizer has gathered came from the same batches, so it begins anew, as do the alarms.
        """
        self.version = self._board.load_into(self.model)
        clear_optimizer(self._optimizer)
        self._alarms = self._fresh_alarms()

    def _fresh_alarms(self) -> Alarms:
        return Alarms(self.settings.collapse_patience, self.settings.max_grad_norm)

    @property
    def oldest_useful(self) -> int:
        """The oldest version whose experience may still be learnt from."""
        return self.version - self.settings.max_policy_lag

    def agree(self) -> None:
        """Go on from what rank 0 holds, on all ranks alike. Each goes on shuffling by random numbers of its own."""
        shared = self._ranks.from_first(self.state())
        if self._ranks.rank:
            self.load_state({**shared, "generator": to_numpy(self._generator.get_state())})
        self.publish()
        require_equal(self._ranks, self.model, f"batch {self.version} (all go on from what rank 0 holds)")

    def publish(self) -> None:
        self._board.publish(self.model, self.version)

    def counts(self) -> dict[str, float]:
        """Return nothing: every segment is learnt from once, so there is nothing to count."""
        return {}

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "optimizer_steps": self.optimizer_steps,
            "rate": self._rate,
            "model": weights_of(self.model),
            "optimizer": optimizer_state(self._optimizer),
            "generator": to_numpy(self._generator.get_state()),
            "alarms": self._alarms.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, STATE_SHAPE)
        load_weights(self.model, state["model"])
        adopt_optimizer(self._optimizer, state["optimizer"])
        load_generator(self._generator.set_state, state["generator"])
        self.version = state["version"]
        self.optimizer_steps = state["optimizer_steps"]
        self._rate = state["rate"]  # other schedules than kl_adaptive set it before every step
        self._alarms = self._fresh_alarms()
        if "alarms" in state:  # versions up to 0.1 did not save them
            self._alarms.load_state(state["alarms"])
        self.publish()
