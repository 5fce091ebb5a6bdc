"""An environment that shows its variable: ``obs[0]`` is ``level``, read at every step. Workers import it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.make import EnvInstance


class VariableEnv:
    """Episodes of 3 to 7 steps; reward 1 for action 0."""

    spec = EnvSpec("dialled", (Field("obs", "float32", (2,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))

    def __init__(self, variables: Mapping[str, float]) -> None:
        assert set(variables) == {"level"}
        assert len(variables) == 1
        self._variables = variables
        self._left = 0

    def reset(self, seed: int, obs: Obs) -> None:
        self._left = 3 + int(np.random.default_rng(seed).integers(5))
        self._look(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self._left -= 1
        self._look(obs)
        return float(action[0] == 0), self._left == 0, False, {}

    def _look(self, obs: Obs) -> None:
        obs["obs"][0] = self._variables["level"], self._left

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None


class Told(VariableEnv):
    """Writes down which progress each worker's episodes begin with; it stays the same to their end."""

    def __init__(self, variables: Mapping[str, float], journal: str, instance: EnvInstance) -> None:
        super().__init__({"level": 0.0})
        self._progress, self._journal, self._worker = variables, Path(journal), instance.worker

    def reset(self, seed: int, obs: Obs) -> None:
        self._begun = self._progress["progress"]
        with self._journal.open("a") as file:
            file.write(f"{self._worker} {self._begun}\n")
        super().reset(seed, obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        assert self._progress["progress"] == self._begun
        return super().step(action, obs)


class Dialled(VariableEnv):
    """Shows ``level`` and ``progress`` as they were when the episode began."""

    spec = EnvSpec("dialled twice", (Field("obs", "float32", (2,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))

    def __init__(self, variables: Mapping[str, float]) -> None:
        super().__init__({"level": 0.0})
        self._told = variables

    def reset(self, seed: int, obs: Obs) -> None:
        self._begun = self._told["level"], self._told["progress"]
        super().reset(seed, obs)

    def _look(self, obs: Obs) -> None:
        assert (self._told["level"], self._told["progress"]) == self._begun, "nothing changes within an episode"
        obs["obs"][:] = self._begun
