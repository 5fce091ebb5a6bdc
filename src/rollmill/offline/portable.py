"""Decision Transformers and clones as other programs call them (``models.portable``), one step at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollmill.core.fields import MASK_FIELD, EnvSpec, Field
from rollmill.models.portable import ACTION, PARAMETERS, STATE, Portable, scaled_fields
from rollmill.offline.model import SequencePolicy

STEP, LAST, TARGET = "step", "last_action", "target"


class PortableSequence(Portable):
    """The newest step of an episode in, an action out; ``state`` holds what the trunk keeps of the steps before.

    ``target`` (only of policies that are asked for a return) is what is still to come: what was asked for, less the
    rewards so far. ``last_action`` is the action before it was cut at the environment's bounds.
    """

    network: SequencePolicy

    def __init__(self, network: SequencePolicy, spec: EnvSpec) -> None:
        action, kept = spec.action.field, network.trunk.memory(1).flat.shape[1]
        asked = {Field(TARGET, "float32"): "the return asked for, less the rewards since the episode began"}
        super().__init__(
            network,
            spec,
            told={"action": ACTION, "parameters": PARAMETERS},
            memory=(
                Field(LAST, action.dtype, action.shape),
                Field(STEP, "int64"),
                Field(STATE, "float32", (kept,)),
            ),
            extra=asked if network.conditioned else None,
        )

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = self.by_name(inputs)
        obs = {field.name: given[field.name] for field in self.spec.observation}
        step, lanes = given[STEP], torch.arange(inputs[0].shape[0])
        memory = self.network.trunk.unpack(step, given[STATE])
        asked = given.get(TARGET, step.float())
        parameters = self.network.step(obs, given[LAST], asked, step == 0, lanes, memory).float()
        chosen = self.network.head.sample(parameters, obs.get(MASK_FIELD), deterministic=True)
        return self.as_taken(chosen), parameters, chosen.to(given[LAST].dtype), memory.age, memory.flat

    def normalisation(self) -> dict[str, Any]:
        scales = self.network.scales
        asked = {TARGET: {"mean": scales.return_mean, "std": scales.return_scale, "clip": None}}
        return {"observations": scaled_fields(self.network.normaliser), **(asked if self.network.conditioned else {})}
