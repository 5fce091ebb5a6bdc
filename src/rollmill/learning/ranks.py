"""Several learners that stay one: what the ranks of a run add up and agree on.

Words
-----
rank     one process with its own workers, its own policy and its own learner. Rank 0 is the run's main process.
present  the ranks that take part. One that is lost leaves a gap: the others keep their numbers.
own      what one rank has computed from its share of the batch.
shared   the same bits on every rank.

Every rank holds the same weights and computes gradients of its share of the batch. ``share_gradients`` turns
them into the gradients of the whole batch, so all optimizers take the same step. Whatever else steers a step must be
shared as well: running moments, the scale of advantages, and the metrics that stops and rates depend on.

``SingleRank`` is a run of one rank: nothing is sent, nothing is copied. ``TorchRanks`` (``learning.torch_ranks``) talks
through torch.distributed. All ranks must make the same calls in the same order, each from its main thread. A call in
which one of them is lost raises LostRankError; the state of a learner then is that between two optimizer steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rollmill.core.errors import LostRankError, RankError
from rollmill.core.tree_file import Tree
from rollmill.models.moments import RunningMoments


class Ranks(Protocol):
    """All ranks of a run, seen from one of them."""

    rank: int
    present: tuple[int, ...]
    """Those that take part, this one included, in their order; rank 0 always does."""

    @property
    def count(self) -> int:
        """How many take part."""

    def total(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, elementwise; shared. ``x`` may be changed."""

    def gather(self, x: Tensor) -> Tensor:
        """Return ``[count, *x.shape]``, the tensors of those present in their order; shared."""

    def gather_notes(self, note: Any) -> list[Any]:
        """Return what every rank has to say (JSON values), in the order of those present; shared."""

    def from_first(self, tree: Tree) -> Tree:
        """Return on every rank what rank 0 gives (``core.tree_file``); what the others give is not looked at."""

    def regroup(self) -> None:
        """Go on with those that are left, after a LostRankError: all of them call this."""


class SingleRank:
    """A run of one rank."""

    rank = 0
    present: tuple[int, ...] = (0,)
    count = 1

    def total(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x[None]

    def gather_notes(self, note: Any) -> list[Any]:
        return [note]

    def from_first(self, tree: Tree) -> Tree:
        return tree

    def regroup(self) -> None:
        """Do nothing: there is nobody else."""


# -- what a training step shares --------------------------------------------------------------------


@torch.no_grad()
def share_gradients(ranks: Ranks, model: nn.Module, metrics: Tensor, rows: Tensor) -> Tensor:
    """Turn own gradients into those of the whole minibatch, and return the whole minibatch's metrics.

    Own gradients and ``metrics`` ``[n]`` are means over this rank's ``rows`` that count; shared ones are means over
    the rows of all ranks, wherever they lie. One message each: gradients travel as one flat vector.
    """
    if ranks.count == 1:
        return metrics
    own = rows.to(metrics)
    sums = ranks.total(torch.cat([metrics * own, own[None]]))
    rows_of_all = sums[-1].clamp(min=1)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    flat = ranks.total(flat.mul_((own / rows_of_all).to(flat.dtype)))
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
    return sums[:-1] / rows_of_all


@contextlib.contextmanager
def shared_moments(ranks: Ranks, module: nn.Module) -> Iterator[None]:
    """Let the running moments inside ``module`` take in what *all* ranks show theirs within this context.

    Before it they are equal on all ranks, inside each rank updates its own, after it they are equal again; and as
    they were before it where a rank is lost meanwhile.
    """
    found = [m for m in module.modules() if isinstance(m, RunningMoments)] if ranks.count > 1 else []
    before = [(m.count.clone(), m.mean.clone(), m.var.clone()) for m in found]
    try:
        yield
        if found:
            with torch.no_grad():
                _merge_moments(ranks, found, before)
    except LostRankError:
        for m, moments in zip(found, before, strict=True):
            m.set(*moments)
        raise


def _merge_moments(ranks: Ranks, found: list[RunningMoments], before: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Add what each rank's moments took in since ``before`` to those of all ranks.

    Each rank's gain over ``before`` is a sum over its new rows (about the old mean): gains add up.
    """
    gains = []
    for m, (count, mean, var) in zip(found, before, strict=True):
        shift = m.mean - mean
        gains += [m.count - count, m.count * shift, m.count * (m.var + shift.square()) - count * var]
    flat = ranks.total(torch.cat([gain.reshape(-1) for gain in gains]))
    parts = iter(torch.split(flat, [gain.numel() for gain in gains]))
    for m, (count, mean, var) in zip(found, before, strict=True):
        added, first, second = next(parts).view_as(count), next(parts).view_as(mean), next(parts).view_as(var)
        total = count + added
        shift = first / total.clamp(min=1)
        spread = (count * var + second) / total.clamp(min=1) - shift.square()
        m.set(total, mean + shift, torch.where(total > 0, spread, var))


@torch.no_grad()
def shared_mean_and_deviation(ranks: Ranks, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and deviation (float64) of ``x`` over the rows of all ranks where ``mask`` is True."""
    x = torch.where(mask, x, 0.0).double()
    count = mask.sum().double()
    mean = x.sum() / count.clamp(min=1)
    square = torch.where(mask, x - mean, 0.0).square().sum()
    counts, means, squares = ranks.gather(torch.stack([count, mean, square])).unbind(1)
    total = counts.sum().clamp(min=1)
    middle = (counts * means).sum() / total
    spread = (squares + counts * (means - middle).square()).sum()
    return middle, (spread / total).sqrt()


@torch.no_grad()
def require_equal(ranks: Ranks, model: nn.Module, where: str) -> None:
    """Raise RankError, which names the first that differs, unless all ranks hold the same weights and buffers.

    They must be the same bit for bit.
    """
    if ranks.count == 1:
        return
    names, tensors = zip(*model.state_dict().items(), strict=True)
    sums = ranks.gather(torch.stack([_checksum(x) for x in tensors]))
    for rank, other in zip(ranks.present[1:], sums[1:], strict=True):
        differs = (other != sums[0]).nonzero().flatten().tolist()
        if differs:
            raise RankError(
                f"the learners have drifted apart: at {where} rank {rank} has another {names[differs[0]]} than rank 0 "
                f"({len(differs)} of {len(names)} tensors differ). Something a training step depends on differs "
                "between the ranks (their GPUs or libraries, or code of your own); resume from the last checkpoint "
                "with learning.ranks=1 to go on"
            )


def _checksum(x: Tensor) -> Tensor:
    """Return the bits of a tensor, added up as integers."""
    whole = {4: torch.int32, 8: torch.int64}.get(x.element_size(), torch.uint8)
    bits = x.contiguous().view(-1).view(whole).long()
    places = torch.arange(1, bits.numel() + 1, device=bits.device)
    return (bits * places).sum()  # overflow wraps around, on every rank alike


def rows_and_lag(ranks: Ranks, lag: Tensor, valid: Tensor) -> tuple[float, float, float]:
    """Return (rows that count, their mean lag, their largest lag) over all ranks."""
    lag = torch.where(valid, lag, 0)
    own = torch.stack([valid.sum(), lag.sum(), lag.max()]).double()
    rows, sums, largest = ranks.gather(own).unbind(1)
    count = float(rows.sum())
    return count, float(sums.sum()) / count if count else 0.0, float(largest.max())
