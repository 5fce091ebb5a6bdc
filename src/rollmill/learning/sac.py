"""Learns by soft actor-critic (Haarnoja et al. 2018) from a replay buffer.

``train`` takes the new rows into the buffer, then does ``sac.updates_per_step`` updates (``sac_step``) for each,
many at a time: their rows are drawn in one go, and only then is looked whether all numbers were finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.shapes import BYTES, FLOATS, Shape, check_shape
from rollmill.core.slots import OBS
from rollmill.learning.batch import own_rows
from rollmill.learning.experience import Experience, Sequences, Transitions
from rollmill.learning.guards import stopped_by_nan
from rollmill.learning.metrics import Sums
from rollmill.learning.sac_settings import SacSettings
from rollmill.learning.sac_step import METRICS, NORMS, GraphSacStep, SacStep
from rollmill.learning.settings import LearningSettings
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic, build_model
from rollmill.models.critics import COUNT, Critics, TrunkCritics
from rollmill.models.heads.choices import CategoricalHead
from rollmill.models.heads.numbers import TanhGaussianHead
from rollmill.models.saving import (
    OPTIMIZER_SHAPE,
    WEIGHTS_SHAPE,
    load_generator,
    load_optimizer,
    load_tensor,
    load_weights,
    optimizer_state,
    to_numpy,
    weights_of,
)
from rollmill.models.settings import ModelSettings
from rollmill.optim.finite import first_bad_place
from rollmill.optim.schedules import Schedule
from rollmill.store.replay import REPLAY_SHAPE

STATE_SHAPE: Shape = {
    "version": int,
    "optimizer_steps": int,
    "due": float,
    "model": WEIGHTS_SHAPE,
    "critics": WEIGHTS_SHAPE,
    "targets": WEIGHTS_SHAPE,
    "log_temperature": FLOATS,
    "optimizers": {str: OPTIMIZER_SHAPE},
    "generator": BYTES,
    "replay": (REPLAY_SHAPE, None),
}


class Sac:
    """Improves one policy. ``version`` counts the batches after which it has learnt; 0 while warming up."""

    oldest_useful = 0
    """Experience never gets too old."""

    def __init__(
        self,
        model: ActorCritic,
        critics: Critics | TrunkCritics,
        board: WeightBoard,
        experience: Experience,
        settings: tuple[LearningSettings, SacSettings],
        seed: int,
        policy_id: int = 0,
    ) -> None:
        if not isinstance(model.head, TanhGaussianHead | CategoricalHead):
            raise ConfigError("learning.algorithm=sac needs model.action_distribution=tanh_gaussian")
        self.model, self.critics, self.experience = model, critics, experience
        self.settings, self.sac = settings
        self.policy_id = policy_id
        self.version = 0
        self.optimizer_steps = 0
        self.device = next(model.parameters()).device
        self._board = board
        with torch.no_grad():  # there is no state value here: what is recorded as one reads 0
            model.value_head.weight.zero_()
            model.value_head.bias.zero_()
        self._generator = torch.Generator(self.device).manual_seed(seed)
        graph = self.device.type == "cuda" and not self.settings.eager
        self.step = (GraphSacStep if graph else SacStep)(model, critics, settings, self._generator)
        self._rate = self.settings.learning_rate
        self._due = 0.0
        """Optimizer steps that new rows have earned and that were not done yet."""

    # -- one training step ---------------------------------------------------------------------

    def train(self, segments: Mapping[str, Array], progress: float = 0.0) -> dict[str, float]:
        """Take in segments ``[T + 1, B, ...]`` and learn as often as they allow; ``progress`` moves the rate."""
        self.model.train()
        self._set_rate(progress)
        rows = self.experience.add(segments, self.policy_id)
        sums = Sums(METRICS)
        lag = self._lag(segments)
        updates = self._updates_for(rows)
        self._learn(updates, sums)
        if updates:
            self.version += 1
        self._take_moments(segments)
        counts = {
            "rows": float(rows),
            "updates": float(updates),
            "replay_rows": float(len(self.experience)),
            "learning_rate": self._rate,
            "policy_lag": lag,
        }
        return {**sums.means(), **counts} if updates else counts

    def _lag(self, segments: Mapping[str, Array]) -> float:
        """Return the mean number of versions by which rows that count are older than the weights that learn."""
        mine = own_rows(segments, self.policy_id)
        return float((self.version - segments["version"][:-1][mine]).mean()) if mine.any() else 0.0

    def _updates_for(self, rows: int) -> int:
        """Return how many updates are due; none before there is enough to draw from: earlier rows earn none."""
        if len(self.experience) < max(1, self.sac.warmup):
            return 0
        self._due += rows * self.sac.updates_per_step
        updates = int(self._due)
        self._due -= updates
        return updates

    def _set_rate(self, progress: float) -> None:
        s = self.settings
        assert s.lr_schedule != "kl_adaptive", "runs.settings.learning_checks refuses it"
        self._rate = Schedule(s.learning_rate, s.lr_end, s.lr_schedule).at(progress)
        self.step.set_rate(self._rate)

    def _take_moments(self, segments: Mapping[str, Array]) -> None:
        """Update the scaling of observations: only now may it change, as acting and learning saw the same one."""
        rows = {name.removeprefix(OBS): x[:-1] for name, x in segments.items() if name.startswith(OBS)}
        tensors = {name: torch.from_numpy(x).to(self.device) for name, x in rows.items()}
        valid = own_rows(segments, self.policy_id)
        self.model.update_normalizer(tensors, torch.from_numpy(valid).to(self.device))

    # -- one optimizer step of each part -------------------------------------------------------

    # -- updates -------------------------------------------------------------------------------

    def _learn(self, updates: int, sums: Sums) -> None:
        """Do so many updates, each from rows of its own; their metrics are added to ``sums``."""
        at_once = self.experience.updates_at_once(self.sac.minibatch)
        while updates:
            batches = self.experience.draw(min(updates, at_once), self.sac.minibatch, self.sac.n_step, self.device)
            found = [self.step.update(batch) for batch in batches]
            self._check(torch.stack(found).tolist(), batches)
            for metrics in found:
                sums.add(metrics)
            self.optimizer_steps += len(batches)
            updates -= len(batches)

    def _check(self, metrics: Sequence[Sequence[float]], batches: Sequence[Transitions]) -> None:
        """Raise NonFiniteError for the first update with a non-finite gradient; nothing has moved since then."""
        for k, (row, batch) in enumerate(zip(metrics, batches, strict=True)):
            for name, place in NORMS.items():
                if not math.isfinite(row[place]):
                    self.optimizer_steps += k
                    self._stop_at_non_finite(name, row, batch)

    def _stop_at_non_finite(self, name: str, row: Sequence[float], batch: Transitions) -> None:
        groups = {"the replayed rows": batch.tensors()}
        groups |= {"the weights of the policy": dict(self.model.named_parameters())}
        groups |= {"the weights of the critics": dict(self.critics.named_parameters())}
        groups |= {"the temperature": {"log_temperature": self.step.log_temperature}}
        found = (f"{group}: {bad}" for group, tensors in groups.items() if (bad := first_bad_place(tensors)))
        loss = row[METRICS.index("critic_loss" if name == "critics" else "policy_loss")]
        place = next(found, f"the loss or the gradient of the {name} (loss {loss:g})")
        raise stopped_by_nan(self, f"first seen in {place}", self.optimizer_steps + 1, kept=f"The {name} was")

    def counts(self) -> dict[str, float]:
        """Return the counts of the replay buffer, in rows."""
        sampled = float(self.optimizer_steps * self.sac.minibatch)
        learnt = self.experience.added - self.sac.warmup
        return {
            "size": float(len(self.experience)),
            "inserted": float(self.experience.added),
            "sampled": sampled,
            "ratio": sampled / learnt if learnt > 0 else 0.0,
            "age": self.experience.age,
        }

    # -- publishing and checkpoints ------------------------------------------------------------

    def agree(self) -> None:
        """Publish the weights: there is one rank only."""
        self.publish()

    def publish(self) -> None:
        self._board.publish(self.model, self.version)

    def state(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "optimizer_steps": self.optimizer_steps,
            "due": self._due,
            "model": weights_of(self.model),
            "critics": weights_of(self.critics),
            "targets": weights_of(self.step.targets),
            "log_temperature": to_numpy(self.step.log_temperature),
            "optimizers": {name: optimizer_state(optimizer) for name, optimizer in self.step.optimizers.items()},
            "generator": to_numpy(self._generator.get_state()),
            "replay": self.experience.state() if self.sac.save_replay else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, STATE_SHAPE)
        for model, name in ((self.model, "model"), (self.critics, "critics"), (self.step.targets, "targets")):
            load_weights(model, state[name])
        load_tensor(self.step.log_temperature, state["log_temperature"])
        for name, optimizer in self.step.optimizers.items():
            load_optimizer(optimizer, state["optimizers"][name])
        load_generator(self._generator.set_state, state["generator"])
        if state["replay"] is not None:
            self.experience.load_state(state["replay"])
        self.version = state["version"]
        self.optimizer_steps = state["optimizer_steps"]
        self._due = state["due"]
        self.publish()


def build_sac(
    spec: EnvSpec,
    model: ActorCritic,
    board: WeightBoard,
    settings: tuple[LearningSettings, SacSettings, ModelSettings],
    seed: int,
    policy_id: int = 0,
    rollout: int = 1,
) -> Sac:
    """Build the learner, with critics like the policy's network and an empty buffer. ``rollout``: segment steps."""
    learning, sac, network = settings
    if model.state_size or network.custom is not None:
        trunks = [build_model(spec, replace(network, separate_critic=False)).trunk for _ in range(COUNT)]
        critics: Critics | TrunkCritics = TrunkCritics(spec, network, trunks)
    else:
        critics = Critics(spec, network)
    critics = critics.to(next(model.parameters()).device)
    sequences = Sequences(rollout, model.state_size, sac.burn_in) if model.state_size else None
    experience = Experience(spec, sac.capacity, learning, seed, sequences)
    return Sac(model, critics, board, experience, (learning, sac), seed, policy_id)
