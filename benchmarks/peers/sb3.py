"""Stable-Baselines3 PPO: CartPole with its defaults or the rl-zoo's tuned settings, Pong with the Nature CNN."""

from __future__ import annotations

import functools
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import gym_envs
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from stopwatch import Stopwatch, arguments

TUNED_STEPS = 100_000
"""The rl-zoo's budget for CartPole; its learning rate and clip range fall linearly to 0 over it."""

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"policy": "MlpPolicy"},
    "tuned": {
        "policy": "MlpPolicy",
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": lambda left: 1e-3 * left,
        "clip_range": lambda left: 0.2 * left,
    },
    "pong": {
        "policy": "CnnPolicy",
        "n_steps": 128,
        "batch_size": 256,
        "n_epochs": 4,
        "ent_coef": 0.01,
        "learning_rate": 2.5e-4,
        "clip_range": 0.1,
    },
}
ENVS = {"default": 1, "tuned": 8, "pong": 8}


class Watch(BaseCallback):
    """Feeds the stopwatch; ends the training by returning False."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._watch.update()
        self._watch.step(0)

    def _on_step(self) -> bool:
        self._watch.step(self.training_env.num_envs)
        for info in self.locals["infos"]:
            if "episode" in info:
                self._watch.episode(info["episode"]["r"])
        return not self._watch.over


def make(task: str) -> Any:
    return Monitor(gym_envs.make(task))


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--settings", choices=list(SETTINGS), required=True)
    options = parser.parse_args()
    torch.set_num_threads(1 if options.task == "cartpole" else 2)
    watch = Stopwatch(options)
    makers = [functools.partial(make, options.task)] * ENVS[options.settings]
    envs = DummyVecEnv(makers) if options.task == "cartpole" else SubprocVecEnv(makers)
    model = PPO(env=envs, seed=options.seed, device="cpu", **SETTINGS[options.settings])
    model.learn(TUNED_STEPS if options.settings == "tuned" else 10**9, callback=Watch(watch))
    watch.report(version=f"stable-baselines3 {version('stable-baselines3')}", envs=len(makers))
    envs.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
