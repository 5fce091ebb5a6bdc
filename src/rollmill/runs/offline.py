"""``rollmill offline``: learn a policy from a store, judge it in the environment, write down what it is worth.

``train_offline`` shows everything in the order it happens: look at the store and the environment (all that can be
wrong is found here), take the run folder, build, load a checkpoint if asked, fit, judge, report.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from rollmill.core import atomic
from rollmill.core.checkpoints import Checkpoints, Loaded, load_checkpoint
from rollmill.core.config import dump_yaml, to_dict
from rollmill.core.diary import Diary
from rollmill.core.errors import CheckpointError, ConfigError, RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.core.run_folder import RunFolder, open_log
from rollmill.core.seeds import Seeds
from rollmill.envs.make import check_env_settings
from rollmill.envs.probe import Probe
from rollmill.envs.settings import EnvSettings
from rollmill.offline.data import (
    Selection,
    WindowLoader,
    automatic_targets,
    check_spec,
    fit_normaliser,
    open_store,
    scales_of,
    select,
)
from rollmill.offline.fit import Fitter, load_weights, precision
from rollmill.offline.model import Scales, SequencePolicy
from rollmill.offline.results import Results, Row, data_rows
from rollmill.runs.build import choose_device
from rollmill.runs.household import household
from rollmill.runs.offline_page import Film, write_page
from rollmill.runs.offline_play import Stage, find_behaviour
from rollmill.runs.offline_report import OfflineReporter
from rollmill.runs.offline_settings import OfflineConfig, check_offline
from rollmill.runs.opening import open_diary
from rollmill.runs.reporting import live_panel
from rollmill.runs.stopping import Interrupt
from rollmill.runs.train import Request
from rollmill.store.reader import Store

log = logging.getLogger("rollmill")

KIND = "offline"
CHECKPOINT_FORMAT = 1
PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class OfflineOutcome:
    """How an offline training ended."""

    state: Literal["finished", "interrupted"]
    reason: str
    steps: int
    folder: Path
    results: Results | None
    metrics: Mapping[str, float]
    signal: int = 0

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "reason": self.reason,
            "steps": self.steps,
            "folder": str(self.folder),
            "metrics": {name: value if math.isfinite(value) else None for name, value in self.metrics.items()},
            "results": self.results.to_dict() if self.results else None,
        }


@dataclass(frozen=True)
class Task:
    """What is to be done, checked against the store and the environment."""

    config: OfflineConfig
    store: Store
    selection: Selection
    scales: Scales
    stage: Stage | None
    """None: no environment is played."""
    targets: tuple[float | None, ...]
    behaviour: Loaded | None

    @property
    def spec(self) -> EnvSpec:
        return self.store.schema.env


def train_offline(config: OfflineConfig, request: Request | None = None) -> OfflineOutcome:
    """Run an offline training to its end. Raises RollmillError when it fails; the folder says why, too."""
    request = request or Request()
    check_offline(config)
    device = choose_device(config.fit.device, "fit.device")
    precision(config.fit, device)  # a wish this machine cannot grant is refused before anything is there
    loaded = _find_checkpoint(config, request)
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(household())
        task = prepare(config, environment)
        stack.callback(task.store.close)
        folder = stack.enter_context(RunFolder.create(config.folder, request.mode))
        handle = open_log(folder, to_console=request.console != "off" and not live_panel(request.console))
        stack.callback(handle.close)
        diary = open_diary(folder, config, request.mode, request.command, loaded)
        with _ending(folder, diary, loaded.frames if loaded else 0) as life:
            run = life.run = OfflineRun(task, folder, device, request)
            if loaded is not None:
                run.load_state(loaded)
                atomic.write_text(folder.config, dump_yaml(config))  # only now: settings that fail must not stay
            log.info("%s", describe_data(task))
            run.loop()
            run.save()
            if not run.interrupt.signal and task.stage is not None:
                run.judge_until_signal()
    return run.outcome()


def prepare(config: OfflineConfig, environment: Mapping[str, str]) -> Task:
    """Look at everything that can be wrong with data, environment and targets; nothing is written."""
    assert config.store is not None
    store = open_store(config.store, config.data)
    selection = select(store, config.data, config.algorithm, config.run.seed)
    stage = find_stage(config, store, environment) if config.plays else None
    targets: tuple[float | None, ...] = config.evaluation.targets or (None,)
    if config.algorithm == "dt" and stage is not None and not config.evaluation.targets:
        targets = automatic_targets(selection)
    if config.report.videos and stage is not None:
        stage.check_films()
    behaviour = None
    if config.evaluation.behaviour is not None and stage is not None:
        behaviour = find_behaviour(config.evaluation.behaviour, stage.spec)
        stage.check(behaviour)
    return Task(config, store, selection, scales_of(store, selection), stage, targets, behaviour)


def find_stage(config: OfflineConfig, store: Store, environment: Mapping[str, str]) -> Stage:
    """The environment to judge in, built once in a process of its own and compared with the store."""
    env = env_of(config, store)
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
    return Stage(env, spec, config.evaluation, environment)


def env_of(config: OfflineConfig, store: Store) -> EnvSettings:
    """The environment that was asked for, or the one the store names."""
    return config.env or EnvSettings(id=store.schema.env_id, args=dict(store.schema.env_kwargs))


def describe_data(task: Task) -> str:
    """One line: what is learnt from, and what is not."""
    figures = task.selection.summary(task.store)
    dropped = ", ".join(f"{count:,} {why}" for why, count in figures["dropped"].items())
    returns = "" if figures["return_mean"] is None else f", mean return {figures['return_mean']:.4g}"
    return (
        f"{task.store.path}: {figures['episodes']:,} episodes, {figures['steps']:,} steps{returns}; "
        f"{figures['validation_episodes']:,} held out; left out: {dropped or 'none'}"
    )


class OfflineRun:
    """An offline training in progress."""

    def __init__(self, task: Task, folder: RunFolder, device: torch.device, request: Request) -> None:
        config = task.config
        self.task, self.folder, self.device = task, folder, device
        self.interrupt = Interrupt()
        self.results: Results | None = None
        self.metrics: dict[str, float] = {}
        self.stop_reason = ""
        self._evaluations: list[dict[str, Any]] = []
        seeds = Seeds(config.run.seed)
        if device.type == "cpu":
            torch.set_num_threads(1)  # threads take whole pieces of a batch; see ``offline.fit``
        else:
            torch.set_float32_matmul_precision("high")
        torch.manual_seed(seeds.branch("weights").integer())
        self.model = SequencePolicy(task.spec, config.model, task.scales, config.algorithm == "dt")
        fit_normaliser(self.model, task.store, task.selection.training, seeds.branch("moments").integer())
        self.model.to(device)
        loader = WindowLoader(
            task.store,
            task.selection,
            task.spec,
            config.data,
            config.model,
            config.fit.batch_size,
            seeds.branch("data").integer(),
            device,
        )
        self.fitter = Fitter(self.model, loader, config.fit, seeds.branch("fit").integer())
        s = config.checkpoints
        self._checkpoints = Checkpoints(folder.checkpoints, s.keep_last, s.keep_best, s.milestone_frames, s.min_free_mb)
        self._saved_at = time.monotonic()
        self._reporter = OfflineReporter(config, folder, request.console)

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self.fitter.step

    # -- the life of a run ---------------------------------------------------------------------

    def loop(self) -> None:
        """Fit until a limit or a signal ends it."""
        fit, evaluation = self.task.config.fit, self.task.config.evaluation
        self._reporter.open(self.steps, self.fitter.seconds)
        with self.interrupt:
            while not self._over():
                self.fitter.train_step()
                self._reporter.refresh()
                if self.steps % fit.report_steps == 0:
                    self._report(self.fitter.validate())
                if evaluation.every_steps and self.steps % evaluation.every_steps == 0 and self.task.stage is not None:
                    self._report(self._play(evaluation.episodes))
                if time.monotonic() - self._saved_at >= self.task.config.checkpoints.every_seconds:
                    self._save_or_complain()
        if self.fitter.fresh:
            self._report(self.fitter.validate())

    def _over(self) -> bool:
        fit = self.task.config.fit
        if self.interrupt.signal is not None:
            self.stop_reason = f"{self.interrupt.signal.name} received"
        elif self.steps >= fit.steps:
            self.stop_reason = f"limit of {fit.steps:,} optimizer steps"
        elif fit.seconds and self.fitter.seconds >= fit.seconds:
            self.stop_reason = f"limit of {fit.seconds:g} seconds"
        return bool(self.stop_reason)

    def _report(self, figures: Mapping[str, float]) -> None:
        self.metrics |= {**self.fitter.metrics(), **figures}
        self._reporter.write(self.steps, self.metrics)

    def _play(self, episodes: int) -> dict[str, float]:
        """Returns by target, as metrics."""
        rows = self._rows(episodes)
        self._evaluations.append({"step": self.steps, "rows": [[row.target, row.mean] for row in rows]})
        figures = {"eval/return": max(row.mean for row in rows)}
        figures |= {f"eval/return_target_{row.target:g}": row.mean for row in rows if row.target is not None}
        return figures

    def _rows(self, episodes: int) -> list[Row]:
        assert self.task.stage is not None
        name = self.task.config.algorithm
        return self.task.stage.targets(name, self.model, self.task.targets, episodes, self.fitter.autocast)

    def judge_until_signal(self) -> None:
        """``judge``; everything is saved by now, so a signal ends it at once."""
        interrupt = Interrupt(at_once=True)
        try:
            with interrupt:
                self.judge()
        except KeyboardInterrupt:
            if interrupt.signal is None:
                raise
            self.interrupt = interrupt
            self.stop_reason = f"{interrupt.signal.name} received while it was judged"

    def judge(self) -> None:
        """The final evaluation: all targets, and beside them the data, their maker and random play; the page."""
        task, stage = self.task, self.task.stage
        assert stage is not None
        episodes = stage.settings.final_episodes
        log.info("judging: %d episodes for each of %d targets", episodes, len(task.targets))
        rows = self._rows(episodes)
        self.metrics["eval/return"] = max(row.mean for row in rows)
        if task.behaviour is not None:
            rows.append(stage.behaviour(task.behaviour, episodes))
        if stage.settings.random:
            rows.append(stage.random(episodes))
        self.results = Results(f"{stage.env.id}, {self.folder.path.name}", [*rows, *data_rows(_returns(task))])
        write_results(self.folder, self.results, [], self._facts())  # before films, which may fail
        films = self._films(stage, rows)
        if films:
            write_results(self.folder, self.results, films, self._facts())
        log.info("report: %s", self.folder.path / "report.html")
        self._reporter.write(self.steps, self.metrics)

    def _films(self, stage: Stage, rows: list[Row]) -> list[Film]:
        config = self.task.config
        own = sorted((row for row in rows if row.policy == config.algorithm), key=lambda row: -row.mean)
        films = []
        for row in own[: config.report.videos]:
            words = config.algorithm if row.target is None else f"{config.algorithm}, asked for {row.target:g}"
            films.append(Film(words, stage.film(words, self.folder.videos, (self.model, row.target))))
        return films

    def _facts(self) -> dict[str, Any]:
        figures = self.task.selection.summary(self.task.store)
        return {
            "store": str(self.task.store.path),
            "data": figures,
            "steps": self.steps,
            "seconds": round(self.fitter.seconds, 1),
            "metrics": dict(self.metrics),
            "evaluations": self._evaluations,
            "config": to_dict(self.task.config),
        }

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint now; CheckpointError when it cannot be written (older ones are safe)."""
        path = self._checkpoints.save(self.state(), self.steps, self.metrics.get("eval/return"))
        self._saved_at = time.monotonic()
        log.info("checkpoint %s", path)
        return path

    def _save_or_complain(self) -> None:
        try:
            self.save()
        except CheckpointError as error:
            self._saved_at = time.monotonic()  # try again after the usual time, not at every step
            log.error("no checkpoint was written, training goes on: %s", error)

    def state(self) -> dict[str, Any]:
        return {
            "format": CHECKPOINT_FORMAT,
            "kind": KIND,
            "config": to_dict(self.task.config),
            "env": to_dict(env_of(self.task.config, self.task.store)),
            "spec": self.task.spec.to_dict(),
            "scales": self.model.scales.to_dict(),
            "targets": list(self.task.targets),
            "fit": self.fitter.state(),
            "evaluations": self._evaluations,
        }

    def load_state(self, loaded: Loaded) -> None:
        state = loaded.state
        if state["spec"] != self.task.spec.to_dict() or state["scales"] != self.model.scales.to_dict():
            raise CheckpointError(
                f"{loaded.path} was fitted to other data than {self.task.store.path} holds now (its environment, "
                "returns or lengths differ); begin anew with --overwrite"
            )
        self.fitter.load_state(state["fit"])
        self._evaluations = list(state["evaluations"])
        self._checkpoints.set_aside_after(self.steps)
        log.info("continuing from %s (%s optimizer steps)", loaded.path, f"{self.steps:,}")

    def outcome(self) -> OfflineOutcome:
        number = self.interrupt.signal
        state: Literal["finished", "interrupted"] = "interrupted" if number else "finished"
        signal = int(number) if number else 0
        return OfflineOutcome(state, self.stop_reason, self.steps, self.folder.path, self.results, self.metrics, signal)

    def close(self) -> None:
        self.fitter.close()
        self._reporter.close()


