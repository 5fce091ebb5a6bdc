"""The two tasks as Gymnasium environments, the same for every peer that steps Gymnasium environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


def make(task: str) -> gym.Env[Any, Any]:
    """CartPole-v1, or Pong: 84x84 gray, skip 4 with max of two frames, stack 4, up to 30 no-ops, not sticky."""
    if task == "cartpole":
        return gym.make("CartPole-v1", disable_env_checker=True)
    import ale_py

    if hasattr(gym, "register_envs"):
        gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    if hasattr(gym.wrappers, "FrameStackObservation"):
        return gym.wrappers.FrameStackObservation(env, 4)
    return gym.wrappers.FrameStack(env, 4)  # Gymnasium before 1.0
