"""Builds the parts of an online run from its config: networks, policies, learners, sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS, Arena
from rollmill.learning.appo import Appo
from rollmill.learning.ranks import Alone, Ranks
from rollmill.learning.settings import LearningSettings
from rollmill.models.actor_critic import build_model
from rollmill.models.graph_policy import GraphPolicy
from rollmill.models.mirror import Mirror
from rollmill.models.policy import TorchPolicy
from rollmill.models.weights import WeightBoard
from rollmill.runs.recorder import spare_slots
from rollmill.runs.settings import TrainConfig, segments_per_batch
from rollmill.sampling.sampler import Sampler, SamplerPlan


@dataclass
class Parts:
    """What one online run is made of. Policies and learners are lists: one entry per policy id."""

    spec: EnvSpec
    sampler: Sampler
    policies: Sequence[TorchPolicy | GraphPolicy]
    learners: list[Appo]
    segments_per_batch: int
    gather: Callable[[list[int]], Mapping[str, Any]]
    """Copies segments side by side into a batch, wherever the learner wants it."""
    ranks: Ranks


def build_parts(
    config: TrainConfig,
    spec: EnvSpec,
    environment: Mapping[str, str],
    policies: int = 1,
    ranks: Ranks | None = None,
) -> Parts:
    """Build everything of one rank; nothing is started. ``config`` is this rank's (``runs.ranks.share_of``)."""
    ranks = ranks or Alone()
    seeds = Seeds(config.run.seed)
    # Ranks act in episodes of their own, and begin with the same weights.
    own = seeds.branch("rank", ranks.rank) if ranks.rank else seeds
    device = choose_device(config.learning.device)
    torch.set_num_threads(1)  # threads inside an operator wait for each other; see learning.threads
    per_batch = segments_per_batch(config, spec)
    plan = SamplerPlan(
        settings=config.sampling,
        env=config.env,
        spec=spec,
        seeds=own.branch("envs"),
        segments_per_batch=per_batch,
        state_every=config.learning.recurrence,
        environment=environment,
        stay_apart=device.type == "cuda",
        workers_before=ranks.rank * config.sampling.workers,
        spare_slots=spare_slots(config.recording, per_batch, config.sampling.mode == "serial"),
    )
    # Threads add up in the order they finish: serial mode, which repeats bit for bit, has one.
    learning = replace(config.learning, threads=1) if config.sampling.mode == "serial" else config.learning
    boards: list[WeightBoard] = []
    learners: list[Appo] = []
    for k in range(policies):
        torch.manual_seed(seeds.branch("weights", k).integer())
        model = build_model(spec, config.model).to(device)
        boards.append(WeightBoard(model))
        learners.append(Appo(model, boards[k], learning, own.branch("learner", k).integer(), k, ranks))
    if device.type == "cuda" and policies == 1:
        return _on_gpu(config, plan, boards[0], learners, own, ranks)
    lanes = plan.groups * plan.lanes_per_group
    actors = [
        TorchPolicy(
            build_model(spec, config.model).to(device),
            board,
            lanes,
            own.branch("actions", k).integer(),
            autocast=autocast_dtype(config.learning),
        )
        for k, board in enumerate(boards)
    ]
    sampler = Sampler(plan, actors)
    return Parts(spec, sampler, actors, learners, per_batch, HostGather(sampler.arena), ranks)


def _on_gpu(
    config: TrainConfig, plan: SamplerPlan, board: WeightBoard, learners: list[Appo], seeds: Seeds, ranks: Ranks
) -> Parts:
    """Acting by CUDA graphs, observations resident on the device."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True  # graphs have fixed shapes: the search for fast kernels happens once
    model = build_model(plan.spec, config.model).to(learners[0].device)
    seed = seeds.branch("actions", 0).integer()
    policy = GraphPolicy(model, board, plan.groups, seed, autocast=autocast_dtype(config.learning))
    sampler = Sampler(plan, [policy])
    gather = DeviceGather(sampler.arena, policy.mirror)
    return Parts(plan.spec, sampler, [policy], learners, plan.segments_per_batch, gather, ranks)


def autocast_dtype(settings: LearningSettings) -> torch.dtype | None:
    return torch.bfloat16 if settings.precision == "bfloat16" else None


class HostGather:
    """Batches in host memory; the same buffers are filled again and again."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._buffers: dict[str, Array] | None = None

    def __call__(self, slots: list[int]) -> Mapping[str, Any]:
        self._buffers = self._arena.gather(slots, self._buffers)
        return self._buffers


class DeviceGather:
    """Small columns from host memory; observations and states from the mirror, where they already are."""

    def __init__(self, arena: Arena, mirror: Mirror) -> None:
        self._arena, self._mirror = arena, mirror
        self._skip = {"state", *(name for name in arena.fields if name.startswith(OBS))}
        self._buffers: dict[str, Array] | None = None

    def __call__(self, slots: list[int]) -> Mapping[str, Any]:
        self._buffers = self._arena.gather(slots, self._buffers, self._skip)
        large = self._mirror.segments(slots)
        # The slots are given back next: what they hold must have been read by then.
        torch.cuda.current_stream(self._mirror.device).synchronize()
        return {**self._buffers, **large}


def choose_device(name: str) -> torch.device:
    """The device a name means; ConfigError when it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"learning.device={name}: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"learning.device={name}: only cpu, cuda and cuda:N are supported")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"learning.device={name}: this machine has {torch.cuda.device_count()} usable GPUs; use learning.device=cpu"
        )
    return device
