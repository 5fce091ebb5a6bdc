"""A curriculum: the task gets harder when the agent masters what it has.

    python examples/observers/curriculum.py

The environment asks for ``variables``, numbers that an observer may change while the run goes on; it reads them when an
episode begins. ``env.variables`` names them and says what holds where nobody changes them, in evaluations for instance.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.cli.main import main
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer


class Corridor(gym.Env):
    """Walk to the door at the other end, which may be left or right. Reward 1 at the door, -0.02 per step."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, variables: Mapping[str, float]) -> None:
        self._variables = variables
        self._place = self._door = self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        length = round(self._variables["length"])  # stays the same to the end of the episode
        self._door = length * int(self.np_random.choice((-1, 1)))
        self._place = self._steps = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._place += 1 if action else -1
        self._steps += 1
        there = self._place == self._door
        over = there or self._steps >= 40
        stats = {"episode_stats": {"length_of_corridor": abs(self._door), "reached": float(there)}} if over else {}
        return self._look(), 1.0 if there else -0.02, there, over and not there, stats

    def _look(self) -> np.ndarray:
        return np.array([np.sign(self._door), self._place / 10], np.float32)


class Longer(Observer):
    """Makes the corridor one longer whenever the mean return is above ``enough``."""

    def __init__(self, enough: float = 0.6, first: int = 1, last: int = 8) -> None:
        self._enough, self._first, self._last = enough, first, last
        self._wait = 0

    def on_init(self, run: OnlineRun) -> None:
        if run.iteration == 0:  # a resumed run goes on with the length it had
            run.set_variable("length", self._first)

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self._wait -= 1
        mean, length = run.mean_return, run.variables["length"]
        if self._wait <= 0 and length < self._last and mean is not None and mean > self._enough:
            run.set_variable("length", length + 1)
            self._wait = 5  # training steps, so that the mean return is one of the new task

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        return {"variable/length": run.variables["length"]}


SETTINGS = (
    f"observers=[{__file__}:Longer]",
    f"env={Path(__file__).resolve()}:Corridor",
    "env.variables.length=8",
    "sampling.mode=sync",
    "sampling.workers=1",
    "sampling.rollout=16",
    "model.mlp=[32]",
    "learning.batch_size=512",
    "learning.minibatches=4",
    "learning.epochs=4",
    "learning.learning_rate=3e-3",
    "report.every_frames=1000",
    "report.window=50",
    "stop.frames=30_000",
    "run.experiment=examples",
    "run.name=curriculum",
)


if __name__ == "__main__":
    sys.exit(main(["train", "--overwrite", *SETTINGS, *sys.argv[1:]]))
