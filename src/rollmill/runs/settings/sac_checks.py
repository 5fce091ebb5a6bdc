"""What SAC cannot do, said before anything starts."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.machine import available_memory
from rollmill.core.text import bytes_text
from rollmill.learning.sac_settings import SacSettings
from rollmill.learning.settings import LearningSettings
from rollmill.store.format.schema import StoreSchema

if TYPE_CHECKING:
    from rollmill.runs.settings.train import TrainConfig

SHARED = (
    *(
        "algorithm",
        "eager",
        "device",
        "threads",
        "ranks",
        "precision",
        "batch_size",
        "gamma",
        "reward_scale",
        "reward_clip",
    ),
    *("learning_rate", "lr_schedule", "lr_end", "adam_eps"),
)
"""Keys of ``learning`` that are not about PPO: read by SAC, or refused with a reason of their own."""


def check_algorithm(config: TrainConfig) -> None:
    """ConfigError for settings that the chosen algorithm does not read, or that contradict it."""
    if config.learning.algorithm != "sac":
        if config.sac != SacSettings():
            raise ConfigError("sac.* is set, but learning.algorithm=appo does not read it; set learning.algorithm=sac")
        return
    for reason, wrong in _contradictions(config).items():
        if wrong:
            raise ConfigError(f"learning.algorithm=sac: {reason}")
    usual = LearningSettings()
    for key in fields(LearningSettings):
        value = getattr(config.learning, key.name)
        if key.name not in SHARED and value != getattr(usual, key.name):
            raise ConfigError(f"learning.{key.name}={value} is about PPO, learning.algorithm=sac does not read it")


def _contradictions(config: TrainConfig) -> dict[str, bool]:
    learning, model = config.learning, config.model
    return {
        f"sac.n_step={config.sac.n_step}: with memory, steps are learnt from one by one; use sac.n_step=1": (
            model.memory != "none" and config.sac.n_step > 1
        ),
        f"sac.burn_in={config.sac.burn_in} leaves nothing of sampling.rollout={config.sampling.rollout} to learn": (
            config.sac.burn_in >= config.sampling.rollout
        ),
        f"sac.burn_in={config.sac.burn_in} is for networks with memory, which model.memory=none is not": (
            config.sac.burn_in > 0 and model.memory == "none" and model.custom is None
        ),
        "it always has critics of its own; leave out model.separate_critic": model.separate_critic,
        "learning.lr_schedule=kl_adaptive follows the steps of PPO; use constant, linear or cosine": (
            learning.lr_schedule == "kl_adaptive"
        ),
        "learning.precision=bfloat16 is not supported; use float32": learning.precision == "bfloat16",
        f"learning.ranks={learning.ranks}: each would draw from a replay buffer of its own; use learning.ranks=1": (
            learning.ranks > 1
        ),
    }


def check_sac_env(config: TrainConfig, spec: EnvSpec) -> None:
    """ConfigError unless the environment's actions are numbers or one choice, and its rows fit into memory."""
    kind = spec.action.kind
    if kind not in ("continuous", "discrete"):
        raise ConfigError(
            f"learning.algorithm=sac needs numbers or a single choice as actions, {spec.name} has "
            f"{kind.replace('_', '-')} ones: its critics would have to judge every combination; use "
            "learning.algorithm=appo"
        )
    if kind == "continuous" and config.model.action_distribution != "tanh_gaussian":
        raise ConfigError(
            "learning.algorithm=sac: its policy is squashed into the bounds of the actions; set "
            "model.action_distribution=tanh_gaussian"
        )
    rows = config.sac.capacity
    if config.stop.frames:
        rows = min(rows, -(-config.stop.frames // spec.frames_per_step))
    columns = StoreSchema.for_env(spec).columns
    needed = rows * sum(math.prod(column.shape) * column.numpy.itemsize for column in columns)
    free = available_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"sac.capacity={config.sac.capacity}: {rows:,} rows of {spec.name} take {bytes_text(needed)}, "
            f"{bytes_text(free)} of memory are free; set a smaller sac.capacity"
        )
