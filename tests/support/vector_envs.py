"""Vector environments that tests name as ``vector_envs:Something``; workers and subprocesses import them, too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from faulty_envs import HANG_SECONDS, Zoo
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from rollmill.core.fields import Array


class Counter(VectorEnv):
    """Lane i has episodes of ``shortest + i`` steps; the observation is (lane, episodes begun, step, a random number).

    Terminated in even episodes, truncated in odd ones. The reward is the lane's number plus one; in a step that resets
    it is nonsense, which nobody must see.

    ``what``: raise, hang, nan, nan_reward, shape, dtype, flags, tuple or restless. ``where``: reset or step;
    in ``lane`` alone where that can be. ``at_step``: not before this step of the instance's life. ``once``: a file;
    only whoever creates it misbehaves. ``deaf``: never mind ``max_episode_steps``.
    """

    def __init__(
        self,
        num_envs: int,
        shortest: int = 3,
        what: str = "",
        where: str = "step",
        lane: int = 0,
        at_step: int = 0,
        once: str = "",
        mode: str = "NextStep",
        max_episode_steps: int = 0,
        deaf: bool = False,
        stats: bool = False,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode(mode)}
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-1e6, 1e6, (4,), np.float32)
        self.single_action_space = gym.spaces.Discrete(3, start=1)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._what, self._where, self._lane, self._at_step, self._once = what, where, lane, at_step, once
        self._stats, self._life = stats, 0
        self._length = shortest + np.arange(num_envs)
        self._limit = max_episode_steps if max_episode_steps and not deaf else 10**9
        self._episode, self._t = np.zeros(num_envs, int), np.zeros(num_envs, int)
        self._over = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t[:], self._over[:] = 0, False
        self._episode += 1
        if self._due("reset"):
            return self._nonsense((self._observe(), {}))
        return self._observe(), {}

    def step(self, actions: Array) -> Any:
        assert self.action_space.contains(actions), actions
        self._life += 1
        again = self._over
        self._t = np.where(again, 0, self._t + 1)
        self._episode += again
        ended = ~again & ((self._t >= self._length) | (self._t >= self._limit))
        cut = ended & ((self._episode % 2 == 0) | (self._t < self._length))
        reward = np.where(again, 77.0, np.arange(self.num_envs) + 1.0)
        self._over = ended
        info = {"episode_stats": {"steps": self._t.copy(), "_steps": ended}, "_episode_stats": ended}
        answer = (self._observe(), reward, ended & ~cut, cut, info if self._stats else {})
        return self._nonsense(answer) if self._due("step") else answer

    def _observe(self) -> Array:
        noise = self.np_random.random(self.num_envs)
        return np.stack([np.arange(self.num_envs), self._episode, self._t, noise], axis=1).astype(np.float32)

    def _due(self, where: str) -> bool:
        if not self._what or where != self._where or self._life < self._at_step:
            return False
        if self._once:
            try:
                Path(self._once).touch(exist_ok=False)
            except FileExistsError:
                return False
        return True

    def _nonsense(self, answer: Any) -> Any:
        lane, what, obs = self._lane, self._what, answer[0]
        if what == "raise":
            raise OSError("no step today")
        if what == "hang":
            time.sleep(HANG_SECONDS)
        if what == "tuple":
            return obs
        if what == "nan":
            obs[lane, 2] = np.nan
        if what == "shape":
            return (obs[:-1], *answer[1:])
        if what == "dtype":
            return (obs.astype(complex), *answer[1:])
        if what == "nan_reward":
            answer[1][lane] = np.inf
        if what == "flags":
            return (*answer[:2], None, *answer[3:])
        if what == "restless":  # ends again in the step that resets it
            answer[2][:] = True
        return answer


def zoo(num_envs: int) -> VectorEnv:
    """Every kind of observation, batched by Gymnasium."""
    return SyncVectorEnv([lambda length=length: Zoo(length) for length in range(4, 4 + num_envs)])


def not_a_vector(num_envs: int) -> gym.Env:
    return Zoo()
