"""Environments with every kind of action; the reward tells whether the action arrived as it was meant."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class _Short(gym.Env[Any, Any]):
    """Ten steps of an observation that says what is wanted."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 10
        return self._look(), {}

    def _look(self) -> Any:
        self._wanted = self.np_random.integers(0, 2, 2).astype(np.float32)
        return self._wanted

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = self.judge(action)
        self._left -= 1
        return self._look(), reward, False, self._left == 0, {}

    def judge(self, action: Any) -> float:
        raise NotImplementedError


class Buttons(_Short):
    """Press exactly the buttons that are lit: 1 for each that is right."""

    action_space = spaces.MultiBinary(2)

    def judge(self, action: Any) -> float:
        return float((action == self._wanted).sum())


class Toolbox(_Short):
    """Choose the lit tool, and turn it by as much as the other light says."""

    action_space = spaces.Dict({"turn": spaces.Box(-1, 1, (1,)), "tool": spaces.Discrete(2)})

    def judge(self, action: Any) -> float:
        return float(action["tool"] == self._wanted[0]) + 1.0 - abs(float(action["turn"][0]) - self._wanted[1])
