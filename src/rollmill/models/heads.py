"""Action distributions: what the network's numbers mean, and the maths on them.

A head turns features into one flat vector of distribution parameters ``params`` ``[..., P]``, which
can be stored and compared later; all other methods are functions of such parameters. Leading axes
``...`` are free: ``[n]`` when acting, ``[T, B]`` when learning.

Masks ``[..., sum(nvec)]`` (non-zero = allowed) apply to discrete actions in every method: a
forbidden action has probability exactly 0, and no NaN comes of it. A row that forbids everything
has no distribution; an environment that gives one is at fault (``envs.batch``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.models.encoders import initialise
from rollmill.models.settings import LOG_STD_BOUNDS, ModelSettings

FORBIDDEN = -1e30
"""Logit of a forbidden action: its probability underflows to 0, yet differences and products stay finite."""

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def build_head(spec: ActionSpec, input_size: int, settings: ModelSettings) -> ActionHead:
    """The head for this action space, reading features ``[..., input_size]``."""
    if spec.kind == "continuous":
        return GaussianHead(spec, input_size, settings)
    return CategoricalHead(spec, input_size, settings)


class ActionHead(nn.Module):
    """Base of all heads. ``P`` parameters per row; ``mask`` is None where everything is allowed."""

    param_size: int
    discrete: bool
    """Whether the distribution is over choices (maskable, comparable with the uniform one)."""

    def forward(self, features: Tensor) -> Tensor:
        """Distribution parameters ``[..., P]`` from features ``[..., H]``."""
        raise NotImplementedError

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Tensor:
        """Actions in the shape and dtype of the spec's field; ``deterministic`` takes the mode."""
        raise NotImplementedError

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability (density) ``[...]`` of actions, summed over components."""
        raise NotImplementedError

    def decide(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """``sample`` and the ``log_prob`` of what was sampled."""
        action = self.sample(params, mask, generator, deterministic)
        return action, self.log_prob(params, action, mask)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy ``[...]`` in nats, summed over components."""
        raise NotImplementedError

    def kl(self, params_old: Tensor, params_new: Tensor, mask: Tensor | None = None) -> Tensor:
        """KL(old || new) ``[...]`` in nats, summed over components; both under the same mask."""
        raise NotImplementedError

    def kl_to_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """KL(policy || uniform over the allowed actions) ``[...]``; discrete actions only."""
        raise _no_uniform()

    def symmetric_kl_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mean of KL(policy || uniform) and KL(uniform || policy) ``[...]``; discrete actions only.

        Unlike the entropy, it grows without bound as an allowed action is given up.
        """
        raise _no_uniform()


def _no_uniform() -> ConfigError:
    return ConfigError("there is no uniform distribution over continuous actions; use an entropy bonus instead")


class CategoricalHead(ActionHead):
    """One or several independent choices. Parameters are the logits of all components side by side.

    Components are handled at once as a table ``[..., k, m]`` of ``k`` components by ``m`` choices,
    padded with forbidden choices where components differ in size.
    """

    discrete = True
    index: Tensor | None
    padding: Tensor | None

    def __init__(self, spec: ActionSpec, input_size: int, settings: ModelSettings) -> None:
        super().__init__()
        self.single = spec.kind == "discrete"
        self.param_size = spec.mask_size
        self.components, self.choices = len(spec.nvec), max(spec.nvec)
        self.linear = initialise(nn.Linear(input_size, self.param_size), settings.policy_gain)
        index = padding = None
        if len(set(spec.nvec)) > 1:
            size = torch.tensor(spec.nvec)
            offset = (size.cumsum(0) - size).unsqueeze(1)
            choice = torch.arange(self.choices).unsqueeze(0)
            padding = choice >= size.unsqueeze(1)
            index = (offset + choice).masked_fill(padding, 0)
        # Derived from the spec, so not part of a checkpoint.
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("padding", padding, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(features)
        return logits

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Tensor:
        return self.decide(params, mask, generator, deterministic)[0]

    def decide(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        log_p = self._logits(params, mask).log_softmax(-1)
        if deterministic:
            choice = log_p.argmax(-1, keepdim=True)
        else:
            # A race: with E ~ Exp(1), argmax(p / E) follows p. The floor keeps 0 / 0 out of it.
            noise = torch.empty_like(log_p).exponential_(generator=generator).clamp_(min=1e-30)
            choice = log_p.exp().div_(noise).argmax(-1, keepdim=True)
        chosen = log_p.gather(-1, choice).squeeze(-1)  # [..., k]
        if self.single:
            return choice.squeeze(-1).squeeze(-1), chosen.squeeze(-1)
        return choice.squeeze(-1), chosen.sum(-1)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        choice = action.unsqueeze(-1) if self.single else action
        log_p = self._logits(params, mask).log_softmax(-1)
        return log_p.gather(-1, choice.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        log_p = self._logits(params, mask).log_softmax(-1)
        return -(log_p.exp() * log_p).sum((-2, -1))

    def kl(self, params_old: Tensor, params_new: Tensor, mask: Tensor | None = None) -> Tensor:
        old = self._logits(params_old, mask).log_softmax(-1)
        new = self._logits(params_new, mask).log_softmax(-1)
        return (old.exp() * (old - new)).sum((-2, -1))

    def kl_to_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        # KL(p || u) = log(allowed choices) - H(p)
        return self._allowed(params, mask).sum(-1).log().sum(-1) - self.entropy(params, mask)

    def symmetric_kl_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        allowed = self._allowed(params, mask)
        count = allowed.sum(-1)
        log_p = self._logits(params, mask).log_softmax(-1)
        # KL(u || p) = -log(allowed choices) - mean of log p over them
        reverse = -count.log() - torch.where(allowed, log_p, 0.0).sum(-1) / count
        return 0.5 * (self.kl_to_uniform(params, mask) + reverse.sum(-1))

    def _logits(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Logits ``[..., k, m]`` in float32, forbidden and padding choices at ``FORBIDDEN``."""
        logits = params.float()
        if mask is not None:
            logits = logits.masked_fill(mask == 0, FORBIDDEN)
        table = self._table(logits)
        return table if self.padding is None else table.masked_fill(self.padding, FORBIDDEN)

    def _allowed(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Which choices ``[..., k, m]`` exist and are allowed."""
        table = self._table(torch.ones_like(params, dtype=torch.bool) if mask is None else mask != 0)
        return table if self.padding is None else table & ~self.padding

    def _table(self, flat: Tensor) -> Tensor:
        """``[..., sum(nvec)]`` as ``[..., k, m]``; what the padding holds does not matter."""
        if self.index is None:
            return flat.reshape(*flat.shape[:-1], self.components, self.choices)
        return flat[..., self.index]


class GaussianHead(ActionHead):
    """Independent normal distributions. Parameters are the means, then the log standard deviations.

    Samples are neither squashed nor clipped: the environment clips what it executes, while the stored
    action stays the one whose log-probability is meant.
    """

    discrete = False

    def __init__(self, spec: ActionSpec, input_size: int, settings: ModelSettings) -> None:
        super().__init__()
        self.shape = spec.shape
        self.size = math.prod(spec.shape)
        self.param_size = 2 * self.size
        self.state_dependent = settings.log_std == "state"
        outputs = self.param_size if self.state_dependent else self.size
        linear = nn.Linear(input_size, outputs)
        initialise(linear, settings.policy_gain)
        self.linear = linear
        if self.state_dependent:
            nn.init.constant_(linear.bias[self.size :], settings.initial_log_std)
        else:
            self.log_std = nn.Parameter(torch.full((self.size,), settings.initial_log_std))

    def forward(self, features: Tensor) -> Tensor:
        out = self.linear(features)
        if self.state_dependent:
            mean, log_std = out.chunk(2, dim=-1)
        else:
            mean, log_std = out, self.log_std
        log_std = log_std.clamp(*LOG_STD_BOUNDS)
        return torch.cat([mean, log_std.expand_as(mean)], dim=-1)

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Tensor:
        mean, log_std = self._split(params, mask)
        if deterministic:
            action = mean
        else:
            noise = torch.empty_like(mean).normal_(generator=generator)
            action = torch.addcmul(mean, log_std.exp(), noise)
        return action.reshape(*mean.shape[:-1], *self.shape)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        mean, log_std = self._split(params, mask)
        distance = (action.reshape(mean.shape) - mean) * torch.exp(-log_std)
        return (-0.5 * distance.square() - log_std - HALF_LOG_2PI).sum(-1)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        _, log_std = self._split(params, mask)
        return (log_std + (0.5 + HALF_LOG_2PI)).sum(-1)

    def kl(self, params_old: Tensor, params_new: Tensor, mask: Tensor | None = None) -> Tensor:
        mean_old, log_old = self._split(params_old, mask)
        mean_new, log_new = self._split(params_new, mask)
        ratio = torch.exp(2 * (log_old - log_new))
        distance = ((mean_old - mean_new) * torch.exp(-log_new)).square()
        return (0.5 * (ratio + distance - 1) + log_new - log_old).sum(-1)

    def _split(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if mask is not None:
            raise ConfigError("continuous actions cannot be masked")
        mean, log_std = params.float().chunk(2, dim=-1)
        return mean, log_std
