"""Policies from Python: loading any of them, asking them, evaluating them, letting them play each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from rollmill.api.machine import machine_as_it_was
from rollmill.api.notebook import NotebookLine, in_notebook
from rollmill.api.run import Run
from rollmill.api.words import Env, env_words, said_in_python, setting_words
from rollmill.core.given import give
from rollmill.runs.evaluate import run as evaluation
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.play import Metrics
from rollmill.runs.evaluate.results import EvalResult
from rollmill.runs.match import run as matches
from rollmill.runs.match.options import MatchOptions
from rollmill.runs.match.results import MatchResult
from rollmill.runs.policies import load
from rollmill.runs.policies.base import LoadedPolicy

Source: TypeAlias = str | os.PathLike[str] | Run | Callable[..., Any]
"""Where a policy comes from; ``load_policy`` says what each means."""

_FILES = ("out", "csv", "video", "report", "record_dir")


def load_policy(
    source: Source,
    *,
    env: Env | None = None,
    best: bool = False,
    member: int | None = None,
    target: float | None = None,
    deterministic: bool | None = None,
    device: str | None = None,
    last: bool = False,
    encoder: str | os.PathLike[str] | None = None,
    dynamics: str | os.PathLike[str] | None = None,
    seed: int = 1,
    trust_code: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> LoadedPolicy:
    """Load a policy that can be asked, evaluated, sampled and collected with.

    ``agent = rollmill.load_policy("runs/default/CartPole-v1-s0"); agent.act(observation)``. It remembers what it has
    seen until ``agent.reset()``.

    Args:
        source: A ``Run``; a run folder (online, offline, world model); a checkpoint or controller file; ``RUN@FRAMES``,
            the run's newest checkpoint up to there; ``"random"``, ``"smoothed-random"``; ``module:callable``; or a
            callable: called with the environment's spec, it returns what maps an observation to an action.
        env: The environment to play in, as for ``rollmill.train``; None: the one it was trained in.
        best: Of a run, the best checkpoint instead of the newest: by its ``checkpoints.best_metric`` (unset: the mean
            return in training, of a suite its score).
        member: Of a population, which member plays; None: the best.
        target: The return to ask a Decision Transformer for.
        deterministic: The most likely action instead of a sampled one; None: as the run was judged.
        device: ``cpu``, ``cuda``, ``cuda:N`` or ``auto``; None: as in training.
        last: Of an offline run, the last weights instead of those with the lowest held-out loss.
        encoder: The encoder of a controller, where it is no longer where it was.
        dynamics: The dynamics model of a controller, likewise.
        seed: Of the actions that ``act`` samples.
        trust_code: Run the code that the file names; a run that was trained by this very call of Python is trusted.
        overrides: Settings that differ from those of the run, by dotted key.
    """
    trusted = isinstance(source, Run) and source.is_own
    word = give(source) if callable(source) else str(source.path if isinstance(source, Run) else os.fspath(source))
    with said_in_python():
        return load.load_policy(
            word,
            overrides=setting_words(env_words(env), overrides or {}),
            best=best,
            member=member,
            target=target,
            deterministic=deterministic,
            device=device,
            last=last,
            encoder=None if encoder is None else Path(encoder),
            dynamics=None if dynamics is None else Path(dynamics),
            seed=seed,
            trust_code=trust_code or trusted,
        )


def evaluate(
    policy: Source | LoadedPolicy,
    *,
    episodes: int | None = None,
    env: Env | None = None,
    seed: int = 1,
    deterministic: bool = False,
    random: bool = False,
    best: bool = False,
    trust_code: bool = False,
    progress: bool = True,
    **options: Any,
) -> EvalResult:
    """Play whole episodes and return what a policy is worth; it is what ``rollmill eval`` does.

    ``rollmill.evaluate("runs/default/CartPole-v1-s0", episodes=20, random=True)`` returns a result with
    ``mean_return``, ``returns`` and, where asked for, a score of random play. The same seed gives the same episodes.

    Args:
        policy: What ``rollmill.load_policy`` has returned, or whatever it takes: a ``Run``, a path, a callable.
        episodes: Whole episodes to play; None: 100.
        env: The environment to play in; None: the one it was trained in.
        seed: Of environments and actions.
        deterministic: Take the most likely action instead of sampling.
        random: Evaluate a random policy beside it.
        best: Of a run, the best checkpoint instead of the newest, as for ``load_policy``.
        trust_code: Run the code that a checkpoint names.
        progress: Show how far it is, in a notebook.
        options: All other options of ``rollmill eval``, such as ``video="folder"``, ``csv="episodes.csv"``,
            ``steps=10_000``, ``workers=2``, ``record=True``.
    """
    if isinstance(policy, LoadedPolicy):
        agent = policy if env is None else replace(policy, env=load_policy("random", env=env).env, probe=True)
    else:
        agent = load_policy(policy, env=env, best=best, trust_code=trust_code)
    paths = {name: Path(options[name]) for name in _FILES if options.get(name) is not None}
    asked = EvalOptions(episodes, seed=seed, deterministic=deterministic, random=random, **{**options, **paths})
    line = NotebookLine() if progress and in_notebook() else None

    def show(metrics: Metrics) -> None:
        if line is not None:
            mean = "" if metrics.mean_return is None else f", return {metrics.mean_return:.4g}"
            line.show(f"{metrics.policy}: {metrics.done:,} of {metrics.wanted:,} {metrics.unit}{mean}")

    with said_in_python(), machine_as_it_was():
        return evaluation.evaluate(agent, asked, show)


def match(
    *players: Source | LoadedPolicy,
    env: Env | None = None,
    games: int | None = None,
    seed: int = 1,
    deterministic: bool = False,
    trust_code: bool = False,
    progress: bool = True,
    **options: Any,
) -> MatchResult:
    """Let policies play each other, all pairs with seats swapped; it is what ``rollmill match`` does.

    ``rollmill.match("runs/default/a", "runs/default/b", "random", games=200)`` returns a result with ``best``,
    ``ratings`` (Elo and its covariance) and ``table`` (wins, draws); ``print(result.text())`` shows them.

    Args:
        players: What ``rollmill.load_policy`` has returned, or whatever it takes: a ``Run``, a path, a callable.
        env: The environment to play in; None: that of the first player who has one.
        games: Of every pair of players; None: 100.
        seed: Of environments and actions.
        deterministic: Take the most likely action instead of sampling.
        trust_code: Run the code that a checkpoint names.
        progress: Show how far it is, in a notebook.
        options: All other options of ``rollmill match``, such as ``sides=(0, 0, 1, 1)``, ``workers=2``.
    """
    agents = [
        player if isinstance(player, LoadedPolicy) else load_policy(player, env=env, trust_code=trust_code)
        for player in players
    ]
    if env is not None:
        there = load_policy("random", env=env).env
        agents = [replace(agent, env=there) for agent in agents]
    given = {} if games is None else {"games": games}
    asked = MatchOptions(seed=seed, deterministic=deterministic, **{**given, **options})
    line = NotebookLine() if progress and in_notebook() else None

    def show(metrics: Metrics) -> None:
        if line is not None:
            line.show(f"{metrics.policy}: {metrics.done:,} of {metrics.wanted:,} {metrics.unit}")

    with said_in_python(), machine_as_it_was():
        return matches.match(agents, asked, show)
