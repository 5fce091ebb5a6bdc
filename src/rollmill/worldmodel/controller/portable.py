"""Controllers of world models as other programs call them (``models.portable``): encoder and memory are inside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rollmill.core.fields import Array, EnvSpec, Field
from rollmill.models.portable import ACTION, STATE, Portable
from rollmill.worldmodel.controller.model import ControllerState, image_field
from rollmill.worldmodel.dynamics.model import Dynamics
from rollmill.worldmodel.encoder.file import ImageEncoder

STEP = "step"


class _Models(nn.Module):
    """All that has weights."""

    weights: Tensor

    def __init__(self, encoder: ImageEncoder, dynamics: Dynamics | None, weights: Array) -> None:
        super().__init__()
        self.encoder, self.dynamics = encoder, dynamics
        self.register_buffer("weights", torch.from_numpy(weights.copy()))


class PortableController(Portable):
    """An image in, an action out; ``state`` holds what the dynamics model remembers."""

    network: _Models

    def __init__(self, encoder: ImageEncoder, controller: ControllerState, weights: Array, spec: EnvSpec) -> None:
        network = _Models(encoder, controller.dynamics, weights)
        kept = 0 if network.dynamics is None else network.dynamics.begin(1).flat.shape[1]
        memory = (Field(STEP, "int64"), Field(STATE, "float32", (kept,))) if kept else ()
        super().__init__(network, spec, told={"action": ACTION}, memory=memory)
        self._controller, self._image = controller, image_field(spec, encoder)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given, rows = self.by_name(inputs), inputs[0].shape[0]
        latents, _ = self.network.encoder.encode(given[self._image])
        weights = self.network.weights.expand(rows, -1)
        dynamics = self.network.dynamics
        memory = None if dynamics is None else dynamics.unpack(given[STEP], given[STATE])
        action = self.as_taken(self._controller.step(latents, weights, memory, torch.arange(rows)))
        return (action,) if memory is None else (action, given[STEP] + 1, memory.flat)
