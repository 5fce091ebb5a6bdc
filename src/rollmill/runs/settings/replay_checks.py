"""What trajectory replay cannot do, said before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.machine import available_memory
from rollmill.core.slots import SegmentLayout
from rollmill.core.text import bytes_text
from rollmill.replay.forecast import Forecast, forecast
from rollmill.replay.settings import ReplaySettings

if TYPE_CHECKING:
    from rollmill.runs.settings.train import TrainConfig


def check_replay(config: TrainConfig) -> None:
    """Raise ConfigError for settings that contradict each other."""
    replay, learning = config.replay, config.learning
    if not replay.on:
        if replay != ReplaySettings():
            raise ConfigError("replay.* is set, but replay.capacity=0 keeps nothing; set replay.capacity")
        return
    for reason, wrong in _contradictions(config).items():
        if wrong:
            raise ConfigError(f"replay.capacity={replay.capacity}: {reason}")
    if learning.batch_size:  # 0: ``runs.settings.sizing`` decides
        _check_sizes(config, learning.batch_size // config.sampling.rollout)


def _contradictions(config: TrainConfig) -> dict[str, bool]:
    learning = config.learning
    return {
        "learning.algorithm=sac has a buffer of rows of its own; set sac.capacity, warmup and updates_per_step": (
            learning.algorithm == "sac"
        ),
        "learning.custom is given new segments only; leave out replay": learning.custom is not None,
        "replayed experience is old; its targets need learning.targets=vtrace": learning.targets != "vtrace",
        f"learning.ranks={learning.ranks}: it learns in one process; use learning.ranks=1": learning.ranks > 1,
    }


def _check_sizes(config: TrainConfig, batch: int) -> None:
    """Raise ConfigError for sizes that do not go together; ``batch``: segments of a training batch."""
    replay, lag = config.replay, config.learning.max_policy_lag
    minimum, ratio = replay.min_size(batch), replay.samples_per_insert
    named = f"replay.capacity={replay.capacity}"
    if minimum > replay.capacity:
        raise ConfigError(
            f"{named}: fewer segments than the {minimum} that learning needs at a time "
            f"(learning.batch_size={config.learning.batch_size} rows are {batch} segments of "
            f"sampling.rollout={config.sampling.rollout} steps)"
        )
    fresh = lag * batch / ratio
    if replay.trigger != "clock" and minimum > fresh:
        raise ConfigError(
            f"{named}: {minimum} segments are to be there before learning goes on, but only about {int(fresh)} are new "
            f"enough at a time (learning.max_policy_lag={lag} batches of {batch} / {ratio:g}); set a higher "
            "learning.max_policy_lag or a lower replay.preload"
        )
    least = (batch + ratio) / 2
    if replay.trigger == "ratio" and replay.error(batch) < max(1.0, ratio, least):
        raise ConfigError(
            f"replay.error_buffer={replay.error_buffer:g}: batches of {batch} segments and a ratio of {ratio:g} need "
            f"{max(1.0, ratio, least):g} at least, or both sides could wait for ever; 0 chooses"
        )


def replay_forecast(config: TrainConfig, layout: SegmentLayout) -> Forecast:
    """Return what the buffer of each policy will take; ``layout``: of the run's segments."""
    return forecast(config.replay, config.learning.batch_size // config.sampling.rollout, layout)


def check_replay_room(config: TrainConfig, spec: EnvSpec) -> None:
    """Raise ConfigError where even the best packing would not fit; ``runs.train.forecasting`` says what it may take."""
    if not config.replay.on:
        return
    steps, buffers = config.sampling.rollout, config.policy_count - len(config.learning.frozen)
    least = buffers * replay_forecast(config, SegmentLayout(spec, steps, 1)).memory[0]
    free = available_memory()
    if free is not None and least > free:
        raise ConfigError(
            f"replay.capacity={config.replay.capacity}: segments of {steps} steps of {spec.name} take "
            f"{bytes_text(least)} at the very least, a batch included, and {bytes_text(free)} of memory are free"
        )
