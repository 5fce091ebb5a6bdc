"""What the training of a world-model stage writes down: metrics for the sinks, and images of reconstructions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console as RichConsole

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.fields import Array
from rollmill.core.protocols import Sink
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.console import ConsoleMode, ConsoleSink, Row, live_panel
from rollmill.monitor.jsonl import JsonlSink
from rollmill.monitor.metrics import Progress
from rollmill.monitor.tensorboard import TensorBoardSink
from rollmill.store.convert.png import encode_png

log = logging.getLogger("rollmill")


class StageReporter:
    """Owns the sinks of a stage that trains something; the axis is optimizer steps."""

    def __init__(self, folder: RunFolder, console: ConsoleMode, rows: tuple[Row, ...], title: str) -> None:
        self._folder, self._mode, self._rows, self._title = folder, console, rows, title
        self._sinks: list[Sink] = []
        self._tensorboard: TensorBoardSink | None = None
        self._console: ConsoleSink | None = None
        self._failed: set[str] = set()

    def open(self, steps: int, total: int, seconds: float, tensorboard: bool, console_seconds: float) -> None:
        """Open the sinks of a run that stands at ``steps`` of ``total`` after ``seconds``."""
        folder = self._folder
        resumed = steps if folder.metrics.exists() else None
        self._sinks.append(JsonlSink(folder.metrics, resumed, unit="updates"))
        if tensorboard:
            self._tensorboard = TensorBoardSink(folder.tensorboard, resumed)
            self._sinks.append(self._tensorboard)
        if self._mode != "off":
            progress = Progress(total, 0.0, seconds)
            screen = None if live_panel(self._mode) else RichConsole(force_terminal=False)
            self._console = ConsoleSink(
                self._title, progress, folder.path, console_seconds, self._rows, console=screen, unit="updates"
            )
            self._sinks.append(self._console)

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

    def image(self, steps: int, name: str, sheet: Array) -> Path | None:
        """Write an image ``[H, W, 3]`` as PNG into the folder, and for TensorBoard; None where that failed."""
        path = self._folder.images / f"{name}-{steps:08d}.png"
        data = encode_png(sheet, level=6)
        try:
            path.parent.mkdir(exist_ok=True)
            atomic.write_bytes(path, [data])
            if self._tensorboard is not None:
                self._tensorboard.image(steps, name, data, sheet.shape[:2])
        except (OSError, RunFolderError) as error:
            log.error("the image %s could not be written, training goes on: %s", path, error)
            return None
        return path

    def refresh(self) -> None:
        """Redraw the panel, if it is time."""
        if self._console is not None:
            self._console.refresh()

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except RunFolderError as error:
                log.error("the last metrics could not be written: %s", error)
        self._sinks.clear()
