"""Networks of a user's own: an encoder, and a whole network that does something of its own in both forms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rollmill.core.fields import EnvSpec
from rollmill.models.actor_critic import ActorCritic, Output
from rollmill.models.settings import ModelSettings


class Wide(nn.Module):
    """One layer."""

    def __init__(self, spec: EnvSpec, settings: ModelSettings, width: int = 11) -> None:
        super().__init__()
        self.output_size = width
        self.net = nn.Sequential(nn.Linear(spec.inputs[0].shape[0], width), nn.Tanh())

    def forward(self, obs: Any) -> Tensor:
        features: Tensor = self.net(obs["obs"])
        return features


class Whole(ActorCritic):
    """Learns a bias of its own for what the head says."""

    def __init__(self, spec: EnvSpec, settings: ModelSettings) -> None:
        super().__init__(spec, settings)
        self.bias = nn.Parameter(torch.zeros(self.head.param_size))

    def _output(self, features: Tensor, value_features: Tensor, state: Tensor) -> Output:
        output = super()._output(features, value_features, state)
        return output._replace(params=output.params + self.bias)
