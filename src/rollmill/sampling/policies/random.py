"""A policy that acts at random: the comparator of every evaluation, and the load for measuring simulators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.core.fields import Array, EnvSpec
from rollmill.core.protocols import ActRequest
from rollmill.core.shapes import MAPPING, check_shape
from rollmill.core.slots import Arena
from rollmill.envs.batch import random_actions


@dataclass
class ArrayOutput:
    action: Array
    log_prob: Array
    value: Array
    state: Array | None


class RandomPolicy:
    """Uniformly random actions (allowed ones, where there is a mask); values and log-probabilities are 0."""

    version = 0
    state_size = 0

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self._spec = spec
        self._rng = np.random.default_rng(seed)

    def attach(self, arena: Arena) -> None:
        """Nothing to prepare."""

    def detach(self) -> None:
        """Nothing to let go of."""

    def act(self, request: ActRequest) -> ArrayOutput:
        lanes = len(request.lanes)
        blank = np.zeros(lanes, np.float32)
        return ArrayOutput(
            random_actions(self._spec, self._rng, request.obs, lanes),
            blank,
            blank,
            np.zeros((lanes, 0), np.float32),
        )

    def refresh(self) -> int:
        return self.version

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, {"rng": MAPPING})
        self._rng.bit_generator.state = state["rng"]
