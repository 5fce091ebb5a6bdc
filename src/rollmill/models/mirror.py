"""The arena's observations on the GPU: every one crosses the bus once, for acting and for learning.

The arena itself stays in host memory, where the workers write. When a row is about to be decided, its
observations are copied into the same (slot, row) of the mirror; the learner later reads whole segments
from there. Host memory is registered with CUDA, so that the copies run on their own, without staging.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollmill.core.errors import RollmillError
from rollmill.core.fields import Array
from rollmill.core.slots import OBS, Arena


class Mirror:
    """Device copies of the fields that are large (observations) or only live there (recurrent states)."""

    def __init__(self, arena: Arena, device: torch.device) -> None:
        self.device = device
        self.layout = arena.layout
        self._host = {name: torch.from_numpy(array) for name, array in arena.obs.items()}
        self.spare = arena.slots
        """A slot that belongs to nobody, for batches that are filled up to a fixed size."""
        self.obs = {
            name: torch.zeros(self.spare + 1, *x.shape[1:], dtype=x.dtype, device=device)
            for name, x in self._host.items()
        }
        layout = arena.layout
        self._every = layout.state_every or layout.steps
        # One row more than there are states: decisions in between put theirs there, to be forgotten.
        shape = (self.spare + 1, layout.state_rows + 1, layout.lanes, layout.state_size)
        self.state = torch.zeros(shape, device=device)
        self._registered: list[Array] = []
        if device.type == "cuda":
            self._register(arena)

    def upload(self, slots: Array, rows: Array, closing: Array) -> None:
        """Copy the observations of these rows to the device, on the current stream, without waiting.

        ``closing``: full slots whose last row is the same observation (-1: none); that copy stays on the device.
        """
        triples = list(zip(slots.tolist(), rows.tolist(), closing.tolist(), strict=True))
        for name, host in self._host.items():
            own = self.obs[name]
            for slot, row, full in triples:
                own[slot, row].copy_(host[slot, row], non_blocking=True)
                if full >= 0:
                    own[full, -1].copy_(own[slot, row], non_blocking=True)

    def rows(self, slots: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """Observations ``[n * L, *shape]`` of n rows."""
        return {name: x[slots, rows].flatten(0, 1) for name, x in self.obs.items()}

    def keep_state(self, slots: Tensor, rows: Tensor, state: Tensor) -> None:
        """Store the recurrent states ``[n * L, S]`` before these rows, where back-propagation begins."""
        places = torch.where(rows % self._every == 0, rows // self._every, self.layout.state_rows)
        self.state[slots, places] = state.unflatten(0, (len(slots), self.layout.lanes))  # type: ignore[no-untyped-call]

    def segments(self, slots: list[int]) -> dict[str, Tensor]:
        """Whole segments side by side: ``[T + 1, len(slots) * L, ...]`` for observations and states."""
        index = torch.tensor(slots, device=self.device)
        fields = {OBS + name: x for name, x in self.obs.items()}
        if self.layout.state_size:
            fields["state"] = self.state[:, :-1]
        return {name: x[index].transpose(0, 1).flatten(1, 2) for name, x in fields.items()}

    def _register(self, arena: Arena) -> None:
        """Lock the pages of the arena's observations and tell CUDA about them."""
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for name, array in arena.obs.items():
            result = int(cudart.cudaHostRegister(array.ctypes.data, array.nbytes, 0))
            if result:
                raise RollmillError(
                    f"CUDA cannot lock the shared memory of {name!r} ({array.nbytes / 1e6:.0f} MB, error {result}); "
                    "lower sampling.envs_per_worker or raise the limit of locked memory (ulimit -l)"
                )
            self._registered.append(array)

    def close(self) -> None:
        """Unlock the host memory; it must not be freed before."""
        if self._registered:
            torch.cuda.synchronize(self.device)
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            for array in self._registered:
                cudart.cudaHostUnregister(array.ctypes.data)
            self._registered.clear()
