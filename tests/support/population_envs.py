"""Environments for populations; workers import them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn


class Seen:
    """Episodes of 3 to 7 steps that tell which value of ``level`` they were played with (``seen``)."""

    spec = EnvSpec("seen", (Field("obs", "float32", (2,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))

    def __init__(self, variables: Mapping[str, float]) -> None:
        self._variables = variables
        self._left = 0
        self._level = 0.0

    def reset(self, seed: int, obs: Obs) -> None:
        self._left = 3 + int(np.random.default_rng(seed).integers(5))
        self._level = self._variables["level"]
        obs["obs"][0] = self._level, self._left

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self._left -= 1
        assert self._variables["level"] == self._level, "an episode keeps what it began with"
        obs["obs"][0] = self._level, self._left
        over = self._left == 0
        return 1.0, over, False, {"episode_stats": {"seen": self._level}} if over else {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None
