"""Several small networks of one shape, asked in one pass.

The weights of a layer lie side by side, so that a layer of all networks is one product of batches of matrices. Where
networks are small, calling them costs more than what they compute: eight of them, one after the other, take five times
as long as one with as many lanes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import MASK_FIELD, Array
from rollmill.core.protocols import ActRequest, Ensemble, PolicyOutput
from rollmill.models.acting.frozen import FrozenNetworks, Weights
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.encoders import CLIP, Encoder, Observations
from rollmill.models.heads.base import Apart
from rollmill.models.heads.choices import BernoulliHead, CategoricalHead
from rollmill.models.heads.numbers import GaussianHead, TanhGaussianHead
from rollmill.models.moments import RunningMoments

LARGEST = 1 << 16
"""Weights of a network. Those of larger ones are not worth being brought together for every decision."""


def can_be_stacked(model: ActorCritic) -> bool:
    """Return whether a ``Stack`` computes what this network does: a small MLP without memory, with both heads on it."""
    encoder, head = model.trunk.encoder, model.head
    return (
        type(model) is ActorCritic
        and type(encoder) is Encoder
        and not any(is_image for _, _, is_image in encoder.vector_inputs)
        and not encoder.image_names
        and not model.state_size
        and model.critic_trunk is None
        and type(model.return_moments) is RunningMoments
        and type(head) in (CategoricalHead, BernoulliHead, GaussianHead, TanhGaussianHead)
        and sum(x.numel() for x in model.parameters()) <= LARGEST
    )


class Stack:
    """Copies of networks, one in each row: first policies of the run, which are followed, then others that stay."""

    def __init__(self, policies: Sequence[TorchPolicy], others: Sequence[ActorCritic] = ()) -> None:
        """Stack networks of one shape, for all of which ``can_be_stacked`` holds."""
        like, count = policies[0].model, len(policies) + len(others)
        encoder, device = _encoder(like), like.value_head.weight.device
        self.head = like.head
        self._activate = encoder.mlp.activate
        self._inputs = encoder.vector_inputs
        scaled = like.observation_moments.names
        limits = [torch.full((size,), CLIP if name in scaled else torch.inf) for name, size, _ in self._inputs]
        self._limit = torch.cat(limits).to(device)
        self._shapes = [x.shape for x in _numbers(like)]
        # One table of all: what a decision needs of it is brought together by a single call.
        self._table = torch.zeros(count, sum(map(math.prod, self._shapes)), device=device)
        self._all, self._whole = np.arange(count), self._cut(self._table)
        self._policies = policies
        self._versions: list[int | None] = [None] * len(policies)
        for row, network in enumerate(others, len(policies)):
            self._set(row, network)

    def _cut(self, table: Tensor) -> list[Tensor]:
        """Cut rows ``[g, N]`` of the table into what they hold, by ``_numbers``: ``[g, *shape]`` each."""
        parts = torch.split(table, [math.prod(shape) for shape in self._shapes], dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def refresh(self) -> None:
        """Take over the newest weights of the policies."""
        for row, policy in enumerate(self._policies):
            if policy.refresh() != self._versions[row]:
                self._set(row, policy.model)
                self._versions[row] = policy.version

    @torch.no_grad()
    def _set(self, row: int, network: ActorCritic) -> None:
        torch.cat([x.flatten() for x in _numbers(network)], out=self._table[row])

    def read(self, obs: Observations) -> Tensor:
        """Return all that the networks see, as one vector for each lane: ``[n, D]``."""
        parts = [obs[name].reshape(-1, size).float() for name, size, _ in self._inputs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def ask(self, rows: Array, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Ask one network for each block of lanes: ``rows`` ``[g]`` names them, ``seen`` is ``[g, b, D]``.

        Returns parameters of action distributions ``[g, b, P]`` and values ``[g, b]`` in units of the return.
        """
        if np.array_equal(rows, self._all):
            own = self._whole
        else:
            own = self._cut(self._table.index_select(0, torch.from_numpy(rows).to(seen.device)))
        shift, spread, *layers = own
        x = torch.clamp((seen - shift).div_(spread), -self._limit, self._limit)
        *hidden, (weight, bias) = zip(layers[::2], layers[1::2], strict=True)
        for own_weight, own_bias in hidden:
            x = self._activate(torch.baddbmm(own_bias, x, own_weight))
        x = torch.baddbmm(bias, x, weight)
        params, value = x[..., :-1], x[..., -1]
        return self.head.bounded(params) if isinstance(self.head, GaussianHead) else params, value


def _encoder(model: ActorCritic) -> Encoder:
    assert isinstance(model.trunk.encoder, Encoder), "asked before"
    return model.trunk.encoder