def _returns(task: Task) -> Any:
    return task.selection.whole_returns


def write_results(folder: RunFolder, results: Results, films: list[Film], facts: Mapping[str, Any]) -> None:
    """``eval/results.json``, ``eval/table.md`` and ``report.html`` of a run."""
    place = folder.path / "eval"
    place.mkdir(exist_ok=True)
    text = json.dumps({**results.to_dict(), **facts}, indent=1, default=str)
    atomic.write_text(place / "results.json", text + "\n")
    atomic.write_text(place / "table.md", results.markdown() + "\n")
    write_page(folder.path / "report.html", results, films, facts)


def require_offline(loaded: Loaded) -> Loaded:
    """The checkpoint itself; CheckpointError unless an offline training has written it."""
    if not isinstance(loaded.state, Mapping) or loaded.state.get("kind") != KIND:
        raise CheckpointError(f"{loaded.path}: not a checkpoint of an offline training")
    return loaded


def load_policy(loaded: Loaded, config: OfflineConfig, device: torch.device) -> SequencePolicy:
    """The network a checkpoint holds."""
    state = loaded.state
    spec, scales = EnvSpec.from_dict(state["spec"]), Scales(**state["scales"])
    model = SequencePolicy(spec, config.model, scales, config.algorithm == "dt")
    load_weights(model, state["fit"]["model"])
    return model.to(device)


