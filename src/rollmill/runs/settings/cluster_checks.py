"""What a run must be like for other machines to sample for it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.distributed.ray_place import AUTO, place_of
from rollmill.distributed.settings import LOCAL
from rollmill.envs.tasks.suite import tasks_of

if TYPE_CHECKING:
    from rollmill.runs.settings.train import TrainConfig


def _check_ray(address: str) -> None:
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(f'cluster.address={address} needs Ray: pip install "rollmill[ray]"')
    if address != AUTO:
        place_of(address)


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
