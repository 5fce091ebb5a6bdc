"""Whether a population can be trained as it is described: refused before anything starts, with a reason."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollmill.core.errors import ConfigError
from rollmill.core.text import nearest
from rollmill.envs.make import episode_limit
from rollmill.envs.variables import PROGRESS
from rollmill.learning.settings import LIVE, SWITCHES, WHOLE
from rollmill.pbt.space import Range, parse_space

if TYPE_CHECKING:
    from rollmill.pbt.settings import PbtSettings
    from rollmill.runs.settings.train import TrainConfig

LEARNING, VARIABLES = "learning.", "env.variables."
ROUNDS = 20
"""Rounds of decisions in a run whose ``pbt.period`` is automatic."""


def population_period(config: TrainConfig) -> int:
    """Return the frames of each member between two rounds."""
    return config.pbt.period or max(1, config.stop.frames // (config.pbt.members * ROUNDS))


def configured(config: TrainConfig, key: str) -> float:
    """Return what the run's own settings say of a tuned one."""
    if key.startswith(VARIABLES):
        return config.env.variables[key.removeprefix(VARIABLES)]
    return float(getattr(config.learning, key.removeprefix(LEARNING)))


def separate_period(config: TrainConfig, pbt: PbtSettings) -> int:
    """Return the frames between two rounds where every member is a run of its own, and ``config`` is one of those."""
    return pbt.period or max(1, config.stop.frames // ROUNDS)


def check_population(config: TrainConfig) -> None:
    """Raise ConfigError for what can be seen to be wrong without the environment."""
    pbt = config.pbt
    if pbt.exchange is not None:
        _check_run(config, f"pbt.exchange={pbt.exchange}")
    if not pbt.on:
        return
    _check_run(config, f"pbt.members={pbt.members}")
    if not pbt.period and not config.stop.frames:
        raise ConfigError("pbt.period is automatic only where stop.frames says how long the run is: set pbt.period")
    _check_rounds(config, pbt, population_period(config), config.stop.frames // pbt.members)
    for key, bounds in _space(config).items():
        _check_tuned(config, key, bounds)
    _check_groups(config)


def check_separate(config: TrainConfig, pbt: PbtSettings) -> None:
    """Raise ConfigError for what is wrong in a population of separate runs, of which ``config`` is one."""
    stop = config.stop
    if not stop.frames or stop.seconds or stop.batches or stop.mean_return is not None:
        raise ConfigError("population: its members end together: say stop.frames, and no other limit")
    if config.cluster.address:
        raise ConfigError("population: a member of separate runs has no nodes that sample for it: leave out cluster")
    whole = replace(config, pbt=pbt)
    _check_run(whole, "a population")
    _check_rounds(whole, pbt, separate_period(config, pbt), stop.frames)
    for key, bounds in _space(whole).items():
        _check_tuned(whole, key, bounds)


def _check_run(config: TrainConfig, what: str) -> None:
    """Raise ConfigError unless the settings of its policies can be changed while they learn."""
    learning = config.learning
    for wrong, against in (
        (bool(config.env.policies), "env.policies: one policy plays all agents of an environment there"),
        (learning.ranks > 1, f"learning.ranks={learning.ranks}: use learning.ranks=1"),
        (learning.algorithm != "appo", f"learning.algorithm={learning.algorithm}: use learning.algorithm=appo"),
        (learning.custom is not None, "learning.custom: only APPO's settings can be changed in a run"),
        (config.replay.on, "replay: rows of members would mix with those of their predecessors"),
        (config.pbt.objective in ("", "-"), "an empty pbt.objective"),
        (
            config.pbt.objective.removeprefix("-").startswith("episode/"),
            f"pbt.objective={config.pbt.objective}: statistics of episodes are named without episode/ here",
        ),
    ):
        if wrong:
            raise ConfigError(f"{what} does not go together with {against}")


def _check_rounds(config: TrainConfig, pbt: PbtSettings, period: int, frames: int) -> None:
    """Raise ConfigError for a population that never decides anything: nobody has asked for that."""
    if pbt.decides and config.stop.frames and pbt.start + period > frames:
        raise ConfigError(
            f"the first round would be at {pbt.start + period:,} frames of each member (pbt.start + pbt.period), and "
            f"each gets {frames:,}: shorten them, train longer (stop.frames), or say pbt.method=random or fixed"
        )

    if pbt.decides and period < pbt.min_episodes:
        raise ConfigError(
            f"a round every {period:,} frames of each member cannot hold pbt.min_episodes={pbt.min_episodes}, by which "
            "it is judged: a longer pbt.period (or stop.frames), or fewer episodes"
        )


def short_rounds(config: TrainConfig, pbt: PbtSettings, period: int, frames_per_step: int) -> str:
    """Return why members may not be judged at every round, if that is known; else nothing. ``config`` is sized."""
    limit, s = episode_limit(config.env), config.sampling
    envs = s.workers * s.envs_per_worker // config.pbt.members
    each = math.ceil(pbt.min_episodes / envs)
    needed = each * envs * limit * frames_per_step
    if not pbt.decides or needed <= period:
        return ""
    return (
        f"episodes may take {limit:,} steps, and {each} of each of a member's {envs} environments are {needed:,} "
        f"frames: with a round every {period:,} frames, members with such episodes are judged at some rounds only "
        "(pbt.period, pbt.min_episodes)"
    )


def _space(config: TrainConfig) -> dict[str, Range]:
    try:
        return parse_space(config.pbt.tuned)
    except ValueError as error:
        raise ConfigError(f"pbt.tune.{error}") from error


def _check_tuned(config: TrainConfig, key: str, bounds: Range) -> None:
    if key.startswith(VARIABLES):
        name = key.removeprefix(VARIABLES)
        if name not in config.env.variables or name == PROGRESS:
            there = ", ".join(name for name in config.env.variables if name != PROGRESS) or "none"
            raise ConfigError(f"pbt.tune.{key}: env.variables has no such name that may be tuned (it has: {there})")
    else:
        name = key.removeprefix(LEARNING)
        if key == name or name not in LIVE:
            known = sorted([f"{LEARNING}{x}" for x in LIVE] + [f"{VARIABLES}{x}" for x in config.env.variables])
            hint = nearest(key, known)
            raise ConfigError(
                f"pbt.tune.{key} is nothing that may change in a run{f'; {hint}' if hint else ''} "
                f"(there are: {', '.join(known)})"
            )
        _check_learning(config, name, bounds)
    if config.pbt.begin == "config" and configured(config, key) not in bounds:
        raise ConfigError(
            f"pbt.begin=config, but {key}={configured(config, key):g} is none of "
            f"{', '.join(f'{x:g}' for x in bounds.values)}"
            if bounds.values
            else f"pbt.begin=config, but {key}={configured(config, key):g} lies outside of its bounds "
            f"{bounds.low:g} to {bounds.high:g}"
        )


def _check_learning(config: TrainConfig, name: str, bounds: Range) -> None:
    learning = config.learning
    if name == "learning_rate" and learning.lr_schedule != "constant":
        raise ConfigError(f"pbt.tune.learning.{name}: learning.lr_schedule={learning.lr_schedule} moves it already")
    if name == "entropy_coefficient" and learning.entropy_end is not None:
        raise ConfigError(f"pbt.tune.learning.{name}: learning.entropy_end moves it already")
    if name in SWITCHES and (not getattr(learning, name) or bounds.low <= 0):
        raise ConfigError(f"pbt.tune.learning.{name}: 0 switches it off; set learning.{name} and bounds above 0")
    if name in WHOLE and not (bounds.whole or (bounds.values and all(x.is_integer() for x in bounds.values))):
        raise ConfigError(
            f"pbt.tune.learning.{name}: only whole numbers can be meant: [{bounds.low:g}, {bounds.high:g}, integer]"
        )
    for bound in (bounds.low, bounds.high):
        try:
            values: dict[str, Any] = {name: round(bound) if name in WHOLE else bound}
            replace(learning, **values)
        except ValueError as error:
            raise ConfigError(f"pbt.tune.learning.{name}: {error}") from error


def _check_groups(config: TrainConfig) -> None:
    s, members = config.sampling, config.pbt.members
    if 0 < s.workers * s.envs_per_worker < members:
        raise ConfigError(
            f"pbt.members={members} are more than the environments (sampling.workers={s.workers} x "
            f"sampling.envs_per_worker={s.envs_per_worker}), and each needs some of its own: more environments, or "
            "members as separate runs (rollmill launch)"
        )
    if s.workers and s.groups and s.workers * s.groups % members:
        raise ConfigError(
            f"pbt.members={members}: each member plays whole groups of environments, and sampling.workers={s.workers} "
            f"x sampling.groups={s.groups} cannot be shared out evenly; leave sampling.groups=0 to choose, or more "
            "environments (sampling.envs_per_worker)"
        )


def group_owners(config: TrainConfig) -> tuple[int, ...]:
    """Return the member that plays each group of a sized config: in turn, so that each worker has several.

    It is empty if there is no population.
    """
    s, members = config.sampling, config.pbt.members
    return tuple(group % members for group in range(s.workers * s.groups)) if config.pbt.on else ()
