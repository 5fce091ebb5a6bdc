"""A network that acts: decides for lanes, keeps their recurrent states, follows published weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rollmill.core.fields import MASK_FIELD, Array
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.models.acting.weights import Board
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.precision import autocast
from rollmill.models.saving import load_policy_state, policy_state


class TorchPolicy(Policy):
    """Acts with its own copy of the network, so that learning may change the original meanwhile.

    ``lanes``: lanes of the whole run, for the recurrent states. ``deterministic`` takes the mode of
    every distribution instead of sampling. ``dtype``: the type that matrices are multiplied in; None: float32.
    """

    version = -1  # nothing taken over yet: the first decision does, whatever version is on the board

    def __init__(
        self,
        model: ActorCritic,
        board: Board,
        lanes: int,
        seed: int,
        deterministic: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model.eval()
        self._board = board
        self.device = next(model.parameters()).device
        self._states = self._remembered = model.initial_state(lanes)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._deterministic = deterministic
        self._dtype = dtype
        self.state_size = model.state_size

    def refresh(self) -> int:
        if self._board.version != self.version:
            self.version = self._board.load_into(self.model)
        return self.version

    def remember(self) -> None:
        if self.state_size:
            self._remembered = self._states.clone()

    def rewind(self) -> None:
        if self.state_size:
            self._states.copy_(self._remembered)

    @torch.inference_mode()
    def act(self, request: ActRequest) -> PolicyOutput:
        self.refresh()
        obs = {name: self._tensor(array) for name, array in request.obs.items()}
        lanes = torch.from_numpy(request.lanes)
        before = self._states[lanes] if self.state_size else self._states
        with autocast(self.device, self._dtype):
            output = self.model.step(obs, self._tensor(request.first), before)
        if self.state_size:
            self._states[lanes] = output.state.float()
        action, log_prob = self.model.head.decide(
            output.params.float(), obs.get(MASK_FIELD), self.generator, self._deterministic
        )
        return PolicyOutput(
            action=action.cpu().numpy(),
            log_prob=log_prob.cpu().numpy(),
            value=self.model.denormalise(output.value.float(), obs).cpu().numpy(),
            state=before.cpu().numpy() if self.state_size else None,
        )

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def state(self) -> dict[str, Any]:
        return policy_state(self._states, self.generator)

    def load_state(self, state: Mapping[str, Any]) -> None:
        load_policy_state(state, self._states, self.generator)
