"""Action values: what an action is worth in a state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rollmill.core.fields import EnvSpec, Field
from rollmill.models.encoders import Observations, build_encoder, initialise
from rollmill.models.settings import ModelSettings

ACTION = "policy.action"
"""Name under which the action is one more vector input of the encoder."""


class Critics(nn.Module):
    """Several action values that share nothing, each with an encoder as the policy's that reads the action, too."""

    def __init__(self, spec: EnvSpec, settings: ModelSettings, count: int = 2) -> None:
        super().__init__()
        fields = (*spec.inputs, Field(ACTION, "float32", spec.action.shape))
        encoders = [build_encoder(fields, settings) for _ in range(count)]
        self.encoders = nn.ModuleList(encoders)
        self.outputs = nn.ModuleList(
            initialise(nn.Linear(encoder.output_size, 1), settings.value_gain) for encoder in encoders
        )

    def forward(self, obs: Observations, action: Tensor) -> Tensor:
        """Values ``[count, n]`` of actions ``[n, *shape]`` scaled to -1..1; ``obs``: ``[n, *shape]``, normalised."""
        inputs = {**obs, ACTION: action}
        values = [output(encoder(inputs)) for encoder, output in zip(self.encoders, self.outputs, strict=True)]
        return torch.cat(values, dim=1).T
