"""``rollmill train``: everything around the loop of an online run, in the order it happens.

Take the run folder, write down what is about to happen, start the janitor, learn the env's spec, build
the parts, load a checkpoint if asked, train, and leave the place tidy whatever ended it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rollmill.core.checkpoints import Checkpoints, Loaded
from rollmill.core.config.plain import differences
from rollmill.core.diary import Diary
from rollmill.core.errors import (
    CheckpointError,
    Interrupted,
    NonFiniteError,
    RollmillError,
    RunFolderLost,
    StoreError,
)
from rollmill.core.fields import EnvSpec
from rollmill.core.imports import import_object
from rollmill.core.process_scope import process_scope
from rollmill.core.run_folder import RunFolder, State, open_log
from rollmill.envs.probe import probe_here
from rollmill.monitor.console import live_panel
from rollmill.reports.run.report import write_run_report
from rollmill.reports.store.report import write_report
from rollmill.runs.lifecycle import Request, find_checkpoint, open_diary, why_failed, write_config, write_down
from rollmill.runs.online_state import require_online
from rollmill.runs.out_of_memory import memory_is_named
from rollmill.runs.probing import probe_in_child
from rollmill.runs.settings import TrainConfig
from rollmill.runs.sizing import size
from rollmill.runs.stopping import Interrupt
from rollmill.runs.train.background_eval import BackgroundEval
from rollmill.runs.train.forecasting import start_forecast
from rollmill.runs.train.observers import Observer, build_observers, call_hook
from rollmill.runs.train.profiler import Profiler
from rollmill.runs.train.publishing import Publisher
from rollmill.runs.train.ranks import share_of, start_ranks
from rollmill.runs.train.recording import build_recorder
from rollmill.runs.train.reporting import Reporter
from rollmill.runs.train.save_requests import SaveRequests
from rollmill.store.reader import Store

if TYPE_CHECKING:
    from rollmill.learning.ranks import Ranks
    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")

REPORTED_EPISODES = 2000
"""Episodes whose rows are read for the report at the end of a recording; the tables are of all."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: Literal["finished", "interrupted"]
    reason: str
    frames: int
    mean_return: float | None
    folder: Path
    signal: int = 0
    """Number of the signal that ended it, or 0."""

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0


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
    observers = (*observers, *build_observers(config.observers))
    if request.profile:
        observers = (*observers, Profiler(config.profile, config.folder / "profile"))
    loaded = find_checkpoint(config.folder, request.mode, request.restore, require_online)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(RunFolder.create(config.folder, request.mode))
        folder.set_state("running", "starting", loaded.frames if loaded else 0)  # from now on it is a run's folder
        handle = open_log(folder, to_console=request.console != "off" and not live_panel(request.console))
        stack.callback(handle.close)
        if config.report.page:
            stack.callback(_report_run, folder)
        ending = stack.enter_context(_Ending(folder, loaded.frames if loaded else 0))
        stack.enter_context(folder.guarded())
        ending.diary = open_diary(folder, config, request.mode, request.command, loaded)
        environment = stack.enter_context(process_scope(inside=config.sampling.mode == "serial"))
        stack.push(ending.close_run)
        observers = (*observers, SaveRequests())
        if config.pool.on:
            observers = (*observers, Publisher(config.pool, config.checkpoints.min_free_mb))
        if config.evaluation.on:
            observers = (*observers, BackgroundEval(config.evaluation, environment))
        stack.enter_context(memory_is_named(MEMORY_ADVICE))
        spec = _learn_spec(config, environment)
        config = _size_for(spec, asked, config, None if loaded else folder)
        ranks = stack.enter_context(start_ranks(config, spec, environment, loaded.path if loaded else None))
        forecaster = stack.enter_context(start_forecast(config, spec, environment))
        run = _build(config, spec, environment, folder, request, observers, ranks.ranks)
        ending.run = run
        stack.callback(run.parts.sampler.stop)  # also if it never starts: a GPU holds its memory
        if forecaster is not None:
            sample = forecaster.announce(folder.path)
            run.recorder = build_recorder(config, run.parts.sampler, folder.data, environment, sample)
        if loaded is not None:
            _continue_from(run, loaded)
            write_config(folder, config)  # only now: settings that fail must not stay
        ranks.join(run)
        for observer in reversed(observers):  # one call each: all are told, even when one of them fails
            stack.callback(call_hook, observer, "on_stop", run)
        run.tell("on_init")
        folder.set_state("running", frames=run.frames)
        run.loop()
        run.save()
        if run.recorder is not None:
            _report_data(folder)
    return ending.outcome()


def _report_run(folder: RunFolder) -> None:
    """A page about the run, however it ended; the run has not failed if this does."""
    if not folder.config.exists() or folder.lost():  # there is nothing to tell yet, or not any more
        return
    try:
        log.info("report of the run: %s", write_run_report(folder.path))
    except RollmillError as error:
        log.error("no report of the run: %s", error)


