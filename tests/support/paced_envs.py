"""Environments that take a given time for a step: who waits for whom, in tests and benchmarks."""

from __future__ import annotations

import time
from pathlib import Path

from rollmill.core.fields import Array, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.make import EnvInstance
from rollmill.envs.toy import Target


class Paced(Target):
    """Long episodes of ``toy_target``, ``seconds`` per step."""

    def __init__(self, seconds: float = 0.0, length: int = 1000) -> None:
        super().__init__(length=length)
        self._seconds = seconds

    def step(self, action: Array, obs: Obs) -> StepReturn:
        time.sleep(self._seconds)
        return super().step(action, obs)


class Behind(Target):
    """In all workers but the first, the last step of every other segment takes until the run has made ``updates`` more:
    the file ``clock`` says how many there were.
    """

    def __init__(self, instance: EnvInstance, clock: str, updates: int, rollout: int) -> None:
        super().__init__(length=1_000_000)  # rows of a segment and steps go together
        self._clock, self._updates, self._rollout = Path(clock), updates, rollout
        self._slow, self._steps = instance.worker > 0, 0

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self._steps += 1
        if self._slow and self._steps % (2 * self._rollout) == self._rollout:
            until = self._now() + self._updates
            while self._now() < until:
                time.sleep(0.001)
        return super().step(action, obs)

    def _now(self) -> int:
        return int.from_bytes(self._clock.read_bytes(), "little")
