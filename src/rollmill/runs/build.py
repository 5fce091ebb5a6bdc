"""Builds the parts of an online run from its config: networks, policies, learners, sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.seeds import Seeds
from rollmill.learning.appo import Appo
from rollmill.models.actor_critic import build_model
from rollmill.models.policy import TorchPolicy
from rollmill.models.weights import WeightBoard
from rollmill.runs.settings import TrainConfig, segments_per_batch
from rollmill.sampling.sampler import Sampler, SamplerPlan


@dataclass
class Parts:
    """What one online run is made of. Policies and learners are lists: one entry per policy id."""

    spec: EnvSpec
    sampler: Sampler
    policies: list[TorchPolicy]
    learners: list[Appo]
    segments_per_batch: int


def build_parts(config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str], policies: int = 1) -> Parts:
    """Build everything; nothing is started."""
    seeds = Seeds(config.run.seed)
    device = choose_device(config.learning.device)
    torch.set_num_threads(config.learning.threads)
    per_batch = segments_per_batch(config, spec)
    plan = SamplerPlan(
        settings=config.sampling,
        env=config.env,
        spec=spec,
        seeds=seeds.branch("envs"),
        segments_per_batch=per_batch,
        state_every=config.learning.recurrence,
        environment=environment,
    )
    lanes = plan.groups * plan.lanes_per_group
    actors: list[TorchPolicy] = []
    learners: list[Appo] = []
    for k in range(policies):
        torch.manual_seed(seeds.branch("weights", k).integer())
        model = build_model(spec, config.model).to(device)
        board = WeightBoard(model)
        acting = build_model(spec, config.model).to(device)
        actors.append(TorchPolicy(acting, board, lanes, seeds.branch("actions", k).integer()))
        learners.append(Appo(model, board, config.learning, seeds.branch("learner", k).integer(), k))
    return Parts(spec, Sampler(plan, actors), actors, learners, per_batch)


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