def _report_data(folder: RunFolder) -> None:
    """What was recorded, as a page beside the run's metrics; the run has not failed if this does."""
    try:
        store = Store(folder.data)
        if len(store):
            report = write_report(store, folder.path / "data_report.html", max_episodes=REPORTED_EPISODES)
            log.info("report of the recorded data: %s", report.html)
    except (StoreError, OSError) as error:
        log.error("no report of the recorded data: %s", error)


def _learn_spec(config: TrainConfig, environment: Mapping[str, str]) -> EnvSpec:
    """The env's spec, from a process of its own (serial mode: from this one) while torch is imported."""
    if config.sampling.mode == "serial":
        return probe_here(config.env)
    return probe_in_child(config.env, environment, config.sampling.start_timeout)


def _size_for(spec: EnvSpec, asked: TrainConfig, config: TrainConfig, folder: RunFolder | None) -> TrainConfig:
    """Automatic numbers once more, now that it is known what the env is like."""
    fitting = size(asked, spec)
    changes = differences(config, fitting)
    for key, (old, new) in changes.items():
        log.info("decided for this environment: %s: %s -> %s", key, old, new)
    if changes and folder is not None:
        write_config(folder, fitting)
    return fitting


def _build(
    config: TrainConfig,
    spec: EnvSpec,
    environment: Mapping[str, str],
    folder: RunFolder,
    request: Request,
    observers: Sequence[Observer],
    ranks: Ranks,
) -> OnlineRun:
    from rollmill.runs.train.build import build_parts
    from rollmill.runs.train.loop import OnlineRun

    parts = build_parts(share_of(config), spec, environment, ranks=ranks)
    reporter = Reporter(config, folder, request.console)
    return OnlineRun(config, parts, folder, reporter, observers)


def _continue_from(run: OnlineRun, loaded: Loaded) -> None:
    state = loaded.state
    if state["spec"] != run.spec.to_dict():
        raise CheckpointError(
            f"{loaded.path} was made for another environment: {state['spec']['name']} with "
            f"observations {state['spec']['observation']} and actions {state['spec']['action']}"
        )
    run.load_state(loaded)
    Checkpoints(run.folder.checkpoints).set_aside_after(run.frames)
    log.info("continuing from %s (%s frames)", loaded.path, f"{loaded.frames:,}")


class _Ending(contextlib.AbstractContextManager["_Ending"]):
    """Writes how the run ended into its folder, as the last thing: all its processes are gone by then."""

    def __init__(self, folder: RunFolder, frames: int) -> None:
        self.run: OnlineRun | None = None
        self.diary: Diary | None = None
        self._folder, self._frames = folder, frames

    def close_run(self, _type: object, error: BaseException | None, _trace: object) -> None:
        """To be called on the way out: saves what can be saved of a run that failed."""
        if self.run is not None:
            self._rescue(self.run, error)
            self.run.close()

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        with Interrupt():  # a signal that comes now must not break off what is written down
            self._write_down(error)

    def _write_down(self, error: BaseException | None) -> None:
        frames = max(self._frames, self.run.frames if self.run else 0)  # one that failed may not have loaded yet
        state, reason = self._standing(error)
        level = logging.INFO if error is None else logging.ERROR
        log.log(level, "%s: %s (%s frames)", state, reason, f"{frames:,}")
        write_down(self._folder, self.diary, state, reason, frames)

    def _standing(self, error: BaseException | None) -> tuple[State, str]:
        """How the run has ended, and why."""
        if error is None:
            outcome = self.outcome()
            return outcome.state, outcome.reason
        if not isinstance(error, KeyboardInterrupt):
            return "failed", why_failed(error)
        if self.run is not None and self.run.interrupt.signal is not None:
            return "interrupted", "interrupted twice, ended at once"
        return "interrupted", f"{error.name} received" if isinstance(error, Interrupted) else "interrupted"

    def _rescue(self, run: OnlineRun, error: BaseException | None) -> None:
        """A run that failed outside the learner still has good weights: keep them."""
        if not isinstance(error, RollmillError) or isinstance(error, (NonFiniteError, CheckpointError, RunFolderLost)):
            return
        if run.iteration and type(error).__name__ != "ValueCollapseError":
            try:
                run.save(with_envs=False)
            except (CheckpointError, RunFolderLost) as second:
                log.error("the last weights could not be saved either: %s", second)

    def outcome(self) -> Outcome:
        run = self.run
        assert run is not None
        number = run.interrupt.signal
        return Outcome(
            state="interrupted" if number else "finished",
            reason=run.stop_reason,
            frames=run.frames,
            mean_return=run.mean_return,
            folder=self._folder.path,
            signal=int(number) if number else 0,
        )
