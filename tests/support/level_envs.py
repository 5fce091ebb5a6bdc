"""An environment whose levels take time to generate, and that writes down which ones it has played."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.levels.snapshot import decode, encode

CELLS = 16


class Mazes:
    """Shows the cells of its level, in an order of chance; an episode has ``length`` steps."""

    level_free = frozenset({"seconds", "length", "log"})

    def __init__(self, seconds: float = 0.0, length: int = 4, log: str = "", size: int = CELLS) -> None:
        """``seconds``: that generating a level takes. ``log``: a file that gets a line for each episode: its seed."""
        self._seconds, self._length, self._log, self._size = seconds, length, log, size
        self.spec = EnvSpec(
            "mazes", (Field("obs", "float32", (CELLS,)),), ActionSpec("discrete", nvec=(4,), start=(0,))
        )
        self._rng = np.random.default_rng()
        self._cells = np.zeros(size)
        self._step = 0
        self.generated = 0

    def reset(self, seed: int, obs: Obs) -> None:
        self.generated += 1
        time.sleep(self._seconds)
        self._rng = np.random.default_rng(seed)
        self._cells = self._rng.random(self._size)
        self._begin(seed, obs)

    def save_level(self) -> bytes:
        return encode((self._cells, self._rng))

    def load_level(self, level: bytes, seed: int, obs: Obs) -> None:
        self._cells, self._rng = decode(level)
        self._begin(seed, obs)

    def _begin(self, seed: int, obs: Obs) -> None:
        if self._log:
            with open(self._log, "a", encoding="ascii") as file:
                file.write(f"{seed}\n")
        self._step = 0
        obs["obs"][0] = self._cells  # without chance: the random numbers are part of what is saved

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self._step += 1
        obs["obs"][0] = self._cells[self._rng.permutation(CELLS)]
        over = self._step >= self._length
        return float(self._cells[int(action[0])]), over, False, {"episode_stats": {"steps": self._step}} if over else {}

    def render(self) -> None:
        return None

    def close(self) -> None:
        return None


def played(log: Path) -> list[int]:
    """The seeds of all episodes, in the order they began."""
    return [int(line) for line in log.read_text().split()]


def id_of(name: str = "Mazes") -> str:
    """What ``env=`` takes for it."""
    return f"{os.path.abspath(__file__)}:{name}"
