"""Evaluation while a run trains: hands weights to a process of its own and takes in what it finds.

The training never waits for it: weights are copied and written by a thread, an evaluation that is due while another one
runs is left out and counted, and a process that dies is counted and started again for the next one. It dies with the
run (``core.process``), and the janitor knows it by its token.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.core import tree_file
from rollmill.core.errors import RollmillError
from rollmill.core.janitor import SCRATCH_VARIABLE
from rollmill.core.process import Child, OutputLog
from rollmill.monitor.jsonl import JsonlSink
from rollmill.runs.settings.train import EvaluationSettings
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.publishing import weights_only

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")

PROCESS = "rollmill.runs.train.background_eval_main"
FAILURES = 3
"""Evaluations in a row that may fail before no more are tried."""
END_SECONDS = 10.0
METRICS = {"mean": "return", "standard_error": "standard_error", "median": "median", "min": "return_min"} | {
    "max": "return_max",
    "mean_length": "length",
}
"""From names of ``Score.summary`` to metrics under ``eval/``."""


class BackgroundEval(Observer):
    """Starts evaluations when they are due; their metrics go into the next row of metrics.

    ``eval/training.jsonl`` in the run folder has them all, each at the frames of the weights that were evaluated.
    """

    def __init__(self, settings: EvaluationSettings, environment: Mapping[str, str]) -> None:
        self._settings, self._environment = settings, dict(environment)
        self._child: Evaluator | None = None
        self._next = self._first = 0
        self._fresh: dict[str, float] = {}
        self._rows: JsonlSink | None = None
        self._failed_in_a_row = 0
        self.done = self.skipped = self.failures = 0

    @property
    def gave_up(self) -> bool:
        return self._failed_in_a_row >= FAILURES

    def on_init(self, run: OnlineRun) -> None:
        folder = run.folder.path / "eval"
        folder.mkdir(exist_ok=True)
        path = folder / "training.jsonl"
        self._rows = JsonlSink(path, run.frames if path.exists() else None)
        self._next = self._first = self._following(run.frames)

    def _following(self, frames: int) -> int:
        every = self._settings.every_frames
        return (frames // every + 1) * every if every else sys.maxsize

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self._look()
        if run.frames >= self._next:
            self._next = self._following(run.frames)
            if self._child is not None and self._child.busy:
                self.skipped += 1
            elif not self.gave_up:
                self._begin(run)

    def _begin(self, run: OnlineRun) -> None:
        """Copy the weights now; writing them and everything after it happens elsewhere."""
        if self._child is None:
            self._child = Evaluator(self._environment, run.config, self._settings)
        self._child.evaluate(weights_only(run), run.frames)

    def _look(self) -> None:
        """Take in what has been found, and notice a process that has ended."""
        child = self._child
        if child is None:
            return
        over = child.is_over
        for event in child.heard():
            self._take(event)
        if over:
            self._child = None
            if child.busy:
                self._fail(f"its process {child.how_it_ended()}")
            child.close()

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "failed":
            self._fail(event["trace"] or event["error"])
            return
        self.done += 1
        self._failed_in_a_row = 0
        summary = event["summary"]
        found = {f"eval/{name}": float(summary[key]) for key, name in METRICS.items() if summary[key] is not None}
        found |= _of_tasks(event)
        self._fresh = {**found, "eval/frames": float(event["frames"]), "eval/seconds": float(event["seconds"])}
        assert self._rows is not None, "on_init comes first"
        self._rows.write(int(event["frames"]), {**found, "eval/episodes": summary["episodes"]})
        log.info("evaluation at %s frames: mean return %.4g", f"{event['frames']:,}", summary["mean"])

    def _fail(self, why: str) -> None:
        self.failures += 1
        self._failed_in_a_row += 1
        more = f"; {FAILURES} in a row, no more are tried" if self.gave_up else ""
        log.error("the evaluation beside the training failed, training goes on: %s%s", why, more)

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        """Return counts in every row; metrics once, in the first row after they were found."""
        self._look()
        fresh, self._fresh = self._fresh, {}
        return {**fresh, "eval/done": self.done, "eval/skipped": self.skipped, "eval/failures": self.failures}

    def on_stop(self, run: OnlineRun) -> None:
        try:
            asked_to_end = run.life.stopped or not run.stop_reason
            if self._settings.final and not asked_to_end and not self.gave_up:
                self._finish(run)
            else:
                self._look()
        finally:
            unfinished = self._child is not None and self._child.busy
            if self._child is not None:
                self._child.close()
                self._child = None
            if self._rows is not None:
                self._rows.close()
            self._say_what_is_missing(run, unfinished)

    def _say_what_is_missing(self, run: OnlineRun, unfinished: bool) -> None:
        """Log a line about evaluations that were asked for and did not come: nobody else would notice."""
        missed = {
            "was still being played when the run ended": int(unfinished),
            "failed": self.failures,
            "left out because the one before was not finished": self.skipped,
        }
        why = ", ".join(f"{count} {what}" for what, count in missed.items() if count)
        if self.done:
            if why:
                log.info("evaluations: %d finished, %s", self.done, why)
            return
        due = f"{self._first:,} frames" if self._settings.every_frames else "its end"
        never = f"the first was due at {due}, the run ended at {run.frames:,} frames"
        log.warning("no evaluation was finished: %s", why or never)

    def _finish(self, run: OnlineRun) -> None:
        """Evaluate the last weights, after what is running; a second Ctrl-C ends the waiting."""
        if self._child is not None and self._child.busy:
            self._child.wait()
            self._look()
        self._begin(run)
        assert self._child is not None, "just begun"
        self._child.wait()
        self._look()
        run.write_row()


def _of_tasks(event: Mapping[str, Any]) -> dict[str, float]:
    """Return what was found of each task of a suite, and of all together."""
    names = {"mean": "return", "score": "score"}
    rows = event["by_task"].items()
    found = {
        f"eval/task/{t}/{name}": float(row[key])
        for t, row in rows
        for key, name in names.items()
        if row[key] is not None
    }
    whole = event["suite_score"]
    return found if whole is None else {**found, "eval/suite_score": float(whole)}


@dataclass(frozen=True)
class EvaluatorSetup:
    """What the process is given: where it reads what to evaluate, line by line, and how far it steps back."""

    orders_fd: int
    nice: int


class Evaluator(Child):
    """The process, as the run sees it: one evaluation at a time."""

    def __init__(self, environment: Mapping[str, str], config: Any, settings: EvaluationSettings) -> None:
        self._folder = Path(environment[SCRATCH_VARIABLE]) / f"evaluation-{os.urandom(4).hex()}"
        self._folder.mkdir()
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        orders_fd, self._orders_fd = os.pipe()
        super().__init__(PROCESS, EvaluatorSetup(orders_fd, settings.nice), {**environment, **threads}, [orders_fd])
        os.close(orders_fd)
        self._order = {
            "episodes": settings.episodes,
            "envs": settings.envs,
            "deterministic": settings.deterministic,
            "seed": config.run.seed,
        }
        self._log = OutputLog("evaluation")
        self._writing: threading.Thread | None = None
        self.busy = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and nothing is being written for it any more."""
        return not self.alive and (self._writing is None or not self._writing.is_alive())

    def evaluate(self, weights: dict[str, Any], frames: int) -> None:
        """Write the weights and tell the process, both in a thread: a slow disk must not stop the training."""
        self.busy = True
        path = self._folder / f"weights-{frames:012d}.ckpt"
        order = {**self._order, "checkpoint": str(path), "frames": frames}
        self._writing = threading.Thread(target=self._send, args=(path, weights, order), name="evaluation", daemon=True)
        self._writing.start()

    def _send(self, path: Path, weights: dict[str, Any], order: Mapping[str, Any]) -> None:
        try:
            tree_file.save_tree(path, weights)
            os.write(self._orders_fd, json.dumps(order).encode() + b"\n")
        except (RollmillError, OSError) as error:
            log.error("the weights could not be handed to the evaluation: %s", error)
            self.end()  # noticed and counted as any other death

    def heard(self) -> list[dict[str, Any]]:
        """Return what it has said since the last time; a finished evaluation makes room for the next."""
        self._log.write(self.read_output())
        events = self.read_events()
        if events:
            self.busy = False
        return events

    def wait(self) -> None:
        """Wait until something was said, or it has ended."""
        if self._writing is not None:
            self._writing.join()
        while self.alive and not self.events.wait(0.1):
            self._log.write(self.read_output())

    def close(self) -> None:
        """End it; nothing is left when this returns, simulators apart: those are the janitor's."""
        if self._writing is not None:
            self._writing.join()
        os.close(self._orders_fd)
        self.end(0.0 if self.busy else END_SECONDS)
        self._log.write(self.read_output())
        self._log.close()
        super().close()
