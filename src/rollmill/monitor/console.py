"""What a person sees while a run goes on: a live panel on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rollmill.core.run_log import CleanFormatter
from rollmill.core.terminal import drawing, printable
from rollmill.core.text import bytes_text, three_digits
from rollmill.monitor.metrics import Clock, Progress

_LOG = logging.getLogger("rollmill")
_REFRESH_S = 0.25
_DISK_S = 1.0
_DISK_SHARE = 0.01  # of the time may go into walking the run folder: cheap, not free
_LOG_LINES = 5
_WARNINGS = 3
_WARNING_CHARS = 200  # wrapped, not cut at the edge; the whole text is in the log
_MAX_WIDTH = 100


def count_text(value: float) -> str:
    """Return text such as ``950``, ``12.3K``, ``4.56M``: three digits and a unit of thousands."""
    if not math.isfinite(value):
        return str(value)
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= unit * 0.9995:
            return f"{three_digits(value / unit)}{name}"
    return f"{value:.0f}"


def duration_text(seconds: float) -> str:
    """Return text such as ``45 s``, ``3 min 05 s``, ``2 h 07 min``, ``4 d 03 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def number_text(value: float) -> str:
    """Return a number with the four digits that matter: ``0.01234``, ``12.34``, ``-1235``, ``1.2e-07``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e5:
        decimals = max(0, 3 - math.floor(math.log10(abs(value))))
        return f"{value:.{decimals}f}"
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3e}"


@dataclass(frozen=True)
class Row:
    """One cell of the panel: its label, the metric it shows (the whole name, or its end after a ``/``), its text."""

    label: str
    metric: str
    text: Callable[[float], str] = number_text
    in_line: bool = True
    """Whether it stands in the one-line report, too."""


ROWS = (
    Row("frames/s", "frames_per_s", count_text),
    Row("return", "episode/return"),
    Row("length", "episode/length"),
    Row("policy lag", "policy_lag"),
    Row("entropy", "entropy"),
    Row("KL", "kl"),
    Row("explained var.", "explained_variance"),
)
USAGE_ROWS = (
    Row("memory", "usage/memory_mb", lambda megabytes: bytes_text(megabytes * 1e6), in_line=False),
    Row("cores busy", "usage/cores", lambda cores: f"{cores:.1f}", in_line=False),
)
EPISODE_METRICS = ("count", "return", "return_min", "return_max", "length")
"""What every environment has; other names below ``episode/`` are its own statistics."""
MAX_OWN = 6
RECORDING_ROWS = (
    Row("recorded", "record/bytes", bytes_text),
    Row("kept episodes", "record/episodes", count_text),
    Row("dropped segm.", "record/dropped_segments", count_text),
)
"""For runs that record."""


def stdout_is_terminal() -> bool:
    """Return whether a live panel can be drawn on stdout: it is a terminal that is not dumb."""
    return drawing(sys.stdout).isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


ConsoleMode = Literal["auto", "plain", "off"]
"""A live panel where there is a terminal, log lines, or nothing."""


def live_panel(console: ConsoleMode) -> bool:
    """Return whether the console shows a live panel (then the log must not go there too)."""
    return console == "auto" and stdout_is_terminal()


class ConsoleSink:
    """Shows metrics; implements ``Sink``.

    On a terminal (``live``) a panel that is redrawn by ``write`` and ``refresh``; the latest lines of the
    "rollmill" logger appear inside it, so the log itself should not go to the console. Elsewhere one log
    line per report, at most every ``every_s`` seconds.

    There is no drawing thread: worker processes may be forked at any time. ``unit`` is what ``step`` counts in runs
    that have other ones (``updates``).
    """

    def __init__(
        self,
        title: str,
        progress: Progress | None = None,
        folder: Path | None = None,
        every_s: float = 10.0,
        rows: tuple[Row, ...] = ROWS,
        console: Console | None = None,
        clock: Clock = time.monotonic,
        unit: str = "frames",
    ) -> None:
        self._unit = unit
        self._title = title
        self._progress = progress or Progress(clock=clock)
        self._disk = _Disk(folder, clock) if folder is not None else None
        self._every_s = every_s
        self._rows = rows
        self._clock = clock
        self._step = 0
        self._metrics: Mapping[str, float] = {}
        self._shown_at = -math.inf
        self._unshown = False
        self._tail = _Tail()
        self.live = stdout_is_terminal() if console is None else console.is_terminal
        self._console = console or Console(file=drawing(sys.stdout))
        self._live: Live | None = None
        if self.live:
            _LOG.addHandler(self._tail)
            self._live = Live(self.panel(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._metrics = dict(metrics)
        self._unshown = True
        self.refresh()

    def tick(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show, between two rows, how far the run is by now, and the few metrics that are known at any time."""
        if self._is_due():
            self._step, self._metrics = step, {**self._metrics, **metrics}
            self._show()

    def end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics with which the run has ended; ``close`` leaves them on the screen."""
        self._step, self._metrics = step, {**self._metrics, **metrics}
        self._unshown = True
        if self._disk is not None:
            self._disk.look()

    def refresh(self) -> None:
        """Show what is new, if the last time is long enough ago; cheap enough for every turn of a loop."""
        if self._is_due() and (self._live is not None or self._unshown):
            self._show()

    def _is_due(self) -> bool:
        return self._clock() - self._shown_at >= (_REFRESH_S if self._live is not None else self._every_s)

    def close(self) -> None:
        """Show the last report and leave it on the screen."""
        if self._live is not None:
            self._show()
            self._live.stop()
            self._live = None
            _LOG.removeHandler(self._tail)
        elif self._unshown:
            self._show()

    def _show(self) -> None:
        self._shown_at = self._clock()
        self._unshown = False
        if self._live is not None:
            self._live.update(self.panel(), refresh=True)
        else:
            _LOG.info("%s", self.line())

    # ------------------------------------------------------------------------------------------ contents

    def line(self) -> str:
        """Return the report as one line of text."""
        parts = [self._step_text()]
        for row in self._rows:
            value = self._value(row.metric)
            if value is not None and row.in_line:
                parts.append(f"{row.label} {row.text(value)}")
        left = self._seconds_left()
        if left is not None:
            parts.append(f"left {duration_text(left)}")
        return " | ".join(parts)

    def panel(self) -> RenderableType:
        """Return the report as a panel, made for 80 columns and more."""
        parts: list[RenderableType] = [self._head(), Text(), self._table()]
        if self._tail.warnings:
            heading = Text(f"warnings ({self._tail.warning_count})", "yellow")
            parts.append(Rule(heading, align="left", style="dim"))
            parts += [_log_text(line[:_WARNING_CHARS], "yellow", wrap=True) for line in tuple(self._tail.warnings)]
        if self._tail.lines:
            parts.append(Rule(Text("log"), align="left", style="dim"))
            parts += [_log_text(line, "dim") for line in tuple(self._tail.lines)]
        title = Text(printable(self._title), "bold")
        width = min(self._console.width, _MAX_WIDTH)
        return Panel(Group(*parts), title=title, title_align="left", padding=(0, 1), width=width)

    def _head(self) -> RenderableType:
        nearest = self._progress.nearest(self._step, self._batches())
        if nearest is None:
            return Text(self._step_text())
        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_row(Text(self._step_text()), ProgressBar(total=1.0, completed=nearest[1]))
        return head

    def _table(self) -> Table:
        """Return a table of the metrics, in two columns: down the left side, then down the right side."""
        cells = [(Text(printable(row.label)), self._cell(row)) for row in (*self._rows, *self._own_rows())]
        cells.append((Text("time"), Text(duration_text(self._progress.elapsed()))))
        left = self._seconds_left()
        cells.append((Text("time left"), Text("-" if left is None else duration_text(left))))
        table = Table.grid(padding=(0, 2), expand=True)
        for _ in range(2):
            table.add_column(style="cyan", no_wrap=True)
            table.add_column(ratio=1, no_wrap=True)
        half = -(-len(cells) // 2)
        cells += [(Text(), Text())] * (2 * half - len(cells))
        for (label, value), (label_2, value_2) in zip(cells[:half], cells[half:]):
            table.add_row(label, value, label_2, value_2)
        if self._disk is not None:
            # What was recorded may still be on its way to the disk.
            used = max(self._disk.used(), self._value("record/bytes") or 0)
            table.add_row("disk used", Text(bytes_text(used)), "disk free", self._free_text())
        return table

    def _own_rows(self) -> list[Row]:
        """Return rows for the first of the environment's own statistics of ended episodes."""
        known = {f"episode/{name}" for name in EPISODE_METRICS} | {row.metric for row in self._rows}
        own = [name for name in self._metrics if name.startswith("episode/") and name not in known]
        return [Row(name.removeprefix("episode/")[:14], name) for name in own[:MAX_OWN]]

    def _cell(self, row: Row) -> Text:
        value = self._value(row.metric)
        if value is None:
            return Text("-", "dim")
        return Text(row.text(value), "bold" if math.isfinite(value) else "bold red")

    def _free_text(self) -> Text:
        assert self._disk is not None
        free = self._disk.free()
        return Text(bytes_text(free), "bold red" if free < 1e9 else "")

    def _step_text(self) -> str:
        """Say how far the run is, and how much of the limit that comes first is done."""
        progress, done = self._progress, count_text(self._step)
        nearest = progress.nearest(self._step, self._batches())
        if nearest is None:
            return f"{done} {self._unit}"
        limit, share = nearest
        text = f"{done} of {count_text(progress.max_frames)} {self._unit}"
        if limit == "seconds":
            spent, allowed = duration_text(progress.elapsed()), duration_text(progress.max_seconds)
            text = f"{done} {self._unit}, {spent} of {allowed}"
        elif limit == "batches":
            text = f"{done} {self._unit}, {self._batches():,.0f} of {progress.max_batches:,} batches"
        return f"{text} ({math.floor(share * 100)} %)"

    def _seconds_left(self) -> float | None:
        rate = self._value(f"{self._unit}_per_s") or 0.0
        return self._progress.seconds_left(self._step, rate, self._batches())

    def _batches(self) -> float:
        return self._value("learn/batches") or 0

    def _value(self, name: str) -> float | None:
        if name in self._metrics:
            return self._metrics[name]
        for key, value in self._metrics.items():
            if key.endswith(f"/{name}"):
                return value
        return None


class _Tail(logging.Handler):
    """The latest lines of the log, warnings apart so that they are not pushed out by chatter."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(CleanFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
        self.lines: deque[str] = deque(maxlen=_LOG_LINES)
        self.warnings: deque[str] = deque(maxlen=_WARNINGS)
        self.warning_count = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if record.levelno >= logging.WARNING:
            self.warning_count += 1
            self.warnings.append(line)
        else:
            self.lines.append(line)


class _Disk:
    """Bytes used by a folder and free on its disk, looked up now and then."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._due = -math.inf
        self._used = 0

    def used(self) -> int:
        if self._clock() >= self._due:
            self.look()
        return self._used

    def look(self) -> None:
        begun = self._clock()
        self._used = _bytes_below(self._folder)
        self._due = begun + max(_DISK_S, (self._clock() - begun) / _DISK_SHARE)

    def free(self) -> int:
        return shutil.disk_usage(self._folder).free


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # replaced or pruned meanwhile
                continue
    return total


def _log_text(line: str, style: str, wrap: bool = False) -> Text:
    text = line.replace("\n", " ").expandtabs(1)  # printable: by the formatter of the log
    return Text(text, style, no_wrap=not wrap, overflow="fold" if wrap else "ellipsis")
