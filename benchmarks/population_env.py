"""A corridor with a goal at its far end, and a lure beside the start that pays at once (``populations.py reward``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn

LENGTH = 6
STEPS = 20


class Lure:
    """Reward 1 at the far end, which ends the episode, plus ``lure`` times 0.2 for every step spent at the start.

    ``info["episode_stats"]["reached"]`` is 1 where the goal was reached, whatever was paid.
    """

    spec = EnvSpec("lure", (Field("obs", "float32", (LENGTH,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))

    def __init__(self, variables: Mapping[str, float]) -> None:
        self._variables = variables
        self._place = self._steps = 0

    def reset(self, seed: int, obs: Obs) -> None:
        self._place = self._steps = 0
        self._look(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self._steps += 1
        self._place = min(LENGTH - 1, max(0, self._place + (1 if int(action[0]) else -1)))
        self._look(obs)
        reached = self._place == LENGTH - 1
        over = reached or self._steps >= STEPS
        reward = float(reached) + 0.2 * self._variables["lure"] * (self._place == 0)
        return reward, over, False, {"episode_stats": {"reached": float(reached)}} if over else {}

    def _look(self, obs: Obs) -> None:
        obs["obs"][0] = np.eye(LENGTH, dtype=np.float32)[self._place]

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None
