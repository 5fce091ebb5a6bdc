"""EnvPool's simulators: a whole group of lanes stepped by one call into C++ (``env.vector``), or one alone.

EnvPool resets a lane by itself in the step after its end and shows the true last observation before (next-step
autoreset), for truncations as well: what ``protocols.BatchEnv`` asks for, so nothing has to be made up.

What is particular to it: seeds are taken when a pool is built, and ``reset(seed=...)`` is ignored without a word.
A reset with a seed therefore builds a new pool here. For a group that happens once; for a single environment it
happens every episode, which is exact and can be slow (Atari: 0.2 s).
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import Array, EnvSpec, Obs
from rollmill.core.protocols import StepReturn
from rollmill.core.text import nearest
from rollmill.envs.spaces import ALL, action_layout, batch_actions, batch_writer, observation_layout

LARGEST_SEED = 2**31 - 1
"""EnvPool's seeds are C++ integers."""
OURS = ("num_envs", "batch_size", "seed", "env_seed", "env_type", "gym_reset_return_info", "task", "base_path")
"""Settings of a pool that are not the user's: lanes, seeds and the form of answers."""


class EnvPoolVector(gym.vector.VectorEnv):
    """``num_envs`` lanes of one task in one pool; the vectorised form of ``envpool:TASK``."""

    def __init__(self, num_envs: int, *, task: str, num_threads: int = 1, **config: Any) -> None:
        """Take note of what is to be built; the pool is built by the first ``reset``.

        Args:
            num_envs: Lanes.
            task: EnvPool's id.
            num_threads: Threads of the pool. A worker has one core, so more than one pays only with few workers.
            config: EnvPool's own settings of the task (``frame_skip``, ``img_height``, ``max_episode_steps`` ...).
        """
        self._task = task
        self._config = {**config, "num_threads": num_threads, "num_envs": num_envs, "batch_size": num_envs}
        spec = _spec(task, num_envs, {**config, "num_threads": num_threads})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*precision lowered by casting")  # of bounds that nobody reads
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
        self._pool: Any = None
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.frames_per_step = _frames_per_step(spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin in every lane; with a seed in a new pool (see the module's text)."""
        if seed is not None or self._pool is None:
            if isinstance(seed, list):
                raise EnvError("a pool has one seed for all of its lanes")
            self.close()
            self._pool = _build(self._task, {**self._config, "seed": (seed or 0) % LARGEST_SEED})
        obs, info = self._pool.reset()
        self._check_order(info)
        return obs, {}

    def step(self, actions: Any) -> Any:
        if self._pool is None:
            raise EnvError("step() without a running episode: call reset() first")
        obs, reward, terminated, truncated, _ = self._pool.step(actions)
        # A step beyond the limit may be both in EnvPool; an end by itself is no truncation.
        return obs, reward, terminated, truncated & ~terminated, {}

    def close(self, **kwargs: Any) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _check_order(self, info: Any) -> None:
        if not np.array_equal(info["env_id"], np.arange(self.num_envs)):
            raise EnvError(f"EnvPool answered for lanes {info['env_id'].tolist()}, expected all of them in order")


class EnvPoolEnv:
    """One environment of a task by itself: every episode has its own seed, at the price of a new pool."""

    def __init__(self, *, task: str, num_threads: int = 1, **config: Any) -> None:
        """Take note of what is to be built, as ``EnvPoolVector`` with one lane does."""
        if "num_envs" in config:
            raise ConfigError("env.args.num_envs: sampling.envs_per_worker says how many there are")
        self._pool = EnvPoolVector(1, task=task, num_threads=num_threads, **config)
        fields, _ = observation_layout(self._pool.single_observation_space)
        action, _ = action_layout(self._pool.single_action_space)
        self.spec = EnvSpec(f"envpool:{task}", fields, action, frames_per_step=self._pool.frames_per_step)
        self._write = batch_writer(self._pool.single_observation_space, 1)
        self._to_env = batch_actions(self._pool.single_action_space, self._pool.action_space)
        self._running = False

    def reset(self, seed: int, obs: Obs) -> None:
        first, _ = self._pool.reset(seed=seed)
        self._write(first, obs, ALL)
        self._running = True

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if not self._running:
            raise EnvError("step() without a running episode: call reset() first")
        after, reward, terminated, truncated, _ = self._pool.step(self._to_env(action))
        self._write(after, obs, ALL)
        self._running = not (terminated[0] or truncated[0])
        return float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        self._pool.close()


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise MissingExtraError(f'EnvPool\'s tasks need envpool ({error}): pip install "rollmill[envpool]"') from error
    return envpool


def _spec(task: str, lanes: int, config: dict[str, Any]) -> Any:
    """Return EnvPool's spec of a task; raises ConfigError for an unknown task or setting, and one that is ours."""
    envpool = _envpool()
    known = envpool.list_all_envs()
    if task not in known:
        hint = nearest(task, known)
        raise ConfigError(f"EnvPool has no task {task!r}{f'; {hint}' if hint else ''}")
    settings = envpool.make_spec(task).config._fields
    for name in config:
        if name in OURS or name not in settings:
            wanted = [other for other in settings if other not in OURS]
            hint = nearest(name, wanted)
            raise ConfigError(
                f"env.args.{name}: EnvPool's {task} has no such setting{f'; {hint}' if hint else ''} "
                f"(it has: {', '.join(wanted)})"
            )
    try:
        return envpool.make_spec(task, **config, num_envs=lanes, batch_size=lanes)
    except TypeError as error:
        raise ConfigError(f"env.args={config}: EnvPool's {task} cannot be built with them: {error}") from error


def _build(task: str, config: dict[str, Any]) -> Any:
    return _envpool().make(task, env_type="gymnasium", **config)


def _frames_per_step(spec: Any) -> int:
    """Return the frame skip of games that are seen in frames. A robot's is physics: not counted, as in Gymnasium."""
    return int(spec.config.frame_skip) if {"frame_skip", "stack_num"} <= set(spec.config._fields) else 1
