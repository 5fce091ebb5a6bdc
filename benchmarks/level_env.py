"""An environment whose levels take half a second to generate; it writes down which ones it has begun, and how."""

from __future__ import annotations

import time

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.levels.snapshot import decode, encode

STEPS = 4
CELLS = 2_000


class Slow:
    """Four steps on a level of 2,000 numbers."""

    spec = EnvSpec("slow", (Field("obs", "float32", (8,)),), ActionSpec("discrete", nvec=(4,), start=(0,)))
    level_free = frozenset({"seconds", "log"})

    def __init__(self, seconds: float = 0.5, log: str = "") -> None:
        self._seconds, self._log = seconds, log
        self._cells = np.zeros(CELLS)
        self._step = 0

    def reset(self, seed: int, obs: Obs) -> None:
        time.sleep(self._seconds)
        self._cells = np.random.default_rng(seed).random(CELLS)
        self._begin("made", seed, obs)

    def save_level(self) -> bytes:
        return encode(self._cells)

    def load_level(self, level: bytes, seed: int, obs: Obs) -> None:
        self._cells = decode(level)
        self._begin("kept", seed, obs)

    def _begin(self, how: str, seed: int, obs: Obs) -> None:
        if self._log:
            with open(self._log, "a", encoding="ascii") as file:
                file.write(f"{how} {seed}\n")
        self._step = 0
        obs["obs"][0] = self._cells[:8]

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self._step += 1
        obs["obs"][0] = self._cells[8 * self._step : 8 * self._step + 8]
        return float(self._cells[int(action[0])]), self._step >= STEPS, False, {}

    def render(self) -> None:
        return None

    def close(self) -> None:
        return None
