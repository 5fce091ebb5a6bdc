"""Recurrent memory in two forms that agree: one step for acting, a whole segment for learning.

The state of a lane is one flat float vector ``[S]``: the hidden vectors of all layers, for an LSTM
followed by the cell vectors of all layers. ``first`` marks rows that begin an episode; the state
is zeroed there *before* the row is read, so nothing leaks from one episode into the next.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rollmill.models.settings import ModelSettings

RnnState = Tensor | tuple[Tensor, Tensor]
"""As torch wants it: ``[layers, n, H]``, for an LSTM a pair (hidden, cell)."""


def build_memory(input_size: int, settings: ModelSettings) -> Memory:
    """Build the memory the settings name, reading features ``[..., input_size]``."""
    if settings.memory == "none":
        return NoMemory(input_size)
    kind = nn.GRU if settings.memory == "gru" else nn.LSTM
    return RecurrentMemory(kind(input_size, settings.hidden_size, settings.memory_layers))


class Memory(nn.Module):
    """Base of all memories. ``F`` features in, ``H`` features out, ``S`` floats of state per lane."""

    output_size: int
    state_size: int

    def step(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Advance n lanes by one step: ``x`` ``[n, F]``, ``state`` ``[n, S]``, ``first`` ``[n]``.

        Returns features ``[n, H]`` and the new state ``[n, S]``.
        """
        raise NotImplementedError

    def unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Advance B lanes by T steps: ``x`` ``[T, B, F]``, ``state`` ``[B, S]`` before row 0, ``first`` ``[T, B]``.

        Returns features ``[T, B, H]`` and the state after the last row ``[B, S]``.
        """
        raise NotImplementedError


class NoMemory(Memory):
    """Passes features on; its state is empty."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.output_size = input_size
        self.state_size = 0

    def step(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return x, state

    def unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return x, state


class RecurrentMemory(Memory):
    """GRU or LSTM of one or more layers."""

    by_steps = False
    """Unroll step by step: slower, but with the same operations whatever the data (CUDA graphs need that)."""

    def __init__(self, rnn: nn.GRU | nn.LSTM) -> None:
        super().__init__()
        self.rnn = rnn
        self.is_lstm = isinstance(rnn, nn.LSTM)
        self.output_size = rnn.hidden_size
        self.state_size = rnn.num_layers * rnn.hidden_size * (2 if self.is_lstm else 1)
        for name, parameter in rnn.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def step(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        # Cells instead of the sequence form: its set-up costs several times the work of one LSTM step.
        rows = self._split(state.masked_fill(first.unsqueeze(1), 0.0))
        hidden, cell = [], []
        for layer in range(self.rnn.num_layers):
            weights = self.rnn.all_weights[layer]
            if self.is_lstm:
                x, c = torch.lstm_cell(x, (rows[0][layer], rows[1][layer]), *weights)
                cell.append(c)
            else:
                x = torch.gru_cell(x, rows[0][layer], *weights)
            hidden.append(x)
        parts = hidden + cell
        return x, parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        if self.by_steps:
            return self._unroll_steps(x, state, first)
        state = state.masked_fill(first[0].unsqueeze(1), 0.0)
        if not bool(first[1:].any()):
            y, last = self.rnn(x, self._to_rnn(state))
            return y, self._from_rnn(last)
        return self._unroll_fragments(x, state, first)

    def _unroll_steps(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for row, begins in zip(x, first, strict=True):
            y, state = self.step(row, state, begins)
            outputs.append(y)
        return torch.stack(outputs), state

    def _unroll_fragments(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Cut every lane at its resets and run the fragments side by side as one packed batch."""
        steps, lanes, features = x.shape
        pack = _Fragments(first)
        data = x.reshape(steps * lanes, features).index_select(0, pack.source)
        begin = state.new_zeros(len(pack.lane), self.state_size)
        # Only fragments that begin with the segment carry a state in.
        begin = torch.where(pack.opens_segment.unsqueeze(1), state.index_select(0, pack.lane), begin)
        out, last = self.rnn(PackedSequence(data, pack.batch_sizes), self._to_rnn(begin))
        y = out.data.index_select(0, pack.position).reshape(steps, lanes, self.output_size)
        return y, self._from_rnn(last).index_select(0, pack.last_of_lane)

    def _split(self, state: Tensor) -> Tensor:
        """Return ``[n, S]`` as ``[1 or 2, layers, n, H]``: hidden vectors, then cells."""
        kinds = 2 if self.is_lstm else 1
        return state.reshape(state.shape[0], kinds, self.rnn.num_layers, self.output_size).permute(1, 2, 0, 3)

    def _to_rnn(self, state: Tensor) -> RnnState:
        rows = self._split(state).contiguous()
        return (rows[0], rows[1]) if self.is_lstm else rows[0]

    def _from_rnn(self, state: RnnState) -> Tensor:
        rows = torch.stack(state) if isinstance(state, tuple) else state.unsqueeze(0)
        return rows.permute(2, 0, 1, 3).reshape(rows.shape[2], self.state_size)


class _Fragments:
    """Index arithmetic that turns ``first`` ``[T, B]`` into a packed batch of episode fragments.

    A fragment runs from a reset (or row 0) to the row before the next reset of its lane. Packed data
    hold step 0 of all fragments, then step 1 of those long enough, and so on; fragments are ordered
    by falling length. ``N`` is the number of fragments.

    source         [T*B] packed row -> row of the input, flattened from ``[T, B]``
    position       [T*B] the inverse: flattened row -> packed row
    batch_sizes    [longest] fragments alive at each step (on the CPU, as torch wants it)
    lane           [N] lane of each fragment
    opens_segment  [N] True where the fragment begins in row 0
    last_of_lane   [B] the fragment that holds the lane's last row
    """

    def __init__(self, first: Tensor) -> None:
        steps, lanes = first.shape
        device = first.device
        starts = first.t().clone()  # [B, T]: rows of one lane side by side
        starts[:, 0] = True
        flat = starts.reshape(-1)
        fragment = flat.cumsum(0) - 1  # [B*T] fragment of each row, in order of lane and time
        begin = flat.nonzero().squeeze(1)
        end = torch.cat([begin[1:], begin.new_tensor([steps * lanes])])
        length = end - begin
        order = length.argsort(descending=True, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=device)

        offset = torch.arange(steps * lanes, device=device) - begin[fragment]  # step within the fragment
        alive = torch.bincount(offset)
        packed = (alive.cumsum(0) - alive)[offset] + rank[fragment]  # [B*T] packed row of each row
        self.position = packed.reshape(lanes, steps).t().reshape(-1)
        self.source = torch.empty_like(self.position)
        self.source[self.position] = torch.arange(steps * lanes, device=device)
        self.batch_sizes = alive.cpu()
        self.lane = (begin // steps)[order]
        self.opens_segment = (begin % steps == 0)[order]
        self.last_of_lane = rank[fragment.reshape(lanes, steps)[:, -1]]
