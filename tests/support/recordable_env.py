"""``faulty_envs:Marker`` in a form that a network can learn from: the seed in three small digits.

Workers import this module, so it must not import torch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from faulty_envs import Marker

from rollmill.core.fields import Array, Field, Obs
from rollmill.envs.make import EnvInstance

BASE = 2048


class Recordable(Marker):
    """Rewards are a thousandth of the marker's."""

    def __init__(self, instance: EnvInstance, agents: int = 1, longest: int = 9) -> None:
        super().__init__(instance, agents, longest)
        observation = (Field("where", "float32", (5,)), Field("seed", "float32", (3,)))
        self.spec = replace(self.spec, observation=observation)

    def _observe(self, obs: Obs) -> None:
        self._fill(obs["where"])
        obs["seed"][:] = [self._seed // BASE**k % BASE / BASE for k in range(3)]


def seed_of(digits: Array) -> int:
    return sum(int(digit * BASE) * BASE**k for k, digit in enumerate(np.asarray(digits, np.float64)))
