"""An environment whose ``info`` says something of every kind, and whose rewards tell the actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LENGTH = 7


class Rooms(gym.Env):
    """Seven steps; the reward is the action plus a half."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(2, np.float32), {"lives": 3, "room": "hall"}

    def step(self, action: int) -> Any:
        self.at += 1
        info = {
            "lives": 3 - self.at // 3,
            "room": f"Zimmer {self.at} ä",
            "player": {"at": np.array([self.at, action])},
            "odd": object(),
            "episode_stats": {"own": 1.0},
        }
        return np.full(2, self.at / LENGTH, np.float32), action + 0.5, self.at == LENGTH, False, info


class Changing(Rooms):
    """What its ``info`` says grows after the steps in which is looked what it says."""

    episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed)
        self.episode += 1
        return obs, self._grown()

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, self._grown()

    def _grown(self) -> dict[str, Any]:
        late = {"late": 1.0} if self.episode > 40 else {}
        return {"room": "ä" * (10 if not late else 200), "at": [1.0] * (2 if not late else 3), **late}
