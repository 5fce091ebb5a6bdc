"""Whether self-play fits the rest of a run: refused before anything starts, with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.imports import import_object

if TYPE_CHECKING:
    from rollmill.runs.settings.train import TrainConfig


def check_selfplay(config: TrainConfig) -> None:
    """Raise ConfigError for what can be seen to be wrong without the environment."""
    own, env, learning = config.selfplay, config.env, config.learning
    if not own.on:
        return
    for wrong, what in (
        (config.pbt.on, f"pbt.members={config.pbt.members}: one policy plays all agents of an environment there"),
        (config.pbt.exchange is not None, "pbt.exchange"),
        (learning.ranks > 1, f"learning.ranks={learning.ranks}: use learning.ranks=1"),
        (learning.algorithm != "appo", f"learning.algorithm={learning.algorithm}: use learning.algorithm=appo"),
        (learning.custom is not None, "learning.custom: it would have to leave out the opponents' rows"),
        (config.replay.on, "replay: use replay.capacity=0"),
        (config.cluster.on, "cluster: other machines do not know the opponents"),
        (env.vector, "env.vector=true: its lanes are not agents of one game"),
        (bool(env.tasks), "env.tasks"),
        (bool(own.sides) and env.policy_count > 1, "selfplay.sides where env.policies says who is on which side"),
    ):
        if wrong:
            raise ConfigError(f"selfplay.rule={own.rule} does not go together with {what}")
    if own.pool_share > 0 and not config.pool.on:
        raise ConfigError(
            f"selfplay.rule={own.rule} plays against models of the run's pool, and nothing is published there: set "
            "pool.every_updates (batches between two models)"
        )
    if config.sampling.mode == "serial" and config.pool.every_seconds:
        raise ConfigError(
            f"pool.every_seconds={config.pool.every_seconds:g}: serial mode repeats bit for bit, and a clock does not; "
            "use pool.every_updates"
        )
    if own.own_rule:
        import_object(own.rule, "selfplay.rule")
    if env.policies and env.policy_count == 1:
        raise ConfigError("env.policies: self-play with one policy needs no env.policies; say selfplay.sides")


def check_selfplay_env(config: TrainConfig, spec: EnvSpec) -> None:
    """Raise ConfigError where the environment does not fit."""
    if not config.selfplay.on:
        return
    if spec.agents < 2:
        raise ConfigError(
            f"selfplay.rule={config.selfplay.rule}: {spec.name} has 1 agent, and self-play needs one for each side"
        )
    sides, learns = sides_of(config, spec), learning_sides(config, spec)
    if len(sides) != spec.agents:
        raise ConfigError(f"selfplay.sides names {len(sides)} agents, {spec.name} has {spec.agents}")
    players = policies_of_sides(config, spec)
    for side in learns:
        if not 0 <= side < len(players):
            raise ConfigError(
                f"selfplay.learns={list(learns)}: there is no side {side}, the last is {len(players) - 1}"
            )
        if players[side] in config.learning.frozen:
            raise ConfigError(
                f"selfplay.learns={list(learns)}: side {side} is played by policy {players[side]}, which "
                "learning.frozen keeps from learning"
            )


def sides_of(config: TrainConfig, spec: EnvSpec) -> tuple[int, ...]:
    """Return the side of every agent."""
    return config.env.policies or config.selfplay.sides or tuple(range(spec.agents))


def policies_of_sides(config: TrainConfig, spec: EnvSpec) -> tuple[int, ...]:
    """Return which policy plays each side, when it learns."""
    count = max(sides_of(config, spec)) + 1
    return tuple(range(count)) if config.env.policy_count > 1 else (0,) * count


def learning_sides(config: TrainConfig, spec: EnvSpec) -> tuple[int, ...]:
    """Return the sides that learn, each in its share of the episodes."""
    players = policies_of_sides(config, spec)
    return config.selfplay.learns or tuple(
        side for side, policy in enumerate(players) if policy not in config.learning.frozen
    )
