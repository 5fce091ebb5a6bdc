"""Several learners that stay one: what the ranks of a run add up and agree on.

Words
-----
rank     one process with its own workers, its own policy and its own learner. Rank 0 is the run's main process.
own      what one rank has computed from its share of the batch.
shared   the same bits on every rank.

Every rank holds the same weights and computes gradients of its share of the batch. ``share_gradients`` turns
them into the gradients of the whole batch, so all optimizers take the same step. Whatever else steers a step must be
shared as well: running moments, the scale of advantages, and the metrics that stops and rates depend on.

``SingleRank`` is a run of one rank: nothing is sent, nothing is copied. ``TorchRanks`` talks through torch.distributed.
All ranks must make the same calls in the same order, each from its main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rollmill.core.errors import RankError
from rollmill.models.moments import RunningMoments

LONGEST_PAUSE = 5e-4
"""Seconds between two looks at a collective that is under way."""
WATCH_SECONDS = 0.2
NOTE_BYTES = 16_384
"""Notes up to this length go in one message; longer ones need a second."""


class Ranks(Protocol):
    """All ranks of a run, seen from one of them."""

    rank: int
    count: int

    def total(self, x: Tensor) -> Tensor:
        """Sum over all ranks, elementwise; shared. ``x`` may be changed."""

    def gather(self, x: Tensor) -> Tensor:
        """``[count, *x.shape]``: the tensors of all ranks in their order; shared."""

    def gather_notes(self, note: Any) -> list[Any]:
        """What every rank has to say (JSON values), in the order of ranks; shared."""

    def from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""


class SingleRank:
    """A run of one rank."""

    rank = 0
    count = 1

    def total(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x[None]

    def gather_notes(self, note: Any) -> list[Any]:
        return [note]

    def from_first(self, tensors: Iterable[Tensor]) -> None:
        """There is nobody else."""


class TorchRanks:
    """Ranks on one machine, by torch.distributed: gloo for CPU tensors; for GPUs NCCL, or gloo where they share one.

    They find each other through a file and talk over the loopback device only. Nobody waits without end: a
    collective is looked at again and again while ``watch`` is called, which may raise (rank 0 knows which
    processes live), signals are served meanwhile, and after ``timeout`` seconds it fails.
    """

    def __init__(self, rank: int, count: int, rendezvous: Path, timeout: float, cuda: str = "nccl") -> None:
        """``rendezvous``: a file, not there yet, whose folder all ranks see; ``cuda``: what moves GPU tensors."""
        self.rank, self.count = rank, count
        self.watch: Callable[[], None] | None = None
        self._file, self._timeout, self._cuda = rendezvous, timeout, cuda
        self._connected = False

    def connect(self, device: torch.device) -> None:
        """Return when all ranks have called this; they must be about to, for nobody watches while it waits."""
        if dist.is_initialized():
            raise RankError("torch.distributed is already in use in this process; learning.ranks needs it for itself")
        with _library_settings(), self._explained("connecting"):
            dist.init_process_group(
                "gloo" if device.type == "cpu" or self._cuda == "gloo" else f"cpu:gloo,cuda:{self._cuda}",
                store=dist.FileStore(str(self._file), self.count),  # type: ignore[attr-defined]
                rank=self.rank,
                world_size=self.count,
                timeout=timedelta(seconds=self._timeout),
            )
            self._connected = True
            dist.all_reduce(torch.zeros(1, device=device))  # NCCL connects, and reads its settings, only now

    def close(self, abandon: bool = False) -> None:
        """Leave, as agreed with the others; or ``abandon`` what is under way, after the others were ended."""
        if not self._connected:
            return
        self._connected = False
        if abandon and self._cuda == "nccl":
            # A kernel that waits for a dead rank would keep the GPU; there is no public way to end it yet.
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()

    # -- collectives ---------------------------------------------------------------------------

    def total(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._do("adding up", lambda: dist.all_reduce(x, async_op=True))
        return x

    def gather(self, x: Tensor) -> Tensor:
        own = x.detach().cpu().contiguous()  # small things that are looked at by the host anyway
        parts = [torch.empty_like(own) for _ in range(self.count)]
        self._do("gathering", lambda: dist.all_gather(parts, own, async_op=True))
        return torch.stack(parts).to(x.device)

    def from_first(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            same = tensor.contiguous()
            self._do("handing out weights", partial(dist.broadcast, same, src=0, async_op=True))
            if same is not tensor:
                tensor.copy_(same)

    def gather_notes(self, note: Any) -> list[Any]:
        text = json.dumps(note).encode()
        heads = self.gather(_padded(len(text).to_bytes(8, "little") + text, NOTE_BYTES))
        lengths = [int.from_bytes(head[:8].numpy().tobytes(), "little") for head in heads]
        if max(lengths) > NOTE_BYTES - 8:
            bodies = self.gather(_padded(text, max(lengths)))
        else:
            bodies = heads[:, 8:]
        # Not a pickle: what comes from a socket must not be able to run code.
        return [json.loads(body[:length].numpy().tobytes()) for body, length in zip(bodies, lengths, strict=True)]

    # -- waiting -------------------------------------------------------------------------------

    def _do(self, what: str, begin: Callable[[], Any]) -> None:
        with self._explained(what):
            work = begin()
            self._await(work)
            work.wait()  # raises what went wrong; on a GPU, makes the current stream wait

    def _await(self, work: Any) -> None:
        """Sleep until it is done. A blocking wait would keep signals, and the news of a dead rank, from being heard."""
        pause = 2e-5
        begun = time.monotonic()
        next_look = begun + WATCH_SECONDS
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            now = time.monotonic()
            if self.watch is not None and now > next_look:
                self.watch()
                next_look = now + WATCH_SECONDS
            if now > begun + self._timeout:
                raise RuntimeError(f"no answer within {self._timeout:g} s (learning.rank_timeout)")

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed has no errors of its own for this
            self._look_for_the_dead()
            raise RankError(f"rank {self.rank} has lost the other ranks while {what}: {_first_line(error)}") from error

    def _look_for_the_dead(self, seconds: float = 3.0) -> None:
        """A connection breaks a moment before the process behind it is gone: let ``watch`` say who it was."""
        deadline = time.monotonic() + seconds
        while self.watch is not None and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.05)


@contextlib.contextmanager
def _library_settings() -> Iterator[None]:
    """Ranks live on one machine: nothing listens on its network. What the user has set is left alone."""
    before = dict(os.environ)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo0" if sys.platform == "darwin" else "lo")
    # By default NCCL's watchdog ends the whole process when a rank is lost; we end the run in order.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _padded(data: bytes, size: int) -> Tensor:
    return torch.frombuffer(bytearray(data[:size].ljust(size, b"\0")), dtype=torch.uint8)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


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
    """Running moments inside ``module`` take in what *all* ranks show theirs within this context.

    Before it they are equal on all ranks, inside each rank updates its own, after it they are equal again.
    """
    found = [m for m in module.modules() if isinstance(m, RunningMoments)] if ranks.count > 1 else []
    before = [(m.count.clone(), m.mean.clone(), m.var.clone()) for m in found]
    yield
    if found:
        with torch.no_grad():
            _merge_moments(ranks, found, before)


def _merge_moments(ranks: Ranks, found: list[RunningMoments], before: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Each rank's gain over ``before`` is a sum over its new rows (about the old mean): gains add up."""
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
    """Mean and deviation (float64) of ``x`` over the rows of all ranks where ``mask`` is True."""
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
    """RankError unless all ranks hold the same weights and buffers, bit for bit; it names the first that differs."""
    if ranks.count == 1:
        return
    names, tensors = zip(*model.state_dict().items(), strict=True)
    sums = ranks.gather(torch.stack([_checksum(x) for x in tensors]))
    for rank, other in enumerate(sums[1:], start=1):
        differs = (other != sums[0]).nonzero().flatten().tolist()
        if differs:
            raise RankError(
                f"the learners have drifted apart: at {where} rank {rank} has another {names[differs[0]]} than rank 0 "
                f"({len(differs)} of {len(names)} tensors differ). Something a training step depends on differs "
                "between the ranks (their GPUs or libraries, or code of your own); resume from the last checkpoint "
                "with learning.ranks=1 to go on"
            )


def _checksum(x: Tensor) -> Tensor:
    """The bits of a tensor, added up as integers."""
    whole = {4: torch.int32, 8: torch.int64}.get(x.element_size(), torch.uint8)
    bits = x.contiguous().view(-1).view(whole).long()
    places = torch.arange(1, bits.numel() + 1, device=bits.device)
    return (bits * places).sum()  # overflow wraps around, on every rank alike


def rows_and_lag(ranks: Ranks, lag: Tensor, valid: Tensor) -> tuple[float, float, float]:
    """(rows that count, their mean lag, their largest lag) over all ranks."""
    lag = torch.where(valid, lag, 0)
    own = torch.stack([valid.sum(), lag.sum(), lag.max()]).double()
    rows, sums, largest = ranks.gather(own).unbind(1)
    count = float(rows.sum())
    return count, float(sums.sum()) / count if count else 0.0, float(largest.max())
