"""Parts of a run with nothing beside them, on segments that were sampled beforehand: acting, learning, the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rollmill.core.fields import EnvSpec
from rollmill.distributed.fake_nodes import FakeNodes
from rollmill.distributed.gateway import WAIT_SECONDS, Gateway
from rollmill.distributed.group_codec import GroupCodec
from rollmill.distributed.membership import INCARNATIONS_EACH
from rollmill.distributed.settings import LOCAL
from rollmill.distributed.weight_buffer import WeightBuffer
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.cluster.cluster import node_plan

if TYPE_CHECKING:
    from rollmill.runs.train.build import Parts

STANDSTILL = 1e-12
"""A learning rate at which weights stay as they are: segments of this policy remain segments of this policy."""


def sample_batch(parts: Parts) -> list[int]:
    """Return the slots of one batch of real segments. Workers are gone afterwards; the policy can still be asked."""
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
        """Return the seconds of training per step, found in so many seconds."""
        return _repeat(self._learn, seconds) / self._rows

    def forward_seconds(self, seconds: float) -> float:
        """Return the seconds of the forward pass per step, for as many lanes as share one in training."""
        return _repeat(self._decide, seconds) / self._lanes

    def close(self) -> None:
        self._sampler.stop()


def _repeat(action: Callable[[], object], seconds: float) -> float:
    """Return the median seconds of one call, over as many calls as fit."""
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


@dataclass
class TakenIn:
    """What a gateway got through."""

    segments: int
    steps: float
    raw_bytes: int
    packed_bytes: int
    seconds: float
    busy: float
    """Seconds of a core."""


class GatewayAlone:
    """The gateway of a run, fed by nodes that always have as many segments as it asks for."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str], nodes: int) -> None:
        from rollmill.distributed.acting import weight_bytes
        from rollmill.runs.train.build import build_parts  # torch comes with it

        cluster = replace(config.cluster, address=LOCAL, nodes=nodes, max_nodes=0, local_workers=True)
        config = replace(config, cluster=cluster, sampling=replace(config.sampling, mode="async"))
        parts = build_parts(config, spec, environment)
        self._sampler = sampler = parts.sampler
        slots = sample_batch(parts)
        arena = sampler.arena
        self._codec = GroupCodec(arena.layout)
        self._rows = float(np.count_nonzero(arena["valid"][slots][:, :-1])) / len(slots)
        packed = [self._codec.pack(arena, slot) for slot in slots]
        self._weights = WeightBuffer(weight_bytes(parts.boards[0].tensors), len(config.env.variables))
        self._weights.write(0, 0, list(config.env.variables.values()))
        plan = node_plan(config, parts, len(self._weights.weights))
        self._link = FakeNodes(nodes, packed, plan.chunk_bytes, sampler.remote)
        self._gateway = Gateway(
            plan, cluster, INCARNATIONS_EACH, sampler.plan.groups, arena, self._weights, self._link, self._link.home
        )

    def run(self, seconds: float) -> TakenIn:
        """Take in segments for so long, once all nodes have sent some."""
        link = self._link
        while link.segments < 2 * len(link.nodes()):
            self._gateway.turn(WAIT_SECONDS)
        segments, packed, begun, busy = link.segments, link.packed_bytes, time.perf_counter(), time.process_time()
        while time.perf_counter() < begun + seconds:
            self._gateway.turn(WAIT_SECONDS)
        took, busy = time.perf_counter() - begun, time.process_time() - busy
        count = link.segments - segments
        raw = count * self._codec.raw_bytes
        return TakenIn(count, count * self._rows, raw, link.packed_bytes - packed, took, busy)

    def close(self) -> None:
        self._link.close()
        self._sampler.stop()
        self._weights.block.close_fd()
