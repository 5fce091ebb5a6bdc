"""Bringing advantages to a common scale."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8


@torch.no_grad()
def normalise_advantages(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages with mean 0 and deviation 1 over the rows where ``mask`` is True; 0 elsewhere.

    Equal advantages (a single row among them) become 0. The sums run in float64: in float32 the
    rounding error of the mean alone would be blown up to the size of real advantages.
    """
    x = torch.where(mask, advantages, 0.0).double()
    count = mask.sum().clamp(min=1)
    centred = torch.where(mask, x - x.sum() / count, 0.0)
    std = (centred.square().sum() / count).sqrt()
    return (centred / (std + EPSILON)).to(advantages.dtype)