def _numbers(model: ActorCritic) -> list[Tensor]:
    """Return all that a decision needs: shift and deviation of the inputs ``[1, D]``, then weights ``[in, out]`` and
    bias ``[1, out]`` of one layer after the other.

    The last layer is both heads: what the distribution needs, with a deviation that depends on nothing as a bias, and
    the value in units of the return.
    """
    layers: list[tuple[Tensor, Tensor]] = [(layer.weight, layer.bias) for layer in _encoder(model).mlp.layers]
    head, moments = model.head, model.return_moments
    assert isinstance(head, (CategoricalHead, BernoulliHead, GaussianHead)), "asked before"
    weights: list[Tensor] = [head.linear.weight]
    biases: list[Tensor] = [head.linear.bias]
    if isinstance(head, GaussianHead) and not head.state_dependent:
        weights.append(torch.zeros_like(head.linear.weight))
        biases.append(head.log_std)
    weights.append(model.value_head.weight * moments.std)
    biases.append(model.value_head.bias * moments.std + moments.shift)
    layers.append((torch.cat(weights), torch.cat(biases)))
    return [*_scale(model), *(x for weight, bias in layers for x in (weight.T, bias.unsqueeze(0)))]


def _scale(model: ActorCritic) -> tuple[Tensor, Tensor]:
    """Return shift and deviation ``[1, D]`` of all inputs: 0 and 1 of those that are read as they are."""
    normaliser, like = model.observation_moments, model.value_head.weight
    moments = dict(zip(normaliser.names, normaliser.moments, strict=True))
    sizes = [(moments.get(name), size) for name, size, _ in _encoder(model).vector_inputs]
    shifts = [like.new_zeros(size) if own is None else own.shift.flatten() for own, size in sizes]
    spreads = [like.new_ones(size) if own is None else own.std.flatten() for own, size in sizes]
    return torch.cat(shifts).unsqueeze(0), torch.cat(spreads).unsqueeze(0)


def in_blocks(numbers: Array) -> tuple[Array, Array, int]:
    """Bring lanes that ask the same network together, in blocks of one height.

    ``numbers`` ``[n]``: whom each lane asks. Returns whom each block asks ``[g]``, where each lane is in the table of
    all blocks ``[n]``, and the height of a block. It is the mean of lanes that ask the same: where there are more, they
    fill several blocks, so that about half of the table at most stays empty.
    """
    order = np.argsort(numbers, kind="stable")
    asked, counts = np.unique(numbers, return_counts=True)
    height = -(-len(numbers) // len(asked))
    blocks = -(-counts // height)
    empty = blocks * height - counts
    places = np.empty(len(numbers), np.int64)
    places[order] = np.arange(len(numbers)) + np.repeat(np.cumsum(empty) - empty, counts)
    return np.repeat(asked, blocks), places, height


class StackedPolicies(Ensemble):
    """The policies of a population in one pass. Each keeps its own generator, and decides as it would by itself."""

    def __init__(self, policies: Sequence[TorchPolicy]) -> None:
        self._policies, self._stack = policies, Stack(policies)

    @torch.inference_mode()
    def act_for(self, owners: Array, request: ActRequest) -> PolicyOutput:
        self._stack.refresh()
        lanes = len(request.lanes) // len(owners)
        obs = _tensors(request, self._policies[0].device)
        seen = self._stack.read(obs).reshape(len(owners), lanes, -1)
        params, value = self._stack.ask(owners, seen)
        drawn = [(own.generator, count) for own, count in zip(self._policies, np.bincount(owners).tolist()) if count]
        noise = Apart([generator for generator, _ in drawn], [count * lanes for _, count in drawn])
        action, log_prob = self._stack.head.decide(params.flatten(0, 1), obs.get(MASK_FIELD), noise)
        return PolicyOutput(action.cpu().numpy(), log_prob.cpu().numpy(), value.flatten().cpu().numpy())


class StackedPlayers(FrozenNetworks):
    """Networks that do not learn any more, and the policies of the run beside them: all sides in one pass."""

    with_own = True

    def __init__(self, model: ActorCritic, lanes: int, seed: int, policies: Sequence[TorchPolicy]) -> None:
        super().__init__(model, lanes, seed)
        self._policies = policies
        self._table: tuple[Array, Stack] = (np.arange(len(policies)), Stack(policies))

    def keep(self, wanted: Mapping[int, Weights]) -> None:
        super().keep(wanted)
        numbers = sorted(self._networks)
        stack = Stack(self._policies, [self._networks[number] for number in numbers])
        self._table = np.array([*range(len(self._policies)), *numbers]), stack

    @torch.inference_mode()
    def act(self, numbers: Array, request: ActRequest) -> PolicyOutput:
        known, stack = self._table
        stack.refresh()
        obs, (asked, places, height) = _tensors(request, self._device), in_blocks(numbers)
        seen, place = stack.read(obs), torch.from_numpy(places).to(self._device)
        table = seen.new_zeros(len(asked) * height, seen.shape[1]).index_copy_(0, place, seen)
        found = stack.ask(np.searchsorted(known, asked), table.reshape(len(asked), height, -1))
        params, value = (x.flatten(0, 1).index_select(0, place) for x in found)
        action, log_prob = stack.head.decide(params, obs.get(MASK_FIELD), self._generator)
        return PolicyOutput(action.cpu().numpy(), log_prob.cpu().numpy(), value.cpu().numpy())


def _tensors(request: ActRequest, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in request.obs.items()}
