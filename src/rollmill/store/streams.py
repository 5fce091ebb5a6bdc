"""Going through a view in random order, fast: neighbouring data are read together and mixed in memory.

Words
-----
epoch     one pass: every window (transition, ...) once. Its order follows from seed, epoch and part alone.
part      (k, n): the k-th of n readers that share an epoch, e.g. worker processes and ranks. Each has a share of the
          stretches; together they see everything once. Shares differ a little in size.
stretch   the windows that begin within some hundred consecutive steps of one episode: what is decoded at a time.
pool      the stretches in memory. Windows are drawn from all of them, so a batch mixes that many places of the store.

Jumping to a random window decodes up to twice the rows it gives. A stream decodes a row about once for all the windows
it is part of.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.store.episode import Episode
from rollmill.store.shuffle import Shuffle
from rollmill.store.views import Batch, Episodes, Observations, Transitions, Windows, split_transitions

STRETCH_STEPS = 512
"""Steps of a stretch at most: bounds what one takes in memory, however long episodes are."""


@dataclass(frozen=True)
class Order:
    """Which random order to take, and which share of it."""

    seed: int = 0
    epoch: int = 0
    part: tuple[int, int] = (0, 1)
    shuffle: bool = True

    def __post_init__(self) -> None:
        k, n = self.part
        if not 0 <= k < n:
            raise ConfigError(f"part {self.part}: the first number counts from 0 and stays below the second")
        if self.seed < 0 or self.epoch < 0:
            raise ConfigError(f"seed {self.seed} and epoch {self.epoch} must not be negative")

    def share(self, count: int) -> Iterator[int]:
        """Yield this part's share of 0 .. count - 1, in its order."""
        shuffle = Shuffle(count, self._seeds.branch("order"))
        for first in range(self.part[0], count, self.part[1] * 1024):
            places = np.arange(first, min(first + self.part[1] * 1024, count), self.part[1])
            yield from (shuffle(places) if self.shuffle else places).tolist()

    def generator(self) -> np.random.Generator:
        """Return a random generator of this part's own."""
        return self._seeds.branch("part", *self.part).generator()

    @property
    def _seeds(self) -> Seeds:
        return Seeds(self.seed).branch("stream", self.epoch)


def stream_windows(
    windows: Windows,
    batch_size: int,
    order: Order | None = None,
    *,
    pool_bytes: int = 128 << 20,
    drop_last: bool = False,
    out: Mapping[str, Array] | None = None,
) -> Iterator[Batch]:
    """Yield batches ``[batch_size, K, ...]`` of all windows of this part, each once; the last batch may be shorter.

    ``pool_bytes``: decoded data to draw from. ``out``: arrays of ``windows.empty(batch_size)`` that every batch is
    written into; the one before is gone then. Without it every batch has memory of its own.
    """
    _check_batch_size(batch_size)
    picks = _mixed_windows(windows, order or Order(), pool_bytes)
    while some := list(itertools.islice(picks, batch_size)):
        if len(some) < batch_size and drop_last:
            return
        batch = windows.arrays(len(some), out)
        for row, (loaded, origin, position, start) in enumerate(some):
            windows.take(loaded, origin, position, start, batch, row)
        yield batch


def stream_transitions(
    transitions: Transitions,
    batch_size: int,
    order: Order | None = None,
    *,
    pool_bytes: int = 128 << 20,
    drop_last: bool = False,
    out: Mapping[str, Array] | None = None,
) -> Iterator[Batch]:
    """Return batches ``[batch_size, ...]`` of all transitions of this part, each once; see ``stream_windows``."""
    windows = transitions.windows
    batches = stream_windows(windows, batch_size, order, pool_bytes=pool_bytes, drop_last=drop_last, out=out)
    return (split_transitions(windows, batch) for batch in batches)


def stream_episodes(episodes: Episodes, order: Order | None = None) -> Iterator[Episode]:
    """Return all episodes of this part, each once."""
    return (episodes[index] for index in (order or Order()).share(len(episodes)))


def stream_observations(
    observations: Observations,
    batch_size: int,
    order: Order | None = None,
    *,
    buffer: int = 4096,
    drop_last: bool = False,
) -> Iterator[Batch]:
    """Return batches ``[batch_size, ...]`` of random observations, ``per_episode`` from every episode of this part.

    They pass through a shuffle buffer of ``buffer`` observations: a batch mixes that many, from ``buffer /
    per_episode`` episodes and more.
    """
    _check_batch_size(batch_size)
    if buffer < 1:
        raise ConfigError(f"the shuffle buffer must hold at least one observation, not {buffer}")
    order = order or Order()
    rng = order.generator()
    reads = (observations.read(position, rng) for position in order.share(len(observations.episodes)))
    return _in_batches(_buffered(reads, buffer, rng) if order.shuffle else reads, batch_size, drop_last)


