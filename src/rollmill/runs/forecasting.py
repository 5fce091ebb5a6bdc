"""Says before the start how much a recording will take."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from rollmill.core.fields import EnvSpec
from rollmill.runs.recorder import store_schema
from rollmill.runs.settings import TrainConfig, segments_per_batch
from rollmill.runs.size_sample import SizeSample, sample_here
from rollmill.store.recording.forecast import Forecast, RunSize, Sample, describe, forecast
from rollmill.store.recording.settings import WHOLE

log = logging.getLogger("rollmill")

PATIENCE = 20.0
"""Seconds the trial may take beyond ``sampling.start_timeout``."""


class Forecaster:
    """Tries out how large a step is, in a process of its own (serial mode: here), and announces the forecast."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str]) -> None:
        self._config, self._spec = config, spec
        self._schema = store_schema(config, spec)
        recording = config.recording
        piece = config.sampling.rollout if recording.keep not in WHOLE else 0
        question = (config.env, self._schema, recording.block, piece)
        self._trial: SizeSample | None = None
        self._sample: Sample | None = None
        if config.sampling.mode == "serial":
            self._sample = sample_here(*question)
        else:
            self._trial = SizeSample(*question, environment)

    def announce(self, folder: Path) -> int:
        """Log the forecast; returns the steps of an episode (or piece) to plan shards with."""
        found, sample = self.result()
        log.info("%s", describe(found, self._config.recording))
        free = shutil.disk_usage(folder).free
        if found.stored_bytes > free and not found.unlimited_run:
            log.warning(
                "the disk of %s has %.3g GB free, less than the recording is expected to take", folder, free / 1e9
            )
        return max(1, round(sample.episode_length))

    def result(self) -> tuple[Forecast, Sample]:
        return forecast(self._config.recording, self._size(), self._sampled()), self._sampled()

    def _sampled(self) -> Sample:
        if self._trial is not None and self._sample is None:
            timeout = (self._config.sampling.start_timeout or 3600.0) + PATIENCE
            answer = self._trial.result(timeout)
            if isinstance(answer, str):
                log.warning(
                    "recording: the forecast is an upper bound, a trial of %s failed: %s", self._spec.name, answer
                )
                answer = Sample(0, float(self._schema.row_bytes), 1000.0)
            self._sample = answer
        assert self._sample is not None
        return self._sample

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
