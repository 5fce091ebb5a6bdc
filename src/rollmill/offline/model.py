"""The policies that are learnt from recorded episodes: Decision Transformer and behaviour cloning, one network.

They differ in one token: with ``conditioned`` every step begins with the return that is still to come, so the policy
can be asked for one; without it this is behaviour cloning with the same encoder, trunk and head. ``offline.tokens``
says which token is what.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.core.fields import MASK_FIELD, ActionSpec, EnvSpec
from rollmill.models.encoders import ObservationNormaliser, build_encoder
from rollmill.models.heads.make import build_head
from rollmill.models.transformer import Memory, Trunk
from rollmill.offline.settings import SequenceSettings
from rollmill.offline.tokens import Inputs


@dataclass(frozen=True)
class Scales:
    """What the data say about the sizes of numbers; part of a checkpoint."""

    return_mean: float = 0.0
    return_scale: float = 1.0
    """Returns-to-go are shifted and divided by these before a network sees them."""
    timesteps: int = 1
    """Rows of the table of timesteps; later steps share its last row."""

    def to_dict(self) -> dict[str, Any]:
        return {"return_mean": self.return_mean, "return_scale": self.return_scale, "timesteps": self.timesteps}


class ActionEmbedding(nn.Module):
    """An action of any kind as a token: a row per choice, a linear map for numbers, their sum."""

    offsets: Tensor

    def __init__(self, spec: ActionSpec, size: int) -> None:
        super().__init__()
        self.spec = spec
        self.choices = nn.Embedding(sum(spec.nvec), size) if spec.nvec else None
        numbers = math.prod(spec.shape) if spec.kind == "continuous" else len(spec.low)
        self.numbers = nn.Linear(numbers, size) if spec.kind in ("continuous", "mixed") else None
        sizes = torch.tensor(spec.nvec, dtype=torch.int64)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)

    def forward(self, action: Tensor) -> Tensor:
        """Return ``[..., *shape]`` as the action's field -> ``[..., D]``."""
        kind, count = self.spec.kind, len(self.spec.nvec)
        if kind == "continuous":
            assert self.numbers is not None
            flat: Tensor = self.numbers(action.flatten(action.dim() - len(self.spec.shape)).float())
            return flat
        picks = action.unsqueeze(-1) if kind == "discrete" else action[..., :count].long()
        assert self.choices is not None
        token: Tensor = self.choices(picks + self.offsets).sum(-2)
        return token if self.numbers is None else token + self.numbers(action[..., count:].float())


class SequencePolicy(nn.Module):
    """Action distributions for every step of a window, or for the newest step of many lanes.

    ``compact`` encodes only real steps, not padding: less work on CPUs, other shapes at every batch.
    """

    def __init__(self, spec: EnvSpec, settings: SequenceSettings, scales: Scales, conditioned: bool) -> None:
        super().__init__()
        self.spec, self.settings, self.scales, self.conditioned = spec, settings, scales, conditioned
        self.compact = True
        model = settings.model_settings()
        size = settings.size
        self.normaliser = ObservationNormaliser(spec.inputs)
        self.encoder = build_encoder(spec.inputs, model)
        self.observation = nn.Linear(self.encoder.output_size, size)
        self.action = ActionEmbedding(spec.action, size)
        self.target = nn.Linear(1, size) if conditioned else None
        self.time = nn.Embedding(scales.timesteps, size)
        nn.init.normal_(self.time.weight, std=0.02)
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(settings.dropout)
        self.trunk = Trunk(
            size=size,
            layers=settings.layers,
            heads=settings.heads,
            tokens=3 if conditioned else 2,
            context=settings.context,
            dropout=settings.dropout,
            mixer=settings.mixer,
            width=settings.filter_tokens,
        )
        self.head = build_head(spec.action, size, model)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return distribution parameters ``[B, L, P]``; those of padding mean nothing."""
        time = self._time(inputs.step)
        parts = [self._observe_windows(inputs), self._act(inputs.action)]
        if self.target is not None:
            parts.insert(0, self._ask(inputs.returns))
        tokens = torch.stack([part + time for part in parts], 2)
        mixed = self.trunk(self.dropout(self.norm(tokens)), inputs.mask)
        params: Tensor = self.head(mixed[:, :, -2])
        return params

    def step(
        self,
        obs: dict[str, Tensor],
        last_action: Tensor,
        returns: Tensor,
        first: Tensor,
        lanes: Tensor,
        memory: Memory,
    ) -> Tensor:
        """Return parameters ``[n, P]`` for the newest observation ``[n, ...]`` of some lanes; ``memory`` takes it in.

        ``last_action``: what the lane did before (anything where ``first``); ``returns`` ``[n]``: what to ask for from
        here on, in units of the return.
        """
        now = torch.where(first, 0, memory.age[lanes])
        time, before = self._time(now), self._time((now - 1).clamp(min=0))
        parts = [self._act(last_action) + before]
        if self.target is not None:
            parts.append(self._ask(returns) + time)
        parts.append(self._observe(obs) + time)
        mixed = self.trunk.act(self.norm(torch.stack(parts, 1)), memory, lanes, first)
        params: Tensor = self.head(mixed[:, -1])
        return params

    def loss(self, inputs: Inputs, params: Tensor) -> Tensor:
        """Return minus the log-probability of what was done, ``[B, L]``; 0 at padding."""
        log_prob = self.head.log_prob(params, inputs.action, inputs.obs.get(MASK_FIELD))
        return torch.where(inputs.mask, -log_prob, 0.0)

    @torch.no_grad()
    def hits(self, inputs: Inputs, params: Tensor) -> Tensor:
        """Return whether the most likely action is the one taken, ``[B, L]`` (numbers: minus the squared error)."""
        mode = self.head.sample(params, inputs.obs.get(MASK_FIELD), deterministic=True)
        axes = tuple(range(2, mode.dim()))
        if self.spec.action.discrete:
            same = mode == inputs.action
            return (same.all(axes) if axes else same).float() * inputs.mask
        error = (mode - inputs.action).square()
        return -(error.mean(axes) if axes else error) * inputs.mask

    # -- tokens --------------------------------------------------------------------------------

    def _time(self, step: Tensor) -> Tensor:
        token: Tensor = self.time(step.clamp(max=self.scales.timesteps - 1))
        return token

    def _ask(self, returns: Tensor) -> Tensor:
        assert self.target is not None
        scaled = (returns - self.scales.return_mean) / self.scales.return_scale
        token: Tensor = self.target(scaled.unsqueeze(-1))
        return token

    def _act(self, action: Tensor) -> Tensor:
        token: Tensor = self.action(action)
        return token if self.settings.action_tokens else torch.zeros_like(token)

    def _observe(self, obs: dict[str, Tensor]) -> Tensor:
        """Turn observations ``[n, *shape]`` into tokens ``[n, D]``."""
        fields = {field.name: obs[field.name] for field in self.spec.inputs}
        token: Tensor = self.observation(self.encoder(self.normaliser(fields)))
        return token

    def _observe_windows(self, inputs: Inputs) -> Tensor:
        """Return tokens ``[B, L, D]``; every image of a window is encoded once, for all the decisions that see it."""
        if not self.compact:
            flat = {name: x.flatten(0, 1) for name, x in inputs.obs.items()}
            return self._observe(flat).reshape(*inputs.mask.shape, -1)
        real = self._observe({name: x[inputs.mask] for name, x in inputs.obs.items()})
        tokens = real.new_zeros((*inputs.mask.shape, real.shape[-1]))
        tokens[inputs.mask] = real
        return tokens
