"""Weights that do not learn any more: several networks of one shape, each asked by its number (self-play).

Weights are copied in and never written again. All networks share one table of recurrent states, for a lane is played by
one of them at a time, and every episode begins with a state of zeros.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import MASK_FIELD, Array
from rollmill.core.protocols import ActRequest, PolicyOutput
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.saving import load_policy_state, load_weights, policy_state, weights_of

Weights = Mapping[str, Array]


class FrozenNetworks:
    """Networks by number. One thread asks; another one may replace the whole table meanwhile (``keep``)."""

    with_own = False
    """Whether it is asked about lanes of the run's own policies as well, by their numbers."""

    def __init__(self, model: ActorCritic, lanes: int, seed: int) -> None:
        """Begin without networks; ``model``: one of the shape they all have; ``lanes``: of the whole run."""
        self._like = model.eval().requires_grad_(False)
        self._device = next(model.parameters()).device
        self._networks: Mapping[int, ActorCritic] = {}
        self._states = model.initial_state(lanes)
        self.state_size = model.state_size
        self._generator = torch.Generator(self._device).manual_seed(seed)

    def keep(self, wanted: Mapping[int, Weights]) -> None:
        """Have just these: those that are there already stay as they are, whatever ``wanted`` says of them."""
        self._networks = {number: self._networks.get(number) or self._load(own) for number, own in wanted.items()}

    def _load(self, weights: Weights) -> ActorCritic:
        network = copy.deepcopy(self._like)
        load_weights(network, weights)
        return network

    def checksums(self) -> dict[int, str]:
        """Return checksums of the weights of every network, by number."""
        return {number: _checksum(weights_of(network)) for number, network in self._networks.items()}

    @torch.inference_mode()
    def act(self, numbers: Array, request: ActRequest) -> PolicyOutput:
        """Make one decision for each lane of the request, by the network of its number ``[n]``."""
        networks, model = self._networks, self._like
        obs = {name: self._tensor(array) for name, array in request.obs.items()}
        lanes, first = torch.from_numpy(request.lanes), self._tensor(request.first)
        before = self._states[lanes].masked_fill(first.unsqueeze(1), 0.0)
        params = torch.empty(len(lanes), model.head.param_size, device=self._device)
        value, after = torch.empty(len(lanes), device=self._device), torch.empty_like(before)
        for number in np.unique(numbers).tolist():
            rows = torch.from_numpy(np.nonzero(numbers == number)[0]).to(self._device)
            seen = {name: x[rows] for name, x in obs.items()}
            output = networks[number].step(seen, first[rows], before[rows])
            params[rows], after[rows] = output.params, output.state
            value[rows] = networks[number].denormalise(output.value, seen)
        self._states[lanes] = after
        action, log_prob = model.head.decide(params, obs.get(MASK_FIELD), self._generator)
        return PolicyOutput(
            action=action.cpu().numpy(),
            log_prob=log_prob.cpu().numpy(),
            value=value.cpu().numpy(),
            state=before.cpu().numpy() if model.state_size else None,
        )

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def state(self) -> dict[str, Any]:
        """Return memory and randomness, for a checkpoint; the weights lie in the pool."""
        return policy_state(self._states, self._generator)

    def load_state(self, state: Mapping[str, Any]) -> None:
        load_policy_state(state, self._states, self._generator)


def _checksum(weights: Weights) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(weights.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
