"""An env whose rows can be checked. Every worker imports this module, so it imports nothing that takes long."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.envs.make import EnvInstance


class Telling(gym.Env):
    """Everything follows from the seed: the length (1 to 9 steps), the observations, and a figure told at the end.

    ``gate``: from the third episode of an instance on, steps wait until this file exists. ``fail``: seeds whose
    episode raises in its last step.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, instance: EnvInstance, gate: str = "", fail: tuple[int, ...] = ()) -> None:
        self._gate, self._fail = gate, fail
        self._episodes = self._t = 0
        self._seed = 0

    @staticmethod
    def length(seed: int) -> int:
        return 1 + seed % 9

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert seed is not None
        super().reset(seed=seed)
        self._seed, self._t = seed, 0
        self._episodes += 1
        return self._observation(), {}

    def step(self, action: int) -> Any:
        while self._gate and self._episodes >= 3 and not os.path.exists(self._gate):
            time.sleep(0.01)
        self._t += 1
        over = self._t >= self.length(self._seed)
        if over and self._seed in self._fail:
            raise RuntimeError("told to fail")
        info = {"episode_stats": {"figure": self._seed / 7}} if over else {}
        return self._observation(), float(action) + self._t / 10, over and self._seed % 2 == 0, over, info

    def _observation(self) -> np.ndarray:
        return np.array([self._seed % 1000, self._t, self.np_random.random()], np.float32)
