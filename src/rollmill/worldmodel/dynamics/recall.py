"""Past experience inside the dynamics model: what followed the stored steps that are most like the present one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.core.fields import Array

FAINT = 1e-3
"""Numbers that vary less than this are not scaled up any further."""


def recalled(query: Tensor, keys: Tensor, values: Tensor, neighbours: int, barred: Tensor | None = None) -> Tensor:
    """Return ``[n, V]``, the mean value of the keys ``[N, K]`` nearest to ``query`` ``[n, K]``, weighted by nearness.

    ``barred`` ``[n, N]``: keys that a query must not find.
    """
    if torch.compiler.is_compiling():  # for other programs: ONNX has no cdist
        distance = (query[:, None] - keys).square().sum(-1).sqrt()
    else:
        distance = torch.cdist(query, keys)
    if barred is not None:
        distance = distance.masked_fill(barred, torch.inf)
    near, index = distance.topk(neighbours, largest=False)
    weight = torch.softmax(-near, -1).nan_to_num(0.0)  # nothing at all was to be found
    return (weight[..., None] * values[index]).sum(1)


class Recall(nn.Module):
    """Stored steps, a part of the model: keys are latent and action, values the change of the latent and the reward.

    While the model learns, a sequence does not find steps of its own episode: what followed would be no memory but the
    answer.
    """

    keys: Tensor
    values: Tensor
    scale: Tensor
    owner: Tensor

    def __init__(self, latent: int, action: int, size: int, neighbours: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.register_buffer("keys", torch.zeros(size, latent + action))
        self.register_buffer("values", torch.zeros(size, latent + 1))
        self.register_buffer("scale", torch.ones(latent + action))
        self.register_buffer("owner", torch.full((size,), -1, dtype=torch.int64))

    @property
    def width(self) -> int:
        """Numbers that are recalled at a step."""
        return self.values.shape[1]

    def store(self, keys: Array, values: Array, owner: Array) -> None:
        """Keep steps: keys ``[N, Z + A]``, values ``[N, Z + 1]`` and the episodes ``[N]`` they are from."""
        scale = np.maximum(keys.std(0), FAINT)
        self.scale.copy_(torch.from_numpy(scale))
        self.keys.copy_(torch.from_numpy(keys / scale))
        self.values.copy_(torch.from_numpy(values / np.maximum(values.std(0), FAINT)))
        self.owner.copy_(torch.from_numpy(owner))

    @torch.no_grad()
    def forward(self, latents: Tensor, actions: Tensor, owner: Tensor | None = None) -> Tensor:
        """Recall ``[..., Z + 1]`` for latents ``[..., Z]``, coded actions ``[..., A]``, episodes ``owner`` ``[B]``."""
        steps = torch.cat([latents, actions], -1)
        query = steps.reshape(-1, steps.shape[-1]) / self.scale
        barred = None
        if owner is not None:
            barred = owner.repeat_interleave(len(query) // len(owner))[:, None] == self.owner
        found = recalled(query, self.keys, self.values, self.neighbours, barred)
        return found.reshape(*steps.shape[:-1], -1)
