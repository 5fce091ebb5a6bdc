"""Hands rows of metrics to every sink of a run: a file, TensorBoard, W&B, Trackio, the console.

A row belongs to a step, which every kind of run counts in a unit of its own (frames, updates, generations).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.fields import Array
from rollmill.core.protocols import Sink
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.console import ConsoleMode, ConsoleSink, Row, live_panel
from rollmill.monitor.jsonl import JsonlSink
from rollmill.monitor.metrics import Progress, Rate
from rollmill.monitor.tensorboard import TensorBoardSink
from rollmill.monitor.trackio import TrackioSettings, TrackioSink
from rollmill.monitor.wandb import TrackedRun, WandbSettings, WandbSink
from rollmill.store.convert.png import encode_png

log = logging.getLogger("rollmill")


@dataclass(frozen=True)
class Display:
    """What the console shows of a run."""

    mode: ConsoleMode
    title: str
    rows: tuple[Row, ...]
    progress: Progress
    every_s: float
    """Seconds between two lines where there is no live panel."""


class Reporter:
    """Owns the sinks of a run; ``unit`` is what its steps are. Before ``open`` it has none, and rows go nowhere."""

    def __init__(self, folder: RunFolder, unit: str = "frames") -> None:
        self.unit = unit
        self._folder = folder
        self._sinks: list[Sink] = []
        self._tensorboard: TensorBoardSink | None = None
        self._console: ConsoleSink | None = None
        self._rate = Rate()
        self._failed: set[str] = set()

    def open(
        self,
        step: int,
        display: Display,
        *,
        tensorboard: bool = True,
        wandb: WandbSettings | None = None,
        trackio: TrackioSettings | None = None,
        about: TrackedRun | None = None,
        changed: Mapping[str, Any] | None = None,
        compared_by: Sequence[str] = (),
    ) -> None:
        """Open the sinks of a run that stands at ``step``; ``about`` is what the trackers are told that are asked for.

        ``changed`` are settings that differ from the defaults, and ``compared_by`` metrics, for TensorBoard's HParams.
        """
        folder = self._folder
        resumed = step if folder.metrics.exists() else None
        self._sinks.append(JsonlSink(folder.metrics, resumed, unit=self.unit))
        if tensorboard:
            self._tensorboard = TensorBoardSink(folder.tensorboard, resumed)
            self._sinks.append(self._tensorboard)
            if changed is not None:
                self._tensorboard.hparams(changed, compared_by)
        about = about or TrackedRun(folder.path.name, "")
        if wandb is not None and wandb.on:
            axis = "frames" if self.unit == "frames" else "step"
            self._sinks.append(WandbSink(folder.path / "wandb", wandb, about, axis))
        if trackio is not None and trackio.on:
            self._sinks.append(TrackioSink(folder.path / "trackio", trackio, about))
        if display.mode != "off":
            screen = None if live_panel(display.mode) else RichConsole(force_terminal=False)
            shown = (display.title, display.progress, folder.path, display.every_s, display.rows)
            self._console = ConsoleSink(*shown, console=screen, unit=self.unit)
            self._sinks.append(self._console)
        self._rate.update(step)

    @property
    def per_second(self) -> float:
        """Steps per second, of late."""
        return self._rate.per_second()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a row to every sink; one that cannot write (disk full) is complained about once, the run goes on."""
        for sink in self._sinks:
            name = type(sink).__name__
            try:
                sink.write(step, metrics)
                self._failed.discard(name)
            except RunFolderError as error:
                if name not in self._failed:
                    log.error("metrics are being lost, training goes on: %s", error)
                self._failed.add(name)

    def count(self, step: int) -> None:
        """Tell how far the run is."""
        self._rate.update(step)

    def tick(self, step: int) -> None:
        """Show how far the run is, if it is time: rows of metrics may be minutes apart."""
        self._rate.update(step)
        if self._console is not None:
            self._console.tick(step, {f"time/{self.unit}_per_s": self.per_second})

    def refresh(self) -> None:
        """Draw the panel again, if there is one and it is time."""
        if self._console is not None:
            self._console.refresh()

    def end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the last metrics on the console: rows end a little earlier than runs."""
        if self._console is not None:
            self._console.end(step, metrics)

    def image(self, step: int, name: str, pixels: Array) -> Path | None:
        """Write an image ``[H, W, 3]`` as PNG into the folder, and for TensorBoard; None where that failed."""
        path = self._folder.images / f"{name}-{step:08d}.png"
        data = encode_png(pixels, level=6)
        try:
            path.parent.mkdir(exist_ok=True)
            atomic.write_bytes(path, [data])
            if self._tensorboard is not None:
                self._tensorboard.image(step, name, data, pixels.shape[:2])
        except (OSError, RunFolderError) as error:
            log.error("the image %s could not be written, training goes on: %s", path, error)
            return None
        return path

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except RunFolderError as error:
                log.error("the last metrics could not be written: %s", error)
        self._sinks.clear()
        self._console = self._tensorboard = None
