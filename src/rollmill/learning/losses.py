"""The terms of the PPO loss and the metrics that tell how training goes.

Losses are returned per sample; ``masked_mean`` reduces them over the rows that count. All results
stay on their device, so that reading metrics is one transfer at the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Number = float | Tensor
"""A tensor ``[]`` where a CUDA graph reads it (``learning.knobs``)."""


def ppo_policy_loss(log_ratio: Tensor, advantages: Tensor, clip: Number) -> Tensor:
    """Return the clipped surrogate loss per sample, to be minimised.

    ``log_ratio``: new minus old log-probability of the action taken. Once the ratio has left
    ``[1 - clip, 1 + clip]`` in the direction the advantage asks for, the gradient is 0.
    """
    ratio = log_ratio.exp()
    clipped = _within(ratio, 1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def value_loss(values: Tensor, old_values: Tensor, targets: Tensor, clip: Number | None = None) -> Tensor:
    """Return half the squared error per sample, all in the same units (usually those of normalised returns).

    With ``clip`` the larger of this error and that of a value moved at most ``clip`` from the old one.
    """
    loss = (values - targets).square()
    if clip is not None:
        near = old_values + _within(values - old_values, -clip, clip)
        loss = torch.maximum(loss, (near - targets).square())
    return 0.5 * loss


def _within(x: Tensor, low: Any, high: Any) -> Tensor:
    return x.clamp(low, high)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of ``x`` where ``mask`` is True; 0 (with zero gradient) where nothing is.

    Masked entries are never read: a NaN there does no harm.
    """
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


@torch.no_grad()
def ratio_metrics(log_ratio: Tensor, clip: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Return per sample an estimate of KL(old || new), whether the ratio was clipped (0 or 1), its distance from 1.

    The estimate is ``ratio - 1 - log_ratio`` (Schulman's k3): from actions of the old policy, its mean is the
    divergence; it is never negative and of low variance.
    """
    off = torch.expm1(log_ratio)
    deviation = off.abs()
    return off - log_ratio, (deviation > clip).to(log_ratio), deviation
