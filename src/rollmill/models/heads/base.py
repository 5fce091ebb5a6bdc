"""What every action distribution can do: the base of all heads (``models.heads.make``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rollmill.core.errors import ConfigError


@dataclass(frozen=True)
class Apart:
    """Generators of several policies: each draws for rows of its own, the first for the first ``counts[0]``."""

    generators: Sequence[torch.Generator]
    counts: Sequence[int]


Randomness = torch.Generator | Apart | None


def draw(fill: Callable[..., Tensor], like: Tensor, randomness: Randomness) -> Tensor:
    """Draw noise ``[n, ...]`` in the shape of ``like``; ``fill``: ``Tensor.normal_``, for instance."""
    noise = torch.empty_like(like)
    if not isinstance(randomness, Apart):
        return fill(noise, generator=randomness)
    for generator, own in zip(randomness.generators, torch.split(noise, list(randomness.counts)), strict=True):
        fill(own, generator=generator)
    return noise


class ActionHead(nn.Module):
    """Base of all heads. ``P`` parameters per row; ``mask`` is None where everything is allowed."""

    param_size: int
    discrete: bool
    """Whether the distribution is over choices (maskable, comparable with the uniform one)."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the distribution parameters ``[..., P]`` from features ``[..., H]``."""
        raise NotImplementedError

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: Randomness = None,
        deterministic: bool = False,
    ) -> Tensor:
        """Draw actions in the shape and dtype of the spec's field; ``deterministic`` takes the mode."""
        raise NotImplementedError

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the log-probability (density) ``[...]`` of actions, summed over components."""
        raise NotImplementedError

    def decide(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: Randomness = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return a ``sample`` and the ``log_prob`` of what was sampled."""
        action = self.sample(params, mask, generator, deterministic)
        return action, self.log_prob(params, action, mask)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over components."""
        raise NotImplementedError

    def kl(self, params_old: Tensor, params_new: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return KL(old || new) ``[...]`` in nats, summed over components; both under the same mask."""
        raise NotImplementedError

    def kl_to_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return KL(policy || uniform over the allowed actions) ``[...]``; discrete actions only."""
        raise _no_uniform()

    def symmetric_kl_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean of KL(policy || uniform) and KL(uniform || policy) ``[...]``; discrete actions only.

        Unlike the entropy, it grows without bound as an allowed action is given up.
        """
        raise _no_uniform()


def _no_uniform() -> ConfigError:
    return ConfigError("there is no uniform distribution over continuous actions; use an entropy bonus instead")
