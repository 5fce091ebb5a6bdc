"""What a replay table must do, as short as it can be said: lists, sums over everything, no cleverness."""

from __future__ import annotations

import math


class ModelTable:
    """The same calls as ``replay.table.Table``; where chance decides, the caller tells what was drawn."""

    def __init__(
        self, capacity: int, limits: tuple[float, int, float, float], kinds: tuple[str, str], most: int
    ) -> None:
        self.capacity, self.most = capacity, most
        self.spi, self.min_size, self.min_diff, self.max_diff = limits
        self.sampler, self.remover = kinds
        self.items: list[dict[str, float]] = []  # in the order of their insertion
        self.inserted = self.sampled = self.deleted = self.updates = 0

    def may_sample(self, n: int = 1) -> bool:
        return len(self.items) >= self.min_size and self.inserted * self.spi - self.sampled - n >= self.min_diff

    def may_insert(self, n: int = 1) -> bool:
        free = len(self.items) + n <= self.min_size
        return free or (self.inserted + n) * self.spi - self.sampled <= self.max_diff

    def chances(self, kind: str, exponent: float) -> dict[int, float]:
        """Probability of every key."""
        keys = [int(item["key"]) for item in self.items]
        if kind in ("fifo", "lifo"):
            chosen = keys[0] if kind == "fifo" else keys[-1]
            return {key: float(key == chosen) for key in keys}
        if kind in ("max_heap", "min_heap"):
            sign = -1 if kind == "max_heap" else 1
            best = min(self.items, key=lambda item: (sign * item["priority"], item["updated"]))
            return {key: float(key == best["key"]) for key in keys}
        weights = [1.0] * len(keys)
        if kind == "prioritized":
            raw = [item["priority"] ** exponent if item["priority"] else 0.0 for item in self.items]
            weights = raw if math.fsum(raw) > 0 else weights
        return {key: weight / math.fsum(weights) for key, weight in zip(keys, weights, strict=True)}

    def set_priority(self, key: int, priority: float) -> None:
        self.updates += 1
        self.find(key).update(priority=priority, updated=self.updates)

    def find(self, key: int) -> dict[str, float]:
        return next(item for item in self.items if item["key"] == key)

    def insert(self, key: int, priority: float) -> bool:
        """Returns whether something must give way now."""
        if any(item["key"] == key for item in self.items):
            self.set_priority(key, priority)
            return False
        self.items.append({"key": key, "times": 0, "priority": priority, "updated": 0})
        self.set_priority(key, priority)
        self.inserted += 1
        return len(self.items) > self.capacity

    def delete(self, key: int) -> None:
        self.items.remove(self.find(key))
        self.deleted += 1

    def sample(self, key: int) -> None:
        self.sampled += 1
        item = self.find(key)
        item["times"] += 1
        if item["times"] == self.most:
            self.delete(key)
