"""IQL or TD3+BC of d3rlpy on given rows, judged in the environment; prints one line of JSON.

python d3rlpy_offline.py iql|td3bc ROWS.npz ENV STEPS SEED EPISODES
"""

from __future__ import annotations

import json
import sys
import time

import d3rlpy
import gymnasium
import numpy as np
import torch


def main() -> None:
    algorithm, rows, env_id, steps, seed, episodes = sys.argv[1:]
    torch.set_num_threads(1)
    d3rlpy.seed(int(seed))
    data = np.load(rows)
    dataset = d3rlpy.dataset.MDPDataset(
        *(data[name] for name in ("observations", "actions", "rewards", "terminals")), timeouts=data["timeouts"]
    )
    common = {
        "batch_size": 256,
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(),
        "action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(minimum=data["low"], maximum=data["high"]),
    }
    config = d3rlpy.algos.IQLConfig if algorithm == "iql" else d3rlpy.algos.TD3PlusBCConfig
    agent = config(**common).create(device="cpu:0")
    begun = time.perf_counter()
    count = int(steps)
    agent.fit(dataset, n_steps=count, n_steps_per_epoch=count, show_progress=False, logger_adapter=no_logs())
    seconds = time.perf_counter() - begun
    returns = [play(agent, gymnasium.make(env_id), 10_000 + k) for k in range(int(episodes))]
    print(json.dumps({"returns": returns, "updates_per_s": count / seconds, "version": d3rlpy.__version__}))


def no_logs() -> object:
    return d3rlpy.logging.NoopAdapterFactory()


def play(agent: d3rlpy.base.LearnableBase, env: gymnasium.Env, seed: int) -> float:
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(agent.predict(obs[None].astype(np.float32))[0])
        total, over = total + float(reward), terminated or truncated
    return total


main()
