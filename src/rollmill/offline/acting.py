"""A sequence policy that acts for many lanes at once, each asked for a return of its own.

Each decision reads one chunk of tokens per lane; what was seen before is in the trunk's memory. What is left of the
target shrinks by every reward, which the policy finds in the arena: the reward of row t - 1 lies in the slot that
row t lies in, or, where row t opens a slot, in the last but one row of the slot that was closed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import Array
from rollmill.core.protocols import ActRequest
from rollmill.core.slots import Arena
from rollmill.offline.model import SequencePolicy
from rollmill.optim.device import autocast


@dataclass
class SequenceOutput:
    """Decisions for n lanes (``protocols.PolicyOutput``)."""

    action: Array
    log_prob: Array
    value: Array
    """What is still asked for."""
    state: Array | None = None


class TargetPolicy:
    """Acts with a trained network (``protocols.Policy``); ``targets`` ``[lanes]`` are the returns asked for.

    The network is not copied: it must not be trained while it acts.
    """

    version = 0
    state_size = 0

    def __init__(
        self,
        model: SequencePolicy,
        targets: Sequence[float] | Array,
        seed: int,
        deterministic: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._model = model.eval()
        self._device = next(model.parameters()).device
        self._targets = torch.as_tensor(np.asarray(targets), dtype=torch.float32, device=self._device)
        self._left = self._targets.clone()
        field, lanes = model.spec.action.field, len(self._targets)
        dtype = torch.int64 if field.dtype == "int64" else torch.float32
        self._last = torch.zeros((lanes, *field.shape), dtype=dtype, device=self._device)
        self._memory = model.trunk.memory(lanes)
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._deterministic, self._autocast = deterministic, autocast
        self._arena: Arena | None = None

    def attach(self, arena: Arena) -> None:
        self._arena = arena

    def detach(self) -> None:
        self._arena = None

    def refresh(self) -> int:
        return self.version

    def act(self, request: ActRequest) -> SequenceOutput:
        reward = last_rewards(self._arena, request)[: len(request.lanes)]
        return self.decide(request.obs, request.first, request.lanes, reward)

    @torch.inference_mode()
    def decide(self, obs: dict[str, Array], first: Array, lanes: Array, reward: Array) -> SequenceOutput:
        """Actions for lanes ``[n]`` that see ``obs``; ``reward`` ``[n]`` came of the last ones (unless ``first``)."""
        seen = {name: self._tensor(x) for name, x in obs.items()}
        begins, where = self._tensor(first), self._tensor(lanes)
        left = torch.where(begins, self._targets[where], self._left[where] - self._tensor(reward))
        self._left[where] = left
        with autocast(self._device, self._autocast):
            params = self._model.step(seen, self._last[where], left, begins, where, self._memory)
        action, log_prob = self._model.head.decide(
            params.float(), seen.get("action_mask"), self._generator, self._deterministic
        )
        self._last[where] = action.to(self._last.dtype)
        return SequenceOutput(action.cpu().numpy(), log_prob.cpu().numpy(), left.cpu().numpy())

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)


def last_rewards(arena: Arena | None, request: ActRequest) -> Array:
    """``[g * L]`` float32: what came of every lane's decision before this one (anything where an episode begins)."""
    if arena is None or len(request.groups) == 0:
        raise RuntimeError("a policy that is asked for returns acts for whole groups of an attached arena")
    rewards = arena["reward"]
    opens = request.rows == 0
    slots = np.where(opens, request.closing, request.slots)
    rows = np.where(opens, arena.layout.steps - 1, request.rows - 1)
    found: Array = rewards[slots, rows].reshape(-1)  # closing is -1 before a run's first decision: all lanes are first
    return found
