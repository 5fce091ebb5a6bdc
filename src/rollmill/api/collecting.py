"""Collecting whole episodes of a policy into a store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.api.notebook import NotebookLine, in_notebook
from rollmill.api.policies import Source
from rollmill.api.run import Run
from rollmill.api.words import Env, Files, env_words, files_of, said_in_python, setting_words
from rollmill.core.errors import ConfigError
from rollmill.core.given import give
from rollmill.monitor.console import count_text
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import Metrics
from rollmill.runs.collect.run import collect as collect_episodes
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.store.reader import Store


def collect(
    env: Env | None = None,
    policy: Source | LoadedPolicy = "random",
    *,
    out: str | os.PathLike[str],
    episodes: int | None = None,
    steps: int | None = None,
    until: int | None = None,
    max_steps: int = 0,
    seed: int | None = None,
    deterministic: bool = False,
    target: float | None = None,
    best: bool = False,
    save_info: Sequence[str] | bool = False,
    budget_gb: float | None = None,
    trust_code: bool = False,
    config: Files = (),
    overrides: Mapping[str, Any] | None = None,
    progress: bool = True,
    **blocks: Mapping[str, Any],
) -> Store:
    """Add whole episodes of a policy to the store ``out``, and open it; it is what ``rollmill collect`` does.

    ``rollmill.collect("CartPole-v1", episodes=100, out="data/random")``. Give one of ``episodes`` (to add), ``until``
    (to have in the end) and ``steps``. What had ended when something failed, or Ctrl-C came, is in the store.

    Args:
        env: As for ``rollmill.train``; may be left out where ``policy`` is a run or a checkpoint.
        policy: What ``rollmill.load_policy`` returns, which plays as it was loaded, or whatever that takes: a ``Run``,
            a path, a name, a callable.
        out: Folder of the store.
        episodes: Episodes to add.
        steps: Steps to add; the last episodes are cut and marked as partial.
        until: Episodes that shall be there in the end.
        max_steps: Truncate episodes after so many steps.
        seed: Root of all randomness; None draws one.
        deterministic: A trained policy takes its likeliest actions.
        target: The return to ask a Decision Transformer for; None: the highest of its run's own.
        best: Of a run, the best checkpoint instead of the newest, as for ``load_policy``.
        save_info: Keep what the environment's ``info`` says with every row: these names, or True for all that occur.
        budget_gb: Stop before the store is larger than so many gigabytes (10**9 bytes).
        trust_code: Run the code that a checkpoint names.
        config: Settings files, as for ``rollmill.train``.
        overrides: Settings by dotted key.
        progress: Show how far it is, in a notebook.
        blocks: Blocks of settings as dicts.
    """
    given = policy if isinstance(policy, LoadedPolicy) else None
    if isinstance(policy, LoadedPolicy):
        name, deterministic = policy.name, deterministic or policy.deterministic
    else:
        name = give(policy) if callable(policy) else str(policy.path if isinstance(policy, Run) else policy)
    if given is not None and best:
        raise ConfigError("best: the policy is loaded already; give it to load_policy")
    options = CollectOptions(
        out=Path(out),
        policy=name,
        episodes=episodes,
        until=until,
        steps=steps,
        max_steps=max_steps,
        seed=seed,
        deterministic=deterministic,
        target=target,
        best=best,
        save_info=(() if save_info else None) if isinstance(save_info, bool) else tuple(save_info),
        budget_gb=budget_gb,
        trust_code=trust_code or (isinstance(policy, Run) and policy.is_own),
    )
    line = NotebookLine() if progress and in_notebook() else None

    def show(metrics: Metrics) -> None:
        if line is not None:
            steps_text = f"{count_text(metrics.steps)} steps ({count_text(metrics.steps_per_s)}/s)"
            line.show(f"{out}: {metrics.episodes:,} episodes, {steps_text}, {metrics.share:.0%}")

    with said_in_python():
        collected = collect_episodes(
            options, files_of(config), setting_words(blocks, env_words(env), overrides or {}), show, given
        )
    return Store(collected.store)
