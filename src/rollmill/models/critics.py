"""Action values: what an action is worth in a state, or what every choice is.

Two forms with the same two calls: ``read`` turns observations into whatever is needed to judge actions there, and
``judge`` says what actions are worth. ``Critics`` reads nothing beforehand: the action is an input of its encoders.
``TrunkCritics`` reads observations (with memory: whole sequences of them) by networks like the policy's, and judges
what they say together with the action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.core.fields import EnvSpec, Field
from rollmill.models.actor_critic import Trunk
from rollmill.models.encoders import Mlp, Observations, build_encoder, initialise
from rollmill.models.settings import ModelSettings

ACTION = "policy.action"
"""Name under which the action is one more vector input of the encoder."""
COUNT = 2
"""Action values that share nothing; the smaller one is believed."""


class Critics(nn.Module):
    """Several action values that share nothing, each with an encoder as the policy's that reads the action, too."""

    def __init__(self, spec: EnvSpec, settings: ModelSettings, count: int = COUNT) -> None:
        super().__init__()
        self.choices = spec.action.nvec[0] if spec.action.kind == "discrete" else 0
        """Of a discrete action: values are of every one of them. 0: of the action that is given."""
        fields = spec.inputs if self.choices else (*spec.inputs, Field(ACTION, "float32", spec.action.shape))
        encoders = [build_encoder(fields, settings) for _ in range(count)]
        self.encoders = nn.ModuleList(encoders)
        self.outputs = nn.ModuleList(
            initialise(nn.Linear(encoder.output_size, self.choices or 1), settings.value_gain) for encoder in encoders
        )

    def forward(self, obs: Observations, action: Tensor | None = None) -> Tensor:
        """Read and judge observations at once."""
        return self.judge(self.read(obs), action)

    def read(self, obs: Observations) -> Any:
        """Return what ``judge`` needs of observations ``[n, *shape]``, normalised."""
        return obs

    def judge(self, seen: Any, action: Tensor | None = None) -> Tensor:
        """Return values ``[count, n]`` of actions ``[n, *shape]`` in -1..1; ``[count, n, choices]`` without one."""
        inputs = seen if action is None else {**seen, ACTION: action}
        values = [output(encoder(inputs)) for encoder, output in zip(self.encoders, self.outputs, strict=True)]
        found = torch.stack(values)
        return found if self.choices else found.squeeze(-1)


class TrunkCritics(nn.Module):
    """The same behind trunks (encoder and memory) that are given, each with layers of its own for the action."""

    def __init__(self, spec: EnvSpec, settings: ModelSettings, trunks: Sequence[Trunk]) -> None:
        super().__init__()
        self.choices = spec.action.nvec[0] if spec.action.kind == "discrete" else 0
        self.trunks = nn.ModuleList(trunks)
        size = trunks[0].output_size + (
            0 if self.choices else Field("action", "float32", spec.action.shape).nbytes // 4
        )
        layers = [Mlp(size, settings.mlp or (trunks[0].output_size,), settings.nonlinearity) for _ in trunks]
        self.layers = nn.ModuleList(layers)
        self.outputs = nn.ModuleList(
            initialise(nn.Linear(layer.output_size, self.choices or 1), settings.value_gain) for layer in layers
        )

    def read(self, obs: Observations) -> Tensor:
        """Return features ``[count, n, F]`` of observations ``[n, *shape]``."""
        rows = next(iter(obs.values()))
        first = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        found = [trunk.step(obs, first, rows.new_zeros(len(rows), 0, dtype=torch.float32))[0] for trunk in self._trunks]
        return torch.stack(found)

    def read_sequences(self, obs: Observations) -> Tensor:
        """Return features ``[count, T, B, F]`` of sequences ``[T, B, *shape]``; they begin with empty memory."""
        rows = next(iter(obs.values()))
        first = torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device)
        state = rows.new_zeros(rows.shape[1], self._trunks[0].state_size, dtype=torch.float32)
        return torch.stack([trunk.unroll(obs, first, state)[0] for trunk in self._trunks])

    def judge(self, seen: Tensor, action: Tensor | None = None) -> Tensor:
        """Return values ``[count, ...]`` of actions ``[..., *shape]``; ``[count, ..., choices]`` without one."""
        lead = seen.shape[1:-1]
        values = []
        for features, layer, output in zip(seen, self.layers, self.outputs, strict=True):
            inputs = features if action is None else torch.cat([features, action.reshape(*lead, -1)], dim=-1)
            values.append(output(layer(inputs)))
        found = torch.stack(values)
        return found if self.choices else found.squeeze(-1)

    @property
    def _trunks(self) -> list[Trunk]:
        return [trunk for trunk in self.trunks if isinstance(trunk, Trunk)]
