"""``rollmill bench tune``: finds the settings that train fastest on this machine, by training with them.

From the automatic settings on, one *knob* at a time is turned as long as that pays (coordinate search). What
is searched changes how fast a run goes, not what it learns from: batch, rollout and epochs stay as they are unless
the batch is asked for, and no more experience may be on its way at once than ``runs.settings.sizing`` holds fresh.
Short measurements are noisy: a gain below ``MARGIN`` is none, and in the end best and start are measured once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rollmill.core.config.plain import differences
from rollmill.core.errors import ConfigError, RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.core.process_scope import process_scope
from rollmill.runs.bench.run import bench_train
from rollmill.runs.probing import probe_in_child
from rollmill.runs.settings.sizing import FRESH_BATCHES, Machine, size, thread_limit
from rollmill.runs.settings.train import TrainConfig, rows_in_flight, segments_per_batch

MARGIN = 1.03
"""A setting is faster when it is by this factor; less is within the noise."""
TRIALS_PER_BUDGET = 30
"""A measurement takes this part of the time given; starting and warming up take more than that."""
MIN_MICRO_BATCH = 64


@dataclass(frozen=True)
class TuneOptions:
    """What to search, and for how long."""

    seconds: float = 60.0
    """About how long the whole search takes."""
    tune_batch: bool = False
    """Search the batch size, too. It changes what is learnt, not only how fast."""

    def check(self) -> None:
        if self.seconds <= 0:
            raise ConfigError("--seconds must be positive")


@dataclass(frozen=True)
class Trial:
    """One measured training."""

    changes: dict[str, Any]
    """Keys that differ from the start, with their values."""
    frames_per_s: float | None
    """None: it failed."""
    error: str = ""


@dataclass
class TuneResult:
    """What was found: ``best`` is ``start`` where nothing was faster."""

    start: TrainConfig
    best: TrainConfig
    start_frames_per_s: float
    best_frames_per_s: float
    trials: list[Trial] = field(default_factory=list)
    interrupted: bool = False
    out_of_time: bool = False
    """There was more to try."""

    @property
    def changes(self) -> dict[str, Any]:
        return changes_between(self.start, self.best)

    @property
    def failures(self) -> int:
        return sum(trial.frames_per_s is None for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        return {
            "start_frames_per_s": self.start_frames_per_s,
            "best_frames_per_s": self.best_frames_per_s,
            "changes": self.changes,
            "trials": [asdict(trial) for trial in self.trials],
            "failures": self.failures,
            "interrupted": self.interrupted,
            "out_of_time": self.out_of_time,
        }


Measure = Callable[[TrainConfig], float]
"""Frames per second of a config; RollmillError and the like when it cannot be run."""
Tell = Callable[[Trial], None]


def tune(config: TrainConfig, options: TuneOptions, tell: Tell) -> TuneResult:
    """Search for about ``options.seconds``; every trial is told when it is done. Ctrl-C ends the search early."""
    options.check()
    if config.sampling.mode == "serial":
        raise ConfigError("sampling.mode=serial is there to repeat bit for bit; tune sampling.mode=async or sync")
    sized = size(config)
    with process_scope() as environment:
        spec = probe_in_child(sized.env, environment, sized.sampling.start_timeout)
    start = size(config, spec)
    machine = Machine.here(config.learning.device)
    knobs = all_knobs(machine, machine.bfloat16, options.tune_batch)
    seconds = options.seconds / TRIALS_PER_BUDGET

    def measure(candidate: TrainConfig) -> float:
        # Random steps at the start only take time here: what is measured comes after them.
        prompt = replace(candidate, sampling=replace(candidate.sampling, decorrelate_steps=0))
        limit = max(60.0, options.seconds)
        return bench_train(prompt, spec, seconds, warm_up=seconds / 2, limit=limit).frames_per_s

    search = Search(start, spec, knobs, measure, tell, options.seconds)
    return search.run()


# -- the search --------------------------------------------------------------------------------------


class Search:
    """Turns knobs as long as it pays and time is left."""

    def __init__(
        self,
        start: TrainConfig,
        spec: EnvSpec,
        knobs: Iterable[Knob],
        measure: Measure,
        tell: Tell,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._spec, self._knobs = start, spec, tuple(knobs)
        self._measure, self._tell, self._clock = measure, tell, clock
        self._deadline = clock() + seconds
        self._last = 0.0  # seconds the last trial took
        self._measured: dict[str, float] = {}
        """First measurement of each config, by what it changes; 0 for one that failed."""
        self._trials: list[Trial] = []
        self._best = start
        self._out_of_time = False

    def run(self) -> TuneResult:
        """Do the whole search. What the start itself fails with is raised: there is nothing to compare with."""
        self._try(self._start, failing=True)
        again: tuple[float, float] | None = None
        interrupted = False
        try:
            while self._improve_once():
                pass
            again = self._measure_again()
        except KeyboardInterrupt:
            interrupted = True
        start, best = again or (self._speed(self._start), self._speed(self._best))
        if best <= start:
            self._best, best = self._start, start
        return TuneResult(self._start, self._best, start, best, self._trials, interrupted, self._out_of_time)

    def _improve_once(self) -> bool:
        """Turn every knob once; returns whether that found something faster."""
        before = self._best
        for knob in self._knobs:
            for direction in knob.directions(self._best):
                if self._climb(knob, direction):
                    break  # the other way is the way back
        return self._best is not before

    def _climb(self, knob: Knob, values: Iterable[Any]) -> bool:
        """Follow one direction until it does not pay any more; returns whether it ever did."""
        found = False
        for value in values:
            candidate = with_value(self._best, knob.key, value)
            if candidate is None or not self._is_allowed(candidate) or self._key(candidate) in self._measured:
                return found
            if not self._has_time():
                self._out_of_time = True
                return found
            if self._try(candidate) < MARGIN * self._speed(self._best):
                return found
            self._best, found = candidate, True
        return found

    def _measure_again(self) -> tuple[float, float] | None:
        """Measure start and best once more, next to each other: the largest of several noisy numbers is too large."""
        if self._best is self._start:
            return None
        start, best = self._try(self._start), self._try(self._best)
        return (start, best) if start else None

    def _try(self, config: TrainConfig, failing: bool = False) -> float:
        """Measure a config; returns 0 when it fails, which is told as well."""
        begun = self._clock()
        changes = changes_between(self._start, config)
        speed = 0.0
        try:
            speed = self._measure(config)
        except (RollmillError, RuntimeError, MemoryError, OSError) as error:  # torch runs out of memory: RuntimeError
            if failing:
                raise
            reason = (str(error) or type(error).__name__).splitlines()[0]
            trial = Trial(changes, None, reason)
        else:
            trial = Trial(changes, speed)
        self._last = self._clock() - begun
        self._measured.setdefault(self._key(config), speed)
        self._trials.append(trial)
        self._tell(trial)
        return speed

    def _key(self, config: TrainConfig) -> str:
        return repr(changes_between(self._start, config))

    def _has_time(self) -> bool:
        """Return whether there is time for one more trial, and for the two that compare its result with the start."""
        trials = 1 if self._best is self._start else 3
        return self._clock() + trials * self._last <= self._deadline

    def _speed(self, config: TrainConfig) -> float:
        return self._measured[self._key(config)]

    def _is_allowed(self, config: TrainConfig) -> bool:
        """Return whether batches come out even, and rows stay as fresh as at the start or with automatic sizes."""
        try:
            segments_per_batch(config, self._spec)
        except ConfigError:
            return False
        agents = self._spec.agents
        limit = FRESH_BATCHES[config.sampling.mode] * config.learning.batch_size
        return rows_in_flight(config, agents) <= max(limit, rows_in_flight(self._start, agents))


def changes_between(start: TrainConfig, config: TrainConfig) -> dict[str, Any]:
    """Return the keys that differ, with the values of ``config``."""
    return {key: new for key, (_, new) in differences(start, config).items()}


def with_value(config: TrainConfig, key: str, value: Any) -> TrainConfig | None:
    """Return the config with one key changed; None when its block refuses that."""
    block, _, name = key.partition(".")
    try:
        changed = replace(getattr(config, block), **{name: value})
    except ValueError:
        return None
    return replace(config, **{block: changed})


# -- knobs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Knob:
    """A key, and the values to try from where a config stands: one sequence for each direction, nearest first."""

    key: str
    directions: Callable[[TrainConfig], list[list[Any]]]


def all_knobs(machine: Machine, bfloat16: bool, tune_batch: bool) -> list[Knob]:
    """Return what there is to search on this machine, the most promising first."""
    precision = [Knob("learning.precision", _other_precision)] if bfloat16 else []
    learner = [
        Knob("learning.threads", lambda config: _threads(config, machine.cores)),
        Knob("learning.micro_batch", _micro_batches),
    ]
    sampling = [
        Knob("sampling.envs_per_worker", lambda c: _doubled_and_halved(c.sampling.envs_per_worker, 1)),
        Knob("sampling.workers", lambda config: _workers(config, machine.cores)),
        Knob("sampling.groups", lambda c: _doubled_and_halved(c.sampling.groups, 1, c.sampling.envs_per_worker)),
    ]
    batch = [Knob("learning.batch_size", lambda c: _doubled_and_halved(c.learning.batch_size, 1))] if tune_batch else []
    # On a GPU the simulators are the bottleneck, and its learner has neither threads nor small caches.
    return [*sampling, *precision, *batch] if machine.gpu else [*precision, *learner, *sampling, *batch]


def _doubled_and_halved(value: int, least: int, most: int = 1 << 20) -> list[list[Any]]:
    return [list(_times(value, 2, least, most)), list(_times(value, 0.5, least, most))]


def _times(value: int, factor: float, least: int, most: int) -> Iterator[int]:
    while least <= (value := int(value * factor)) <= most:
        yield value


def _other_precision(config: TrainConfig) -> list[list[Any]]:
    return [["bfloat16" if config.learning.precision == "float32" else "float32"]]


def _threads(config: TrainConfig, cores: int) -> list[list[Any]]:
    most = min(max(1, cores // config.learning.ranks), max(thread_limit(config), config.learning.threads))
    return _doubled_and_halved(config.learning.threads, 1, most)


def _micro_batches(config: TrainConfig) -> list[list[Any]]:
    """Return smaller and smaller micro-batches, and larger ones up to the whole minibatch, which is written 0."""
    rows = config.learning.batch_size // config.learning.ranks // config.learning.minibatches
    now = config.learning.micro_batch or rows
    smaller = list(_times(now, 0.5, min(MIN_MICRO_BATCH, rows), rows))
    return [smaller, [*_times(now, 2, 1, rows - 1), 0] if now < rows else []]


def _workers(config: TrainConfig, cores: int) -> list[list[Any]]:
    """Return a few more workers, up to twice the cores, and a few fewer."""
    now, ranks = config.sampling.workers, config.learning.ranks
    step = max(1, cores // 8 // ranks) * ranks  # every rank has the same number
    return [list(range(now + step, 2 * cores + 1, step)), list(range(now - step, 0, -step))]