def _find_checkpoint(config: OfflineConfig, request: Request) -> Loaded | None:
    """The checkpoint to go on from, read and verified before anything is changed."""
    if request.restore is not None:
        return require_offline(load_checkpoint(request.restore))
    if request.mode == "resume" and config.folder.is_dir():
        return require_offline(Checkpoints(RunFolder(config.folder).checkpoints).load_newest())
    return None


@dataclass
class _Life:
    """A run from the moment its folder is taken; ``run`` is None until it is built."""

    run: OfflineRun | None = None


@contextlib.contextmanager
def _ending(folder: RunFolder, diary: Diary, steps: int) -> Iterator[_Life]:
    """Writes how the run ended into its folder, also where it could not be built and stays at ``steps``."""
    state: Literal["finished", "interrupted", "failed"] = "failed"
    reason = ""
    life = _Life()
    try:
        folder.set_state("running", frames=steps)
        yield life
        assert life.run is not None
        outcome = life.run.outcome()
        state, reason = outcome.state, outcome.reason
    except KeyboardInterrupt:
        state, reason = "interrupted", "interrupted and ended at once"
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        if life.run is not None:
            steps = max(steps, life.run.steps)
            life.run.close()
        log.log(logging.ERROR if state == "failed" else logging.INFO, "%s: %s", state, reason)
        try:
            folder.set_state(state, reason, steps)
            diary.end_session(f"{state}: {reason}"[:2000], steps)
        except RollmillError as second:  # a full disk: the first error is the one to report
            log.error("how the run ended could not be written down: %s", second)
