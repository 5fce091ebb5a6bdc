"""Which item of a table is drawn, or gives way, next. Samplers and removers are the same thing.

A selector knows keys and priorities, and answers ``select`` with a key and the probability it had. Selecting removes
nothing: without ``Table.max_times_sampled``, ``fifo``, ``lifo`` and the heaps give the same item again and again.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import numpy as np

Key = int
Choice = tuple[Key, float]


class Selector(Protocol):
    """An order on the keys of a table."""

    def insert(self, key: Key, priority: float) -> None:
        """Take in a new key."""

    def update(self, key: Key, priority: float) -> None:
        """Change the priority of a key that is there."""

    def delete(self, key: Key) -> None:
        """Forget a key that is there."""

    def select(self) -> Choice:
        """Choose a key; return it and the probability with which it was chosen. There must be one."""

    def keys(self) -> list[Key]:
        """Return all keys in an order that, inserted again, makes a selector which chooses alike."""


def check_priority(priority: float) -> float:
    """Return the number itself; raises ValueError if it cannot be a priority."""
    if not (priority >= 0 and math.isfinite(priority)):
        raise ValueError(f"priority {priority:g}: a finite number that is not negative is needed")
    return float(priority)


class Uniform:
    """Every item with the same probability; draws are independent, so a batch may hold an item twice."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._keys: list[Key] = []
        self._places: dict[Key, int] = {}

    def insert(self, key: Key, priority: float) -> None:
        self._places[key] = len(self._keys)
        self._keys.append(key)

    def update(self, key: Key, priority: float) -> None:
        pass

    def delete(self, key: Key) -> None:
        place, last = self._places.pop(key), self._keys.pop()
        if last != key:  # the last one moves into the gap
            self._keys[place] = last
            self._places[last] = place

    def select(self) -> Choice:
        count = len(self._keys)
        return self._keys[int(self._rng.integers(count))], 1 / count

    def keys(self) -> list[Key]:
        return list(self._keys)


class InOrder:
    """The oldest item (``fifo``) or the newest (``lifo``)."""

    def __init__(self, newest: bool) -> None:
        self._newest = newest
        self._keys: OrderedDict[Key, None] = OrderedDict()  # a dict finds its first key slowly after many deletions

    def insert(self, key: Key, priority: float) -> None:
        self._keys[key] = None

    def update(self, key: Key, priority: float) -> None:
        pass

    def delete(self, key: Key) -> None:
        del self._keys[key]

    def select(self) -> Choice:
        return next(reversed(self._keys) if self._newest else iter(self._keys)), 1.0

    def keys(self) -> list[Key]:
        return list(self._keys)


class Heap:
    """The highest priority, or the lowest; of equals the one that was set longest ago."""

    def __init__(self, highest: bool) -> None:
        self._sign = -1.0 if highest else 1.0
        self._heap: list[tuple[float, int, Key]] = []  # some are out of date
        self._stamps: dict[Key, int] = {}
        self._count = 0

    def insert(self, key: Key, priority: float) -> None:
        self.update(key, priority)

    def update(self, key: Key, priority: float) -> None:
        self._count += 1
        self._stamps[key] = self._count
        heapq.heappush(self._heap, (self._sign * priority, self._count, key))
        if len(self._heap) > 2 * len(self._stamps) + 64:
            self._heap = [entry for entry in self._heap if self._stamps.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def delete(self, key: Key) -> None:
        del self._stamps[key]

    def select(self) -> Choice:
        while self._stamps.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2], 1.0

    def keys(self) -> list[Key]:
        return sorted(self._stamps, key=self._stamps.__getitem__)


class Prioritized:
    """In proportion to ``priority ** exponent``; a priority of 0 is never drawn, unless all are 0: then uniform.

    A tree of sums: a node is always the sum of its two children as they are, so that no error adds up.
    """

    def __init__(self, rng: np.random.Generator, exponent: float) -> None:
        if not (exponent >= 0 and math.isfinite(exponent)):
            raise ValueError(f"priority_exponent={exponent:g} must be a finite number that is not negative")
        self._rng, self._exponent = rng, exponent
        self._leaves = 1
        self._sums = [0.0, 0.0]  # node k has the children 2k and 2k + 1; leaf i is node leaves + i
        self._keys: list[Key] = []
        self._places: dict[Key, int] = {}

    def insert(self, key: Key, priority: float) -> None:
        if len(self._keys) == self._leaves:
            self._grow()
        self._places[key] = len(self._keys)
        self._keys.append(key)
        self.update(key, priority)

    def update(self, key: Key, priority: float) -> None:
        self._set(self._places[key], priority**self._exponent if priority else 0.0)

    def delete(self, key: Key) -> None:
        place, end = self._places.pop(key), len(self._keys) - 1
        last = self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._places[last] = place
            self._set(place, self._sums[self._leaves + end])
        self._set(end, 0.0)

    def select(self) -> Choice:
        total = self._sums[1]
        if total <= 0:
            return self._keys[int(self._rng.integers(len(self._keys)))], 1 / len(self._keys)
        left, node = self._rng.random() * total, 1
        while node < self._leaves:
            node *= 2
            # A branch without weight is never entered, whatever rounding has made of ``left``.
            if (left >= self._sums[node] and self._sums[node + 1] > 0) or self._sums[node] <= 0:
                left -= self._sums[node]
                node += 1
        return self._keys[node - self._leaves], self._sums[node] / total

    def keys(self) -> list[Key]:
        return list(self._keys)

    def _set(self, place: int, weight: float) -> None:
        node = self._leaves + place
        self._sums[node] = weight
        while node > 1:
            node //= 2
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]

    def _grow(self) -> None:
        weights = self._sums[self._leaves :]
        self._leaves *= 2
        self._sums = [0.0] * self._leaves + weights + [0.0] * (self._leaves - len(weights))
        for node in range(self._leaves - 1, 0, -1):
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]


SELECTORS: dict[str, Callable[[np.random.Generator, float], Selector]] = {
    "uniform": lambda rng, _: Uniform(rng),
    "fifo": lambda _rng, _exponent: InOrder(newest=False),
    "lifo": lambda _rng, _exponent: InOrder(newest=True),
    "prioritized": Prioritized,
    "max_heap": lambda _rng, _exponent: Heap(highest=True),
    "min_heap": lambda _rng, _exponent: Heap(highest=False),
}
"""What ``replay.sampler`` and ``replay.remover`` mean: from a generator and an exponent of priorities to a selector."""
