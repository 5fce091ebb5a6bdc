"""Learns by soft actor-critic (Haarnoja et al. 2018) from a replay buffer.

``train`` takes the new rows into the buffer, then does ``sac.updates_per_step`` optimizer steps for each of them.
One step, in ``_update``, draws rows, moves the critics towards their targets, the policy towards what the critics
value, the temperature towards the entropy asked for, and the target networks a little after the critics.

Critics see actions scaled to -1..1, and entropies are of those: the units of an action do not matter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.core.errors import ConfigError, NonFiniteError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.shapes import BYTES, FLOATS, Shape, check_shape
from rollmill.core.slots import OBS
from rollmill.learning.experience import Experience, Transitions
from rollmill.learning.metrics import Sums
from rollmill.learning.sac_settings import SacSettings
from rollmill.learning.settings import LearningSettings
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.critics import Critics
from rollmill.models.encoders import Observations
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
from rollmill.optim.adam import Adam
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
METRICS = ("critic_loss", "q_mean", "critic_grad_norm", "policy_loss", "entropy", "grad_norm", "temperature")
"""What one update reports, in this order."""


class Sac:
    """Improves one policy. ``version`` counts the batches after which it has learnt; 0 while warming up."""

    oldest_useful = 0
    """Experience never gets too old."""

    def __init__(
        self,
        model: ActorCritic,
        critics: Critics,
        board: WeightBoard,
        experience: Experience,
        settings: tuple[LearningSettings, SacSettings],
        seed: int,
        policy_id: int = 0,
    ) -> None:
        if not isinstance(model.head, TanhGaussianHead):
            raise ConfigError("learning.algorithm=sac needs model.action_distribution=tanh_gaussian")
        self.model, self.critics, self.experience = model, critics, experience
        self.head = model.head
        self.settings, self.sac = settings
        self.policy_id = policy_id
        self.version = 0
        self.optimizer_steps = 0
        self.device = next(model.parameters()).device
        self._board = board
        self._targets = copy.deepcopy(critics).requires_grad_(False)
        with torch.no_grad():  # there is no state value here: what is recorded as one reads 0
            model.value_head.weight.zero_()
            model.value_head.bias.zero_()
        self._policy_parameters = [p for part in (model.trunk, model.head) for p in part.parameters()]
        self._log_temperature = torch.tensor(math.log(self.sac.temperature), device=self.device, requires_grad=True)
        wanted = self.sac.target_entropy
        self._target_entropy = -float(math.prod(self.head.shape)) if wanted is None else wanted
        self._optimizers = {
            "policy": self._adam(self._policy_parameters),
            "critics": self._adam(critics.parameters()),
            "temperature": self._adam([self._log_temperature]),
        }
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._rate = self.settings.learning_rate
        self._due = 0.0
        """Optimizer steps that new rows have earned and that were not done yet."""

    def _adam(self, parameters: Iterable[Tensor]) -> Adam:
        return Adam(parameters, self.settings.learning_rate, self.settings.adam_eps)

    # -- one training step ---------------------------------------------------------------------

    def train(self, segments: Mapping[str, Array], progress: float = 0.0) -> dict[str, float]:
        """Take in segments ``[T + 1, B, ...]`` and learn as often as they allow; ``progress`` moves the rate."""
        self.model.train()
        self._set_rate(progress)
        rows = self.experience.add(segments, self.policy_id)
        sums = Sums(METRICS)
        lag = self._lag(segments)
        updates = self._updates_for(rows)
        for _ in range(updates):
            sums.add(self._update())
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
        """By how many versions the rows that count are older than the weights that learn from them, in the mean."""
        mine = segments["valid"][:-1] & (segments["policy_id"][:-1] == self.policy_id)
        return float((self.version - segments["version"][:-1][mine]).mean()) if mine.any() else 0.0

    def _updates_for(self, rows: int) -> int:
        """Optimizer steps now; none before there is enough to draw from, and rows until then earn none."""
        if len(self.experience) < max(1, self.sac.warmup):
            return 0
        self._due += rows * self.sac.updates_per_step
        updates = int(self._due)
        self._due -= updates
        return updates

    def _set_rate(self, progress: float) -> None:
        s = self.settings
        assert s.lr_schedule != "kl_adaptive", "runs.settings.sac_checks refuses it"
        self._rate = Schedule(s.learning_rate, s.lr_end, s.lr_schedule).at(progress)
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self._rate

    def _take_moments(self, segments: Mapping[str, Array]) -> None:
        """Only now may the scaling of observations change: acting and learning saw the same one."""
        rows = {name.removeprefix(OBS): x[:-1] for name, x in segments.items() if name.startswith(OBS)}
        tensors = {name: torch.from_numpy(x).to(self.device) for name, x in rows.items()}
        valid = segments["valid"][:-1] & (segments["policy_id"][:-1] == self.policy_id)
        self.model.update_normalizer(tensors, torch.from_numpy(valid).to(self.device))

    # -- one optimizer step of each part -------------------------------------------------------

    def _update(self) -> Tensor:
        """One step of the critics, the policy and the temperature; returns ``METRICS``."""
        batch = self.experience.sample(self.sac.minibatch, self.sac.n_step, self.device)
        seen = self.model.observation_moments(batch.obs)
        critic = self._critic_step(batch, seen)
        policy, log_prob = self._policy_step(batch, seen)
        temperature = self._temperature_step(log_prob)
        self._follow()
        self.optimizer_steps += 1
        return torch.stack([*critic, *policy, temperature]).double()

    def _critic_step(self, batch: Transitions, seen: Observations) -> Sequence[Tensor]:
        """Returns loss, mean value and gradient norm."""
        target = self._target(batch)
        value = self.critics(seen, self.head.to_unit(batch.action))
        loss = 0.5 * (value - target).square().mean(dim=1).sum()
        norm = self._apply("critics", loss, list(self.critics.parameters()), batch)
        return loss.detach(), value.detach().mean(), norm

    @torch.no_grad()
    def _target(self, batch: Transitions) -> Tensor:
        """``[n]``: reward, and the smaller of the target networks' values of what the policy would do next."""
        action, log_prob = self._act(batch.next_obs)
        value: Tensor = self._targets(self.model.observation_moments(batch.next_obs), action).amin(dim=0)
        return batch.reward + batch.discount * (value - self._log_temperature.exp() * log_prob)

    def _policy_step(self, batch: Transitions, seen: Observations) -> tuple[Sequence[Tensor], Tensor]:
        """Returns loss, entropy and gradient norm, and the log-probabilities ``[n]`` they come from."""
        action, log_prob = self._act(batch.obs)
        value = self.critics(seen, action).amin(dim=0)
        loss = (self._log_temperature.exp().detach() * log_prob - value).mean()
        norm = self._apply("policy", loss, self._policy_parameters, batch)
        log_prob = log_prob.detach()
        return (loss.detach(), -log_prob.mean(), norm), log_prob

    def _temperature_step(self, log_prob: Tensor) -> Tensor:
        """Returns the temperature of this step."""
        before = self._log_temperature.detach().exp()
        if self.sac.learn_temperature:
            # The gradient of -log(temperature) * (log_prob + target entropy), written down.
            self._log_temperature.grad = -(log_prob.mean() + self._target_entropy)
            self._optimizers["temperature"].step()
        return before

    @torch.no_grad()
    def _follow(self) -> None:
        for target, source in zip(self._targets.parameters(), self.critics.parameters(), strict=True):
            target.lerp_(source, self.sac.tau)

    def _act(self, obs: Observations) -> tuple[Tensor, Tensor]:
        """New actions, scaled to -1..1, and their log-probabilities ``[n]``."""
        rows = len(next(iter(obs.values())))
        first = torch.zeros(rows, dtype=torch.bool, device=self.device)
        params = self.model.step(obs, first, self.model.initial_state(rows)).params
        return self.head.unit_rsample(params, self._generator)

    def _apply(self, name: str, loss: Tensor, parameters: list[nn.Parameter], batch: Transitions) -> Tensor:
        """Step one optimizer by the gradients of ``loss``, once their norm is known to be a number; returns it."""
        # Only with respect to its own parameters: the critics' weights need no gradient of the policy's loss.
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        norm = nn.utils.clip_grad_norm_(parameters, self.sac.max_grad_norm or math.inf)
        if not math.isfinite(float(norm)):
            self._stop_at_non_finite(name, loss, batch)
        self._optimizers[name].step()
        return norm

    def _stop_at_non_finite(self, name: str, loss: Tensor, batch: Transitions) -> None:
        drawn = {"reward": batch.reward, "action": batch.action}
        drawn |= {f"observation {key!r}": x for key, x in batch.obs.items()}
        drawn |= {f"next observation {key!r}": x for key, x in batch.next_obs.items()}
        groups = {"the replayed rows": drawn}
        groups |= {"the weights of the policy": dict(self.model.named_parameters())}
        groups |= {"the weights of the critics": dict(self.critics.named_parameters())}
        groups |= {"the temperature": {"log_temperature": self._log_temperature}}
        found = (f"{group}: {bad}" for group, tensors in groups.items() if (bad := first_bad_place(tensors)))
        place = next(found, f"the loss or the gradient of the {name} (loss {loss.item():g})")
        raise NonFiniteError(
            f"NaN or infinity while learning (policy {self.policy_id}, batch {self.version + 1}, optimizer step "
            f"{self.optimizer_steps + 1}): first seen in {place}. The {name} was not changed by this step."
        )

    def counts(self) -> dict[str, float]:
        """Of the replay buffer, in rows."""
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
        """There is one rank only."""
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
            "targets": weights_of(self._targets),
            "log_temperature": to_numpy(self._log_temperature),
            "optimizers": {name: optimizer_state(optimizer) for name, optimizer in self._optimizers.items()},
            "generator": to_numpy(self._generator.get_state()),
            "replay": self.experience.state() if self.sac.save_replay else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, STATE_SHAPE)
        for model, name in ((self.model, "model"), (self.critics, "critics"), (self._targets, "targets")):
            load_weights(model, state[name])
        load_tensor(self._log_temperature, state["log_temperature"])
        for name, optimizer in self._optimizers.items():
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
) -> Sac:
    """Return the learner with critics like the policy's network and an empty replay buffer."""
    learning, sac, network = settings
    critics = Critics(spec, network).to(next(model.parameters()).device)
    experience = Experience(spec, sac.capacity, learning, seed)
    return Sac(model, critics, board, experience, (learning, sac), seed, policy_id)
