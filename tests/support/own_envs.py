"""Environments as a notebook cell defines them: nobody can import them by name."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


def corridor_class() -> type[gym.Env[Any, Any]]:
    """A new class with every call, known to no module: go right ``length`` times."""

    class Corridor(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def __init__(self, length: int = 3) -> None:
            self.length, self.at = length, 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.at = 0
            return self._seen(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.at = max(0, self.at + (1 if action else -1))
            there = self.at == self.length
            return self._seen(), float(there), there, False, {}

        def _seen(self) -> Any:
            return np.array([self.at / self.length], np.float32)

    return Corridor
