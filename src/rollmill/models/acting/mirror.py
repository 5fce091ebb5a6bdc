"""Mirrors the arena's observations on the GPU: every one crosses the bus once, for acting and for learning.

The arena itself stays in host memory, where the workers write. It is registered with CUDA, so that a
kernel can read it across the bus: when a row is about to be decided, its observations are gathered from
there, and kept in the same (slot, row) of the mirror, where the learner finds whole segments later.
Decisions go the other way: a kernel writes them into the arena.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import Array
from rollmill.core.slots import OBS, RECORD, RECORD_BYTES, Arena
from rollmill.models.acting.pinned import PinnedMemory

FIRST_AT: int = RECORD.fields["first"][1]  # type: ignore[index]
"""Byte of a record."""


class Mirror:
    """Device copies of the fields that are large (observations) or only live there (recurrent states)."""

    def __init__(self, arena: Arena, device: torch.device) -> None:
        self.device = device
        self.layout = arena.layout
        self._memory = PinnedMemory(device)
        self._memory.register("the arena", arena.block)
        view = self._memory.view
        self._host = {name: view(array) for name, array in arena.obs.items()}
        records = np.frombuffer(arena.records, np.uint8).reshape(*arena["first"].shape, RECORD_BYTES)
        self._first = view(records)[..., FIRST_AT]
        self._decisions = [view(arena[name]) for name in ("action", "log_prob", "value")]
        self.spare = arena.slots
        """A slot that belongs to nobody, for batches that are filled up to a fixed size."""
        self.obs = {
            name: torch.zeros(self.spare + 1, *x.shape[1:], dtype=x.dtype, device=device)
            for name, x in self._host.items()
        }
        self._wide = {name: (_widest(self._host[name]), _widest(own)) for name, own in self.obs.items()}
        """(host, device) views that rows are moved by."""
        layout = arena.layout
        # One row more than there are states: decisions in between put theirs there, to be forgotten.
        shape = (self.spare + 1, layout.state_rows + 1, layout.lanes, layout.state_size)
        self.state = torch.zeros(shape, device=device)
        every = layout.state_every or layout.steps
        self._host_states = arena["state"] if layout.state_size else None
        places = [row // every if row % every == 0 else layout.state_rows for row in range(layout.steps)]
        self._places = torch.tensor(places, device=device)
        """Where in ``state`` the states before each row belong."""

    def take(self, slots: Tensor, sources: Tensor, rows: Tensor, closing: Tensor) -> dict[str, Tensor]:
        """Read the observations of n rows from host memory, keep them here, and return them ``[n * L, *shape]``.

        ``sources``: the slots to read, ``slots``: where to keep it; they differ for the spare slot alone.
        ``closing``: full slots whose last row is the same observation; the spare slot where there is none.
        """
        found = {}
        for name, (host, own) in self._wide.items():
            new = host[sources, rows]
            own[slots, rows] = new
            own[closing, -1] = new
            plain = self.obs[name]
            found[name] = new.view(plain.dtype).reshape(-1, *plain.shape[3:])
        return found

    def first(self, sources: Tensor, rows: Tensor) -> Tensor:
        """Return whether the lanes of these rows begin an episode there: ``[n * L]`` bool."""
        return self._first[sources, rows].flatten().bool()

    def put(self, slots: Tensor, rows: Tensor, action: Tensor, log_prob: Tensor, value: Tensor) -> None:
        """Write the decisions ``[n * L, ...]`` about these rows into the arena. Rows may be given twice."""
        for host, new in zip(self._decisions, (action, log_prob, value), strict=True):
            host[slots, rows] = new.to(host.dtype).reshape(len(slots), *host.shape[2:])

    def decision(self, slot: int, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what stands in one row of the arena: action, log-probability and value ``[L, ...]``, copied."""
        action, log_prob, value = (host[slot, row].clone() for host in self._decisions)
        return action, log_prob, value

    def keep_state(self, slots: Tensor, rows: Tensor, state: Tensor) -> None:
        """Store recurrent states ``[n * L, S]`` where back-propagation begins."""
        shape = (len(slots), self.layout.lanes, self.layout.state_size)
        self.state[slots, self._places[rows]] = state.reshape(shape)

    def load(self, slots: list[int]) -> None:
        """Take over whole segments that somebody else has decided: from host memory, states and all."""
        for slot in slots:
            for host, own in self._wide.values():
                own[slot].copy_(host[slot])
            if self._host_states is not None:
                self.state[slot, :-1].copy_(torch.from_numpy(self._host_states[slot]))

    def segments(self, slots: list[int]) -> dict[str, Tensor]:
        """Return whole segments side by side: ``[T + 1, len(slots) * L, ...]`` for observations and states."""
        index = torch.tensor(slots, device=self.device)
        found = {}
        for name, (_, own) in self._wide.items():
            plain, rows = self.obs[name], own[index].transpose(0, 1).flatten(1, 2)
            found[OBS + name] = rows.view(plain.dtype).reshape(len(rows), -1, *plain.shape[3:])
        if self.layout.state_size:
            found["state"] = self.state[index, :-1].transpose(0, 1).flatten(1, 2)
        return found

    def inputs(self, shape: tuple[int, ...]) -> tuple[Array, Tensor]:
        """Return int64 numbers that the host writes and the device reads across the bus."""
        return self._memory.numbers("inputs", shape)

    def close(self) -> None:
        """Unlock the host memory; it must not be freed before."""
        self._memory.close()


def _widest(x: Tensor) -> Tensor:
    """Return ``[slots, rows, n]`` over the same memory, in the widest numbers that fit: kernels index number by number,
    and by single bytes the bus would be asked for 32 at a time.
    """
    flat = x.flatten(2)
    nbytes = flat.shape[2] * flat.element_size()
    for wide in (torch.int64, torch.int32):
        if nbytes % wide.itemsize == 0 and flat.element_size() < wide.itemsize:
            return flat.view(wide)
    return flat
