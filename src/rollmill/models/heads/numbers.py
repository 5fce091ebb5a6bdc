"""Distributions over numbers: Gaussians, as they are or squashed into the bounds of the action."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.models.encoders import initialise
from rollmill.models.heads.base import ActionHead, Randomness, draw
from rollmill.models.settings import LOG_STD_BOUNDS, ModelSettings

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


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
            return self.bounded(out)
        return torch.cat([out, self.log_std.clamp(*LOG_STD_BOUNDS).expand_as(out)], dim=-1)

    @staticmethod
    def bounded(params: Tensor) -> Tensor:
        """Return the parameters with deviations kept within their bounds."""
        mean, log_std = params.chunk(2, dim=-1)
        return torch.cat([mean, log_std.clamp(*LOG_STD_BOUNDS)], dim=-1)

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: Randomness = None,
        deterministic: bool = False,
    ) -> Tensor:
        mean, log_std = self._split(params, mask)
        if deterministic:
            action = mean
        else:
            noise = draw(Tensor.normal_, mean, generator)
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


class BoundedGaussianHead(GaussianHead):
    """Normal distributions whose means tanh squashes into the bounds of the action; samples may lie beyond them."""

    center: Tensor  # [k] middle of the bounds
    radius: Tensor  # [k] half of their interval

    def __init__(self, spec: ActionSpec, input_size: int, settings: ModelSettings) -> None:
        super().__init__(spec, input_size, settings)
        _keep_bounds(self, spec, "bounded_gaussian")

    def forward(self, features: Tensor) -> Tensor:
        mean, log_std = super().forward(features).chunk(2, dim=-1)
        return torch.cat([self.center + self.radius * mean.tanh(), log_std], dim=-1)


class TanhGaussianHead(GaussianHead):
    """Normal distributions squashed by tanh into the bounds of the action. Parameters as of ``GaussianHead``.

    The density is that of the action itself, in its own units. What is stored is the squashed action: its
    log-probability is computed by undoing the tanh, for which actions keep ``MARGIN`` away from their bounds.
    """

    MARGIN = 1e-6
    """Distance from the bounds, as a share of half of their interval."""
    NODES = 32
    """Points of the quadrature behind ``entropy``."""

    center: Tensor  # [k] middle of the bounds
    radius: Tensor  # [k] half of their interval
    nodes: Tensor  # [NODES] of the Gauss-Hermite quadrature for a standard normal variable
    weights: Tensor  # [NODES] summing up to 1

    def __init__(self, spec: ActionSpec, input_size: int, settings: ModelSettings) -> None:
        super().__init__(spec, input_size, settings)
        _keep_bounds(self, spec, "tanh_gaussian")
        nodes, weights = np.polynomial.hermite_e.hermegauss(self.NODES)
        self.register_buffer("nodes", torch.from_numpy(nodes).float(), persistent=False)
        self.register_buffer("weights", torch.from_numpy(weights / weights.sum()).float(), persistent=False)

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: Randomness = None,
        deterministic: bool = False,
    ) -> Tensor:
        """Draw squashed actions; ``deterministic`` takes the median: the squashed mean."""
        return self._squash(super().sample(params, mask, generator, deterministic).flatten(params.dim() - 1))

    def unit_rsample(self, params: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw actions in -1..1, with gradients to ``params``; returns them and their log-probabilities."""
        mean, log_std = self._split(params, None)
        noise = torch.empty_like(mean).normal_(generator=generator)
        raw = torch.addcmul(mean, log_std.exp(), noise)
        log_prob = -0.5 * noise.square() - log_std - HALF_LOG_2PI - _log_tanh_slope(raw)
        return raw.tanh().reshape(*raw.shape[:-1], *self.shape), log_prob.sum(-1)

    def to_unit(self, action: Tensor) -> Tensor:
        """Scale actions ``[..., *shape]`` from their bounds to -1..1."""
        return (action - self.center.reshape(self.shape)) / self.radius.reshape(self.shape)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        squashed = (action.flatten(params.dim() - 1) - self.center) / self.radius
        raw = squashed.clamp(self.MARGIN - 1, 1 - self.MARGIN).atanh()
        return super().log_prob(params, raw, mask) - (_log_tanh_slope(raw) + self.radius.log()).sum(-1)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy ``[...]``, to about three digits: there is no closed form, so that of the Gaussian is
        corrected by a quadrature.
        """
        mean, log_std = self._split(params, mask)
        raw = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self.nodes
        slope = (_log_tanh_slope(raw) * self.weights).sum(-1) + self.radius.log()
        return super().entropy(params, mask) + slope.sum(-1)

    def _squash(self, raw: Tensor) -> Tensor:
        unit = raw.tanh().clamp(self.MARGIN - 1, 1 - self.MARGIN)
        return torch.addcmul(self.center, self.radius, unit).reshape(*raw.shape[:-1], *self.shape)


def _log_tanh_slope(x: Tensor) -> Tensor:
    """Compute ``log(1 - tanh(x)^2)``, without the cancellation of that formula."""
    return 2 * (math.log(2) - x - functional.softplus(-2 * x))


def _keep_bounds(head: nn.Module, spec: ActionSpec, name: str) -> None:
    """Register the middle of the action's bounds and half of their interval, which the distribution ``name`` needs."""
    low, high = torch.tensor(spec.low).double(), torch.tensor(spec.high).double()
    if not bool((low.isfinite() & high.isfinite() & (low < high)).all()):
        raise ConfigError(
            f"model.action_distribution={name} needs actions with finite bounds, "
            f"not {list(spec.low)} to {list(spec.high)}; use model.action_distribution=gaussian"
        )
    # Derived from the spec, so not part of a checkpoint.
    head.register_buffer("center", ((low + high) / 2).float(), persistent=False)
    head.register_buffer("radius", ((high - low) / 2).float(), persistent=False)
