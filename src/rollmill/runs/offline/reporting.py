"""Metrics of an offline training: rows for the sinks. The axis is optimizer steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rich.console import Console as RichConsole

from rollmill.core.config.plain import to_dict
from rollmill.core.errors import RunFolderError
from rollmill.core.protocols import Sink
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.console import ConsoleMode, ConsoleSink, Row, count_text, live_panel
from rollmill.monitor.jsonl import JsonlSink
from rollmill.monitor.metrics import Progress, Rate
from rollmill.monitor.tensorboard import TensorBoardSink
from rollmill.monitor.wandb import WandbRun, WandbSink
from rollmill.runs.offline.settings import OfflineConfig

log = logging.getLogger("rollmill")

ROWS = (
    Row("loss", "learn/loss"),
    Row("held-out loss", "validation/loss"),
    Row("lowest so far", "validation/best_loss", in_line=False),
    Row("at update", "validation/best_update", lambda step: f"{step:,.0f}", in_line=False),
    Row("accuracy", "validation/accuracy", lambda share: f"{share:.1%}"),
    Row("error", "validation/error"),
    Row("return", "eval/return"),
    Row("samples/s", "time/samples_per_s", count_text),
    Row("waits for data", "data/wait_share", lambda share: f"{share:.1%}"),
    Row("learning rate", "learn/learning_rate"),
    Row("gradient norm", "learn/grad_norm"),
)


class OfflineReporter:
    """Owns the sinks of an offline training."""

    def __init__(self, config: OfflineConfig, folder: RunFolder, console: ConsoleMode) -> None:
        self._config, self._folder, self._mode = config, folder, console
        self._sinks: list[Sink] = []
        self._console: ConsoleSink | None = None
        self._rate = Rate()
        self._failed: set[str] = set()

    def open(self, steps: int, seconds: float) -> None:
        """Open the sinks of a run that stands at ``steps`` after ``seconds`` of fitting."""
        folder, config = self._folder, self._config
        resumed = steps if folder.metrics.exists() else None
        self._sinks.append(JsonlSink(folder.metrics, resumed, unit="updates"))
        if config.report.tensorboard:
            self._sinks.append(TensorBoardSink(folder.tensorboard, resumed))
        if config.wandb.on:
            about = WandbRun(folder.path.name, f"offline {config.algorithm}", to_dict(config))
            self._sinks.append(WandbSink(folder.path / "wandb", config.wandb, about, axis="step"))
        if self._mode != "off":
            progress = Progress(config.fit.steps, config.fit.seconds, seconds)
            screen = None if live_panel(self._mode) else RichConsole(force_terminal=False)
            title, every = f"{config.algorithm}: {folder.path}", config.report.console_seconds
            self._console = ConsoleSink(title, progress, folder.path, every, ROWS, console=screen, unit="updates")
            self._sinks.append(self._console)
        self._rate.update(steps)

    def write(self, steps: int, metrics: Mapping[str, float]) -> None:
        """A row for every sink; one that cannot write (disk full) is complained about once."""
        for sink in self._sinks:
            name = type(sink).__name__
            try:
                sink.write(steps, metrics)
                self._failed.discard(name)
            except RunFolderError as error:
                if name not in self._failed:
                    log.error("metrics are being lost, training goes on: %s", error)
                self._failed.add(name)

    def refresh(self, steps: int) -> None:
        """Show how far it is, if it is time: rows of metrics may be minutes apart."""
        self._rate.update(steps)
        if self._console is not None:
            self._console.tick(steps, {"time/updates_per_s": self._rate.per_second()})

    def redraw(self) -> None:
        """Redraw the panel, if there is one and it is time."""
        if self._console is not None:
            self._console.refresh()

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except RunFolderError as error:
                log.error("the last metrics could not be written: %s", error)
        self._sinks.clear()
