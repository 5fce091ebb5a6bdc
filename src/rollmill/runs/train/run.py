"""``rollmill train``: everything around the loop of an online run, in the order it happens.

Take the run folder, write down what is about to happen, start the janitor, learn the env's spec, build
the parts, load a checkpoint if asked, train, and leave the place tidy whatever ended it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollmill.core.config.plain import differences
from rollmill.core.errors import CheckpointError, NonFiniteError, RollmillError, RunFolderLost, StoreError
from rollmill.core.fields import EnvSpec
from rollmill.core.imports import import_object
from rollmill.core.out_of_memory import memory_is_named
from rollmill.core.process_scope import process_scope, temporary_files_in
from rollmill.core.run_folder import RunFolder
from rollmill.envs.probe import probe_here
from rollmill.pbt.exchange import Exchange
from rollmill.pbt.payoff import require_statistic
from rollmill.reports.store.report import write_report
from rollmill.runs.lifecycle import Ended, Life, Request, live
from rollmill.runs.policies.online_state import require_same_network
from rollmill.runs.probing import episode_statistics, probe_in_child
from rollmill.runs.settings.population_checks import population_period, short_rounds
from rollmill.runs.settings.sizing import size
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.background_eval import BackgroundEval
from rollmill.runs.train.cluster.cluster import start_cluster
from rollmill.runs.train.forecasting import announce_pool, announce_replay, start_forecast
from rollmill.runs.train.observers import Observer, build_observers, call_hook
from rollmill.runs.train.population.ratings import BUILT_IN, require_objective
from rollmill.runs.train.population.settings_replay import SettingsReplay
from rollmill.runs.train.profiler import Profiler
from rollmill.runs.train.publishing import Publisher
from rollmill.runs.train.ranks.processes import share_of, start_ranks
from rollmill.runs.train.recording import build_recorder
from rollmill.runs.train.reporting import TrainMetrics
from rollmill.runs.train.save_requests import SaveRequests
from rollmill.store.reader import Store

if TYPE_CHECKING:
    from rollmill.learning.ranks import Ranks
    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")

REPORTED_EPISODES = 2000
"""Episodes whose rows are read for the report at the end of a recording; the tables are of all."""


@dataclass(frozen=True)
class Outcome(Ended):
    """How a training ended."""

    frames: int
    mean_return: float | None


MEMORY_ADVICE = (
    "Smaller are: learning.micro_batch (the same learning in smaller pieces), learning.batch_size, "
    "sampling.envs_per_worker, the network"
)


def train(config: TrainConfig, request: Request | None = None, observers: Sequence[Observer] = ()) -> Outcome:
    """Run a training to its end. Raises RollmillError when it fails; the folder says why, too."""
    request = request or Request()
    asked, config = config, size(config)
    for key, custom in (("model.custom", config.model.custom), ("learning.custom", config.learning.custom)):
        if custom is not None:
            import_object(custom, key)  # a wrong name must not leave a folder behind
    replayed = SettingsReplay(config) if config.pbt.replay is not None else None
    observers = (*observers, *build_observers(config.observers))
    if request.profile:
        observers = (*observers, Profiler(config.profile, config.folder / "profile"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(temporary_files_in(config.run.temp_dir))
        kept, page = config.checkpoints, config.report.page
        fits = functools.partial(require_same_network, config=config)
        living = live("online", config.folder, config, request, fits, keep=kept, page=page)
        life = stack.enter_context(living)
        environment = stack.enter_context(process_scope(inside=config.sampling.mode == "serial"))
        stack.callback(life.reporter.close)  # W&B has a process, too
        rescue = stack.enter_context(_Rescue())
        observers = (*observers, SaveRequests())
        if replayed is not None:
            observers = (*observers, replayed)
        if config.pool.on:
            observers = (*observers, Publisher(config.pool, config.checkpoints.min_free_mb))
        if config.evaluation.on:
            observers = (*observers, BackgroundEval(config.evaluation, environment))
        stack.enter_context(memory_is_named(MEMORY_ADVICE))
        spec = _learn_spec(config, environment)
        if life.loaded is None:
            _check_statistics(config, environment)
        config = _size_for(spec, asked, config, life)
        _warn_of_short_rounds(config, spec)
        if life.loaded is None:
            shutil.rmtree(life.folder.levels, ignore_errors=True)  # of a start that failed
        ranks = stack.enter_context(start_ranks(config, spec, environment))
        forecaster = stack.enter_context(start_forecast(config, spec, environment))
        run = rescue.run = _build(config, spec, environment, life, observers, ranks.ranks)
        stack.callback(run.parts.sampler.stop)  # also if it never starts: a GPU holds its memory
        if forecaster is not None:
            sample = forecaster.announce(life.folder.path)
            run.recorder = build_recorder(config, run.parts.sampler, life.folder.data, environment, sample)
        if config.replay.on:
            announce_replay(run)
        if config.pool.on:
            announce_pool(run)
        run.cluster = stack.enter_context(start_cluster(config, run.parts, environment, life.folder.path))
        life.begin(run)
        if run.selfplay is not None:
            run.selfplay.begin()
        ranks.join(run)
        for observer in reversed(observers):  # one call each: all are told, even when one of them fails
            stack.callback(call_hook, observer, "on_stop", run)
        run.init_observers()
        life.folder.set_state("running", step=run.frames)
        run.loop()
        run.save()
        if run.recorder is not None:
            _report_data(life.folder)
    return Outcome(**life.ended(), frames=run.frames, mean_return=run.mean_return)


def _report_data(folder: RunFolder) -> None:
    """Write a page about what was recorded, beside the run's metrics; the run has not failed if this does."""
    try:
        store = Store(folder.data)
        if len(store):
            report = write_report(store, folder.path / "data_report.html", max_episodes=REPORTED_EPISODES)
            log.info("report of the recorded data: %s", report.html)
    except (StoreError, OSError) as error:
        log.error("no report of the recorded data: %s", error)


