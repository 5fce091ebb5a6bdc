"""Acting on a GPU: one CUDA graph per batch size, fed from the mirror.

Launching a network's kernels one by one costs the processor more time than the GPU needs to run them.
A graph launches them all at once; it is recorded for a few batch sizes, and a batch is padded to the
next one. Padding has a slot and lanes of its own, so it touches nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.core.fields import MASK_FIELD, Array, Field
from rollmill.core.protocols import ActRequest
from rollmill.core.slots import Arena, layout_arrays
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.mirror import Mirror
from rollmill.models.policy import Answer
from rollmill.models.weights import WeightBoard

WARM_UP_STEPS = 3
"""Plain steps before a graph is recorded: libraries choose their algorithms and allocate in them."""


@dataclass
class Recording:
    """One batch size: inputs and outputs at fixed addresses, and the graph between them (None on a CPU).

    Inputs are views of one block of bytes, so that one copy brings them all to the device.
    """

    groups: int
    host: dict[str, Array]
    """What the host fills in: ``index`` [5, groups], ``lanes`` [groups, L], ``first`` [groups, L]."""
    device: dict[str, Tensor]
    """The same on the device."""
    pair: tuple[Tensor, Tensor]
    """The whole block: on the device, and the host's as the device sees it."""
    answer: Array  # [groups * L, components + 2] float32: action, log-probability, value
    output: Tensor  # the same memory as the device sees it
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
        awake: bool = False,
    ) -> None:
        """``awake``: spin while the GPU works: sleeping and waking up cost 0.4 ms a decision where it was measured. It
        needs a core of its own."""
        self._model = model.eval()
        self._board = board
        self._device = next(model.parameters()).device
        self._cuda = self._device.type == "cuda"
        self._groups = groups
        self._deterministic = deterministic
        self._autocast = autocast
        self._generator = torch.Generator(self._device).manual_seed(seed)
        # A priority above the learner's: the few small kernels of a decision must not queue behind its large ones.
        self._stream = torch.cuda.Stream(self._device, priority=-1) if self._cuda else None  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event(blocking=not awake) if self._cuda else None  # type: ignore[no-untyped-call]
        if autocast is not None:
            # Kept in the type they are used in: autocast would convert all weights again for every decision.
            for module in self._model.modules():
                if isinstance(module, (nn.Linear, nn.Conv2d, nn.RNNBase)):
                    module.to(autocast)
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
        self._fill(recording.host, request, count)
        if recording.graph is None:
            self._step(recording)
        else:
            assert self._stream is not None
            assert self._done is not None
            with torch.cuda.stream(self._stream):
                recording.graph.replay()
            self._done.record(self._stream)
            self._done.synchronize()
        return self._answer(recording, len(request.lanes))

    def _fill(self, host: Mapping[str, Array], request: ActRequest, count: int) -> None:
        spare, index, lanes, first = self.mirror.spare, host["index"], host["lanes"], host["first"]
        index[0, :count] = index[1, :count] = request.slots
        index[2, :count] = request.rows
        index[3, :count] = np.where(request.closing < 0, spare, request.closing)
        index[4, :count] = self.mirror.state_places(request.rows)
        # The spare slot has no counterpart in host memory: row 0 of slot 0 is read for it, and never used.
        index[:, count:] = np.array([[spare], [0], [0], [spare], [0]])
        lanes[:count] = request.lanes.reshape(count, -1)
        lanes[count:] = np.arange(lanes.shape[1]) + self._groups * lanes.shape[1]
        first[:count] = request.first.reshape(count, -1)
        first[count:] = True

    def _step(self, recording: Recording) -> None:
        """What is recorded: fetch, decide, keep states, pack. The host is not needed in between."""
        mirror, head = self.mirror, self._model.head
        own, shared = recording.pair
        own.copy_(shared)
        slots, sources, rows, closing, places = recording.device["index"]
        lanes = recording.device["lanes"].flatten()
        obs = mirror.take(slots, sources, rows, closing)
        before = self._states[lanes]
        with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
            output = self._model.step(obs, recording.device["first"].flatten(), before)
        action, log_prob = head.decide(output.params.float(), obs.get(MASK_FIELD), self._generator, self._deterministic)
        value = self._model.denormalise(output.value.float())
        if self.state_size:
            self._states[lanes] = output.state.float()
            if mirror.layout.state_size:
                mirror.keep_state(slots, places, before)
        packed = (action.float().reshape(len(lanes), -1), log_prob[:, None], value[:, None])
        torch.cat(packed, dim=1, out=recording.output)

    def _answer(self, recording: Recording, lanes: int) -> Answer:
        """Numpy views of the packed answer; valid until the next call."""
        packed = recording.answer[:lanes]
        field = self.mirror.layout.spec.action.field
        action = packed[:, :-2].reshape(lanes, *field.shape).astype(field.dtype)
        return Answer(action=action, log_prob=packed[:, -2], value=packed[:, -1], state=None)

    # -- recording -----------------------------------------------------------------------------

    @torch.no_grad()
    def _record(self, size: int) -> Recording:
        layout = self.mirror.layout
        shapes = [
            (Field("index", "int64"), (5, size)),
            (Field("lanes", "int64"), (size, layout.lanes)),
            (Field("first", "bool"), (size, layout.lanes)),
        ]
        offsets, nbytes = layout_arrays(shapes)
        block = np.zeros(nbytes, np.uint8)
        shared = self.mirror.device_view("inputs", block)
        own = torch.zeros_like(shared)
        host, device = {}, {}
        for field, shape in shapes:
            part = slice(offsets[field.name], offsets[field.name] + math.prod(shape) * field.nbytes)
            host[field.name] = block[part].view(field.dtype).reshape(shape)
            device[field.name] = own[part].view(getattr(torch, field.dtype)).reshape(shape)
        width = int(np.prod(layout.spec.action.field.shape)) + 2
        answer = np.zeros((size * layout.lanes, width), np.float32)
        output = self.mirror.device_view("outputs", answer)
        recording = Recording(size, host, device, (own, shared), answer, output)
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
