"""Observers that a command under test names in its settings: they hold the training, or kill it, at a known moment.

So a test that signals or kills a run does not have to be faster than the run. Named by the path of this file, they
are found wherever the command runs; so nothing else of the tests is imported here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

HOLDING = Path(__file__)


class Gate(Observer):
    """From training step ``at`` on, nothing goes on before a signal has come or the file ``gate`` is there."""

    def __init__(self, at: int, gate: str) -> None:
        self._at, self._gate = at, Path(gate)

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration >= self._at:
            _hold(lambda: run.life.stopped or self._gate.exists())


class AllWorkers(Observer):
    """Async mode: the first training step is not over before every worker has stepped its envs."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == 1:
            _hold(lambda: bool(run.parts.sampler.box.done.min() > 1))


class Dies(Observer):
    """Kills the process that trains, as ``kill -9`` does, in training step ``at``."""

    def __init__(self, at: int) -> None:
        self._at = at

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def _hold(until: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "nobody has let the training go on"
        time.sleep(0.02)
