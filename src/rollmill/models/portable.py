"""A network as other programs call it: plain tensors in, plain tensors out, nothing kept in between.

Inputs are the observation fields as the environment gives them, in the order of the spec, and for a recurrent network
the ``state``, which is zeros at the start of an episode. Outputs are ``OUTPUTS``, and the ``next_state`` behind them.
Normalisation of observations and of the value is inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.core.fields import MASK_FIELD, EnvSpec
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.encoders import CLIP

STATE, NEXT_STATE = "state", "next_state"
OUTPUTS: dict[str, str] = {
    "action": "the most likely action, as the environment takes it",
    "parameters": "of the action distribution: logits, or means and then logarithms of standard deviations",
    "value": "expected return, discounted",
}


class PortablePolicy(nn.Module):
    """``forward(*observations, [state])`` for n environments at once: every tensor begins with that axis.

    Takes the network over: it is not trained any more.
    """

    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(self, model: ActorCritic, spec: EnvSpec) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.spec = spec
        self.names = tuple(field.name for field in spec.observation)
        self.register_buffer("low", torch.tensor(spec.action.low, dtype=torch.float32), persistent=False)
        self.register_buffer("high", torch.tensor(spec.action.high, dtype=torch.float32), persistent=False)
        self.register_buffer("start", torch.tensor(spec.action.start, dtype=torch.int64), persistent=False)

    @property
    def recurrent(self) -> bool:
        return self.model.state_size > 0

    @property
    def input_names(self) -> list[str]:
        return [*self.names, *([STATE] if self.recurrent else [])]

    @property
    def output_names(self) -> list[str]:
        return [*OUTPUTS, *([NEXT_STATE] if self.recurrent else [])]

    def example(self, rows: int = 2) -> tuple[Tensor, ...]:
        """Inputs of the right shapes; everything is allowed where there is an action mask."""
        fields = self.spec.observation
        dtypes = {field.name: getattr(torch, field.dtype) for field in fields}
        filled = [
            torch.full((rows, *field.shape), int(field.name == MASK_FIELD), dtype=dtypes[field.name])
            for field in fields
        ]
        return (*filled, *([self.model.initial_state(rows)] if self.recurrent else []))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        obs = dict(zip(self.names, inputs))
        rows = inputs[0].shape[0]
        state = inputs[-1] if self.recurrent else torch.zeros(rows, 0)
        output = self.model.step(obs, torch.zeros(rows, dtype=torch.bool), state)
        parameters = output.params.float()
        action = self.model.head.sample(parameters, obs.get(MASK_FIELD), deterministic=True)
        told = (self._as_taken(action), parameters, self.model.denormalise(output.value.float(), obs))
        return (*told, output.state) if self.recurrent else told

    def _as_taken(self, action: Tensor) -> Tensor:
        """Choices counted from where the environment begins to count, numbers within their bounds."""
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


def card(policy: PortablePolicy, model_settings: Mapping[str, Any]) -> dict[str, Any]:
    """What somebody needs to call the network or to build it again, as plain values for JSON."""
    model, spec = policy.model, policy.spec
    inputs = [{"name": f.name, "dtype": f.dtype, "shape": list(f.shape)} for f in spec.observation]
    if policy.recurrent:
        inputs.append({"name": STATE, "dtype": "float32", "shape": [model.state_size]})
    return {
        "inputs": inputs,
        "outputs": {name: OUTPUTS.get(name, "memory for the next step") for name in policy.output_names},
        "state_size": model.state_size,
        "spec": spec.to_dict(),
        "model": dict(model_settings),
        "normalisation": _normalisation(model),
    }


def _normalisation(model: ActorCritic) -> dict[str, Any]:
    """By field: ``(x - mean) / std``, then cut at ``clip``."""
    scaled = model.observation_moments
    found: dict[str, Any] = {
        name: {"mean": moments.shift.tolist(), "std": moments.std.tolist(), "clip": CLIP}
        for name, moments in zip(scaled.names, scaled.moments)
    }
    for name, moments in zip(scaled.image_shapes, scaled.pixels):  # their mean is rounded, and nothing is cut
        found[name] = {"mean": moments.shift.round().tolist(), "std": moments.std.tolist(), "clip": None}
    returns = model.return_moments
    return {"observations": found, "value": {"mean": returns.shift.tolist(), "std": returns.std.tolist()}}