def _mixed_windows(
    windows: Windows, order: Order, pool_bytes: int
) -> Iterator[tuple[Mapping[str, Array], int, int, int]]:
    """Yield all windows, mixed within a pool: (columns of a stretch, its first step, the episode's position, start)."""
    rng = order.generator()
    pool: list[tuple[Mapping[str, Array], int, int]] = []
    starts: list[Array] = []
    taken = 0
    for position, first, count in _stretches(windows, order):
        origin = first * windows.stride
        stop = min(int(windows.lengths[position]), (first + count - 1) * windows.stride + windows.length)
        i = int(windows.episodes[position])
        loaded = windows.source.read(i, origin, stop, windows.columns, next_obs=windows.next_obs)
        if windows.returns is not None and "reward" in loaded and stop - origin == windows.lengths[position]:
            windows.returns.learn(position, loaded["reward"])
        pool.append((loaded, origin, position))
        starts.append(origin + windows.stride * np.arange(count))
        taken += sum(array.nbytes for array in loaded.values())
        if taken >= pool_bytes:
            yield from _drain(pool, starts, rng if order.shuffle else None)
            pool, starts, taken = [], [], 0
    yield from _drain(pool, starts, rng if order.shuffle else None)


def _stretches(windows: Windows, order: Order) -> Iterator[tuple[int, int, int]]:
    """Yield every stretch of this part: (position of the episode, number of its first window here, windows)."""
    size = max(1, STRETCH_STEPS // windows.stride)
    last = np.cumsum((windows.counts + size - 1) // size)
    total = int(last[-1]) if len(last) else 0
    for number in order.share(total):
        position = int(np.searchsorted(last, number, side="right"))
        behind = int(last[position]) - number  # stretches of this episode from here on, this one included
        first = (int((windows.counts[position] + size - 1) // size) - behind) * size
        yield position, first, min(size, int(windows.counts[position]) - first)


def _drain(
    pool: list[tuple[Mapping[str, Array], int, int]], starts: list[Array], rng: np.random.Generator | None
) -> Iterator[tuple[Mapping[str, Array], int, int, int]]:
    if not pool:
        return
    owners = np.repeat(np.arange(len(pool)), [len(some) for some in starts])
    flat = np.concatenate(starts)
    turns = np.arange(len(flat)) if rng is None else rng.permutation(len(flat))
    for turn in turns.tolist():
        loaded, origin, position = pool[owners[turn]]
        yield loaded, origin, position, int(flat[turn])


def _buffered(reads: Iterator[Batch], size: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield the rows of all reads, each delayed by a random time in a buffer of ``size`` rows."""
    buffer: Batch = {}
    held = 0
    for rows in reads:
        count = len(next(iter(rows.values())))
        if not buffer:
            buffer = {name: np.empty((size, *array.shape[1:]), array.dtype) for name, array in rows.items()}
        done = min(count, size - held)
        for name, array in rows.items():
            buffer[name][held : held + done] = array[:done]
        held += done
        while done < count:
            part = min(count - done, size)
            places = rng.choice(size, part, replace=False)
            yield {name: array[places] for name, array in buffer.items()}
            for name, array in rows.items():
                buffer[name][places] = array[done : done + part]
            done += part
    turns = rng.permutation(held)
    for first in range(0, held, 256):
        yield {name: array[turns[first : first + 256]] for name, array in buffer.items()}


def _in_batches(pieces: Iterator[Batch], batch_size: int, drop_last: bool) -> Iterator[Batch]:
    """Cut rows that come in pieces of any size into batches."""
    batch: Batch = {}
    filled = 0
    for piece in pieces:
        done, count = 0, len(next(iter(piece.values())))
        while done < count:
            if not batch:
                batch = {name: np.empty((batch_size, *a.shape[1:]), a.dtype) for name, a in piece.items()}
            part = min(count - done, batch_size - filled)
            for name, array in piece.items():
                batch[name][filled : filled + part] = array[done : done + part]
            filled, done = filled + part, done + part
            if filled == batch_size:
                yield batch
                batch, filled = {}, 0
    if filled and not drop_last:
        yield {name: array[:filled] for name, array in batch.items()}


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch_size {batch_size} must be at least 1")
