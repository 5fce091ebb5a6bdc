"""What an offline training is to do: its settings, checked against the store and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollmill.core.checkpoints import saved_settings
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.envs.make import check_env_settings
from rollmill.envs.probe import Probe
from rollmill.envs.settings import EnvSettings
from rollmill.offline.data import Selection, automatic_targets, check_spec, open_store, scales_of, select
from rollmill.offline.model import Scales
from rollmill.runs.evaluate.setup import EvalSetup
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.policies.load import load_policy
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.trust import SavedEnv, load_saved, stored_env
from rollmill.store.reader import Store

PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class Task:
    """What is to be done, checked against the store and the environment."""

    config: OfflineConfig
    store: Store
    selection: Selection
    scales: Scales
    setup: EvalSetup | None
    """Where it is judged; None: no environment is played."""
    targets: tuple[float | None, ...]
    behaviour: LoadedPolicy | None

    @property
    def spec(self) -> EnvSpec:
        return self.store.schema.env


def prepare(config: OfflineConfig, environment: Mapping[str, str], trust_code: bool = False) -> Task:
    """Look at everything that can be wrong with data, environment and targets; nothing is written.

    ``trust_code``: run the code that the store or the behaviour's checkpoint names.
    """
    assert config.store is not None
    store = open_store(config.store, config.data)
    selection = select(store, config.data, config.algorithm, config.run.seed)
    setup = find_setup(config, store, environment, trust_code) if config.plays else None
    targets: tuple[float | None, ...] = config.evaluation.targets or (None,)
    if config.algorithm == "dt" and setup is not None and not config.evaluation.targets:
        targets = automatic_targets(selection)
        targets = targets[-1:] if setup.tasks else targets  # tasks share the environments; targets would, too
    if setup is not None:
        setup.plan(1, targets=len(targets))  # refuses what cannot be judged, before anything is fitted
    if config.report.videos and setup is not None:
        setup.check_videos()
    behaviour = None
    if config.evaluation.behaviour is not None and setup is not None:
        deterministic = config.evaluation.deterministic
        behaviour = load_policy(
            config.evaluation.behaviour, env=setup.env, deterministic=deterministic, trust_code=trust_code
        )
        setup.check(behaviour)
    return Task(config, store, selection, scales_of(store, selection), setup, targets, behaviour)


def find_setup(config: OfflineConfig, store: Store, environment: Mapping[str, str], trust_code: bool) -> EvalSetup:
    """Return the environment to judge in, built once in a process of its own and compared with the store."""
    env = env_of(config, store)
    if config.env is None:
        load_saved(SavedEnv, _stored(store), store.path, trust_code=trust_code)  # refuses code that nobody has named
    try:
        check_env_settings(env)
        spec = Probe(env, environment).result(PROBE_SECONDS)
    except ConfigError as error:
        if config.env is not None:
            raise
        raise ConfigError(
            f"{store.path} names the environment {env.id!r}, which cannot be played here: {error}. "
            "Name one with env=..., or do without: evaluation.episodes=0"
        ) from error
    check_spec(store.schema.env, spec, str(store.path))
    s = config.evaluation
    return EvalSetup(env, spec, s.seed, s.workers, s.envs, environment=environment)


def env_of(config: OfflineConfig, store: Store) -> EnvSettings:
    """Return the environment that was asked for, or the one the store names.

    Either shows what the data were made to show. Fields for the last action and its reward come from settings, so
    another environment needs the same settings.
    """
    saved = saved_settings(SavedEnv, _stored(store), store.path).env
    if config.env is None:
        return saved
    action = config.env.previous_action or saved.previous_action
    return replace(
        config.env, previous_action=action, previous_reward=config.env.previous_reward or saved.previous_reward
    )


def _stored(store: Store) -> dict[str, Any]:
    """Return the environment of the store; of a suite the one task that all episodes are of, else all tasks."""
    schema = store.schema
    saved = stored_env(schema.env_id, schema.env_kwargs, schema.env_settings, schema.env)
    if saved["env"].get("task") and (store.table["env_id"] != saved["env"]["task"]).any():
        del saved["env"]["task"]
    return saved


def describe_data(task: Task) -> str:
    """Say in one line what is learnt from, and what is not."""
    metrics = task.selection.summary(task.store)
    dropped = ", ".join(f"{count:,} {why}" for why, count in metrics["dropped"].items())
    returns = "" if metrics["return_mean"] is None else f", mean return {metrics['return_mean']:.4g}"
    return (
        f"{task.store.path}: {metrics['episodes']:,} episodes, {metrics['steps']:,} steps{returns}; "
        f"{metrics['validation_episodes']:,} held out; left out: {dropped or 'none'}"
    )
