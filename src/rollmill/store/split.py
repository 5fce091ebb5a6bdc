"""Tells training and validation episodes apart by a hash of the episode's uid.

The side an episode is on depends on its uid and the seed alone: it stays there when the store grows, is merged,
repaired or filtered, on every machine. A larger validation share keeps all validation episodes of a smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.store.table import EpisodeTable


@dataclass(frozen=True)
class Split:
    """About ``validation`` (0..1) of all episodes are for validation."""

    validation: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.validation <= 1:
            raise ConfigError(f"split: the validation share {self.validation} must lie between 0 and 1")
        if self.seed < 0:
            raise ConfigError(f"split: the seed {self.seed} must not be negative")

    def is_validation(self, uids: ArrayLike) -> Array:
        """Return ``[n]`` bool for uids ``[n]``."""
        return position(uids, self.seed) < self.validation

    def __call__(self, table: EpisodeTable, episodes: ArrayLike | None = None) -> tuple[Array, Array]:
        """Return the numbers of the training and of the validation episodes, of all or of ``episodes`` (e.g. a
        filter's).
        """
        numbers = np.arange(len(table)) if episodes is None else np.asarray(episodes, np.int64)
        held_out = self.is_validation(table.uid[numbers])
        return numbers[~held_out], numbers[held_out]


def position(uids: ArrayLike, seed: int) -> Array:
    """Return a number in [0, 1) for every uid, float64: the upper 53 bits of a hash of both."""
    start = mix(np.uint64(seed % 2**64))
    return (mix(np.asarray(uids, np.uint64) ^ start) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def mix(values: ArrayLike) -> Array:
    """Scramble uint64 numbers, one to one (the finalizer of splitmix64): every bit depends on all of them."""
    x = np.atleast_1d(np.asarray(values, np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed
