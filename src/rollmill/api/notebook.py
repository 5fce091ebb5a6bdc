"""What a notebook shows while something is under way: one line that is kept up to date, and warnings."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rollmill.core.run_log import CleanFormatter
from rollmill.core.terminal import printable
from rollmill.monitor.console import count_text, duration_text, number_text
from rollmill.runs.train.observers import Observer

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun

EVERY_SECONDS = 0.5


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookLine:
    """One line below the cell, written anew as often as one likes."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        from IPython import display as ipython

        display: Any = ipython.display
        shown = {"text/plain": printable(text)}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class TrainingLine(Observer):
    """Shows how far a training is."""

    def __init__(self, line: NotebookLine) -> None:
        self._line = line
        self._shown_at = 0.0
        self._began: tuple[int, float] | None = None

    def on_start(self, run: OnlineRun) -> None:
        self._began = (run.frames, run.seconds)
        self._line.show(f"{run.folder.path}: starting")

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if time.monotonic() - self._shown_at >= EVERY_SECONDS:
            self._shown_at = time.monotonic()
            self._line.show(self._text(run))

    def on_stop(self, run: OnlineRun) -> None:
        if self._began is not None:
            self._line.show(f"{self._text(run)}: {run.stop_reason or 'ended'}")

    def _text(self, run: OnlineRun) -> str:
        frames, seconds = self._began or (0, 0.0)
        limit = f" of {count_text(run.frames_allowed)}" if run.frames_allowed else ""
        spent = run.seconds - seconds
        parts = [f"{run.folder.path}: {count_text(run.frames)}{limit} frames ({run.progress:.0%})"]
        if spent > 0:
            parts.append(f"{count_text((run.frames - frames) / spent)}/s")
        if run.mean_return is not None:
            parts.append(f"return {number_text(run.mean_return)}")
        if 0 < run.progress < 1 and spent > 0:
            parts.append(f"{duration_text(run.seconds * (1 / run.progress - 1))} left")
        return ", ".join(parts)


@contextlib.contextmanager
def warnings_shown() -> Iterator[None]:
    """Show warnings and errors of the log on stderr, where nothing else of it is shown."""
    log, handler = logging.getLogger("rollmill"), logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not record.getMessage().startswith("failed: "))  # the exception says it again
    handler.setFormatter(CleanFormatter("%(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
