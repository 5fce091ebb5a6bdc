"""What SAC, several learners and other machines cannot do, said before anything starts."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import fields
from typing import TYPE_CHECKING

from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.fields import EnvSpec
from rollmill.core.given import MAIN
from rollmill.core.machine import available_memory
from rollmill.core.text import bytes_text
from rollmill.distributed.ray_place import AUTO, place_of
from rollmill.distributed.settings import LOCAL
from rollmill.envs.tasks.suite import tasks_of
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


# -- SAC ---------------------------------------------------------------------------------------------


def check_algorithm(config: TrainConfig) -> None:
    """Raise ConfigError for settings that the chosen algorithm does not read, or that contradict it."""
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
    """Raise ConfigError unless the actions are numbers or one choice, and rows fit into memory."""
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


# -- several learners --------------------------------------------------------------------------------


def check_ranks(config: TrainConfig) -> None:
    """Refuse what ranks cannot do, before any process starts."""
    s, ranks, meet = config.sampling, config.learning.ranks, config.learning.meet
    if ranks == 1:
        if meet:
            raise ConfigError(f"learning.meet={meet} is where several ranks meet: set learning.ranks, too")
        return
    if s.mode == "serial":
        raise ConfigError(
            f"learning.ranks={ranks}: serial mode is one process, which repeats bit for bit; "
            "use sampling.mode=sync or async"
        )
    if s.workers % ranks:
        raise ConfigError(
            f"sampling.workers={s.workers} cannot be shared out evenly to learning.ranks={ranks}; "
            f"near: {max(1, s.workers // ranks) * ranks}"
        )
    if meet:
        _check_machines(config)


def _check_machines(config: TrainConfig) -> None:
    """Raise ConfigError for what several machines cannot do: they know of each other what settings say, no more."""
    words, levels = f"learning.meet={config.learning.meet}", config.env.levels
    if place_of(config.learning.meet, "learning.meet").host in ("0.0.0.0", "::"):
        raise ConfigError(f"{words}: give one address of this machine, which the others can reach")
    if levels.on and levels.order == "once":
        raise ConfigError(
            f"{words}: machines cannot tell each other which levels were drawn; use another env.levels.draw"
        )
    if f'"{MAIN}:' in json.dumps(to_dict(config)):
        raise ConfigError(
            f"{words}: code of a notebook cell or a script ({MAIN}:...) is not sent to other machines; put it into a "
            "file that all of them have (path/to/file.py:Name)"
        )


# -- machines that sample ----------------------------------------------------------------------------


def check_cluster(config: TrainConfig) -> None:
    """Refuse what nodes cannot do, before any process starts."""
    cluster = config.cluster
    if not cluster.on:
        if not cluster.local_workers:
            raise ConfigError("cluster.local_workers=false: without nodes (cluster.address) nobody would sample")
        return
    words = f"cluster.address={cluster.address}"
    if cluster.address != LOCAL:
        _check_ray(cluster.address)
    if config.sampling.mode != "async":
        raise ConfigError(
            f"{words} needs sampling.mode=async, not {config.sampling.mode}: segments of nodes come when they come"
        )
    if config.learning.ranks > 1:
        raise ConfigError(f"{words}: nodes sample for one learner; use learning.ranks=1, not {config.learning.ranks}")
    if config.learning.algorithm == "sac":
        raise ConfigError(f"{words} does not know learning.algorithm=sac yet; use appo")
    if tasks_of(config.env):
        raise ConfigError(f"{words} does not know suites (env.tasks) yet: tasks would not get equal shares")
    if config.env.levels.on:
        raise ConfigError(f"{words} does not know env.levels yet: nodes cannot tell which levels the others have drawn")
    if config.policy_count > 1:
        raise ConfigError(f"{words}: nodes act with one policy, and this run has {config.policy_count}")


def _check_ray(address: str) -> None:
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(f'cluster.address={address} needs Ray: pip install "rollmill[ray]"')
    if address != AUTO:
        place_of(address)
