"""Stands in for DeepMind Lab, which cannot be installed for this Python: the published interface of its module.

Names, arguments and what is refused are those of ``docs/users/python_api.md`` there; what a level is like is made up:
an episode of ten frames, one reward per frame, levels that are made as small files unless the cache has them.
"""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np

SHAPES = {"RGB_INTERLEAVED": (0, 0, 3), "INSTR": ()}
LIMITS = ((-512, 512), (-512, 512), (-1, 1), (-1, 1), (0, 1), (0, 1), (0, 1))
NAMES = ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", "LOOK_DOWN_UP_PIXELS_PER_FRAME", "STRAFE_LEFT_RIGHT", "MOVE_BACK_FORWARD")
NAMES += ("FIRE", "JUMP", "CROUCH")
MAKE_SECONDS = float(os.environ.get("LAB_MAKE_SECONDS", "0"))


class Lab:
    """A level. Those of ``language_`` give instructions, those of ``psychlab_`` are not made."""

    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        if unknown := [name for name in observations if name not in SHAPES]:
            raise ValueError(f"Unknown observation {unknown}")
        if any(type(key) is not str or type(value) is not str for key, value in (config or {}).items()):
            raise TypeError("'config' must be dict of str to str")
        if renderer not in ("software", "hardware"):
            raise ValueError(f"Unknown renderer {renderer}")
        self.level, self.asked, self.config = level, list(observations), dict(config or {})
        self.shape = (int(self.config.get("height", "240")), int(self.config.get("width", "320")), 3)
        self._cache = level_cache
        self._frames, self._length, self.status = 0, 10, "created"
        self.made, self.seed, self.map, self.taken = 0, None, b"", []

    def reset(self, episode=-1, seed=None):
        if self.status == "closed":
            raise RuntimeError("Environment is closed")
        self.seed = int(np.random.randint(2**31)) if seed is None else seed
        if not 0 <= self.seed < 2**31:
            raise ValueError("seed must be a non-negative 32 bit integer")
        self._frames, self.status = 0, "running"
        if not self.level.startswith("contributed/dmlab30/psychlab_"):
            self._load_map(f"{self.level}_{self.seed}/{hash_of(self.level, self.seed)}")
        return True

    def _load_map(self, key):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "map.pk3")
            if self._cache is None or not self._cache.fetch(key, path):
                time.sleep(MAKE_SECONDS)
                self.made += 1
                with open(path, "wb") as file:
                    file.write(np.random.default_rng(self.seed).bytes(1000))
                if self._cache is not None:
                    self._cache.write(key, path)
            with open(path, "rb") as file:
                self.map = file.read()

    def num_steps(self):
        return self._frames

    def is_running(self):
        return self.status == "running"

    def observation_spec(self):
        return [
            {"name": name, "shape": shape, "dtype": str if not shape else np.uint8} for name, shape in SHAPES.items()
        ]

    def action_spec(self):
        return [{"name": name, "min": low, "max": high} for name, (low, high) in zip(NAMES, LIMITS)]

    def fps(self):
        return 60

    def events(self):
        return []

    def observations(self):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to retrieve observations")
        told = "pick up the red hat" if "language_" in self.level else ""
        image = np.full(self.shape, self._length - self._frames, np.uint8)
        return {name: {"RGB_INTERLEAVED": image, "INSTR": told}[name] for name in self.asked}

    def step(self, action, num_steps=1):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to advance")
        if action.dtype != np.intc or action.shape != (len(LIMITS),):
            raise ValueError("action must have shape (7,) and dtype intc")
        assert all(low <= part <= high for part, (low, high) in zip(action.tolist(), LIMITS))
        self.taken.append((action.tolist(), num_steps))
        played = min(num_steps, self._length - self._frames)
        self._frames += played
        if self._frames == self._length:
            self.status = "over"
        return float(played)

    def close(self):
        self.status = "closed"
        return True


def hash_of(level, seed):
    """Lab's keys are hashes of a level's text."""
    return f"{np.random.default_rng([*level.encode(), seed]).bytes(16).hex()}"
