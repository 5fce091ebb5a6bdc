"""Bringing advantages to a common scale."""

from __future__ import annotations

import torch
from torch import Tensor

from rollmill.learning.ranks import Ranks, shared_mean_and_deviation

EPSILON = 1e-8


@torch.no_grad()
def normalise_advantages(advantages: Tensor, mask: Tensor, ranks: Ranks | None = None) -> Tensor:
    """Scale advantages to mean 0 and deviation 1 where ``mask`` is True (of all ranks); 0 elsewhere.

    Equal advantages (a single row among them) become 0. The sums run in float64: in float32 the
    rounding error of the mean alone would be blown up to the size of real advantages.
    """
    x = torch.where(mask, advantages, 0.0).double()
    count = mask.sum().clamp(min=1)
    if ranks is not None and ranks.count > 1:
        mean, std = shared_mean_and_deviation(ranks, x, mask)
    else:
        mean = x.sum() / count
        std = (torch.where(mask, x - mean, 0.0).square().sum() / count).sqrt()
    return torch.where(mask, (x - mean) / (std + EPSILON), 0.0).to(advantages.dtype)
