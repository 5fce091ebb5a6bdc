"""A model of a replay table, as short as it can be said, and segments that hardly shrink."""

from __future__ import annotations

import math

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field
from rollmill.core.slots import SegmentLayout
from rollmill.envs.treasure_hunt.observation import SPACE
from rollmill.replay.packing import SegmentCodec

HUNT_BYTES = 650_000
"""256 steps of the treasure hunt take at most this."""


def hunt_layout(steps: int) -> SegmentLayout:
    """Segments of one lane of the treasure hunt."""
    observation = tuple(Field(name, space.dtype.name, space.shape) for name, space in SPACE.items())  # type: ignore[union-attr]
    return SegmentLayout(EnvSpec("treasure_hunt", observation, ActionSpec("discrete", nvec=(16,))), steps, 1)


def complex_hunt(steps: int = 256) -> tuple[SegmentCodec, dict[str, Array]]:
    """A treasure hunt whose maps have no structure: each bit counts, nothing else can be saved."""
    rng = np.random.default_rng(0)
    layout = hunt_layout(steps)
    segment: dict[str, Array] = {f.name: np.zeros((rows, *f.shape), f.dtype) for f, rows in layout.fields()}
    maps = segment["obs:maps"]
    maps[:] = rng.integers(0, 2, maps.shape, dtype=np.uint8) * 255
    maps[:, 1] = rng.integers(0, 6, maps[:, 1].shape, dtype=np.uint8) * 51
    segment["obs:vector"][:] = rng.random(segment["obs:vector"].shape)
    segment["obs:action_mask"][:] = rng.integers(0, 2, segment["obs:action_mask"].shape)
    for name in ("value", "log_prob", "reward"):
        segment[name][:] = rng.normal(size=layout.rows)
    segment["version"][:] = 10**6 + np.arange(layout.rows) // 30
    segment["frames"][:] = 10**9 + 640 * np.arange(layout.rows)
    return SegmentCodec(layout.fields()), segment


class ModelTable:
    """What ``replay.table.Table`` must do: lists, sums over everything. Where chance decides, the caller tells."""

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
