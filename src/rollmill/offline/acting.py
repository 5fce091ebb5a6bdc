"""A sequence policy that acts for many lanes at once, each asked for a return of its own.

Each decision reads one chunk of tokens per lane; what was seen before is in the trunk's memory. What is left of the
target shrinks by every reward.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import MASK_FIELD, Array
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.models.precision import autocast
from rollmill.offline.model import SequencePolicy


class TargetPolicy(Policy):
    """Acts with a trained network; ``targets`` ``[lanes]`` are the returns asked for.

    The network is not copied: it must not be trained while it acts.
    """

    def __init__(
        self,
        model: SequencePolicy,
        targets: Sequence[float] | Array,
        seed: int,
        deterministic: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._model = model.eval()
        self._device = next(model.parameters()).device
        self._targets = torch.as_tensor(np.asarray(targets), dtype=torch.float32, device=self._device)
        self._left = self._targets.clone()
        field, lanes = model.spec.action.field, len(self._targets)
        actions = torch.int64 if field.dtype == "int64" else torch.float32
        self._last = torch.zeros((lanes, *field.shape), dtype=actions, device=self._device)
        self._memory = model.trunk.memory(lanes)
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._deterministic, self._dtype = deterministic, dtype

    def act(self, request: ActRequest) -> PolicyOutput:
        return self.decide(request.obs, request.first, request.lanes, request.reward)

    @torch.inference_mode()
    def decide(self, obs: dict[str, Array], first: Array, lanes: Array, reward: Array) -> PolicyOutput:
        """Choose actions for lanes ``[n]`` that see ``obs``; ``reward`` ``[n]`` came of the last (unless ``first``)."""
        seen = {name: self._tensor(x) for name, x in obs.items()}
        begins, where = self._tensor(first), self._tensor(lanes)
        left = torch.where(begins, self._targets[where], self._left[where] - self._tensor(reward))
        self._left[where] = left
        with autocast(self._device, self._dtype):
            params = self._model.step(seen, self._last[where], left, begins, where, self._memory)
        action, log_prob = self._model.head.decide(
            params.float(), seen.get(MASK_FIELD), self._generator, self._deterministic
        )
        self._last[where] = action.to(self._last.dtype)
        return PolicyOutput(action.cpu().numpy(), log_prob.cpu().numpy(), left.cpu().numpy())

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)
