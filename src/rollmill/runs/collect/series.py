"""The numbered episodes that a collection can play, and those of them that a store has already.

What was interrupted (a kill, Ctrl-C) is a gap among the numbers, and whoever continues plays it again first.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.store.format.schema import STORE_FILE
from rollmill.store.format.shards import list_shards
from rollmill.store.reader import Store

LOOK_SECONDS = 5.0
"""Between two looks at what other writers have added."""
GAP_LIMIT = 20_000
"""So many numbers missing in a row end the search for gaps: no instance has that many episodes under way."""


@dataclass(frozen=True)
class EpisodeSeries:
    """All episodes that one seed and one policy can give; ``shard`` of ``shards`` takes every ``shards``-th of them."""

    seed: int
    policy: str
    max_steps: int = 0
    agents: int = 1
    shard: int = 0
    shards: int = 1

    @property
    def seeds(self) -> Seeds:
        return Seeds(self.seed).branch("collect")

    def uid(self, number: int, agent: int = 0) -> int:
        """Return the episode's name in the store: the same whenever and wherever it is played."""
        text = f"{self.seed}|{self.policy}|{self.max_steps}|{number}|{agent}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def share(self, total: int) -> int:
        """Return how many of the numbers below ``total`` are this shard's."""
        return len(range(self.shard, total, self.shards))

    def missing(self, present: frozenset[int]) -> tuple[tuple[int, ...], int]:
        """Return (gaps, start), this shard's numbers that are not in the store, as a schedule wants them."""
        gaps: list[int] = []
        end = number = self.shard
        while number < end + GAP_LIMIT * self.shards:
            if all(self.uid(number, agent) in present for agent in range(self.agents)):
                end = number + self.shards
            else:
                gaps.append(number)
            number += self.shards
        return tuple(gap for gap in gaps if gap < end), end


class StoreContents:
    """The whole episodes in a store, own ones and those of other writers."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._store = Store(path) if (path / STORE_FILE).is_file() else None
        self._due = clock() + LOOK_SECONDS
        self._seen: frozenset[tuple[str, int]] = frozenset()

    @property
    def uids(self) -> Array:
        """``[whole episodes]`` uint64: the uids of whole episodes."""
        if self._store is None:
            return np.zeros(0, np.uint64)
        table = self._store.table
        found: Array = table.uid[~(table["partial_start"] | table["partial_end"])]
        return found

    @property
    def all_uids(self) -> Array:
        """The same with those of partial episodes, ``[episodes]``."""
        return np.zeros(0, np.uint64) if self._store is None else self._store.table.uid

    @property
    def bytes(self) -> int:
        return sum(ref.bytes for ref in list_shards(self._path)) if self._store is not None else 0

    def look(self, writer: str, now: bool = False) -> bool:
        """Return whether others than ``writer`` have added something; looks every few seconds, or ``now``."""
        if not now and self._clock() < self._due:
            return False
        self._due = self._clock() + LOOK_SECONDS
        others = frozenset((ref.name, ref.bytes) for ref in list_shards(self._path) if not ref.name.startswith(writer))
        if others == self._seen:
            return False
        self._seen = others
        self.refresh()
        return True

    def refresh(self) -> None:
        """Take in everything that is there by now."""
        if self._store is None:
            self._store = Store(self._path)
        else:
            self._store.refresh()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def refuse_twins(own: set[int], present: Array, path: Path) -> None:
    """Raise StoreError when somebody else has added one of our episodes: two instances do the same work."""
    names, counts = np.unique(present, return_counts=True)
    twins = own.intersection(names[counts > 1].tolist())
    if twins:
        raise StoreError(
            f"{path}: another instance with the same --seed collects the same episodes ({len(twins)} are there twice). "
            "Give each instance its part with --shard 0/2, --shard 1/2 and so on, or a --seed of its own"
        )