def _learn_spec(config: TrainConfig, environment: Mapping[str, str]) -> EnvSpec:
    """Return the env's spec, from a process of its own (serial mode: this one) while torch is imported."""
    if config.sampling.mode == "serial":
        return probe_here(config.env)
    return probe_in_child(config.env, environment, config.sampling.start_timeout)


def _check_statistics(config: TrainConfig, environment: Mapping[str, str]) -> None:
    """Raise ConfigError if members are to be compared, or games decided, by what the environment does not tell.

    An environment whose episodes are long passes: it is looked again when the first one has ended.
    """
    exchange = config.pbt.exchange
    objective = (config.pbt if exchange is None else Exchange(exchange).about().pbt).objective
    if (config.pbt.on or exchange is not None) and objective.removeprefix("-") not in BUILT_IN:
        told = episode_statistics(config.env, environment, config.sampling.start_timeout)
        if told is not None:
            require_objective(objective, told)
    if config.selfplay.on and config.selfplay.decisive:
        told = episode_statistics(config.env, environment, config.sampling.start_timeout)
        if told is not None:
            require_statistic(f"selfplay.result={config.selfplay.result}", told)


def _warn_of_short_rounds(config: TrainConfig, spec: EnvSpec) -> None:
    """Say it where members of a population cannot be judged at every round."""
    pbt, why = config.pbt, ""
    if pbt.exchange is not None:
        about = Exchange(pbt.exchange).about()
        why = short_rounds(config, about.pbt, about.period, spec.frames_per_step)
    elif pbt.on:
        why = short_rounds(config, pbt, population_period(config), spec.frames_per_step)
    if why:
        log.warning("%s", why)


def _size_for(spec: EnvSpec, asked: TrainConfig, config: TrainConfig, life: Life) -> TrainConfig:
    """Decide automatic numbers once more, now that it is known what the env is like."""
    life.config = fitting = size(asked, spec)
    changes = differences(config, fitting)
    for key, (old, new) in changes.items():
        log.info("decided for this environment: %s: %s -> %s", key, old, new)
    if changes and life.loaded is None:
        life.write_config()
    return fitting


def _build(
    config: TrainConfig,
    spec: EnvSpec,
    environment: Mapping[str, str],
    life: Life,
    observers: Sequence[Observer],
    ranks: Ranks,
) -> OnlineRun:
    from rollmill.runs.train.build import build_parts
    from rollmill.runs.train.loop import OnlineRun

    parts = build_parts(share_of(config), spec, environment, ranks, life.folder.levels)
    return OnlineRun(config, parts, life, TrainMetrics(config, life), observers)


class _Rescue(contextlib.AbstractContextManager["_Rescue"]):
    """Saves the weights of a run that failed outside the learner: they are still good."""

    def __init__(self) -> None:
        self.run: OnlineRun | None = None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, RollmillError) or isinstance(error, (NonFiniteError, CheckpointError, RunFolderLost)):
            return
        if self.run is not None and self.run.iteration and type(error).__name__ != "ValueCollapseError":
            try:
                self.run.save(with_envs=False)
            except RollmillError as second:
                log.error("the last weights could not be saved either: %s", second)
