"""An environment whose steps take a given time (``suites.py schedule``)."""

from __future__ import annotations

import time

from rollmill.core.fields import Array, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.toy import Target


class Paced(Target):
    """Long episodes of ``toy_target``, ``seconds`` per step."""

    def __init__(self, seconds: float = 0.0, length: int = 1000) -> None:
        super().__init__(length=length)
        self._seconds = seconds

    def step(self, action: Array, obs: Obs) -> StepReturn:
        time.sleep(self._seconds)
        return super().step(action, obs)
