"""Our environments under an id of Gymnasium's, for programs that know Gymnasium and not rollmill.

Nothing is registered by importing; call ``register()`` once, then ``gymnasium.make("rollmill/CarRacing-v3", size=64)``.
"""

from __future__ import annotations

import gymnasium as gym

CAR_RACING = "rollmill/CarRacing-v3"


def register() -> None:
    """Make ``rollmill/CarRacing-v3`` known to ``gymnasium.make``, with the limits of ``CarRacing-v3``."""
    if CAR_RACING in gym.registry:
        return
    gym.register(
        CAR_RACING,
        entry_point="rollmill.envs.car_racing.gym:CarRacing",
        max_episode_steps=1000,
        reward_threshold=900,
    )
