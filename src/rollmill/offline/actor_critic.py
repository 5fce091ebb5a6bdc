"""Policies that are learnt from recorded transitions by what actions are worth: IQL and TD3+BC, for numbers as actions.

Both keep to actions that the data hold, because what others are worth can only be guessed:

- IQL (Kostrikov et al. 2021) never asks about other actions. A state's value is an upper expectile of its actions'
  values, and the policy imitates what was done, the better it was the more.
- TD3+BC (Fujimoto and Gu 2021) climbs the critics, and is held back by the squared distance to what was done.

Critics see actions scaled to -1..1. ``loss`` gives the whole loss of a batch; what a part must not change is detached
in it, so one optimizer serves all parts.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.models.actor_critic import ActorCritic, Output
from rollmill.models.critics import Critics
from rollmill.models.encoders import ObservationNormaliser, Observations
from rollmill.models.settings import Distribution, ModelSettings
from rollmill.offline.settings import SequenceSettings, ValueSettings
from rollmill.optim.device import Precision

Losses = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class Steps:
    """A batch of transitions: every tensor begins with its rows."""

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    terminated: Tensor
    next_obs: dict[str, Tensor]

    def to(self, device: torch.device) -> Steps:
        def move(x: Tensor) -> Tensor:
            return x.to(device, non_blocking=True)

        obs, next_obs = ({name: move(x) for name, x in part.items()} for part in (self.obs, self.next_obs))
        return Steps(obs, move(self.action), move(self.reward), move(self.terminated), next_obs)


def network_settings(model: SequenceSettings, distribution: Distribution) -> ModelSettings:
    """Return the encoder's choices of ``model``, with this distribution over actions."""
    settings = replace(model.model_settings(), policy_gain=0.01, separate_critic=True, log_std="free")
    return replace(settings, action_distribution=distribution)


