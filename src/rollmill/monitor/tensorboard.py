"""Writes metrics for TensorBoard.

tensorboardX's ``SummaryWriter`` hands events to a thread through a bounded queue; when the disk is full
the thread dies and the next report waits for it for ever. So its file writer is used directly: a report is
one small event, and an error comes back to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.core.errors import RunFolderError


class TensorBoardSink:
    """Writes event files into ``folder``; implements ``Sink``. The step axis is what the run counts.

    ``resume_step``: the run continues from there; TensorBoard hides what earlier files hold beyond it.
    Events reach the disk at most ``flush_s`` seconds after they were written.
    """

    def __init__(
        self,
        folder: Path,
        resume_step: int | None = None,
        flush_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # tensorboardX imports torch where it is installed: only who writes events pays for that.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._folder = folder
        self._event, self._summary = Event, Summary
        self._flush_s = flush_s
        self._clock = clock
        self._flushed = clock()
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # File names hold whole seconds: without the suffix a quick restart would replace the old file.
            self._writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
            if resume_step is not None:
                start = SessionLog(status=SessionLog.START)
                self._writer.write_event(Event(wall_time=time.time(), step=resume_step + 1, session_log=start))
            self._writer.flush()
        except OSError as error:
            raise self._failed(error) from error

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._closed:
            raise ValueError(f"the event file in {self._folder} is closed")
        self._write(step, [self._summary.Value(tag=name, simple_value=float(v)) for name, v in metrics.items()])

    def hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Write a row of TensorBoard's HParams page: what this run differs in, and the scalars to compare runs by."""
        from tensorboardX.summary import hparams

        values = {key: v if isinstance(v, bool | int | float | str) else str(v) for key, v in settings.items()}
        for summary in hparams(values, dict.fromkeys(metrics, 0.0))[:2]:  # the third says that the run has ended
            self._write(0, list(summary.value))

    def image(self, step: int, name: str, png: bytes, size: tuple[int, ...]) -> None:
        """Write an RGB image, given as a PNG file of ``size`` (height, width)."""
        if self._closed:
            raise ValueError(f"the event file in {self._folder} is closed")
        image = self._summary.Image(height=size[0], width=size[1], colorspace=3, encoded_image_string=png)
        self._write(step, [self._summary.Value(tag=name, image=image)])

    def _write(self, step: int, values: list[Any]) -> None:
        event = self._event(wall_time=time.time(), step=int(step), summary=self._summary(value=values))
        try:
            self._writer.write_event(event)
            if self._clock() - self._flushed >= self._flush_s:
                self._writer.flush()
                self._flushed = self._clock()
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"{self._folder}: TensorBoard events cannot be written: {error.strerror or error}")
