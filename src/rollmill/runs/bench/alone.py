"""The network's jobs with nothing beside them: acting and learning on segments that were sampled beforehand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rollmill.core.fields import EnvSpec
from rollmill.runs.settings.train import TrainConfig

if TYPE_CHECKING:
    from rollmill.runs.train.build import Parts

STANDSTILL = 1e-12
"""A learning rate at which weights stay as they are: segments of this policy remain segments of this policy."""


def sample_batch(parts: Parts) -> list[int]:
    """The slots of one batch of real segments. Workers are gone afterwards; the policy can still be asked."""
    sampler = parts.sampler
    try:
        sampler.start()
        while (slots := sampler.take(parts.segments_per_batch, timeout=0)) is None:
            sampler.round()
        sampler.dismiss()  # not stopped: on a GPU, the graphs of the policy read the arena
    except BaseException:
        sampler.stop()
        raise
    return slots


class NetworkAlone:
    """The network's two jobs on one thread and with real data."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str]) -> None:
        from rollmill.runs.train.build import build_parts  # torch comes with it

        # One thread, or the seconds would be those of several cores.
        parts = build_parts(replace(config, learning=replace(config.learning, threads=1)), spec, environment)
        self._sampler = sampler = parts.sampler
        batch = parts.gather(sample_batch(parts))
        self._rows = config.learning.batch_size
        self._learn = lambda: parts.learners[0].train(batch)
        # Row 0 of the slots that groups hold has real observations; as many groups as share a forward pass.
        groups = np.arange(int(sampler.box.wanted[0]))
        slots_held, rows = sampler.box.slot[groups], np.zeros(groups.size, np.int64)
        self._decide = lambda: sampler.inference.decide(groups, slots_held, rows, None)
        self._lanes = groups.size * sampler.arena.layout.lanes

    def train_seconds(self, seconds: float) -> float:
        """Seconds of training per step, found in so many seconds."""
        return _repeat(self._learn, seconds) / self._rows

    def forward_seconds(self, seconds: float) -> float:
        """Seconds of the forward pass per step, for as many lanes as share one in training."""
        return _repeat(self._decide, seconds) / self._lanes

    def close(self) -> None:
        self._sampler.stop()


def _repeat(action: Callable[[], object], seconds: float) -> float:
    """Median seconds of one call, over as many calls as fit."""
    action()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2]


@dataclass
class Learnt:
    """What a learner got through: decisions that count, batches, and the seconds that each part of it took."""

    steps: int = 0
    batches: int = 0
    seconds: float = 0.0
    gather: float = 0.0
    learn: float = 0.0


class LearnerAlone:
    """A learner with all its threads, fed with the same segments again and again as if they were new."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str]) -> None:
        from rollmill.runs.train.build import build_parts  # torch comes with it

        # Nothing is learnt, so nothing may be judged by it: all epochs of every batch are worked through.
        still = replace(
            config.learning, learning_rate=STANDSTILL, lr_schedule="constant", target_kl=0.0, collapse_patience=0
        )
        self._parts = build_parts(replace(config, learning=still), spec, environment)
        self._slots = sample_batch(self._parts)

    def run(self, seconds: float) -> Learnt:
        """Learn for so long; a learner that first fills a buffer (replay, SAC) has done so before the time begins."""
        while not all(learner.version for learner in self._parts.learners):
            self._step(Learnt())
        self._step(Learnt())
        found, begun = Learnt(), time.perf_counter()
        while found.seconds < seconds:
            self._step(found)
            found.seconds = time.perf_counter() - begun
        return found

    def _step(self, found: Learnt) -> None:
        parts, begun = self._parts, time.perf_counter()
        batch = parts.gather(self._slots)
        gathered = time.perf_counter()
        for learner in parts.learners:
            batch["version"][:] = learner.version
            learner.train(batch)
            learner.publish()
        found.gather += gathered - begun
        found.learn += time.perf_counter() - gathered
        found.steps += int(np.count_nonzero(batch["valid"][:-1]))
        found.batches += 1

    def close(self) -> None:
        self._parts.sampler.stop()
