"""An environment of your own, trained through its name: ``module:callable``.

    python examples/own_env.py
    python examples/own_env.py env.args.length=12 stop.frames=60_000

Any Gymnasium environment works, and any callable that returns one. The same file works from the command
line: ``rollmill train env=examples/own_env.py:Corridor env.args.length=12``. To evaluate a run, name it again:
``rollmill eval runs/examples/own_env env=examples/own_env.py:Corridor``.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollmill.cli.main import main


class Corridor(gym.Env[np.ndarray, np.int64]):
    """Walk to the right end. Every step costs 0.1, arriving gives 1; after 50 steps it is cut off.

    Observation: the position from 0 (left end) to 1 (right end), float32 ``(1,)``. Actions: 0 left, 1 right.
    """

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._position = self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        # All randomness comes from the seed: then serial runs repeat bit for bit.
        self._position = int(self.np_random.integers(self.length // 2))
        self._steps = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._position = max(0, self._position + (1 if action == 1 else -1))
        self._steps += 1
        arrived = self._position >= self.length
        return self._observation(), 1.0 if arrived else -0.1, arrived, self._steps >= 50, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._position / self.length], np.float32)


SETTINGS = (
    # Worker processes import the env by this name, so it must not hang on anything below __main__.
    f"env={__file__}:Corridor",
    "sampling.mode=sync",
    "sampling.workers=1",
    "sampling.rollout=16",
    "model.mlp=[32]",
    "learning.batch_size=512",
    "learning.minibatches=4",
    "learning.epochs=2",
    "learning.learning_rate=3e-3",
    "stop.frames=30_000",
    "run.experiment=examples",
    "run.name=own_env",
)


if __name__ == "__main__":
    sys.exit(main(["train", "--overwrite", *SETTINGS, *sys.argv[1:]]))
