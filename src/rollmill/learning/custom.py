"""A learner of your own: subclass ``CustomLearner``, override ``learn``, name it in ``learning.custom``.

Sampling, acting, recording, checkpoints, metrics and evaluation stay as they are. What the base does around ``learn``:
finished segments become tensors on the device, the scaling of observations moves, the weights are published to
whoever acts, and a checkpoint holds network, optimizer and randomness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rollmill.core.fields import MASK_FIELD, Array, EnvSpec
from rollmill.core.imports import check_arguments, import_object
from rollmill.core.shapes import BYTES, Shape, check_shape
from rollmill.learning.batch import Batch, load_batch
from rollmill.learning.guards import stopped_by_nan
from rollmill.learning.settings import LearningSettings
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.saving import (
    OPTIMIZER_SHAPE,
    WEIGHTS_SHAPE,
    load_generator,
    load_optimizer,
    load_weights,
    optimizer_state,
    to_numpy,
    weights_of,
)

STATE_SHAPE: Shape = {"version": int, "model": WEIGHTS_SHAPE, "optimizer": OPTIMIZER_SHAPE, "generator": BYTES}


@dataclass(frozen=True)
class LearnerParts:
    """What a learner is made from."""

    spec: EnvSpec
    model: ActorCritic
    """The network to improve, on its device (``model.*``)."""
    board: WeightBoard
    """Where its weights are published."""
    settings: LearningSettings
    seed: int
    policy_id: int = 0


@dataclass(frozen=True)
class Evaluated:
    """What the network says now about the rows of a batch."""

    log_prob: Tensor  # [T, B] of the actions that were taken
    entropy: Tensor  # [T, B] in nats
    value: Tensor  # [T + 1, B] in units of the return; row T is the bootstrap


class CustomLearner:
    """Improves one policy by a method of your own; ``learn`` is the only thing to write.

    Further keyword arguments of a subclass's constructor are ``learning.custom_args``.
    """

    def __init__(self, parts: LearnerParts) -> None:
        self.spec, self.model, self.settings = parts.spec, parts.model, parts.settings
        self.policy_id = parts.policy_id
        self.version = 0
        """How many batches it has learnt from."""
        self.device = next(self.model.parameters()).device
        self.optimizer = self.make_optimizer()
        self.generator = torch.Generator().manual_seed(parts.seed)
        """For whatever is to be random here: it is saved with the rest."""
        self._board = parts.board

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam or one of its kin (its state must have ``exp_avg`` and ``exp_avg_sq``, to be saved)."""
        return torch.optim.Adam(self.model.parameters(), self.settings.learning_rate, eps=self.settings.adam_eps)

    def learn(self, batch: Batch, progress: float) -> Mapping[str, float]:
        """Improve ``self.model`` by a batch; returns metrics by name (they appear as ``learn/<name>``).

        ``batch``: tensors ``[T, B]`` of T steps of B lanes (``learning.batch.Batch``). Rows that are not ``valid`` hold
        an episode's final observation or a fault: their action did not count. ``progress``: share of the run that is
        done, 0 to 1.
        """
        raise NotImplementedError

    # -- to be called from ``learn`` -----------------------------------------------------------

    def evaluate(self, batch: Batch) -> Evaluated:
        """Return log-probabilities, entropies and values of all rows by the network as it is now, with gradients."""
        output = self.model.unroll(batch.obs, batch.first, batch.state[0])
        params = output.params[:-1]
        mask = batch.obs[MASK_FIELD][:-1] if MASK_FIELD in batch.obs else None
        head = self.model.head
        log_prob, entropy = head.log_prob(params, batch.action, mask), head.entropy(params, mask)
        return Evaluated(log_prob, entropy, self.model.denormalise(output.value, batch.obs))

    def step(self, loss: Tensor) -> float:
        """Take one step of the optimizer against a loss; returns the norm of its gradient, which is clipped before."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm or math.inf)
        if not math.isfinite(float(norm)):
            said = f"the loss is {float(loss):g}, the norm of its gradient {float(norm):g}"
            raise stopped_by_nan(self, said)
        self.optimizer.step()
        return float(norm)

    # -- what the run calls --------------------------------------------------------------------

    @property
    def oldest_useful(self) -> int:
        """Return the oldest version whose experience may still be learnt from (``learning.max_policy_lag``)."""
        return self.version - self.settings.max_policy_lag

    def train(self, segments: Mapping[str, Array | Tensor], progress: float = 0.0) -> dict[str, float]:
        """Learn once from segments ``[T + 1, B, ...]``."""
        batch = load_batch(segments, self.settings, self.policy_id, self.version, self.device)
        if not batch.rows:
            return {"rows": 0.0, "stale_rows": float(batch.stale)}
        self.model.train()
        metrics = {name: float(value) for name, value in self.learn(batch, progress).items()}
        # Only now may the scaling of observations change: acting and learning saw the same one.
        self.model.update_normalizer({name: x[:-1] for name, x in batch.obs.items()}, batch.valid)
        self.version += 1
        lag = batch.lag[batch.valid].float()
        rows = {"rows": float(batch.rows), "stale_rows": float(batch.stale)}
        return {**metrics, **rows, "policy_lag": float(lag.mean())}

    def counts(self) -> dict[str, float]:
        """Return nothing: there is no replay buffer here."""
        return {}

    def publish(self) -> None:
        """Make the current weights visible to policies."""
        self._board.publish(self.model, self.version)

    def agree(self) -> None:
        """Publish the weights: there is one rank only."""
        self.publish()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds; a subclass that has more adds to it."""
        return {
            "version": self.version,
            "model": weights_of(self.model),
            "optimizer": optimizer_state(self.optimizer),
            "generator": to_numpy(self.generator.get_state()),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` has returned."""
        check_shape({name: state[name] for name in STATE_SHAPE if name in state}, STATE_SHAPE)
        load_weights(self.model, state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        load_generator(self.generator.set_state, state["generator"])
        self.version = state["version"]
        self.publish()


def build_custom(parts: LearnerParts) -> CustomLearner:
    """Build the learner that ``learning.custom`` names.

    Raises ConfigError if it is none, or does not take its arguments.
    """
    target, args = parts.settings.custom, parts.settings.custom_args
    assert target is not None
    found = import_object(target, "learning.custom", lambda x: isinstance(x, type) and issubclass(x, CustomLearner))
    check_arguments(found, f"learning.custom={target}", {"parts": parts}, args)
    made: CustomLearner = found(parts, **args)
    return made
