"""Says before the start how much memory and disk a run will take: its recording, its replay buffers, its model pool."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.core import tree_file
from rollmill.core.errors import RollmillError, error_text
from rollmill.core.fields import EnvSpec
from rollmill.core.machine import available_memory
from rollmill.core.text import bytes_text
from rollmill.recording.forecast import Forecast, RunSize, Sample, describe, forecast
from rollmill.runs.settings.replay_checks import replay_forecast
from rollmill.runs.settings.train import TrainConfig, segments_per_batch
from rollmill.runs.train.publishing import weights_only
from rollmill.runs.train.recording import store_schema
from rollmill.runs.train.size_sample import SizeSample, sample_here

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun

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
        """Return what a step takes at most, where the trial failed."""
        log.warning("recording: the forecast is an upper bound, a trial of %s failed: %s", self._spec.name, why)
        return Sample(0, float(self._schema.row_bytes), 1000.0)

    def _size(self) -> RunSize:
        """Return the decisions of the run, as far as its limits tell."""
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
    """Yield a forecaster for runs that record, else None; nothing is left of it when this ends."""
    if not config.recording.on:
        yield None
        return
    forecaster = Forecaster(config, spec, environment)
    try:
        yield forecaster
    finally:
        forecaster.close()


# -- replay and model pool -------------------------------------------------------------------------


def announce_replay(run: OnlineRun) -> None:
    """Log what the replay buffers will take, in memory and in checkpoints; warn where there may be less."""
    config, buffers = run.config, len(run.parts.learners) - len(run.config.learning.frozen)
    found = replay_forecast(config, run.parts.sampler.arena.layout)
    memory, contents = ([buffers * end for end in ends] for ends in (found.memory, found.contents))
    log.info(
        "replay: %s segments take %s of memory, as they pack (%s each), batches included",
        *(f"{buffers * found.capacity:,}", _range_text(memory), _range_text((found.least, found.most))),
    )
    free = available_memory()
    if free is not None and memory[1] > free:
        log.warning(
            "replay: segments that hardly pack will not fit into memory, of which %s are free", bytes_text(free)
        )
    if config.replay.save:
        kept = config.checkpoints.keep_last and config.checkpoints.keep_last + config.checkpoints.keep_best
        total = [(kept or 1) * end for end in contents]
        each = f"{kept} checkpoints are kept" if kept else "for every checkpoint: all are kept"
        log.info("replay.save: the contents take %s of disk (%s)", _range_text(total), each)
        _warn_of_disk(run.folder.path, total[1])


def announce_pool(run: OnlineRun) -> None:
    """Log what the models will take; warn where there is less disk."""
    pool, size = run.config.pool, tree_file.tree_file_bytes(weights_only(run))
    milestones = f", and one for ever every {pool.milestone_updates} updates" if pool.milestone_updates else ""
    log.info(
        "pool: %d models of %s take %s of disk%s", pool.keep, *map(bytes_text, (size, pool.keep * size)), milestones
    )
    _warn_of_disk(run.folder.path, pool.keep * size)


def _range_text(ends: Sequence[float]) -> str:
    least, most = map(bytes_text, ends)
    return f"{least} to {most}"


def _warn_of_disk(folder: Path, needed: float) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        log.warning("the disk of %s has %s free, less than this may take", folder, bytes_text(free))
