"""A causal trunk over the tokens of an episode: blocks that mix tokens by attention or by convolution.

Words
-----
token      one vector of ``D`` numbers. Every step of an episode has ``S`` of them; the last one is the action's.
context    how many steps a token sees, its own included. A token never sees later ones.
chunk      what is new when a policy acts at step t: the action of step t - 1, then all but the action of step t.
lane       one stream of chunks; lanes act together and restart one by one.

``Trunk.forward`` reads whole windows, for learning; ``Trunk.act`` reads one chunk per lane and keeps what later ones
need in a ``Memory``: a step costs O(context), however long the episode is. Both give the same numbers: the context is
a band over *steps*, so what a token sees does not depend on where a window begins, only on how far back it reaches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

MixerKind = Literal["attention", "convolution"]


@dataclass
class Memory:
    """What a trunk remembers of every lane."""

    age: Tensor
    """``[lanes]`` int64: steps since the lane's episode began; the number of the step that comes next."""
    layers: list[Tensor]
    """One tensor per block, ``[lanes, ...]``; its meaning is the mixer's own."""

    @property
    def flat(self) -> Tensor:
        """All that the blocks hold, ``[lanes, numbers]``."""
        return torch.cat([layer.flatten(1) for layer in self.layers], 1)


class Attention(nn.Module):
    """Multi-head attention over the tokens of the last ``context`` steps.

    The memory of a lane is a ring of ``context + 1`` steps: the action of step t - 1 and the rest of step t come in
    together, and the former still sees one step that the latter does not.
    """

    def __init__(self, size: int, heads: int, tokens: int, context: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.tokens, self.context, self.dropout = heads, tokens, context, dropout
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Mix the tokens ``x`` ``[B, L * S, D]``; ``mask`` ``[B, L * S]`` is False at padding, which nobody sees."""
        q, k, v = self._split(x)
        allowed = self._band(x.shape[1], x.device) & mask[:, None, :]
        # A padding token sees itself: a softmax over nothing would be NaN.
        allowed = allowed | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, allowed[:, None], dropout)
        return self._join(mixed)

    def memory(self, lanes: int, like: Tensor) -> Tensor:
        """Return empty memory ``[lanes, 2, places, heads, D / heads]``: keys, values; place = ring step x S + token."""
        size = self.out.in_features // self.heads
        return like.new_zeros((lanes, 2, (self.context + 1) * self.tokens, self.heads, size))

    def act(self, x: Tensor, memory: Tensor, lanes: Tensor, age: Tensor) -> Tensor:
        """Mix a chunk ``x`` ``[n, S, D]`` of lanes ``[n]`` at steps ``age`` ``[n]``; ``memory`` takes it in."""
        q, k, v = self._split(x)
        steps, kinds = chunk_order(age, self.tokens)
        places = steps % (self.context + 1) * self.tokens + kinds  # [n, S]
        rows = lanes[:, None]
        memory[rows, 0, places] = k.transpose(1, 2).to(memory.dtype)
        memory[rows, 1, places] = v.transpose(1, 2).to(memory.dtype)
        held = memory[lanes].to(x.dtype)  # [n, 2, places, heads, D / heads]
        keys, values = held[:, 0].transpose(1, 2), held[:, 1].transpose(1, 2)
        allowed = self._visible(steps, kinds, age)
        own = functional.one_hot(places, allowed.shape[-1]).bool()  # the action before the first step sees itself only
        return self._join(functional.scaled_dot_product_attention(q, keys, values, (allowed | own)[:, None]))

    def _visible(self, steps: Tensor, kinds: Tensor, age: Tensor) -> Tensor:
        """Return which places a chunk's tokens see, by the step and token that lies there: ``[n, S, places]``."""
        ring = self.context + 1
        place = torch.arange(ring * self.tokens, device=age.device)
        latest = age[:, None] - (age[:, None] - place // self.tokens) % ring  # [n, places]
        latest, kind = latest[:, None, :], (place % self.tokens)[None, None, :]
        step, own_kind = steps[:, :, None], kinds[:, :, None]
        before = (latest < step) | ((latest == step) & (kind <= own_kind))
        return before & (latest > step - self.context) & (latest >= 0)

    def _band(self, length: int, device: torch.device) -> Tensor:
        """Return whether token i sees token j: ``[length, length]``."""
        token = torch.arange(length, device=device)
        step = token // self.tokens
        return (token[:, None] >= token) & (step[:, None] - step < self.context)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys, values ``[B, heads, N, D / heads]``."""
        parts = self.qkv(x).reshape(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return parts[0], parts[1], parts[2]

    def _join(self, mixed: Tensor) -> Tensor:
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined


class Convolution(nn.Module):
    """A causal filter over the last ``width`` tokens, one per channel and per kind of token (Decision ConvFormer).

    It mixes only neighbours, which is what decisions of a Markov process need, with few weights and no softmax. The
    memory of a lane is the last ``width - 1`` inputs.
    """

    def __init__(self, size: int, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens, self.width = tokens, width
        self.filters = nn.Parameter(torch.randn(tokens, width, size) * 0.02)
        """``[S, width, D]``; entry j weighs the token j places back."""
        self.bias = nn.Parameter(torch.zeros(tokens, size))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Filter tokens ``x`` ``[B, L * S, D]``; ``mask`` ``[B, L * S]`` is False at padding, counted as zero."""
        kinds = torch.arange(x.shape[1], device=x.device) % self.tokens
        past = functional.pad(x * mask[..., None].to(x.dtype), (0, 0, self.width - 1, 0))
        return self._filter(past, kinds)

    def memory(self, lanes: int, like: Tensor) -> Tensor:
        """Return empty memory ``[lanes, width - 1, D]``, the oldest input first."""
        return like.new_zeros((lanes, self.width - 1, self.filters.shape[-1]))

    def act(self, x: Tensor, memory: Tensor, lanes: Tensor, age: Tensor) -> Tensor:
        """Filter a chunk; see ``Attention.act``."""
        begun = (age > 0)[:, None, None]
        x = torch.cat([torch.where(begun, x[:, :1], 0), x[:, 1:]], 1)  # there is no action before the first step
        past = torch.cat([torch.where(begun, memory[lanes].to(x.dtype), 0), x], 1)
        memory[lanes] = past[:, x.shape[1] :].to(memory.dtype)
        return self._filter(past, chunk_order(age[:1], self.tokens)[1][0])

    def _filter(self, past: Tensor, kinds: Tensor) -> Tensor:
        """Filter ``past`` ``[B, width - 1 + N, D]`` -> ``[B, N, D]``; ``kinds`` ``[N]`` choose the filters."""
        count = past.shape[1] - self.width + 1
        filters, out = self.filters[kinds], self.bias[kinds]  # [N, width, D], [N, D]
        for back in range(self.width):
            first = self.width - 1 - back
            out = out + filters[:, back] * past[:, first : first + count]
        return out


def chunk_order(age: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return step, kind ``[n, S]`` of a chunk's tokens: the action (kind S - 1) of the step before, then 0 .. S - 2."""
    kinds = torch.arange(-1, tokens - 1, device=age.device) % tokens
    steps = age[:, None] - (kinds == tokens - 1).long()
    return steps, kinds.expand(age.shape[0], tokens)


class Block(nn.Module):
    """Mix tokens, then an MLP on each; both behind a norm and around a residual path."""

    def __init__(self, size: int, mixer: Attention | Convolution, dropout: float) -> None:
        super().__init__()
        self.before_mixing, self.mixer = nn.LayerNorm(size), mixer
        self.before_mlp = nn.LayerNorm(size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self._finish(x, self.mixer(self.before_mixing(x), mask))

    def act(self, x: Tensor, memory: Tensor, lanes: Tensor, age: Tensor) -> Tensor:
        return self._finish(x, self.mixer.act(self.before_mixing(x), memory, lanes, age))

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(mixed)
        out: Tensor = x + self.dropout(self.mlp(self.before_mlp(x)))
        return out


class Trunk(nn.Module):
    """Blocks over the tokens of steps; ``tokens`` (S) per step, the action's last."""

    def __init__(
        self,
        *,
        size: int,
        layers: int,
        heads: int,
        tokens: int,
        context: int,
        dropout: float = 0.0,
        mixer: MixerKind = "attention",
        width: int = 6,
    ) -> None:
        super().__init__()
        self.tokens, self.context = tokens, context

        def make_mixer() -> Attention | Convolution:
            if mixer == "convolution":
                return Convolution(size, tokens, width)
            return Attention(size, heads, tokens, context, dropout)

        self.blocks = nn.ModuleList(Block(size, make_mixer(), dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(size)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Mix tokens ``[B, L, S, D]`` with ``mask`` ``[B, L]`` (True: a real step) -> ``[B, L, S, D]``."""
        shape = x.shape
        x = x.flatten(1, 2)
        flat_mask = mask.repeat_interleave(self.tokens, 1)
        for block in self.blocks:
            x = block(x, flat_mask)
        out: Tensor = self.norm(x)
        return out.reshape(shape)

    def memory(self, lanes: int) -> Memory:
        """Return empty memory for so many lanes, on the trunk's device."""
        like = self.norm.weight.detach()
        layers = [block.mixer.memory(lanes, like) for block in self.blocks]  # type: ignore[union-attr,operator]
        return Memory(torch.zeros(lanes, dtype=torch.int64, device=like.device), layers)

    def unpack(self, age: Tensor, flat: Tensor) -> Memory:
        """Return the memory of ``[n]`` lanes from ``Memory.flat``; a copy."""
        shapes = [layer.shape[1:] for layer in self.memory(1).layers]
        parts = torch.split(flat.clone(), [math.prod(shape) for shape in shapes], 1)
        return Memory(age.clone(), [part.reshape(-1, *shape) for part, shape in zip(parts, shapes)])

    def act(self, x: Tensor, memory: Memory, lanes: Tensor, first: Tensor) -> Tensor:
        """Mix a chunk ``x`` ``[n, S, D]`` of lanes ``[n]`` -> ``[n, S, D]``; ``first`` ``[n]``: an episode begins."""
        age = torch.where(first, 0, memory.age[lanes])
        for block, layer in zip(self.blocks, memory.layers):
            x = block.act(x, layer, lanes, age)  # type: ignore[operator]
        memory.age[lanes] = age + 1
        out: Tensor = self.norm(x)
        return out
