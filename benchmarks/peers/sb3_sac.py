"""Stable-Baselines3's SAC, one environment, one update per step; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor


class Clock(BaseCallback):
    """Wall and processor seconds from the first update on."""

    def __init__(self, warmup: int) -> None:
        super().__init__()
        self._warmup, self.begun = warmup, (0.0, 0.0)

    def _on_step(self) -> bool:
        if self.num_timesteps == self._warmup:
            self.begun = (time.perf_counter(), time.process_time())
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--frames", type=int, default=6000)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    env = Monitor(gymnasium.make(options.env))
    how = {"learning_starts": options.warmup, "seed": options.seed, "device": options.device}
    model = SAC("MlpPolicy", env, options.rate, **how)
    clock = Clock(options.warmup)
    model.learn(options.frames, callback=clock)
    wall, processor = time.perf_counter() - clock.begun[0], time.process_time() - clock.begun[1]
    updates = options.frames - options.warmup
    found: dict[str, Any] = {"updates_per_s": updates / wall, "updates_per_cpu_s": updates / processor}
    found["training_return"] = float(np.mean(env.get_episode_rewards()[-10:]))
    print(json.dumps({"version": f"stable-baselines3 {version('stable-baselines3')}", **found}))


if __name__ == "__main__":
    main()
