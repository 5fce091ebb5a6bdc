"""Returns-to-go: what an episode still brings from each of its steps on."""

from __future__ import annotations

import itertools
import math
import mmap
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array


class RewardSource(Protocol):
    def rewards(self, i: int) -> Array: ...


def sums_to(rewards: Array, total: float) -> bool:
    """Return whether rewards ``[n]`` add up to a return: float64 sums in another order, exact up to rounding."""
    with np.errstate(invalid="ignore", over="ignore"):  # damaged ones may be anything
        found = float(rewards.sum(dtype=np.float64))
        size = float(np.abs(rewards).sum(dtype=np.float64))
    if found == total or (math.isnan(found) and math.isnan(total)):
        return True
    return math.isfinite(size) and abs(found - total) <= 1e-9 * max(size, 1e-30)


def returns_to_go(rewards: ArrayLike, gamma: float = 1.0) -> Array:
    """Return ``[n]`` float64: reward t + gamma x reward t + 1 + gamma^2 x ..., up to the last stored reward."""
    backwards = np.asarray(rewards, np.float64)[::-1]
    if gamma == 1.0:
        return np.cumsum(backwards)[::-1]
    sums = itertools.accumulate(backwards.tolist(), lambda later, reward: reward + gamma * later)
    return np.fromiter(sums, np.float64, len(backwards))[::-1]


class ReturnsToGo:
    """Returns-to-go of many episodes, computed from an episode's rewards when first asked for and kept.

    They take 4 bytes per step, in memory that forked worker processes share: what one of them has computed, no
    other computes again. NaN says "not computed yet", number by number, so no lock is needed.
    """

    def __init__(self, source: RewardSource, lengths: Array, gamma: float) -> None:
        if not 0 <= gamma <= 1:
            raise ConfigError(f"gamma {gamma} must lie between 0 and 1")
        self.gamma = gamma
        self._source = source
        self._first = np.concatenate([[0], np.cumsum(lengths)])
        self._values = _shared_nans(int(self._first[-1]))

    def fill(self, position: int, i: int, start: int, stop: int, out: Array) -> None:
        """Write steps ``start`` .. ``stop`` of episode ``i`` into ``out``; ``position`` is its place in ``lengths``."""
        first = int(self._first[position])
        out[...] = self._values[first + start : first + stop]
        if np.isnan(out).any():
            self.learn(position, self._source.rewards(i))
            out[...] = self._values[first + start : first + stop]

    def learn(self, position: int, rewards: Array) -> None:
        """Take the rewards ``[n]`` of a whole episode, from somebody who has read them anyway."""
        first, last = int(self._first[position]), int(self._first[position + 1])
        self._values[first:last] = returns_to_go(rewards, self.gamma)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_values"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._values = _shared_nans(int(self._first[-1]))


def _shared_nans(count: int) -> Array:
    values: Array = np.frombuffer(mmap.mmap(-1, max(4 * count, 1)), np.float32, count)
    values[:] = np.nan
    return values
