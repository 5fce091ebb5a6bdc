"""Builds the parts of an online run from its config: networks, policies, learners, sampler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rollmill.core.fields import Array, EnvSpec
from rollmill.core.machine import has_fast_bfloat16
from rollmill.core.protocols import Actor, Learner, Policy
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS, Arena
from rollmill.learning.appo import Appo
from rollmill.learning.custom import LearnerParts, build_custom
from rollmill.learning.off_policy import OffPolicyAppo
from rollmill.learning.ranks import Ranks, SingleRank
from rollmill.learning.sac import build_sac
from rollmill.learning.step import learning_dtype
from rollmill.models.acting.frozen import FrozenNetworks
from rollmill.models.acting.graph import GraphPolicy
from rollmill.models.acting.mirror import Mirror
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.stacked import StackedPlayers, StackedPolicies, can_be_stacked
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic, build_model
from rollmill.optim.allocation import map_large_tensors
from rollmill.optim.device import choose_device
from rollmill.recording.recorder import spare_slots
from rollmill.runs.settings.population_checks import group_owners
from rollmill.runs.settings.train import TrainConfig, segments_per_batch, segments_taken
from rollmill.runs.train.cluster.cluster import node_sampling, remote_slots
from rollmill.runs.train.selfplay.matches import Matches
from rollmill.sampling.placement import Placement
from rollmill.sampling.policies.per_agent import lane_owners
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.policies.warmup import WarmupPolicy
from rollmill.sampling.sampler import Sampler, SamplerPlan

log = logging.getLogger(__name__)


@dataclass
class Parts:
    """What one online run is made of. Policies and learners are lists: one entry per policy id."""

    spec: EnvSpec
    sampler: Sampler
    policies: Sequence[Actor]
    learners: list[Learner]
    segments_per_batch: int
    gather: Callable[[list[int]], Mapping[str, Any]]
    """Copies segments side by side into a batch, wherever the learner wants it."""
    ranks: Ranks
    device: torch.device
    boards: list[WeightBoard]
    matches: Matches | None = None
    """Who plays whom, with self-play."""


def build_parts(
    config: TrainConfig,
    spec: EnvSpec,
    environment: Mapping[str, str],
    ranks: Ranks | None = None,
    level_tickets: Path | None = None,
) -> Parts:
    """Build everything of one rank; nothing is started. ``config`` is this rank's (``ranks.processes.share_of``).

    ``level_tickets``: where the run writes down which levels it has drawn; None for what is no run of its own.
    """
    ranks = ranks or SingleRank()
    seeds = Seeds(config.run.seed)
    # Ranks act in episodes of their own, and begin with the same weights.
    own = seeds.branch("rank", ranks.rank) if ranks.rank else seeds
    device = choose_device(config.learning.device)
    if config.learning.precision == "bfloat16" and device.type == "cpu" and not has_fast_bfloat16():
        log.warning("learning.precision=bfloat16: this processor has no units for it; float32 will be much faster")
    if device.type == "cpu":
        map_large_tensors()
    torch.set_num_threads(1)  # threads inside an operator wait for each other; see learning.threads
    per_batch = segments_taken(config, spec)
    segment_rows = config.learning.batch_size // segments_per_batch(config, spec)
    segment_bytes = segment_rows * sum(field.nbytes for field in spec.observation)
    plan = SamplerPlan(
        settings=config.sampling,
        env=config.env,
        spec=spec,
        seeds=own.branch("envs"),
        segments_per_batch=per_batch,
        state_every=config.learning.recurrence,
        environment=environment,
        pin_inference=device.type == "cuda",
        on_policy=config.on_policy,
        even=must_wait(config, spec),
        policy_of_group=group_owners(config),
        workers_before=ranks.rank * config.sampling.workers,
        spare_slots=spare_slots(config.recording, per_batch, segment_bytes, config.sampling.mode == "serial"),
        remote_slots=remote_slots(config, per_batch),
        remote_groups=config.cluster.seats * node_sampling(config).workers * config.sampling.groups,
        idle=not config.cluster.local_workers,
        level_tickets=level_tickets,
    )
    boards, learners = _build_learners(config, spec, seeds, own, ranks, device)
    if device.type == "cuda" and len(boards) == 1 and _is_resident(config, plan):
        return _on_gpu(config, plan, boards[0], learners, own, ranks, device)
    actors = _build_actors(config, plan, boards, own, device)
    stackable = _stackable(config, actors)
    matches = _build_matches(config, plan, device, own, stackable) if config.selfplay.on else None
    ensemble = StackedPolicies(stackable) if config.pbt.on and stackable else None
    sampler = Sampler(plan, actors, matches, ensemble)
    if config.env.policies:
        sampler.inference.policy_of_lane[:] = lane_owners(config.env.policies, plan.groups, plan.lanes_per_group)
    return Parts(spec, sampler, actors, learners, per_batch, HostGather(sampler.arena), ranks, device, boards, matches)


def _build_learners(
    config: TrainConfig, spec: EnvSpec, seeds: Seeds, own: Seeds, ranks: Ranks, device: torch.device
) -> tuple[list[WeightBoard], list[Learner]]:
    """Build the learner of every policy, and the board where it publishes weights.

    ``seeds``: of the run; ``own``: of the rank.
    """
    boards: list[WeightBoard] = []
    learners: list[Learner] = []
    make = LEARNERS["custom" if config.learning.custom else config.learning.algorithm]
    for k in range(config.policy_count):
        torch.manual_seed(seeds.branch("weights", k).integer())
        model = build_model(spec, config.model).to(device)
        boards.append(WeightBoard(model))
        learners.append(make(config, spec, model, boards[k], own.branch("learner", k).integer(), k, ranks))
    return boards, learners


def _is_resident(config: TrainConfig, plan: SamplerPlan) -> bool:
    """Return whether observations stay on the device from acting to learning."""
    # Replayed segments come from host memory: with them, as with SAC, there is nothing to keep on the device.
    on_policy = config.learning.algorithm == "appo" and not config.replay.on and not plan.idle
    # With ``eager`` acting runs Python, too, and breakpoints in networks stop.
    return on_policy and not config.learning.eager and not config.selfplay.on


def _build_actors(
    config: TrainConfig, plan: SamplerPlan, boards: Sequence[WeightBoard], seeds: Seeds, device: torch.device
) -> list[Policy]:
    """Build what acts with the weights of each board."""
    lanes = plan.groups * plan.lanes_per_group
    actors: list[Policy] = []
    for k, board in enumerate(boards):
        seed = seeds.branch("actions", k).integer()
        copy = build_model(plan.spec, config.model).to(device)
        actor: Policy = TorchPolicy(copy, board, lanes, seed, dtype=learning_dtype(config.learning))
        if config.learning.algorithm == "sac":
            actor = WarmupPolicy(RandomPolicy(plan.spec, seeds.branch("warmup", k).integer()), actor)
        actors.append(actor)
    return actors


def _stackable(config: TrainConfig, policies: Sequence[Policy]) -> Sequence[TorchPolicy]:
    """Return the policies, if they can be asked in one pass; else none.

    They are not where somebody wants to look into networks (``learning.eager``), and in other precision.
    """
    if config.learning.eager or learning_dtype(config.learning) is not None:
        return ()
    found = [policy for policy in policies if isinstance(policy, TorchPolicy) and can_be_stacked(policy.model)]
    return found if len(found) == len(policies) else ()


def _build_matches(
    config: TrainConfig, plan: SamplerPlan, device: torch.device, seeds: Seeds, stackable: Sequence[TorchPolicy]
) -> Matches:
    """Build self-play, still without opponents (``runs.train.selfplay.opponents``)."""
    envs = plan.groups * plan.lanes_per_group // plan.spec.agents
    own = seeds.branch("selfplay")
    model, seed = build_model(plan.spec, config.model).to(device), own.branch("actions").integer()
    lanes = envs * plan.spec.agents
    networks = StackedPlayers(model, lanes, seed, stackable) if stackable else FrozenNetworks(model, lanes, seed)
    return Matches(config, plan.spec, networks, envs, own)


def must_wait(config: TrainConfig, spec: EnvSpec) -> bool:
    """Return whether groups must wait for each other, so that all tasks, or all members, get as many rows."""
    s, env = config.sampling, config.env
    if config.pbt.on:
        return s.mode == "async"
    mixed = spec.tasks > 1 and env.task_spread == "mixed" and not env.task
    return mixed and s.mode == "async" and s.envs_per_worker // s.groups % spec.tasks > 0


def _make_appo(
    config: TrainConfig, _spec: EnvSpec, model: ActorCritic, board: WeightBoard, seed: int, policy_id: int, ranks: Ranks
) -> Learner:
    # Threads add up in the order they finish: serial mode, which repeats bit for bit, has one.
    learning = replace(config.learning, threads=1) if config.sampling.mode == "serial" else config.learning
    if config.replay.on:
        batch = learning.batch_size // config.sampling.rollout
        return OffPolicyAppo(model, board, (learning, config.replay), batch, seed, policy_id)
    return Appo(model, board, learning, seed, policy_id, ranks)


def _make_sac(
    config: TrainConfig, spec: EnvSpec, model: ActorCritic, board: WeightBoard, seed: int, policy_id: int, _ranks: Ranks
) -> Learner:
    blocks = (config.learning, config.sac, config.model)
    return build_sac(spec, model, board, blocks, seed, policy_id, config.sampling.rollout)


def _make_custom(
    config: TrainConfig, spec: EnvSpec, model: ActorCritic, board: WeightBoard, seed: int, policy_id: int, _ranks: Ranks
) -> Learner:
    return build_custom(LearnerParts(spec, model, board, config.learning, seed, policy_id))


LEARNERS = {"appo": _make_appo, "sac": _make_sac, "custom": _make_custom}
"""What ``learning.algorithm`` means, and ``learning.custom``."""


def _on_gpu(
    config: TrainConfig,
    plan: SamplerPlan,
    board: WeightBoard,
    learners: list[Learner],
    seeds: Seeds,
    ranks: Ranks,
    device: torch.device,
) -> Parts:
    """Build parts that act by CUDA graphs, with observations resident on the device."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True  # graphs have fixed shapes: the search for fast kernels happens once
    model = build_model(plan.spec, config.model).to(device)
    seed = seeds.branch("actions", 0).integer()
    place = Placement.of(plan.settings, plan.workers, plan.pin_inference).inference
    pause = None if place is None else place.pause
    policy = GraphPolicy(model, board, plan.groups, seed, dtype=learning_dtype(config.learning), pause=pause)
    sampler = Sampler(plan, [policy])
    gather = DeviceGather(sampler, policy.mirror)
    return Parts(plan.spec, sampler, [policy], learners, plan.segments_per_batch, gather, ranks, device, [board])


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

    def __init__(self, sampler: Sampler, mirror: Mirror) -> None:
        self._sampler, self._arena, self._mirror = sampler, sampler.arena, mirror
        self._skip = {"state", *(name for name in sampler.arena.fields if name.startswith(OBS))}
        self._buffers: dict[str, Array] | None = None

    def __call__(self, slots: list[int]) -> Mapping[str, Any]:
        self._buffers = self._arena.gather(slots, self._buffers, self._skip)
        plan = self._sampler.plan
        if plan.remote_slots:
            groups = self._sampler.inference.group_of_slot[slots]
            self._mirror.load([slot for slot, group in zip(slots, groups) if group >= plan.groups])
        large = self._mirror.segments(slots)
        # The slots are given back next: what they hold must have been read by then.
        torch.cuda.current_stream(self._mirror.device).synchronize()
        return {**self._buffers, **large}
