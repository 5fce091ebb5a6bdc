"""Steps one vectorised env with random actions and prints a JSON line with steps per second.

Runs in the venv of the peer it measures. Actions are drawn beforehand, so a peer pays only for stepping.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

WARM_UP_SECONDS = 1.0
ACTIONS = {"cartpole": 2, "pong": 6}
Step = Callable[[Any], Any]


def gymnasium_vector(kind: str, task: str, envs: int, _workers: int) -> tuple[Step, Callable[[], Any]]:
    import gym_envs
    import gymnasium as gym

    makers = [functools.partial(gym_envs.make, task)] * envs
    vector = gym.vector.SyncVectorEnv(makers) if kind == "sync" else gym.vector.AsyncVectorEnv(makers)
    vector.reset(seed=0)
    return vector.step, vector.close


def ale_vector(_kind: str, _task: str, envs: int, workers: int) -> tuple[Step, Callable[[], Any]]:
    from ale_py.vector_env import AtariVectorEnv

    vector = AtariVectorEnv("pong", num_envs=envs, num_threads=workers, repeat_action_probability=0.0)
    vector.reset(seed=0)
    return vector.step, vector.close


def envpool_vector(_kind: str, task: str, envs: int, workers: int) -> tuple[Step, Callable[[], Any]]:
    import envpool

    name = {"cartpole": "CartPole-v1", "pong": "Pong-v5"}[task]
    pool = envpool.make_gymnasium(name, num_envs=envs, num_threads=workers, seed=0)
    pool.reset()
    return pool.step, pool.close


def puffer_vector(kind: str, task: str, envs: int, workers: int) -> tuple[Step, Callable[[], Any]]:
    import gym_envs
    import pufferlib.emulation
    import pufferlib.vector

    def make(buf: Any = None, seed: int = 0) -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(env=gym_envs.make(task), buf=buf, seed=seed)

    if kind == "serial":
        vector = pufferlib.vector.make(make, backend="Serial", num_envs=envs)
    else:
        vector = pufferlib.vector.make(
            make, backend="Multiprocessing", num_envs=envs, num_workers=workers, overwork=True
        )
    vector.reset(seed=0)
    return vector.step, vector.close


BACKENDS = {
    "gymnasium": (gymnasium_vector, "gymnasium"),
    "ale": (ale_vector, "ale-py"),
    "envpool": (envpool_vector, "envpool"),
    "pufferlib": (puffer_vector, "pufferlib"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=list(BACKENDS), required=True)
    parser.add_argument("--kind", default="", help="gymnasium: sync, async; pufferlib: serial, multiprocessing")
    parser.add_argument("--task", choices=list(ACTIONS), required=True)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    build, package = BACKENDS[options.backend]
    step, close = build(options.kind, options.task, options.envs, options.workers)
    actions = np.random.default_rng(0).integers(0, ACTIONS[options.task], (64, options.envs))
    rate = measure(step, actions, options.seconds)
    print(json.dumps({"steps_per_s": rate, "version": f"{package} {version(package)}"}), flush=True)
    close()
    return 0


def measure(step: Step, actions: np.ndarray, seconds: float) -> float:
    """Steps per second of all envs together, after a warm-up."""
    for limit in (WARM_UP_SECONDS, seconds):
        count, begun = 0, time.perf_counter()
        while (took := time.perf_counter() - begun) < limit or not count:
            step(actions[count % len(actions)])
            count += 1
    return count * actions.shape[1] / took


if __name__ == "__main__":
    sys.exit(main())
