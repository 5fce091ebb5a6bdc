"""Acts on a GPU by CUDA graphs, one per batch size, fed from the mirror.

Launching a network's kernels one by one costs the processor more time than the GPU needs to run them.
A graph launches them all at once; it is recorded for a few batch sizes, and a batch is padded to the
next one. Padding has a slot and lanes of its own, so it touches nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.core.fields import MASK_FIELD, Array
from rollmill.core.protocols import GroupRows, InPlacePolicy
from rollmill.core.slots import Arena
from rollmill.models.acting.mirror import Mirror
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.precision import autocast
from rollmill.models.saving import load_policy_state, policy_state

WARM_UP_STEPS = 3
"""Plain steps before a graph is recorded: libraries choose their algorithms and allocate in them."""


GROUP, SLOT, ROW, CLOSING, SOURCE = range(5)
"""Rows of the input: which group, slot and row a column is; the full slot whose last row it is as well, and the
column whose decision is written for it (its own; the first one's for padding)."""


@dataclass
class Recording:
    """One batch size: inputs at a fixed address, and the graph that reads them (None on a CPU)."""

    groups: int
    inputs: Array
    """``[5, groups]`` int64, as the host fills them in."""
    shared: Tensor
    """The same memory as the device sees it."""
    filled: int = 0
    """Columns that are not padding."""
    graph: torch.cuda.CUDAGraph | None = None


class GraphPolicy(InPlacePolicy):
    """Acts for whole groups. On a CPU it does the same without a graph."""

    version = -1  # nothing taken over yet: the first decision does, whatever version is on the board

    def __init__(
        self,
        model: ActorCritic,
        board: WeightBoard,
        groups: int,
        seed: int,
        deterministic: bool = False,
        dtype: torch.dtype | None = None,
        pause: float | None = None,
    ) -> None:
        """Make a policy that records its graphs later, in ``attach``.

        ``pause``: seconds between two looks whether the GPU is done; 0 stays awake, which needs a core of its own. None
        has the driver wake this thread, which cost 0.4 ms a decision where it was measured.
        """
        self._model = model.eval()
        self._board = board
        self._device = next(model.parameters()).device
        self._cuda = self._device.type == "cuda"
        self._groups = groups
        self._deterministic = deterministic
        self._dtype = dtype
        self._generator = torch.Generator(self._device).manual_seed(seed)
        # A priority above the learner's: the few small kernels of a decision must not queue behind its large ones.
        self._stream = torch.cuda.Stream(self._device, priority=-1) if self._cuda else None  # type: ignore[no-untyped-call]
        self._pause = pause
        self._done = torch.cuda.Event(blocking=pause is None) if self._cuda else None  # type: ignore[no-untyped-call]
        if dtype is not None:
            # Kept in the type they are used in: autocast would convert all weights again for every decision.
            for module in self._model.modules():
                if isinstance(module, (nn.Linear, nn.Conv2d, nn.RNNBase)):
                    module.to(dtype)
        self._recordings: list[Recording] = []
        self._states = self._remembered = torch.zeros(0)
        self._lane_numbers = torch.zeros(0)
        self._mirror: Mirror | None = None
        self.state_size = model.state_size

    @property
    def mirror(self) -> Mirror:
        assert self._mirror is not None, "the sampler attaches its arena first"
        return self._mirror

    def attach(self, arena: Arena) -> None:
        """Build the mirror and record the graphs, for 1, 2, 4, ... and all groups."""
        try:
            self._mirror = Mirror(arena, self._device)
            self._states = self._model.initial_state((self._groups + 1) * arena.layout.lanes)
            self._lane_numbers = torch.arange(arena.layout.lanes, device=self._device)
            sizes = {min(1 << k, self._groups) for k in range(self._groups.bit_length() + 1)}
            for size in sorted(sizes):
                self._recordings.append(self._record(size))
        except BaseException:
            self.detach()
            raise
        self._states.zero_()

    def detach(self) -> None:
        """Let go of the arena's memory, and of the graphs that read it."""
        self._recordings.clear()
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None

    def refresh(self) -> int:
        if self._board.version != self.version:
            with self._on_stream():
                self.version = self._board.load_into(self._model)
        return self.version

    def remember(self) -> None:
        if self.state_size:
            with self._on_stream():
                self._remembered = self._states.clone()

    def rewind(self) -> None:
        if self.state_size:
            with self._on_stream():
                self._states.copy_(self._remembered)

    # -- one decision --------------------------------------------------------------------------

    @torch.no_grad()
    def decide_in_place(self, rows: GroupRows, meanwhile: Callable[[], None]) -> None:
        self.refresh()
        count = rows.groups.size
        recording = next(r for r in self._recordings if r.groups >= count)
        self._fill(recording, rows, count)
        if recording.graph is None:
            self._step(recording)
            meanwhile()
            return
        assert self._stream is not None
        assert self._done is not None
        with torch.cuda.stream(self._stream):
            recording.graph.replay()
        self._done.record(self._stream)
        meanwhile()
        self._wait(self._done)

    def _wait(self, done: torch.cuda.Event) -> None:
        if self._pause:
            while not done.query():  # type: ignore[no-untyped-call]
                time.sleep(self._pause)
        else:
            done.synchronize()

    def _fill(self, recording: Recording, rows: GroupRows, count: int) -> None:
        inputs, spare = recording.inputs, self.mirror.spare
        inputs[GROUP, :count] = rows.groups
        inputs[SLOT, :count] = rows.slots
        inputs[ROW, :count] = rows.rows
        inputs[CLOSING, :count] = spare if rows.closing is None else np.where(rows.closing < 0, spare, rows.closing)
        if count != recording.filled:
            inputs[SOURCE, :count] = np.arange(count)
            inputs[:, count:] = np.array([[self._groups], [spare], [0], [spare], [0]])
            recording.filled = count

    def _step(self, recording: Recording) -> None:
        """Fetch, decide, keep states, write back: what is recorded. The host is not needed in between."""
        mirror, head = self.mirror, self._model.head
        inputs = recording.shared.clone()
        groups, slots, rows, closing, source = inputs
        lanes = (groups[:, None] * mirror.layout.lanes + self._lane_numbers).flatten()
        # The spare slot has no counterpart in host memory: some other one is read for it, and never used.
        sources = slots.clamp(max=mirror.spare - 1)
        obs = mirror.take(slots, sources, rows, closing)
        before = self._states[lanes]
        with autocast(self._device, self._dtype):
            output = self._model.step(obs, mirror.first(sources, rows), before)
        action, log_prob = head.decide(output.params.float(), obs.get(MASK_FIELD), self._generator, self._deterministic)
        value = self._model.denormalise(output.value.float(), obs)
        if self.state_size:
            self._states[lanes] = output.state.float()
            if mirror.layout.state_size:
                mirror.keep_state(slots, rows, before)
        # Padding writes what the first column writes, to the same place.
        writers = (source[:, None] * mirror.layout.lanes + self._lane_numbers).flatten()
        mirror.put(sources[source], rows[source], action[writers], log_prob[writers], value[writers])

    # -- recording -----------------------------------------------------------------------------

    @torch.no_grad()
    def _record(self, size: int) -> Recording:
        inputs, shared = self.mirror.inputs((5, size))
        inputs[SLOT:] = [[self.mirror.spare], [0], [self.mirror.spare], [0]]
        inputs[GROUP] = self._groups
        recording = Recording(size, inputs, shared)
        if self._stream is not None:
            recording.graph = self._capture(recording, self._stream)
        return recording

    def _capture(self, recording: Recording, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        slot = torch.tensor([self.mirror.spare - 1], device=self._device)  # padding alone: it is written for this one
        row = torch.zeros_like(slot)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            before = self.mirror.decision(self.mirror.spare - 1, 0)
            for _ in range(WARM_UP_STEPS):
                self._step(recording)
            self.mirror.put(slot, row, *before)
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
        return policy_state(self._states, self._generator)

    def load_state(self, state: Mapping[str, Any]) -> None:
        load_policy_state(state, self._states, self._generator)
