"""How far an evaluation is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable

from rollmill.core.terminal import drawing, printable
from rollmill.monitor.console import duration_text
from rollmill.runs.evaluate.play import Metrics, Pace

BAR = 20
LINE_SECONDS = 5.0
"""Between two lines where there is no terminal."""
REDRAW_SECONDS = 0.2


class ProgressLine(contextlib.AbstractContextManager["ProgressLine"]):
    """A bar on a terminal, now and then a line elsewhere; always on stderr."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace = Pace(clock)
        self._stream = drawing(sys.stderr)
        self._live = self._stream.isatty()
        self._due = clock() + (0.0 if self._live else LINE_SECONDS)
        self._drawn = False

    def show(self, metrics: Metrics) -> None:
        now, left = self._clock(), self._pace.left(metrics)
        done = metrics.done >= metrics.wanted
        if now < self._due and not (self._live and done):
            return
        self._due = now + (REDRAW_SECONDS if self._live else LINE_SECONDS)
        self._drawn = self._live
        width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be drawn over
        text = f"\r\033[K{printable(bar(metrics, left))[:width]}" if self._live else printable(line(metrics, left))
        print(text, end="" if self._live else "\n", file=self._stream, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._drawn:  # leave the bar where it is and go on below it
            print(file=sys.stderr)


def line(metrics: Metrics, left: float | None = None) -> str:
    """``policy: 12 of 100 episodes, mean return 3.2, left 45 s``."""
    mean = "" if metrics.mean_return is None else f", mean return {metrics.mean_return:.4g}"
    rest = f", left {duration_text(left)}" if left else ""
    return f"{metrics.policy}: {metrics.done:,} of {metrics.wanted:,} {metrics.unit}{mean}{rest}"


def bar(metrics: Metrics, left: float | None = None) -> str:
    full = int(BAR * min(1.0, metrics.done / metrics.wanted))
    return f"[{'#' * full}{'.' * (BAR - full)}] {line(metrics, left)}"
