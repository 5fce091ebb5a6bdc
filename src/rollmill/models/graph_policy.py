"""Acting on a GPU: one CUDA graph per batch size, fed from the mirror.

Launching a network's kernels one by one costs the processor more time than the GPU needs to run them.
A graph launches them all at once; it is recorded for a few batch sizes, and a batch is padded to the
next one. Padding has a slot and lanes of its own, so it touches nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import MASK_FIELD
from rollmill.core.protocols import ActRequest
from rollmill.core.slots import Arena
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.mirror import Mirror
from rollmill.models.policy import Answer
from rollmill.models.weights import WeightBoard

WARM_UP_STEPS = 3
"""Plain steps before a graph is recorded: libraries choose their algorithms and allocate in them."""


@dataclass
class Recording:
    """One batch size: inputs and outputs at fixed addresses, and the graph between them (None on a CPU)."""

    groups: int
    index: Tensor  # [4, groups] int64: slot, row, full slot that closes with it, group number
    first: Tensor  # [groups, L] bool
    output: Tensor  # [groups * L, components + 2] float32: action, log-probability, value
    host_index: Tensor
    host_first: Tensor
    host_output: Tensor
    graph: torch.cuda.CUDAGraph | None = None


class GraphPolicy:
    """Acts for whole groups of lanes (``protocols.Policy``). On a CPU it does the same without a graph."""

    def __init__(
        self,
        model: ActorCritic,
        board: WeightBoard,
        groups: int,
        seed: int,
        deterministic: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._model = model.eval()
        self._board = board
        self._device = next(model.parameters()).device
        self._cuda = self._device.type == "cuda"
        self._groups = groups
        self._deterministic = deterministic
        self._autocast = autocast
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._stream = torch.cuda.Stream(self._device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._recordings: list[Recording] = []
        self._states = torch.zeros(0)
        self._mirror: Mirror | None = None
        self.state_size = model.state_size
        self.version = -1  # nothing taken over yet: the first decision does, whatever version is on the board

    @property
    def mirror(self) -> Mirror:
        assert self._mirror is not None, "the sampler attaches its arena first"
        return self._mirror

    def attach(self, arena: Arena) -> None:
        """Build the mirror and record the graphs, for 1, 2, 4, ... and all groups."""
        self._mirror = Mirror(arena, self._device)
        self._states = self._model.initial_state((self._groups + 1) * arena.layout.lanes)
        sizes = {min(1 << k, self._groups) for k in range(self._groups.bit_length() + 1)}
        for size in sorted(sizes):
            self._recordings.append(self._record(size))
        self._states.zero_()

    def detach(self) -> None:
        """Let go of the arena's memory."""
        if self._mirror is not None:
            self._mirror.close()

    def refresh(self) -> int:
        if self._board.version != self.version:
            with self._on_stream():
                self.version = self._board.load_into(self._model)
        return self.version

    # -- one decision --------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, request: ActRequest) -> Answer:
        self.refresh()
        count = request.groups.size
        recording = next(r for r in self._recordings if r.groups >= count)
        self._fill(recording, request, count)
        with self._on_stream():
            recording.index.copy_(recording.host_index, non_blocking=True)
            recording.first.copy_(recording.host_first, non_blocking=True)
            if recording.graph is None:
                self._step(recording)
            else:
                recording.graph.replay()
            recording.host_output.copy_(recording.output, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
        return self._answer(recording, len(request.lanes))

    def _fill(self, recording: Recording, request: ActRequest, count: int) -> None:
        index, first = recording.host_index.numpy(), recording.host_first.numpy()
        spare = self.mirror.spare
        index[0, :count], index[1, :count], index[3, :count] = request.slots, request.rows, request.groups
        index[2, :count] = np.where(request.closing < 0, spare, request.closing)
        index[:, count:] = np.array([[spare], [0], [spare], [self._groups]])
        first[:count] = request.first.reshape(count, -1)
        first[count:] = True

    def _step(self, recording: Recording) -> None:
        """What is recorded: gather, decide, keep states, pack. Nothing here leaves the device."""
        mirror, head = self.mirror, self._model.head
        slots, rows, closing, groups = recording.index
        lanes = mirror.layout.lanes
        obs = mirror.take(slots, rows, closing)
        numbers = (groups[:, None] * lanes + torch.arange(lanes, device=self._device)).flatten()
        before = self._states[numbers]
        with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
            output = self._model.step(obs, recording.first.flatten(), before)
        params, mask = output.params.float(), obs.get(MASK_FIELD)
        action = head.sample(params, mask, self._generator, self._deterministic)
        log_prob = head.log_prob(params, action, mask)
        value = self._model.denormalise(output.value.float())
        if self.state_size:
            self._states[numbers] = output.state.float()
            if mirror.layout.state_size:
                mirror.keep_state(slots, rows, before)
        packed = (action.float().reshape(len(numbers), -1), log_prob[:, None], value[:, None])
        torch.cat(packed, dim=1, out=recording.output)

    def _answer(self, recording: Recording, lanes: int) -> Answer:
        """Numpy views of the packed answer; valid until the next call."""
        packed = recording.host_output.numpy()[:lanes]
        field = self.mirror.layout.spec.action.field
        action = packed[:, :-2].reshape(lanes, *field.shape).astype(field.dtype)
        return Answer(action=action, log_prob=packed[:, -2], value=packed[:, -1], state=None)

    # -- recording -----------------------------------------------------------------------------

    @torch.no_grad()
    def _record(self, size: int) -> Recording:
        layout = self.mirror.layout
        width = int(np.prod(layout.spec.action.field.shape)) + 2

        def pair(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            own = torch.zeros(*shape, dtype=dtype, device=self._device)
            return own, torch.zeros(*shape, dtype=dtype, pin_memory=self._cuda)

        index, host_index = pair(4, size, dtype=torch.int64)
        first, host_first = pair(size, layout.lanes, dtype=torch.bool)
        output, host_output = pair(size * layout.lanes, width, dtype=torch.float32)
        recording = Recording(size, index, first, output, host_index, host_first, host_output)
        if self._stream is not None:
            recording.graph = self._capture(recording, self._stream)
        return recording

    def _capture(self, recording: Recording, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self._step(recording)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph, stream=stream):
            self._step(recording)
        return graph

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext()

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"states": self._states.cpu().numpy().copy(), "generator": self._generator.get_state().numpy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._states.copy_(torch.from_numpy(np.asarray(state["states"])))
        self._generator.set_state(torch.from_numpy(np.asarray(state["generator"])))
