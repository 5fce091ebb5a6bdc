"""The environment of a trial: another one that can wait, and that gives up where there is no hope. No torch here.

A group of environments is stepped together. Those that have played all their episodes of a generation are *parked*: an
action that means nothing (NaN, or -1 for choices) leaves the environment where it is, and costs next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.sampling.schedule import EpisodeSchedule

NO_INFO: Mapping[str, Any] = {}


def parked(action: ActionSpec) -> float:
    """Return the value that parks an environment when an action consists of it alone."""
    return -1 if action.discrete else np.nan


@dataclass(frozen=True)
class TrialSchedule(EpisodeSchedule):
    """Generations of ``members * trials`` episodes: all members of a generation meet the same ``trials`` worlds.

    Position ``p`` of the sequence is episode ``p % J`` of generation ``first_generation + p // J``, where
    ``J = members * trials``; ``J`` is a multiple of ``envs``, so every env plays its share of each generation.
    """

    members: int = 1
    trials: int = 1
    first_generation: int = 0

    @property
    def episodes(self) -> int:
        """J: episodes of a generation."""
        return self.members * self.trials

    def env_seed(self, env: int, episode: int) -> int:
        generation, place = divmod(self.position(env, episode), self.episodes)
        trial = place // self.members
        return self.seeds.branch("generation", self.first_generation + generation, "trial", trial).integer()


class TrialEnv:
    """An environment for one agent with a limit of steps, patience, and a place to wait.

    ``patience``: steps without a positive reward after which the episode is truncated. The steps that were left are
    credited with the mean reward of those without hope, so the return is what waiting would have brought.
    """

    spec: EnvSpec

    def __init__(
        self, *, settings: dict[str, Any], max_steps: int = 0, patience: int = 0, instance: EnvInstance | None = None
    ) -> None:
        self._env = make_env(EnvSettings.of(settings), instance)
        self.spec = self._env.spec
        self._max_steps, self._patience = max_steps, patience
        self._rewards: deque[float] = deque(maxlen=max(1, patience))
        self._steps = self._barren = 0
        self._first: Obs = {}

    def reset(self, seed: int, obs: Obs) -> None:
        self._env.reset(seed, obs)
        self._first = {name: array.copy() for name, array in obs.items()}
        self._rewards.clear()
        self._steps = self._barren = 0

    def step(self, action: Array, obs: Obs) -> StepReturn:
        value = action.flat[0]
        if value == -1 if self.spec.action.discrete else value != value:
            for name, array in self._first.items():
                obs[name][...] = array
            return 0.0, False, False, NO_INFO
        reward, terminated, truncated, info = self._env.step(action, obs)
        gained, ended, cut = float(np.sum(reward)), bool(np.all(terminated)), bool(np.all(truncated))
        self._steps += 1
        if ended or cut:
            return gained, ended, cut, info
        self._barren = 0 if gained > 0 else self._barren + 1
        self._rewards.append(gained)
        if self._patience and self._barren >= self._patience:
            left = self._max_steps - self._steps
            return gained + left * sum(self._rewards) / len(self._rewards), False, True, info
        return gained, False, bool(self._max_steps) and self._steps >= self._max_steps, info

    def render(self) -> Array | None:
        return self._env.render()

    def close(self) -> None:
        self._env.close()
