"""How far something is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from rollmill.core.terminal import drawing, printable
from rollmill.monitor.console import duration_text
from rollmill.runs.evaluate.play import Metrics, Pace

BAR = 20
REDRAW_SECONDS = 0.2

Clock = Callable[[], float]


class ProgressLine(contextlib.AbstractContextManager[Any]):
    """A bar on a terminal, now and then a line elsewhere; always on stderr."""

    line_seconds = 10.0
    """Between two lines where there is no terminal."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._stream = drawing(sys.stderr)
        self._live = self._stream.isatty()
        self._due = clock() + (0.0 if self._live else self.line_seconds)
        self._drawn = False

    def draw(self, share: float, text: str) -> None:
        """Show the share that is done, 0 .. 1, and what there is to say, if it is time to."""
        now = self._clock()
        if now < self._due and not (self._live and share >= 1.0):
            return
        self._due = now + (REDRAW_SECONDS if self._live else self.line_seconds)
        self._drawn = self._live
        width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be drawn over
        shown = f"\r\033[K{printable(bar(share, text))[:width]}" if self._live else printable(text)
        print(shown, end="" if self._live else "\n", file=self._stream, flush=True)

    def end(self) -> None:
        """Leave the bar where it is and go on below it."""
        if self._drawn:
            print(file=sys.stderr)
            self._drawn = False

    def __exit__(self, *_: object) -> None:
        self.end()


class EvaluationLine(ProgressLine):
    """Shows how far an evaluation is."""

    line_seconds = 5.0

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._pace = Pace(clock)

    def show(self, metrics: Metrics) -> None:
        self.draw(metrics.done / metrics.wanted, line(metrics, self._pace.left(metrics)))


def line(metrics: Metrics, left: float | None = None) -> str:
    """Say ``policy: 12 of 100 episodes, mean return 3.2, left 45 s``."""
    mean = "" if metrics.mean_return is None else f", mean return {metrics.mean_return:.4g}"
    rest = f", left {duration_text(left)}" if left else ""
    return f"{metrics.policy}: {metrics.done:,} of {metrics.wanted:,} {metrics.unit}{mean}{rest}"


def bar(share: float, text: str) -> str:
    full = int(BAR * min(1.0, share))
    return f"[{'#' * full}{'.' * (BAR - full)}] {text}"
