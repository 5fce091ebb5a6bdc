"""Stores for tests of offline learning: hand-made episodes, and toys played with a known skill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field
from rollmill.envs.toy import Target
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

HAND_SPEC = EnvSpec("hand", (Field("obs", "float32", (2,)),), ActionSpec("discrete", nvec=(1000,), start=(0,)))


def hand_episode(
    number: int, rewards: Sequence[float], terminated: bool = True, truncated: bool = False, first_step: int = 0
) -> Episode:
    """Every value says where it belongs: observation t is (number, t), action t is 10 x number + t."""
    n = len(rewards)
    t = np.arange(n + 1, dtype=np.float32) + first_step
    columns = {
        "obs:obs": np.stack([np.full(n + 1, number, np.float32), t], 1),
        "action": 10 * number + first_step + np.arange(n),
        "reward": np.asarray(rewards, np.float32),
        "version": np.zeros(n, np.int64),
        "global_step": np.arange(n),
    }
    return Episode(columns, EpisodeInfo(uid=number, first_step=first_step), terminated, truncated)


def write_store(path: Path, schema: StoreSchema, episodes: Sequence[Episode]) -> Store:
    with StoreWriter(path, schema) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return Store(path)


def hand_store(path: Path, episodes: Sequence[Episode]) -> Store:
    return write_store(path, StoreSchema.for_env(HAND_SPEC), episodes)


def skilled_store(path: Path, episodes: int, seed: int = 0, worst: float = 0.0) -> Store:
    """``toy_target`` played with a skill that differs from episode to episode: the share of steps it gets
    right, ``worst`` to 1.
    """
    env, rng = Target(), np.random.default_rng(seed)
    obs = {"obs": np.zeros((1, 4), np.float32)}
    made = []
    for number in range(episodes):
        skill = rng.uniform(worst, 1)
        env.reset(int(rng.integers(2**31)), obs)
        seen, actions, rewards = [obs["obs"][0].copy()], [], []
        for _ in range(env.length):
            shown = int(obs["obs"][0].argmax())
            action = shown if rng.uniform() < skill else (shown + int(rng.integers(1, 4))) % 4
            reward, _, _, _ = env.step(np.array([action]), obs)
            actions.append(action)
            rewards.append(float(reward[0]))
            seen.append(obs["obs"][0].copy())
        columns = {"obs:obs": np.stack(seen), "action": np.array(actions), "reward": np.array(rewards, np.float32)}
        columns |= {"version": np.zeros(10, np.int64), "global_step": np.arange(10)}
        made.append(Episode(columns, EpisodeInfo(uid=number), terminated=True))
    return write_store(path, StoreSchema.for_env(env.spec), made)


def returns_of(store: Store) -> Array:
    found: Array = store.table.return_
    return found
