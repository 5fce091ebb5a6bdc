"""Asking a training that is running for a checkpoint, from another process.

The asker leaves ``checkpoints/save-<token>.request`` in the run's folder; the run looks for such files between two
training steps, saves, and answers with ``save-<token>.answer``, which the asker takes away.
"""

from __future__ import annotations

import logging
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.core import atomic
from rollmill.core.errors import CheckpointError, RollmillError
from rollmill.core.opening import read_json
from rollmill.core.run_folder import RunFolder, holder
from rollmill.runs.train.observers import Observer

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")

LOOK_SECONDS = 0.5
"""How often a run looks for requests."""


class SaveRequests(Observer):
    """Answers requests; what is saved by request stays for ever, like a milestone."""

    def __init__(self) -> None:
        self._looked = 0.0

    def on_init(self, run: OnlineRun) -> None:
        for left in run.folder.checkpoints.glob("save-*"):  # of askers that have given up, in an earlier session
            left.unlink(missing_ok=True)

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        requests = sorted(run.folder.checkpoints.glob("save-*.request"))
        if requests:
            self._answer(run, requests)

    def _answer(self, run: OnlineRun, requests: list[Path]) -> None:
        try:
            answer = {"path": run.save(keep=True).name}
        except CheckpointError as error:
            log.error("no checkpoint was written for the request: %s", error)
            answer = {"error": str(error)}
        for request in requests:
            try:
                atomic.write_json(request.with_suffix(".answer"), answer)
                request.unlink(missing_ok=True)
            except OSError as error:
                log.warning("a request for a checkpoint could not be answered: %s", error)


def ask_to_save(path: Path, seconds: float) -> Path:
    """Have the training in the run folder ``path`` write a checkpoint; returns it, or raises RollmillError."""
    folder = RunFolder(path)
    if not holder(path):
        raise RollmillError(
            f"{path}: no training is running there, so there is nothing new to save; its checkpoints: "
            f"`rollmill checkpoint list {path}`"
        )
    request = folder.checkpoints / f"save-{secrets.token_hex(8)}.request"
    answer, deadline = request.with_suffix(".answer"), time.monotonic() + seconds
    try:
        atomic.write_json(request, {})
        while not answer.exists():
            if time.monotonic() > deadline:
                raise RollmillError(f"{path}: no training step has ended within {seconds:g} s; nothing was saved")
            if not holder(path):
                raise RollmillError(f"{path}: the training has ended meanwhile; its last checkpoint is there")
            time.sleep(0.05)
        said = read_json(answer)
    except OSError as error:
        raise RollmillError(f"{error.filename or request}: {error.strerror or error}") from error
    finally:
        for file in (request, answer):
            file.unlink(missing_ok=True)
    if "error" in said:
        raise CheckpointError(said["error"])
    return folder.checkpoints / str(said["path"])
