"""Ways to look at the episodes of a store: windows, transitions, whole episodes, single observations.

Words
-----
source    what views read from: a ``Store``, or a ``DecodedCache`` in front of one.
window    up to K consecutive steps of one episode, from ``start`` on.
padding   rows of zeros that fill a short window up to K; ``mask`` is False there.

A view has a length and is indexed like a sequence; ``batch`` reads many entries at once into arrays ``[B, ...]``.
It covers the episodes that were there when it was made. ``store.streams`` goes through views in random order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.store.episode import Episode
from rollmill.store.format.schema import DERIVED, StoreSchema
from rollmill.store.returns import ReturnsToGo
from rollmill.store.table import EpisodeTable

Batch: TypeAlias = dict[str, Array]
Weights: TypeAlias = Literal["windows", "length", "episodes"]

RETURNS = "returns_to_go"
MASK = "mask"
NEXT = "next_"


class Source(Protocol):
    """What views need of a ``Store`` or a ``DecodedCache``."""

    @property
    def schema(self) -> StoreSchema: ...

    @property
    def table(self) -> EpisodeTable: ...

    def read(
        self,
        i: int,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        *,
        out: Mapping[str, Array] | None = None,
        next_obs: bool = False,
    ) -> dict[str, Array]: ...

    def rewards(self, i: int) -> Array: ...

    def episode(self, i: int, columns: Sequence[str] | None = None) -> Episode: ...


class Windows:
    """Cuts episodes into windows of ``length`` steps, one for every ``stride``-th step of every episode.

    A batch holds, for B windows of K steps:

    =================  ===========================================================================
    every column       ``[B, K, ...]``; observations ``[B, K + 1, ...]`` with ``next_obs``
    ``returns_to_go``  ``[B, K]`` float32, from the rewards up to the episode's end (``gamma=None``: left out)
    ``mask``           ``[B, K]`` bool, True where a step is real
    =================  ===========================================================================

    ``columns``: stored ones, and ``step`` (number of the step in its episode), ``terminated``, ``truncated``. Default:
    observations, action, reward, step, terminated, truncated.
    ``overhang``: windows also begin at the last K - 1 steps and are padded; without it only episodes shorter than K
    are padded (one window each). ``pad``: where the padding goes. Decision Transformers use ``pad="left"``.

    The returns-to-go of an episode whose end was not recorded lack what came after; ``Filter(partial=False)`` leaves
    such episodes out.
    """

    def __init__(
        self,
        source: Source,
        length: int,
        *,
        episodes: ArrayLike | None = None,
        columns: Sequence[str] | None = None,
        stride: int = 1,
        overhang: bool = True,
        pad: Literal["left", "right"] = "right",
        next_obs: bool = False,
        gamma: float | None = 1.0,
    ) -> None:
        if length < 1 or stride < 1:
            raise ConfigError(f"windows: length {length} and stride {stride} must be at least 1")
        if pad not in ("left", "right"):
            raise ConfigError(f"windows: pad {pad!r} must be 'left' or 'right'")
        self.source = source
        self.length = length
        self.stride = stride
        self.pad = pad
        self.next_obs = next_obs
        self.episodes = episode_numbers(source, episodes)
        self.lengths = np.asarray(source.table.length[self.episodes])
        self.columns = _check_columns(source.schema, columns)
        last_start = self.lengths - 1 if overhang else np.maximum(self.lengths - length, 0)
        self.counts = last_start // stride + 1
        """Windows of each episode."""
        self.first = np.concatenate([[0], np.cumsum(self.counts)])
        """Index of each episode's first window; the number of all at the end."""
        self.returns = None if gamma is None else ReturnsToGo(source, self.lengths, gamma)

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, index: int) -> Batch:
        """Read one window, without the batch axis."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} windows, no number {index}")
        return {name: array[0] for name, array in self.batch([index % len(self)]).items()}

    def where(self, indices: ArrayLike) -> tuple[Array, Array]:
        """Return position in ``episodes`` and first step of windows ``[B]``."""
        wanted = np.asarray(indices, np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"windows {wanted.min()}..{wanted.max()} of {len(self)}")
        positions = np.searchsorted(self.first, wanted, side="right") - 1
        return positions, (wanted - self.first[positions]) * self.stride

    def batch(self, indices: ArrayLike, out: Mapping[str, Array] | None = None) -> Batch:
        """Read windows ``[B]``; ``out`` are arrays of an earlier batch or of ``empty`` to fill again."""
        positions, starts = self.where(indices)
        arrays = self.arrays(len(positions), out)
        # In the order in which they lie on disk: neighbours share blocks.
        for row in np.lexsort((starts, positions)).tolist():
            position, start = int(positions[row]), int(starts[row])
            i, count = int(self.episodes[position]), self._count(position, start)
            here = self._rows(arrays, row, count)
            self.source.read(i, start, start + count, self.columns, out=here, next_obs=self.next_obs)
            self._finish(arrays, row, position, start, count)
        return arrays

    def take(self, loaded: Mapping[str, Array], origin: int, position: int, start: int, out: Batch, row: int) -> None:
        """Put the window at ``start`` into row ``row`` of ``out``; ``loaded`` is its episode from ``origin`` on."""
        count = self._count(position, start)
        for name, target in self._rows(out, row, count).items():
            target[...] = loaded[name][start - origin : start - origin + len(target)]
        self._finish(out, row, position, start, count)

    def arrays(self, count: int, out: Mapping[str, Array] | None = None) -> Batch:
        """Return arrays to fill with ``count`` windows: new ones, or the first rows of ``out``."""
        return self.empty(count) if out is None else _first_rows(out, self.empty(0), count)

    def empty(self, count: int) -> Batch:
        """Return new arrays for ``count`` windows."""
        arrays: Batch = {}
        for name in self.columns:
            if name in DERIVED:
                arrays[name] = np.empty((count, self.length), np.int64 if name == "step" else np.bool_)
            else:
                column = self.source.schema[name]
                arrays[name] = np.empty((count, self._rows_of(name, self.length), *column.shape), column.numpy)
        if self.returns is not None:
            arrays[RETURNS] = np.empty((count, self.length), np.float32)
        arrays[MASK] = np.empty((count, self.length), np.bool_)
        return arrays

    def nbytes(self, count: int) -> int:
        """Return the bytes that ``count`` windows take."""
        return sum(count * math.prod(array.shape[1:]) * array.itemsize for array in self.empty(0).values())

    def sample(
        self, count: int, rng: np.random.Generator, weights: Weights = "windows", as_played: bool = False
    ) -> Array:
        """Draw ``[count]`` random indices, with replacement.

        ``weights``: every window is as likely (``windows``), or an episode is drawn first, by its length (``length``,
        as Decision Transformers do) or each as likely (``episodes``), and then one of its windows.
        ``as_played``: as if from all episodes that were played: those that were less likely to be kept are drawn more
        often (``episode_weights``).
        """
        if len(self) == 0:
            raise StoreError("there are no windows to draw from: no episode was selected")
        if weights not in get_args(Weights):
            raise ConfigError(f"windows: weights {weights!r} must be 'windows', 'length' or 'episodes'")
        if weights == "windows" and not as_played:
            return rng.integers(0, len(self), count)
        shares = {"windows": self.counts, "length": self.lengths, "episodes": np.ones(len(self.episodes), np.int64)}
        if as_played:
            ends = np.cumsum(shares[weights] * episode_weights(self.source, self.episodes))
            drawn = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
        else:
            ends = np.cumsum(shares[weights])
            drawn = np.searchsorted(ends, rng.integers(0, ends[-1], count), side="right")
        return np.asarray(self.first[drawn] + rng.integers(0, self.counts[drawn]))

    def _count(self, position: int, start: int) -> int:
        """Return the number of real steps of the window."""
        return min(self.length, int(self.lengths[position]) - start)

    def _rows_of(self, name: str, steps: int) -> int:
        return steps + (self.next_obs and name not in DERIVED and self.source.schema[name].per == "obs")

    def _rows(self, arrays: Mapping[str, Array], row: int, count: int) -> Batch:
        """Return where the real rows of a window go; sets the others to zero."""
        skip = self.length - count if self.pad == "left" else 0
        found = {}
        for name in self.columns:
            target = arrays[name][row]
            if count < self.length:
                padding = target[:skip] if skip else target[self._rows_of(name, count) :]
                padding[...] = 0
            found[name] = target[skip : skip + self._rows_of(name, count)]
        return found

    def _finish(self, arrays: Mapping[str, Array], row: int, position: int, start: int, count: int) -> None:
        """Fill in mask and returns-to-go of a window."""
        skip = self.length - count if self.pad == "left" else 0
        real = slice(skip, skip + count)
        arrays[MASK][row] = False
        arrays[MASK][row, real] = True
        if self.returns is not None:
            arrays[RETURNS][row] = 0
            i = int(self.episodes[position])
            self.returns.fill(position, i, start, start + count, arrays[RETURNS][row, real])


class Transitions:
    """Gives single steps with the observation they led to: ``obs:*``, ``action``, ``reward``, ``terminated``,
    ``truncated`` and ``next_obs:*``, each ``[B, ...]``. ``columns`` replaces these; observation columns come with their
    next.
    """

    def __init__(
        self, source: Source, *, episodes: ArrayLike | None = None, columns: Sequence[str] | None = None
    ) -> None:
        wanted = [n for n in _check_columns(source.schema, columns) if columns is not None or n != "step"]
        self.windows = Windows(source, 1, episodes=episodes, columns=wanted, next_obs=True, gamma=None)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Batch:
        return self._split({name: array[None] for name, array in self.windows[index].items()}, 0)

    def batch(self, indices: ArrayLike, out: Mapping[str, Array] | None = None) -> Batch:
        """Read transitions ``[B]``; ``out`` comes from ``empty``. Observations and the next are views of one array."""
        return self._split(self.windows.batch(indices, out))

    def empty(self, count: int) -> Batch:
        """Return arrays for ``batch`` to fill: ``[count, 1, ...]``, observations ``[count, 2, ...]``."""
        return self.windows.empty(count)

    def sample(
        self, count: int, rng: np.random.Generator, weights: Weights = "windows", as_played: bool = False
    ) -> Array:
        """Draw ``[count]`` random indices, as ``Windows.sample`` does."""
        return self.windows.sample(count, rng, weights, as_played)

    def _split(self, pairs: Batch, row: int | None = None) -> Batch:
        return split_transitions(self.windows, pairs, row)


class Episodes:
    """Gives whole episodes, ``[n, ...]`` per column, observations ``[n + 1, ...]``."""

    def __init__(
        self, source: Source, *, episodes: ArrayLike | None = None, columns: Sequence[str] | None = None
    ) -> None:
        self.source = source
        self.episodes = episode_numbers(source, episodes)
        self.columns = columns
        for name in columns or ():
            if name not in DERIVED:
                _ = source.schema[name]

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, index: int) -> Episode:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} episodes, no number {index}")
        return self.source.episode(int(self.episodes[index]), self.columns)

    def __iter__(self) -> Iterator[Episode]:
        return (self[index] for index in range(len(self)))


class Observations:
    """``per_episode`` random observations of an episode per read (all of a shorter one), for encoders and the like.

    ``columns``: columns with a row per observation, by default all observations. The final one takes part.
    """

    def __init__(
        self,
        source: Source,
        *,
        per_episode: int = 100,
        episodes: ArrayLike | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        if per_episode < 1:
            raise ConfigError(f"observations: per_episode {per_episode} must be at least 1")
        self.source = source
        self.per_episode = per_episode
        self.episodes = episode_numbers(source, episodes)
        self.columns = list(columns) if columns is not None else _observations(source.schema)
        for name in self.columns:
            if name in DERIVED or source.schema[name].per != "obs":
                raise StoreError(f"observations: column {name!r} has a row per step, not per observation")

    def __len__(self) -> int:
        """Return the number of observations of one pass over the episodes."""
        return int(np.minimum(self.source.table.length[self.episodes] + 1, self.per_episode).sum())

    def read(self, position: int, rng: np.random.Generator) -> Batch:
        """Return ``[per_episode, ...]`` different observations of the episode at ``position``, in the order of time."""
        i = int(self.episodes[position])
        rows = int(self.source.table.length[i]) + 1
        picked = np.sort(rng.choice(rows, min(rows, self.per_episode), replace=False))
        return observation_rows(self.source, i, picked, self.columns)


def observation_rows(source: Source, i: int, rows: Array, columns: Sequence[str]) -> Batch:
    """Read observations ``rows`` (ascending, 0 .. n) of episode ``i``; every block that holds some is decoded once."""
    found = {name: np.empty((len(rows), *source.schema[name].shape), source.schema[name].numpy) for name in columns}
    block, n = int(source.table["block"][i]), int(source.table.length[i])
    # The final observation lies in the last block, behind its steps.
    numbers = np.minimum(rows, n - 1) // block
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
    for low, high in itertools.pairwise(edges):
        if low == high:
            continue
        first, last = int(rows[low]), int(rows[high - 1])
        part = source.read(i, first, last, columns, next_obs=True)
        for name, array in part.items():
            np.take(array, rows[low:high] - first, axis=0, out=found[name][low:high], mode="clip")
    return found


def split_transitions(windows: Windows, pairs: Batch, row: int | None = None) -> Batch:
    """Turn windows of one step, ``[B, 1, ...]`` and ``[B, 2, ...]``, into transitions ``[B, ...]`` (of one row:
    ``[...]``).
    """
    where: tuple[slice | int, ...] = (slice(None) if row is None else row,)
    found = {}
    for name in windows.columns:
        found[name] = pairs[name][(*where, 0)]
        if name not in DERIVED and windows.source.schema[name].per == "obs":
            found[NEXT + name] = pairs[name][(*where, 1)]
    return found


def episode_numbers(source: Source, episodes: ArrayLike | None) -> Array:
    """Return the selected episodes as int64 numbers; all without a selection."""
    count = len(source.table)
    if episodes is None:
        return np.arange(count)
    numbers = np.asarray(episodes)
    if numbers.size == 0:
        return np.zeros(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise StoreError(f"episodes must be a list of numbers, got {numbers.dtype} of shape {numbers.shape}")
    if numbers.min() < 0 or numbers.max() >= count:
        raise StoreError(f"episodes {numbers.min()}..{numbers.max()} of a store that has {count}")
    return numbers.astype(np.int64)


def episode_weights(source: Source, episodes: Array) -> Array:
    """Return ``[episodes]``: how many played episodes each one stands for, which is one over its probability of being
    kept.
    """
    probability = source.table["probability"][episodes]
    if np.isnan(probability).any():
        count = np.count_nonzero(np.isnan(probability))
        raise StoreError(
            f"{count:,} of {len(probability):,} episodes were not kept by chance (pieces, chosen by their return, or "
            "made elsewhere): there are no weights that make them like what was played"
        )
    return np.asarray(1 / probability)


def _observations(schema: StoreSchema) -> list[str]:
    return [column.name for column in schema.obs_columns if column.name.startswith("obs:")]


def _check_columns(schema: StoreSchema, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return [*_observations(schema), "action", "reward", *DERIVED]
    for name in columns:
        if name in (RETURNS, MASK):
            raise StoreError(f"a view computes {name!r} itself; a stored column of that name cannot be part of it")
        if name not in DERIVED:
            _ = schema[name]  # says which columns there are
    return list(dict.fromkeys(columns))


def _first_rows(out: Mapping[str, Array], like: Batch, count: int) -> Batch:
    """Check the arrays to fill and return their first ``count`` rows."""
    found = {}
    for name, array in like.items():
        if name not in out:
            raise StoreError(f"out lacks {name!r} (it needs {', '.join(like)})")
        given = out[name]
        fits = given.shape[1:] == array.shape[1:] and given.dtype == array.dtype and given.flags.c_contiguous
        if not fits or len(given) < count:
            shape = (count, *array.shape[1:])
            needed = f"a C-contiguous {array.dtype} {shape}"
            raise StoreError(f"out[{name!r}] is {given.dtype} {given.shape}; needed is {needed}")
        found[name] = given[:count]
    return found
