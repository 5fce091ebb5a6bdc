"""What a person sees while the stages of a world model run: one panel on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollmill.core.terminal import drawing, printable
from rollmill.monitor.console import duration_text, number_text, stdout_is_terminal

log = logging.getLogger("rollmill")

REDRAW_SECONDS = 0.25
LINE_SECONDS = 15.0
"""Between two lines where there is no terminal."""
MAX_METRICS = 4
WIDTH = 100
SHOWN = (
    *("episodes", "steps_per_s", "shards", "loss", "pixel_error", "kl", "latent", "reward"),
    *("generation", "best", "mean", "champion", "sigma", "return"),
)
"""Metrics worth a place, by the end of their name; of others the first ones are shown."""
STYLE = {"waiting": "dim", "running": "bold cyan", "done": "green", "skipped": "green", "failed": "bold red"}


class StagePanel:
    """The stages in their order, how each stands, and the newest metrics of the one at work.

    ``live``: a panel that is redrawn; else log lines. There is no drawing thread: worker processes may be forked.
    """

    def __init__(self, title: str, stages: Sequence[str], live: bool | None = None) -> None:
        self._title = title
        self._states = dict.fromkeys(stages, "waiting")
        self._notes = dict.fromkeys(stages, "")
        self._seconds = dict.fromkeys(stages, 0.0)
        self._share = 0.0
        self._stage = ""
        self._begun = self._drawn = 0.0
        self._console = Console(file=drawing(sys.stdout))
        self._live: Live | None = None
        if stdout_is_terminal() if live is None else live:
            self._live = Live(self.panel(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    @property
    def is_live(self) -> bool:
        return self._live is not None

    def begin(self, stage: str) -> None:
        self._stage, self._share, self._begun = stage, 0.0, time.monotonic()
        self._states[stage] = "running"
        self._draw()
        if self._live is None:
            log.info("%s: begins", stage)

    def progress(self, share: float, metrics: Mapping[str, float]) -> None:
        """Show that the stage at work is done to ``share`` (0..1)."""
        self._share = min(1.0, max(0.0, share))
        self._notes[self._stage] = metrics_text(metrics)
        self._seconds[self._stage] = time.monotonic() - self._begun
        every = REDRAW_SECONDS if self._live is not None else LINE_SECONDS
        if time.monotonic() - self._drawn < every:
            return
        self._draw()
        if self._live is None:
            self._drawn = time.monotonic()
            log.info("%s: %.0f %% | %s", self._stage, 100 * self._share, self._notes[self._stage])

    def end(self, stage: str, state: str, note: str = "", seconds: float | None = None) -> None:
        """Show that a stage has ended; ``state``: done, skipped or failed."""
        if seconds is None:
            seconds = time.monotonic() - self._begun
        self._states[stage], self._seconds[stage] = state, seconds
        self._notes[stage] = note or self._notes[stage]
        self._draw()
        if self._live is None:
            log.info("%s: %s%s", stage, state, f" | {self._notes[stage]}" if self._notes[stage] else "")

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def panel(self) -> RenderableType:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(width=14)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for stage, state in self._states.items():
            full = {"waiting": 0.0, "running": self._share}.get(state, 1.0)
            spent = duration_text(self._seconds[stage]) if self._seconds[stage] else ""
            style = STYLE[state]
            bar = ProgressBar(total=1.0, completed=full, width=14)
            table.add_row(
                Text(stage, style), Text(state, style), bar, spent, Text(printable(self._notes[stage]), "dim")
            )
        return Panel(
            table, title=Text(printable(self._title), "bold"), title_align="left", width=min(self._console.width, WIDTH)
        )

    def _draw(self) -> None:
        if self._live is not None:
            self._drawn = time.monotonic()
            self._live.update(self.panel(), refresh=True)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return ``loss 12.34, pixel_error 0.071``: the metrics that matter most, without the rooms they come from."""
    short = {name.rpartition("/")[2]: value for name, value in metrics.items() if math.isfinite(value)}
    chosen = [name for name in SHOWN if name in short] or list(short)
    return ", ".join(f"{name} {_text(short[name])}" for name in chosen[:MAX_METRICS])


def _text(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else number_text(value)
