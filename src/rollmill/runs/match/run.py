"""``rollmill match``: which of several policies is the better player, from games of all against all.

All pairs play in one set of environments: who sits where goes by the number of the game. For every pair there are two
seatings, and all seatings of a round begin with the same seed, so nobody is better for having had the better cards or
the first move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.process_scope import process_scope
from rollmill.core.seeds import Seeds
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.suite import tasks_of
from rollmill.pbt.payoff import require_statistic
from rollmill.runs.evaluate.options import check_chosen, check_file
from rollmill.runs.evaluate.play import EvalPlan, Metrics, play
from rollmill.runs.evaluate.results import EpisodeRow, Score
from rollmill.runs.evaluate.setup import EvalSetup
from rollmill.runs.match.options import MatchOptions
from rollmill.runs.match.results import MatchResult, Player, Table
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions, told_apart
from rollmill.runs.policies.find import find_targets
from rollmill.runs.policies.load import load_each
from rollmill.runs.probing import episode_statistics, probe_in_child
from rollmill.sampling.policies.per_agent import PolicyPerEpisode
from rollmill.sampling.schedule import EpisodeSchedule

Progress = Callable[[Metrics], None]
Source = str | Path | LoadedPolicy
"""A policy, or a word for it."""


def match(
    players: Sequence[Source], options: MatchOptions | None = None, progress: Progress | None = None
) -> MatchResult:
    """Let every player play every other; words are as for ``rollmill eval``."""
    options = options or MatchOptions()
    options.check()
    policies = _policies(players, options)
    env = _env_of(policies)
    policies = [replace(policy, env=env) for policy in policies]
    for flag, path in (("--out", options.out), ("--report", options.report)):
        if path is not None:
            check_file(flag, path)
    names = [shown for shown, _ in told_apart(policies)]
    with process_scope() as environment:
        spec = _spec_of(env, policies, environment)
        _check_result(env, options.result, environment, policies)
        sides = _sides(options, spec, policies[0])
        setup = EvalSetup(
            *(env, spec, options.seed, options.workers, options.envs),
            sampling=policies[0].sampling,
            environment=environment,
        )
        table = _play(setup, policies, names, sides, options, progress)
    found = [
        Player(name, str(policy.path or policy.name), policy.frames, policy.unit if policy.frames else "")
        for name, policy in zip(names, policies, strict=True)
    ]
    return MatchResult(env.id, found, table, options.seed, options.result)


# -- who plays, and where ------------------------------------------------------------------------------


def _policies(players: Sequence[Source], options: MatchOptions) -> list[LoadedPolicy]:
    if options.device is not None:
        from rollmill.optim.device import choose_device

        choose_device(options.device, "--device")
    how = LoadOptions(
        overrides=options.overrides,
        best=options.best,
        deterministic=True if options.deterministic else None,
        device=options.device,
        trust_code=options.trust_code,
    )
    told = options.deterministic
    given = [
        replace(player, deterministic=player.deterministic or told)
        for player in players
        if isinstance(player, LoadedPolicy)
    ]
    words = find_targets([player for player in players if not isinstance(player, LoadedPolicy)])
    for flag, chosen in (("--best", options.best), ("--all-checkpoints", options.all_checkpoints)):
        if chosen and not any(Path(word).is_dir() for word in words):  # beside a run, single files may play
            check_chosen(flag, words)
    policies = [*given, *(policy for word in words for policy in load_each(word, how, options.all_checkpoints))]
    if len(policies) < 2:
        raise ConfigError("a match takes two players at least: run folders, checkpoints, random, module:callable")
    seen: set[str] = set()
    for policy in policies:
        who = str(policy.path.absolute()) if policy.path is not None else policy.name
        if who in seen:
            raise ConfigError(f"{policy.name} is given twice: it would play against itself")
        seen.add(who)
        policy.require_targets()
    return policies


def _env_of(policies: Sequence[LoadedPolicy]) -> EnvSettings:
    """Return where they all play: the environment of the first player that has one."""
    first = next((policy for policy in policies if policy.env is not None), policies[0])
    env = first.require_env()
    if env.vector:
        raise ConfigError(f"{env.id}: games are numbered, which env.vector cannot do; set env.vector=false")
    if tasks_of(env) and not env.task:
        raise ConfigError(f"{env.id} is a suite: name the task that is to be played, env.task=NAME")
    return env


def _spec_of(env: EnvSettings, policies: Sequence[LoadedPolicy], environment: dict[str, str]) -> EnvSpec:
    """Return what the environment shows and takes.

    Raises ConfigError if a player cannot play there, or nobody can play anybody.
    """
    spec = probe_in_child(env, environment, max(policy.sampling.start_timeout for policy in policies))
    if spec.agents < 2:
        raise ConfigError(
            f"{env.id} has one agent, so there is nobody to play against; `rollmill eval` compares policies there"
        )
    for policy in policies:
        try:
            policy.check(spec)
        except ConfigError as error:
            raise ConfigError(f"{policy.name}: {error}") from error
    return spec


def _check_result(env: EnvSettings, result: str, environment: dict[str, str], policies: Sequence[LoadedPolicy]) -> None:
    """Raise ConfigError where games are to be decided by what the environment does not tell.

    It is found out by an episode, if one ends in time.
    """
    if result:
        told = episode_statistics(env, environment, max(policy.sampling.start_timeout for policy in policies))
        if told is not None:
            require_statistic(f"--result {result}", told)


def _sides(options: MatchOptions, spec: EnvSpec, first: LoadedPolicy) -> Array:
    """Return ``[agents]``, 0 or 1: which of the two players of a game has each seat."""
    assert first.env is not None, "_env_of comes first"
    named = options.sides or first.env.policies
    sides = np.asarray(named or [k % 2 for k in range(spec.agents)])
    if sides.shape != (spec.agents,) or set(sides.tolist()) != {0, 1}:
        where = "--sides" if options.sides else "env.policies"
        raise ConfigError(
            f"{where} {' '.join(map(str, named))}: {spec.name} has {spec.agents} seats, and each belongs to player 0 "
            "or 1; name them with --sides"
        )
    return sides


# -- games ---------------------------------------------------------------------------------------------


def _play(
    setup: EvalSetup,
    policies: Sequence[LoadedPolicy],
    names: Sequence[str],
    sides: Array,
    options: MatchOptions,
    progress: Progress | None,
) -> Table:
    seatings = [pair for one, other in combinations(range(len(policies)), 2) for pair in ((one, other), (other, one))]
    seats = np.asarray(seatings)[:, sides]
    plan = _plan(setup, len(seatings), (options.games + 1) // 2)
    seed = Seeds(options.seed).branch("actions")
    lanes = plan.lanes
    built = [
        policy.build(
            setup.spec,
            plan.schedule,
            seed.branch(k).integer(),
            [max(policy.require_targets(), default=0.0)] * lanes,
        )
        for k, policy in enumerate(policies)
    ]
    tell = None if progress is None else _teller(progress, " against ".join(names) if len(names) == 2 else "match")
    (score,) = play(plan, PolicyPerEpisode(built, seats, plan.schedule), "match", tell)
    table = Table(len(policies))
    games: dict[int, list[EpisodeRow]] = {}
    for row in score.rows:
        games.setdefault(row.episode, []).append(row)
    for number, rows in sorted(games.items()):
        if len(rows) == setup.spec.agents:
            scores = _scores(rows, score, options.result, sides) if options.result else None
            returns = _means(sides, {row.agent: row.episode_return for row in rows})
            table.add(seatings[number % len(seatings)], returns, rows[0].length, scores)
    table.lost = score.lost
    return table


def _scores(rows: Sequence[EpisodeRow], score: Score, result: str, sides: Array) -> tuple[float, float]:
    """Return what decides a game, of both sides.

    Raises ConfigError if the environment does not tell it of every agent.
    """
    name, sign = result.removeprefix("-"), -1.0 if result.startswith("-") else 1.0
    told = {row.agent: score.stats.get((row.episode, row.agent), {}) for row in rows}
    for own in told.values():
        if name not in own:
            require_statistic(f"--result {result}", dict.fromkeys(own, True))
    return _means(sides, {agent: sign * own[name] for agent, own in told.items()})


def _means(sides: Array, values: Mapping[int, float]) -> tuple[float, float]:
    """Return the mean over the seats of each side."""
    one, other = (np.mean([own for agent, own in values.items() if sides[agent] == side]) for side in (0, 1))
    return float(one), float(other)


def _plan(setup: EvalSetup, seatings: int, rounds: int) -> EvalPlan:
    """Plan games of all seatings in turn, those of one round with one seed."""
    plan = setup.plan(seatings * rounds)
    schedule: EpisodeSchedule = replace(plan.schedule, alike=seatings)
    return replace(plan, schedule=schedule, sampler=replace(plan.sampler, schedule=schedule), tasks=())


def _teller(progress: Progress, name: str) -> Callable[[Sequence[EpisodeRow], Metrics], None]:
    return lambda _, metrics: progress(replace(metrics, policy=name, unit="games", mean_return=None))
