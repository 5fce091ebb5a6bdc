"""A policy as other programs call it: plain tensors in, plain tensors out, nothing kept in between.

Inputs are the observation fields as the environment gives them, in the order of the spec, and whatever else the policy
needs. Normalisation is inside. What a policy remembers goes in and comes out: such an input is zeros at the start of an
episode, and afterwards the output ``next_<name>`` of the step before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.core.fields import MASK_FIELD, EnvSpec, Field
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.encoders import CLIP, ObservationNormaliser

STATE, NEXT = "state", "next_"
ACTION = "the most likely action, as the environment takes it"
PARAMETERS = "of the action distribution: logits, or means and then logarithms of standard deviations"


class Portable(nn.Module):
    """``forward(*inputs)`` for n environments at once: every tensor begins with that axis.

    ``extra`` comes behind the observations, ``memory`` behind that, and behind the ``told`` outputs once more.
    ``network`` is taken over: it is not trained any more.
    """

    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(
        self,
        network: nn.Module,
        spec: EnvSpec,
        *,
        told: Mapping[str, str],
        memory: Sequence[Field] = (),
        extra: Mapping[Field, str] | None = None,
    ) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)
        self.spec, self.told, self.memory, self.extra = spec, dict(told), tuple(memory), dict(extra or {})
        self.register_buffer("low", torch.tensor(spec.action.low, dtype=torch.float32), persistent=False)
        self.register_buffer("high", torch.tensor(spec.action.high, dtype=torch.float32), persistent=False)
        self.register_buffer("start", torch.tensor(spec.action.start, dtype=torch.int64), persistent=False)

    @property
    def inputs(self) -> tuple[Field, ...]:
        """All that goes in, in its order."""
        return (*self.spec.observation, *self.extra, *self.memory)

    @property
    def outputs(self) -> dict[str, str]:
        """All that comes out, in its order, and what it is."""
        return {**self.told, **{NEXT + field.name: f"{field.name} of the next step" for field in self.memory}}

    def normalisation(self) -> dict[str, Any]:
        """Describe what is done to numbers inside, for the card."""
        return {}

    def example(self, rows: int = 2) -> tuple[Tensor, ...]:
        """Return inputs of the right shapes; everything is allowed where there is an action mask."""
        return tuple(
            torch.full((rows, *field.shape), int(field.name == MASK_FIELD), dtype=getattr(torch, field.dtype))
            for field in self.inputs
        )

    def by_name(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        return {field.name: x for field, x in zip(self.inputs, inputs)}

    def as_taken(self, action: Tensor) -> Tensor:
        """Count choices from where the environment begins to count, and keep numbers within their bounds."""
        spec = self.spec.action
        if spec.kind == "continuous":
            return action.clamp(self.low.reshape(spec.shape), self.high.reshape(spec.shape))
        if spec.kind == "mixed":
            split = len(spec.nvec)
            choice, number = action[..., :split], action[..., split:]
            choice = choice + self.start if spec.start else choice
            return torch.cat([choice, number.clamp(self.low, self.high)], dim=-1)
        if not spec.start:
            return action
        return action + (self.start[0] if spec.kind == "discrete" else self.start)


class PortablePolicy(Portable):
    """Networks that are trained step by step, with a memory (``state``) or without."""

    network: ActorCritic

    def __init__(self, network: ActorCritic, spec: EnvSpec) -> None:
        told = {"action": ACTION, "parameters": PARAMETERS, "value": "expected return, discounted"}
        state = [Field(STATE, "float32", (network.state_size,))] if network.state_size else []
        super().__init__(network, spec, told=told, memory=state)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        obs, rows = self.by_name(inputs), inputs[0].shape[0]
        state = obs.pop(STATE) if self.memory else torch.zeros(rows, 0)
        output = self.network.step(obs, torch.zeros(rows, dtype=torch.bool), state)
        parameters = output.params.float()
        action = self.network.head.sample(parameters, obs.get(MASK_FIELD), deterministic=True)
        told = (self.as_taken(action), parameters, self.network.denormalise(output.value.float(), obs))
        return (*told, output.state) if self.memory else told

    def normalisation(self) -> dict[str, Any]:
        returns = self.network.return_moments
        value = {"mean": returns.shift.tolist(), "std": returns.std.tolist()}
        return {"observations": scaled_fields(self.network.observation_moments), "value": value}


def card(policy: Portable) -> dict[str, Any]:
    """Describe what somebody needs to call the network, as plain values for JSON."""
    sizes = [field.shape[0] for field in policy.memory if field.name == STATE]
    return {
        "inputs": [{"name": f.name, "dtype": f.dtype, "shape": list(f.shape)} for f in policy.inputs],
        "outputs": policy.outputs,
        "memory": [field.name for field in policy.memory],
        "state_size": sizes[0] if sizes else 0,
        **({"about": {field.name: text for field, text in policy.extra.items()}} if policy.extra else {}),
        "spec": policy.spec.to_dict(),
        "normalisation": policy.normalisation(),
    }


def scaled_fields(scaled: ObservationNormaliser) -> dict[str, Any]:
    """Describe, by field, how it is scaled: ``(x - mean) / std``, then cut at ``clip``."""
    found: dict[str, Any] = {
        name: {"mean": moments.shift.tolist(), "std": moments.std.tolist(), "clip": CLIP}
        for name, moments in zip(scaled.names, scaled.moments)
    }
    for name, moments in zip(scaled.image_shapes, scaled.pixels):  # their mean is rounded, and nothing is cut
        found[name] = {"mean": moments.shift.round().tolist(), "std": moments.std.tolist(), "clip": None}
    return found
