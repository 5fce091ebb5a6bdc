"""A policy that acts at random: the comparator of every evaluation, and the load for measuring simulators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollmill.core.fields import EnvSpec
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.shapes import MAPPING, check_shape
from rollmill.envs.batch import random_actions


class RandomPolicy(Policy):
    """Uniformly random actions (allowed ones, where there is a mask); values and log-probabilities are 0."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self._spec = spec
        self._rng = np.random.default_rng(seed)

    def act(self, request: ActRequest) -> PolicyOutput:
        return PolicyOutput.of(random_actions(self._spec, self._rng, request.obs, len(request.lanes)))

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, {"rng": MAPPING})
        self._rng.bit_generator.state = state["rng"]
