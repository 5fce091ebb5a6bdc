"""A random order of 0 .. n - 1 that needs no memory: the place of every number is computed when asked for.

A list of all windows of a large store would take gigabytes, in every worker process. ``Shuffle`` is a Feistel network
(four rounds on the two halves of a number's bits): a one-to-one map of 0 .. 2**bits - 1. Results that are not below n
are mapped again until they are, which keeps it one-to-one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.store.split import mix

ROUNDS = 4


class Shuffle:
    """``shuffle(positions)`` are the numbers at these positions of the random order that ``seeds`` names."""

    def __init__(self, n: int, seeds: Seeds) -> None:
        self.n = n
        self._half = np.uint64(max(1, (max(n - 1, 1).bit_length() + 1) // 2))
        self._low = np.uint64((1 << int(self._half)) - 1)
        self._keys = seeds.generator().integers(0, 2**64, ROUNDS, dtype=np.uint64)

    def __call__(self, positions: ArrayLike) -> Array:
        """Return the numbers ``[k]`` int64 that stand at ``[k]`` positions (below ``n``) of the order."""
        given = np.atleast_1d(np.asarray(positions, np.int64))
        if len(given) and (given.min() < 0 or given.max() >= self.n):
            raise IndexError(f"positions {given.min()}..{given.max()} of an order of {self.n}")
        numbers = self._round_trip(given.astype(np.uint64))
        # At most four times as many numbers as there may be: a few rounds are enough.
        while len(beyond := np.flatnonzero(numbers >= np.uint64(self.n))):
            numbers[beyond] = self._round_trip(numbers[beyond])
        return numbers.astype(np.int64)

    def _round_trip(self, numbers: Array) -> Array:
        left, right = numbers >> self._half, numbers & self._low
        for key in self._keys:
            left, right = right, left ^ (mix(right ^ key) & self._low)
        mixed: Array = (left << self._half) | right
        return mixed
