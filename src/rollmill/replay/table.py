"""Items that are drawn again and again: storage, who is drawn, who gives way, and how often.

A table never waits. Whoever inserts or samples asks ``limiter`` first, and does something else when it says no.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from rollmill.core.shapes import ANY, MAPPING, Shape, check_shape
from rollmill.replay.limiter import COUNTERS_SHAPE, RateLimiter
from rollmill.replay.selectors import SELECTORS, Key, Selector, check_priority

T = TypeVar("T")

TABLE_SHAPE: Shape = {
    "limiter": COUNTERS_SHAPE,
    "next_key": int,
    "generator": MAPPING,
    "items": ([{"key": int, "data": ANY, "priority": float, "times_sampled": int, "number": int}], None),
    "orders": [[int]],
}


@dataclass
class Item(Generic[T]):
    """What a table holds of one insert."""

    key: Key
    data: T
    priority: float
    number: int
    """Inserts before it, over the life of the table."""
    inserted_at: float
    """By the clock of the process (``time.monotonic``)."""
    times_sampled: int = 0


@dataclass(frozen=True)
class Draw(Generic[T]):
    """One sample, with what was known about it when it was drawn."""

    item: Item[T]
    probability: float
    size: int
    """Items in the table at that moment."""


class Table(Generic[T]):
    """Holds at most ``capacity`` items; ``sampler`` and ``remover`` are named in ``selectors.SELECTORS``.

    ``max_times_sampled``: an item is deleted once it was drawn so often; 0 is never.
    """

    def __init__(
        self,
        capacity: int,
        limiter: RateLimiter,
        sampler: str = "uniform",
        remover: str = "fifo",
        *,
        max_times_sampled: int = 0,
        priority_exponent: float = 0.5,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} must be at least 1")
        if limiter.min_size > capacity:
            raise ValueError(f"min_size={limiter.min_size} items never fit into capacity={capacity}")
        self.capacity = capacity
        self.limiter = limiter
        self.max_times_sampled = max_times_sampled
        self.unused = 0
        """Items that were deleted before they were drawn even once (in this session)."""
        self._rng = np.random.default_rng(seed)
        self._clock = clock
        self._items: dict[Key, Item[T]] = {}
        self._next_key = 0
        self._sampler: Selector = SELECTORS[sampler](self._rng, priority_exponent)
        self._remover: Selector = SELECTORS[remover](self._rng, priority_exponent)

    @classmethod
    def queue(cls, size: int) -> Table[T]:
        """Build a table that gives everything once, in the order it came; inserting waits where ``size`` items wait."""
        return cls(size, RateLimiter.queue(size), "fifo", "fifo", max_times_sampled=1)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item[T]]:
        """Yield the items, oldest first."""
        return iter(self._items.values())

    def insert(self, data: T, priority: float = 1.0, key: Key | None = None) -> Key:
        """Put in one item; returns its key. A ``key`` that is there only gets the new priority, and does not count.

        Where the table is too full, what the remover picks gives way; that may be the new item itself.
        """
        priority = check_priority(priority)
        if key is not None and key in self._items:
            self.update(key, priority)
            return key
        if not self.limiter.may_insert():
            raise RuntimeError("the rate limiter allows no insert now: ask it first (limiter.may_insert)")
        key = self._next_key if key is None else key
        self._next_key = max(self._next_key, key + 1)
        self._items[key] = Item(key, data, priority, self.limiter.inserted, self._clock())
        for selector in self._selectors():
            selector.insert(key, priority)
        if len(self._items) > self.capacity:
            self.delete([self._remover.select()[0]])
        self.limiter.inserted += 1
        return key

    def _selectors(self) -> tuple[Selector, Selector]:
        return self._sampler, self._remover

    def update(self, key: Key, priority: float) -> None:
        """Give an item another priority."""
        self._items[key].priority = check_priority(priority)
        for selector in self._selectors():
            selector.update(key, priority)

    def delete(self, keys: Iterable[Key]) -> None:
        """Remove items; raises KeyError if one is not there."""
        for key in keys:
            self.unused += self._items.pop(key).times_sampled == 0
            for selector in self._selectors():
                selector.delete(key)
            self.limiter.deleted += 1

    def sample(self, count: int = 1, together: bool = False) -> list[Draw[T]]:
        """Draw as often as the limiter allows, one after the other: between none and ``count`` draws.

        ``together``: all of them or none; those that leave the table on the way do not stop the others.
        """
        draws: list[Draw[T]] = []
        if together and not self.limiter.may_sample(count):
            return draws
        while len(draws) < count and self._items and (together or self.limiter.may_sample()):
            key, probability = self._sampler.select()
            item = self._items[key]
            item.times_sampled += 1
            draws.append(Draw(item, probability, len(self._items)))
            self.limiter.sampled += 1
            if item.times_sampled == self.max_times_sampled:
                self.delete([key])
        return draws

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self, contents: bool = True) -> dict[str, Any]:
        """Return counters, generator and, if asked for, the items. Without them it goes on empty, at the same ratio."""
        names = ("key", "data", "priority", "times_sampled", "number")
        return {
            "limiter": self.limiter.state(),
            "next_key": self._next_key,
            "generator": self._rng.bit_generator.state,
            "items": [{name: getattr(item, name) for name in names} for item in self] if contents else None,
            "orders": [selector.keys() for selector in self._selectors()] if contents else [],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; a smaller table keeps the newest items. The table must be empty."""
        check_shape(state, TABLE_SHAPE)
        if self._items:
            raise RuntimeError("only an empty table can take over a state")
        for entry in (state["items"] or [])[-self.capacity :]:
            check_priority(entry["priority"])
            self._items[entry["key"]] = Item(**entry, inserted_at=self._clock())
        for selector, order in zip(self._selectors(), state["orders"], strict=bool(self._items)):
            for key in filter(self._items.__contains__, order):
                selector.insert(key, self._items[key].priority)
            if len(selector.keys()) < len(self._items):
                raise ValueError("some items have no place in the order they are drawn in")
        self.limiter.load_state(state["limiter"])
        self.limiter.deleted = self.limiter.inserted - len(self._items)
        self._next_key = state["next_key"]
        self._rng.bit_generator.state = state["generator"]
