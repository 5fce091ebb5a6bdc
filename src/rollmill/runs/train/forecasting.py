"""Says before the start how much a recording will take."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from rollmill.core.errors import RollmillError, error_text
from rollmill.core.fields import EnvSpec
from rollmill.core.text import bytes_text
from rollmill.recording.forecast import Forecast, RunSize, Sample, describe, forecast
from rollmill.runs.settings.train import TrainConfig, segments_per_batch
from rollmill.runs.train.recording import store_schema
from rollmill.runs.train.size_sample import SizeSample, sample_here

log = logging.getLogger("rollmill")

PATIENCE = 20.0
"""Seconds the trial may take beyond ``sampling.start_timeout``."""


class Forecaster:
    """Tries out how large a step is, in a process of its own (serial mode: here), and announces the forecast."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str]) -> None:
        self._config, self._spec = config, spec
        self._schema = store_schema(config, spec)
        recording = config.recording
        piece = 0 if recording.whole else config.sampling.rollout
        question = (config.env, self._schema, recording.block, piece)
        self._trial: SizeSample | None = None
        self._sample: Sample | None = None
        if config.sampling.mode != "serial":
            self._trial = SizeSample(*question, environment)
            return
        try:
            self._sample = sample_here(*question)
        except Exception as error:  # noqa: BLE001 - a forecast is not worth a run, whatever went wrong
            self._sample = self._unknown(str(error) if isinstance(error, RollmillError) else error_text(error))

    def announce(self, folder: Path) -> Sample:
        """Log the forecast; returns what a step takes."""
        found, sample = self.result()
        log.info("%s", describe(found, self._config.recording))
        free = shutil.disk_usage(folder).free
        if found.stored_bytes > free and not found.unlimited_run:
            log.warning(
                "the disk of %s has %s free, less than the recording is expected to take", folder, bytes_text(free)
            )
        return sample

    def result(self) -> tuple[Forecast, Sample]:
        return forecast(self._config.recording, self._size(), self._sampled()), self._sampled()

    def _sampled(self) -> Sample:
        if self._trial is not None and self._sample is None:
            timeout = (self._config.sampling.start_timeout or 3600.0) + PATIENCE
            answer = self._trial.result(timeout)
            self._sample = self._unknown(answer) if isinstance(answer, str) else answer
        assert self._sample is not None
        return self._sample

    def _unknown(self, why: str) -> Sample:
        """What a step takes at most, where the trial failed."""
        log.warning("recording: the forecast is an upper bound, a trial of %s failed: %s", self._spec.name, why)
        return Sample(0, float(self._schema.row_bytes), 1000.0)

    def _size(self) -> RunSize:
        """Decisions of the run, as far as its limits tell."""
        stop, spec = self._config.stop, self._spec
        limits = [stop.frames // spec.frames_per_step] if stop.frames else []
        if stop.batches:
            limits.append(stop.batches * self._config.learning.batch_size)
        return RunSize(min(limits, default=0), spec.frames_per_step, segments_per_batch(self._config, spec))

    def close(self) -> None:
        if self._trial is not None and self._sample is None:
            self._trial.close()


@contextlib.contextmanager
def start_forecast(config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str]) -> Iterator[Forecaster | None]:
    """A forecaster for runs that record; nothing is left of it when this ends."""
    if not config.recording.on:
        yield None
        return
    forecaster = Forecaster(config, spec, environment)
    try:
        yield forecaster
    finally:
        forecaster.close()
