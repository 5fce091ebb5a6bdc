"""From segments in numpy to what a training step reads: tensors, masks, and pieces of them.

Words
-----
batch      all rows of one call of ``train``: ``[T, B]`` (``[T + 1, B]`` where the bootstrap row counts).
piece      R consecutive rows of one lane, read in one go by the network: R = T for V-trace and for
           memory networks (or ``recurrence``), R = 1 for the rest. Pieces are the columns of ``[R, N]``.
minibatch  the pieces of one optimizer step; micro-batch: the pieces in one pass through the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rollmill.core.fields import Array
from rollmill.core.slots import OBS
from rollmill.learning.settings import LearningSettings

Rows = TypeVar("Rows", Array, Tensor, Array | Tensor)


@dataclass
class Batch:
    """Rows ``[T, B]`` on the learner's device; ``obs``, ``first`` and ``value`` have the bootstrap row too."""

    obs: dict[str, Tensor]  # [T + 1, B, *shape]
    first: Tensor  # [T + 1, B] bool
    value: Tensor  # [T + 1, B] as predicted when acting, in units of the return
    action: Tensor  # [T, B, ...]
    log_prob: Tensor  # [T, B] of the acting policy
    reward: Tensor  # [T, B] scaled and clipped for learning
    terminated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool: the action counted, was this policy's own, and is not too long ago
    state: Tensor  # [T / R, B, S] recurrent states at the starts of the pieces
    lag: Tensor  # [T, B] how many batches older than the learner each row is
    rows: int  # how many are valid
    stale: int  # how many would be, if they were not too long ago


def own_rows(segments: Mapping[str, Rows], policy_id: int) -> Rows:
    """Return ``[T, B]`` bool, whether the action counted and was this policy's own."""
    own: Rows = segments["valid"][:-1] & (segments["policy_id"][:-1] == policy_id)
    return own


def load_batch(
    segments: Mapping[str, Array | Tensor],
    settings: LearningSettings,
    policy_id: int,
    version: int,
    device: torch.device,
) -> Batch:
    """Bring gathered segments (``Arena.gather``) to the device in the form learning reads.

    Each row is judged by itself: beside it in a segment may stand rows of other policies, and older ones of its own.
    """

    def moved(values: Array | Tensor) -> Tensor:
        own = values if isinstance(values, Tensor) else torch.from_numpy(values)
        return own.to(device, non_blocking=True)

    def tensor(name: str, rows: int | None = -1) -> Tensor:
        return moved(segments[name][:rows])

    own = own_rows(segments, policy_id)
    valid = own & (segments["version"][:-1] >= version - settings.max_policy_lag)
    rows = int(valid.sum())  # known on the host, which must not wait for a device

    reward = tensor("reward") * settings.reward_scale
    if settings.reward_clip:
        reward = reward.clamp(-settings.reward_clip, settings.reward_clip)
    lanes = segments["first"].shape[1]
    state = tensor("state", None) if "state" in segments else torch.zeros(1, lanes, 0, device=device)
    return Batch(
        obs={name.removeprefix(OBS): tensor(name, None) for name in segments if name.startswith(OBS)},
        first=tensor("first", None),
        value=tensor("value", None),
        action=tensor("action"),
        log_prob=tensor("log_prob"),
        reward=reward,
        terminated=tensor("terminated"),
        valid=moved(valid),
        state=state,
        lag=version - tensor("version"),
        rows=rows,
        stale=int(own.sum()) - rows,
    )


@dataclass
class Pieces:
    """The columns ``[R (+ 1), N]`` that minibatches are made of."""

    obs: dict[str, Tensor]
    first: Tensor
    value: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    valid: Tensor
    state: Tensor  # [N, S]
    advantage: Tensor  # [R, N]; zeros when V-trace computes it in passing
    target: Tensor  # [R, N] in units of the return; likewise

    def select(self, columns: Tensor | slice) -> Pieces:
        """Return some of the columns; a slice gives views, an index copies."""
        return Pieces(
            obs={name: x[:, columns] for name, x in self.obs.items()},
            state=self.state[columns],
            **{name: getattr(self, name)[:, columns] for name in _ROW_FIELDS},
        )

    def clone(self) -> Pieces:
        """Return a copy with memory of its own."""
        fields = {name: getattr(self, name).clone() for name in (*_ROW_FIELDS, "state")}
        return Pieces(obs={name: x.clone() for name, x in self.obs.items()}, **fields)

    def copy_(self, other: Pieces) -> None:
        """Take over the values of pieces of the same shape."""
        for name, x in self.obs.items():
            x.copy_(other.obs[name])
        for name in (*_ROW_FIELDS, "state"):
            getattr(self, name).copy_(getattr(other, name))


_ROW_FIELDS = ("first", "value", "action", "log_prob", "reward", "terminated", "valid", "advantage", "target")


def whole_segments(batch: Batch) -> Pieces:
    """Return pieces of full length with the bootstrap row kept, for V-trace: obs, first, value are ``[T + 1, B]``."""
    blank = torch.zeros_like(batch.reward)
    return Pieces(
        obs=batch.obs,
        first=batch.first,
        value=batch.value,
        action=batch.action,
        log_prob=batch.log_prob,
        reward=batch.reward,
        terminated=batch.terminated,
        valid=batch.valid,
        state=batch.state[0],
        advantage=blank,
        target=blank,
    )


def cut_pieces(batch: Batch, length: int, advantage: Tensor, target: Tensor) -> Pieces:
    """Cut ``[T, B]`` into pieces of ``length`` rows (a divisor of T); no bootstrap row, targets given."""
    steps, lanes = batch.reward.shape

    def cut(x: Tensor) -> Tensor:
        x = x[:steps].reshape(steps // length, length, *x.shape[1:])  # [T/R, R, B, ...]
        return x.transpose(0, 1).flatten(1, 2)  # [R, T/R * B, ...]; a view for R = 1 and R = T

    state = batch.state.flatten(0, 1)
    if not state.shape[1]:
        state = state.new_zeros(steps // length * lanes, 0)
    return Pieces(
        obs={name: cut(x) for name, x in batch.obs.items()},
        first=cut(batch.first),
        value=cut(batch.value),
        action=cut(batch.action),
        log_prob=cut(batch.log_prob),
        reward=cut(batch.reward),
        terminated=cut(batch.terminated),
        valid=cut(batch.valid),
        state=state,
        advantage=cut(advantage),
        target=cut(target),
    )


def minibatches(pieces: Pieces, count: int, generator: torch.Generator, compact: bool = True) -> Iterator[Pieces]:
    """Yield shuffled minibatches; if ``compact``, columns without a single row that counts are left out."""
    if compact:
        columns = pieces.valid.any(dim=0).nonzero().squeeze(1)
    else:
        columns = torch.arange(pieces.valid.shape[1], device=pieces.valid.device)
    if count == 1 and len(columns) == pieces.valid.shape[1]:
        yield pieces  # one step over everything: the order does not matter, nothing is copied
        return
    order = torch.randperm(len(columns), generator=generator)
    for part in order.tensor_split(min(count, max(1, len(columns)))):
        if len(part):
            yield pieces.select(columns[part.to(columns.device)])


def micro_batches(pieces: Pieces, rows: int) -> Iterator[Pieces]:
    """Return slices of at most ``rows`` rows (0: all at once)."""
    length, columns = pieces.reward.shape
    width = max(1, rows // length) if rows else columns
    for begin in range(0, columns, width):
        yield pieces.select(slice(begin, begin + width)) if width < columns else pieces
