"""Mixtures of normal distributions, one for each latent number: likelihood, draws, means. Pure functions.

Shapes: ``K`` mixtures last, ``[..., Z, K]``; numbers are ``[..., Z]``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

MIN_LOG_STD, MAX_LOG_STD = -7.0, 4.0
"""Bounds of the logarithm of a standard deviation: a component that shrinks to a point has an infinite likelihood."""
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Mixture(NamedTuple):
    """Parameters, ``[..., Z, K]`` each; weights as unnormalised logarithms."""

    logits: Tensor
    mean: Tensor
    log_std: Tensor


def split_mixture(numbers: Tensor, size: int, components: int) -> Mixture:
    """Turn a network's outputs ``[..., 3 * Z * K]`` into parameters; standard deviations are kept within bounds."""
    logits, mean, log_std = numbers.reshape(*numbers.shape[:-1], 3, size, components).unbind(-3)
    return Mixture(logits, mean, log_std.clamp(MIN_LOG_STD, MAX_LOG_STD))


def log_likelihood(x: Tensor, mixture: Mixture) -> Tensor:
    """Return ``[..., Z]``: the logarithm of the density of ``x`` ``[..., Z]``, number by number."""
    standard = (x[..., None] - mixture.mean) * (-mixture.log_std).exp()
    log_normal = -0.5 * standard.square() - mixture.log_std - HALF_LOG_2PI
    return torch.logsumexp(functional.log_softmax(mixture.logits, -1) + log_normal, -1)


def expectation(mixture: Mixture) -> Tensor:
    """Return ``[..., Z]``, the mean of the whole mixture."""
    return (functional.softmax(mixture.logits, -1) * mixture.mean).sum(-1)


def draw(mixture: Mixture, temperature: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw every number, ``[..., Z]``.

    ``temperature`` divides the logits and multiplies variances: 1 draws from the mixture as it is, 0 takes the mean of
    the likeliest component.
    """
    if temperature == 0:
        best = mixture.logits.argmax(-1, keepdim=True)
        return mixture.mean.gather(-1, best)[..., 0]
    shape, device = mixture.logits.shape, mixture.logits.device
    # The largest of logits with Gumbel noise is a draw from their softmax, and it is one pass over the numbers.
    uniform = torch.rand(shape, generator=generator, device=device).clamp_min(1e-20)
    chosen = (mixture.logits / temperature - (-uniform.log()).log()).argmax(-1, keepdim=True)
    noise = torch.randn(shape[:-1], generator=generator, device=device)
    std = mixture.log_std.gather(-1, chosen)[..., 0].exp() * math.sqrt(temperature)
    return mixture.mean.gather(-1, chosen)[..., 0] + std * noise
