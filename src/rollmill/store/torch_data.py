"""Views of a store as PyTorch datasets. The one module of the store that imports torch.

Map-style, any order, exact with several ranks::

    data = ViewDataset(Windows(source, 32))
    order = Batches(data.view, 64, seed=1, rank=rank, world=world)
    loader = DataLoader(data, sampler=order, batch_size=None, num_workers=4)     # order.set_epoch(k) before epoch k

Streams, faster from compressed data, shared out over ranks and worker processes::

    stream = WindowStream(Windows(source, 32), 64, seed=1, rank=rank, world=world)
    loader = DataLoader(stream, batch_size=None, num_workers=4)                  # stream.set_epoch(k) before epoch k

Batches are dicts of tensors ``[B, ...]`` under the names of the view's columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from rollmill.core.errors import ConfigError
from rollmill.core.seeds import Seeds
from rollmill.store.shuffle import Shuffle
from rollmill.store.streams import Order, stream_observations, stream_transitions, stream_windows
from rollmill.store.views import Batch, Observations, Transitions, Weights, Windows

Tensors: TypeAlias = dict[str, torch.Tensor]


class ViewDataset(Dataset[Tensors]):
    """Windows or transitions by index: ``data[3]`` is one, ``data[[3, 4]]`` a batch ``[2, ...]``."""

    def __init__(self, view: Windows | Transitions) -> None:
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, index: int | Sequence[int]) -> Tensors:
        if isinstance(index, (int, np.integer)):
            return tensors(self.view[int(index)])
        return tensors(self.view.batch(index))

    def __getitems__(self, indices: Sequence[int]) -> list[Tensors]:
        """Return the entries that a DataLoader with a ``batch_size`` asks for: read together, handed out one by one."""
        batch = self[indices]
        return [{name: array[row] for name, array in batch.items()} for row in range(len(indices))]


class Batches(Sampler[list[int]]):
    """Lists of ``batch_size`` indices for ``ViewDataset``, in an order that follows from seed and epoch alone.

    Without ``weights`` an epoch has every index once, in random order (``shuffle``) or ascending. With several ranks
    each gets every ``world``-th; all get equally many batches: the first few indices are repeated to make up the
    numbers, or, with ``drop_last``, the last few left out. With ``weights`` and ``as_played`` (see ``Windows.sample``)
    indices are drawn with replacement.
    """

    def __init__(
        self,
        view: Windows | Transitions,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        weights: Weights | None = None,
        as_played: bool = False,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size {batch_size} must be at least 1")
        if weights is not None and not shuffle:
            raise ConfigError("drawing by weights is random: shuffle=False contradicts it")
        if as_played and weights is None:
            raise ConfigError("as_played draws by weights: say which (weights=windows, length or episodes)")
        self.view = view
        self.batch_size = batch_size
        self.weights: Weights | None = weights
        self.as_played = as_played
        self.drop_last = drop_last
        self._order = Order(seed, 0, (rank, world), shuffle)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self._order = Order(self._order.seed, epoch, self._order.part, self._order.shuffle)

    def __len__(self) -> int:
        """Return the number of batches of one pass, the same on every rank."""
        count = self._per_rank()
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order, count = self._order, self._per_rank()
        rank, world = order.part
        seeds = Seeds(order.seed).branch("batches", order.epoch)
        shuffle, rng = Shuffle(len(self.view), seeds), seeds.branch(rank).generator()
        for first in range(0, len(self) * self.batch_size, self.batch_size):
            size = min(self.batch_size, count - first)
            if self.weights is not None:
                yield self.view.sample(size, rng, self.weights, self.as_played).tolist()
                continue
            places = (rank + world * np.arange(first, first + size)) % len(self.view)
            yield (shuffle(places) if order.shuffle else places).tolist()

    def _per_rank(self) -> int:
        world = self._order.part[1]
        return len(self.view) // world if self.drop_last else -(-len(self.view) // world)


class _Stream(IterableDataset[Tensors]):
    """Batches of a stream; each worker process of each rank takes its part. Ranks differ a little in their number of
    batches: train by steps with ``repeat``, or use ``Batches`` where ranks must stay in step.
    """

    def __init__(self, seed: int, rank: int, world: int, shuffle: bool, repeat: bool) -> None:
        self._base = Order(seed, 0, (rank, world), shuffle)
        self.repeat = repeat
        # Shared with worker processes that stay alive between epochs.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Tensors]:
        epoch = int(self._epoch.item())
        while True:
            batches = 0
            for batch in self._batches(self.order(epoch)):
                batches += 1
                yield tensors(batch)
            if not self.repeat or not batches:
                return
            epoch += 1

    def order(self, epoch: int) -> Order:
        """Return what this process reads in an epoch: its worker's part of its rank's part."""
        (rank, world), worker = self._base.part, get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Order(self._base.seed, epoch, (rank * workers + number, world * workers), self._base.shuffle)

    def _batches(self, order: Order) -> Iterator[Batch]:
        raise NotImplementedError


class WindowStream(_Stream):
    """Batches of windows (or transitions) through ``stream_windows``; with ``repeat`` epoch after epoch without end.

    ``pool_bytes`` are taken in every worker process.
    """

    def __init__(
        self,
        view: Windows | Transitions,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        repeat: bool = False,
        pool_bytes: int = 128 << 20,
        drop_last: bool = False,
    ) -> None:
        super().__init__(seed, rank, world, shuffle, repeat)
        self.view = view
        self.batch_size = batch_size
        self._options: dict[str, Any] = {"pool_bytes": pool_bytes, "drop_last": drop_last}

    def _batches(self, order: Order) -> Iterator[Batch]:
        if isinstance(self.view, Transitions):
            return stream_transitions(self.view, self.batch_size, order, **self._options)
        return stream_windows(self.view, self.batch_size, order, **self._options)


class ObservationStream(_Stream):
    """Batches of random observations through ``stream_observations``, ``per_episode`` from every episode per epoch.

    ``buffer`` observations are held in every worker process.
    """

    def __init__(
        self,
        view: Observations,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        repeat: bool = False,
        buffer: int = 4096,
        drop_last: bool = False,
    ) -> None:
        super().__init__(seed, rank, world, shuffle, repeat)
        self.view = view
        self.batch_size = batch_size
        self._options: dict[str, Any] = {"buffer": buffer, "drop_last": drop_last}

    def _batches(self, order: Order) -> Iterator[Batch]:
        return stream_observations(self.view, self.batch_size, order, **self._options)


def tensors(batch: Batch) -> Tensors:
    """Return the arrays as tensors that share their memory; single numbers become tensors of shape ``()``."""
    return {name: torch.as_tensor(array) for name, array in batch.items()}
