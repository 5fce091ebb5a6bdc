"""Past experience as a memory: what followed the stored steps that are most like the present one.

It holds steps of a store of latents. The key of step t is (z_t, h_t), its value what came of it within the next
``horizon`` steps: the change of the latent, and the sum of rewards. ``recall`` finds the nearest keys of the present
(z, h) and gives their values' mean, weighted by nearness: ``Z + 1`` more features for a controller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.store.views import Source
from rollmill.worldmodel.controller.settings import RetrievalSettings
from rollmill.worldmodel.dynamics.fit import MEAN, check_latents
from rollmill.worldmodel.dynamics.model import Dynamics
from rollmill.worldmodel.dynamics.recall import recalled

EPISODES = 200
"""Episodes that steps are drawn from at most: every one of them is read once, in full."""


@dataclass(frozen=True)
class RetrievalIndex:
    """Keys ``[N, Z + H]``, scaled to unit variance; values ``[N, Z + 1]``, scaled as well."""

    keys: Tensor
    values: Tensor
    scale: Tensor  # [Z + H]: what keys were divided by
    neighbours: int

    def recall(self, latents: Tensor, h: Tensor | None) -> Tensor:
        """Return ``[n, Z + 1]`` for the present latents ``[n, Z]`` and memories ``[n, H]``."""
        query = (latents if h is None else torch.cat([latents, h], -1)) / self.scale
        return recalled(query, self.keys, self.values, self.neighbours)

    def to(self, device: torch.device) -> RetrievalIndex:
        return RetrievalIndex(self.keys.to(device), self.values.to(device), self.scale.to(device), self.neighbours)


@torch.inference_mode()
def build_index(source: Source, dynamics: Dynamics | None, settings: RetrievalSettings, seed: int) -> RetrievalIndex:
    """Draw steps from a store of latents; ``dynamics`` (None: keys are latents alone) reads whole episodes for h."""
    check_latents(source)
    rng = Seeds(seed).branch("bank").generator()
    lengths = np.asarray(source.table.length)
    long_enough = np.flatnonzero(lengths >= settings.horizon)
    if not len(long_enough):
        raise StoreError(f"no episode has the {settings.horizon} steps of retrieval.horizon")
    chosen = np.sort(rng.permutation(long_enough)[:EPISODES])
    keys, values = zip(*(_episode(source, int(i), dynamics, settings.horizon) for i in chosen), strict=True)
    all_keys, all_values = np.concatenate(keys), np.concatenate(values)
    if len(all_keys) < settings.neighbours:
        raise StoreError(f"{len(all_keys)} steps to remember, but retrieval.neighbours={settings.neighbours}")
    picked = np.sort(rng.permutation(len(all_keys))[: settings.size])
    scale = np.maximum(all_keys.std(0), 1e-3)
    spread = np.maximum(all_values.std(0), 1e-3)
    return RetrievalIndex(
        torch.from_numpy(all_keys[picked] / scale),
        torch.from_numpy(all_values[picked] / spread),
        torch.from_numpy(scale),
        settings.neighbours,
    )


def _episode(source: Source, i: int, dynamics: Dynamics | None, horizon: int) -> tuple[Array, Array]:
    """Return keys and values of the steps of one episode that have ``horizon`` steps ahead."""
    n = int(source.table.length[i])
    read = source.read(i, 0, n, [MEAN, "action", "reward"], next_obs=True)
    latents, count = read[MEAN], n - horizon + 1
    change = latents[horizon : horizon + count] - latents[:count]
    sums = np.concatenate([[0.0], np.cumsum(read["reward"], dtype=np.float64)])
    gained = (sums[horizon : horizon + count] - sums[:count]).astype(np.float32)
    keys = latents[:count]
    if dynamics is not None and dynamics.memory_size:
        keys = np.concatenate([keys, _memories(dynamics, latents[:n], read["action"])[:count]], 1)
    return keys, np.concatenate([change, gained[:, None]], 1)


def _memories(dynamics: Dynamics, latents: Array, actions: Array) -> Array:
    """Return ``[n, H]``, h_t before every step of an episode."""
    device = dynamics.device
    z, a = torch.from_numpy(latents.copy())[None].to(device), torch.from_numpy(actions.copy())[None].to(device)
    step = torch.arange(len(latents), device=device)[None]
    h = dynamics(z, a, step, torch.ones_like(step, dtype=torch.bool))[0]
    before: Array = torch.cat([torch.zeros_like(h[:1]), h[:-1]]).cpu().numpy()
    return before