class ValuePolicy(nn.Module):
    """A policy, two critics, and slow copies of what the targets are computed with.

    ``policy`` is what acts. Its own value function is the state value of IQL; TD3+BC has none.
    """

    center: Tensor
    radius: Tensor

    def __init__(self, spec: EnvSpec, model: SequenceSettings, settings: ValueSettings) -> None:
        super().__init__()
        check_actions(spec)
        low, high = torch.tensor(spec.action.low), torch.tensor(spec.action.high)
        bounded = bool((low.isfinite() & high.isfinite()).all())
        free = not bounded and self.distribution == "bounded_gaussian"
        network = network_settings(model, "gaussian" if free else self.distribution)
        self.spec, self.settings, self.network = spec, settings, network
        self.policy = ActorCritic(spec, network)
        self.critics = Critics(spec, network)
        begin_small(self)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        center, radius = (
            ((low + high) / 2, (high - low) / 2) if bounded else (torch.zeros_like(low), torch.ones_like(low))
        )
        self.register_buffer("center", center.reshape(spec.action.shape), persistent=False)
        self.register_buffer("radius", radius.reshape(spec.action.shape), persistent=False)

    distribution: Distribution = "bounded_gaussian"
    """Over actions that have bounds: the mean stays within them, as a clone of saturated actions must."""
    deterministic = False
    """Whether there is no distribution to sample from."""

    @property
    def normaliser(self) -> ObservationNormaliser:
        return self.policy.observation_moments

    def loss(self, steps: Steps, update: int) -> Losses:
        """Return the loss of optimizer step ``update``, and metrics of its parts."""
        raise NotImplementedError

    def follow(self, update: int) -> None:
        """Move the slow copies a little, after optimizer step ``update``."""
        _follow(self.target_critics, self.critics, self.settings.target_rate)

    @torch.no_grad()
    def errors(self, steps: Steps) -> dict[str, Tensor]:
        """Return squared errors on held-out transitions: of the most likely action against what was done, and TD
        errors.
        """
        output = self.evaluate(self.policy, steps.obs)
        mode = self.policy.head.sample(output.params, deterministic=True)
        seen = self.normaliser(steps.obs)
        value = self.critics(seen, self.unit(steps.action)).amin(dim=0)
        distance = (self.unit(mode) - self.unit(steps.action)).square().flatten(1).mean(1)
        return {"error": distance, "td_error": (value - self.target(steps)).square()}

    def target(self, steps: Steps) -> Tensor:
        """Return what the critics should say: ``[n]``."""
        raise NotImplementedError

    # -- parts ---------------------------------------------------------------------------------

    def unit(self, action: Tensor) -> Tensor:
        """Scale actions from their bounds to -1..1."""
        return (action - self.center) / self.radius

    @staticmethod
    def evaluate(policy: ActorCritic, obs: Observations) -> Output:
        rows = next(iter(obs.values()))
        first = torch.zeros(rows.shape[0], dtype=torch.bool, device=rows.device)
        return policy.step(obs, first, policy.initial_state(rows.shape[0]))

    def discounted(self, steps: Steps, value: Tensor) -> Tensor:
        """Return the reward, plus the discounted value of where it led to unless the episode ended there."""
        return steps.reward + self.settings.gamma * torch.where(steps.terminated, 0.0, value)

    def critic_loss(self, steps: Steps, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' loss and mean value."""
        value = self.critics(self.normaliser(steps.obs), self.unit(steps.action))
        return (value - target).square().mean(dim=1).sum(), value.detach().mean()


class Iql(ValuePolicy):
    """Implicit Q-learning."""

    def target(self, steps: Steps) -> Tensor:
        return self.discounted(steps, self.evaluate(self.policy, steps.next_obs).value.detach())

    def loss(self, steps: Steps, update: int) -> Losses:
        s = self.settings
        with torch.no_grad():
            target = self.target(steps)
            best = self.target_critics(self.normaliser(steps.obs), self.unit(steps.action)).amin(dim=0)
        critic_loss, q_mean = self.critic_loss(steps, target)
        output = self.evaluate(self.policy, steps.obs)
        advantage = best - output.value
        value_loss = expectile_loss(advantage, s.expectile).mean()
        weight = (s.temperature * advantage.detach()).exp().clamp(max=s.weight_limit)
        log_prob = self.policy.head.log_prob(output.params, steps.action)
        policy_loss = -(weight * log_prob).mean()
        loss = critic_loss + value_loss + policy_loss
        parts = {"critic_loss": critic_loss, "value_loss": value_loss, "policy_loss": policy_loss}
        return loss, {**parts, "q_mean": q_mean, "weight_mean": weight.mean()}


class Td3Bc(ValuePolicy):
    """TD3 with behaviour cloning."""

    distribution = "tanh_gaussian"
    deterministic = True

    def __init__(self, spec: EnvSpec, model: SequenceSettings, settings: ValueSettings) -> None:
        super().__init__(spec, model, settings)
        self.target_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self.target_policy.observation_moments = self.policy.observation_moments  # taken from the data once, for both

    def target(self, steps: Steps) -> Tensor:
        """Return the target from the lower slow critic's value of what the slow policy would do, a little off."""
        s = self.settings
        action = self._act(self.target_policy, steps.next_obs)
        noise = (torch.randn_like(action) * s.noise).clamp(-s.noise_limit, s.noise_limit)
        value = self.target_critics(self.normaliser(steps.next_obs), (action + noise).clamp(-1, 1)).amin(dim=0)
        return self.discounted(steps, value)

    def loss(self, steps: Steps, update: int) -> Losses:
        with torch.no_grad():
            target = self.target(steps)
        critic_loss, q_mean = self.critic_loss(steps, target)
        parts = {"critic_loss": critic_loss, "q_mean": q_mean}
        if not self._policy_is_due(update):
            return critic_loss, parts
        action = self._act(self.policy, steps.obs)
        frozen = {name: p.detach() for name, p in self.critics.named_parameters()}
        value = functional_call(self.critics, frozen, (self.normaliser(steps.obs), action))[0]
        scale = self.settings.alpha / value.detach().abs().mean().clamp(min=1e-6)
        distance = (action - self.unit(steps.action)).square().mean()
        policy_loss = distance - scale * value.mean()
        share = self.settings.policy_every  # metrics are means over all steps, this one is not taken in all of them
        return critic_loss + policy_loss, {**parts, "policy_loss": share * policy_loss, "distance": share * distance}

    def follow(self, update: int) -> None:
        if self._policy_is_due(update):
            super().follow(update)
            _follow(self.target_policy, self.policy, self.settings.target_rate)

    def _policy_is_due(self, update: int) -> bool:
        return update % self.settings.policy_every == 0

    def _act(self, policy: ActorCritic, obs: Observations) -> Tensor:
        """Return the policy's mean actions ``[n, *shape]`` from -1 to 1."""
        mean, _ = self.evaluate(policy, obs).params.chunk(2, dim=-1)
        return mean.tanh().reshape(-1, *self.spec.action.shape)


def value_precision(wished: Precision) -> Precision:
    """Return what matrices are multiplied in: float32 for ``auto``.

    Weights of actions are exponentials of differences between values, and bfloat16 has three digits of each: with it
    IQL learnt less than half as often to swing a pendulum up.
    """
    return "float32" if wished == "auto" else wished


def begin_small(network: nn.Module) -> None:
    """Give all layers PyTorch's own small first weights, as the published fits have.

    Orthogonal ones suit PPO. With them IQL learnt to hang still on a recording of Pendulum: where what was done points
    both ways, it took the mean of both.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.reset_parameters()


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Square the differences, weighed by ``expectile`` where they are positive and by the rest of 1 where negative."""
    weight = torch.where(difference > 0, expectile, 1 - expectile)
    return weight * difference.square()


def check_actions(spec: EnvSpec) -> None:
    """Raise ConfigError unless all of the action is numbers."""
    if spec.action.kind != "continuous":
        raise ConfigError(
            f"algorithm=iql and algorithm=td3bc are for continuous actions; {spec.name} has {spec.action.kind} ones: "
            "use algorithm=dt or algorithm=bc"
        )


def build_value_policy(algorithm: str, spec: EnvSpec, model: SequenceSettings, settings: ValueSettings) -> ValuePolicy:
    """Return the network of an algorithm."""
    return (Iql if algorithm == "iql" else Td3Bc)(spec, model, settings)


@torch.no_grad()
def _follow(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    for target, source in zip(slow.parameters(), fast.parameters(), strict=True):
        target.lerp_(source, rate)
