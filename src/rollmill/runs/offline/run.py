"""``rollmill offline``: learn a policy from a store, judge it in the environment, write down what it is worth.

``train_offline`` shows everything in the order it happens: look at the store and the environment (all that can be
wrong is found here), take the run folder, build, load a checkpoint if asked, fit, judge, report.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from rollmill.core import atomic
from rollmill.core.checkpoints import Checkpoints, Loaded, restoring
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import CheckpointError, RollmillError
from rollmill.core.process_scope import process_scope
from rollmill.core.run_folder import RunFolder, open_log
from rollmill.core.seeds import Seeds
from rollmill.models.saving import load_weights, weights_of
from rollmill.monitor.console import duration_text, live_panel
from rollmill.offline.held_out import HeldOut
from rollmill.optim.device import choose_device, matmul_dtype
from rollmill.reports.run.offline import Video
from rollmill.reports.run.report import write_run_report
from rollmill.reports.run.results import LAST, Results, Row, data_rows
from rollmill.runs.evaluate.play import Metrics, Pace
from rollmill.runs.evaluate.results import EpisodeRow, row_of
from rollmill.runs.evaluate.setup import EvalSetup
from rollmill.runs.lifecycle import Request, ending, find_checkpoint, open_diary, write_config
from rollmill.runs.offline.networks import Network, build_fitter
from rollmill.runs.offline.reporting import OfflineReporter
from rollmill.runs.offline.settings import OfflineConfig, check_offline
from rollmill.runs.offline.task import Task, describe_data, env_of, prepare
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.policies.load import load_policy
from rollmill.runs.policies.offline import CHECKPOINT_FORMAT, KIND, Choice, OfflinePolicy, require_offline
from rollmill.runs.stopping import Interrupt

log = logging.getLogger("rollmill")


@dataclass(frozen=True)
class OfflineOutcome:
    """How an offline training ended."""

    state: Literal["finished", "interrupted"]
    reason: str
    steps: int
    folder: Path
    results: Results | None
    metrics: Mapping[str, float]
    weights: str
    """Which weights are the policy, in words."""
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
            "weights": self.weights,
            "metrics": {name: value if math.isfinite(value) else None for name, value in self.metrics.items()},
            "results": self.results.to_dict() if self.results else None,
        }


def train_offline(
    config: OfflineConfig, request: Request | None = None, on_ready: Callable[[], None] | None = None
) -> OfflineOutcome:
    """Run an offline training to its end. Raises RollmillError when it fails; the folder says why, too.

    ``on_ready`` is called when everything is built: nothing can be refused any more.
    """
    request = request or Request()
    check_offline(config)
    device = choose_device(config.fit.device, "fit.device")
    matmul_dtype(config.fit.precision, device)  # a wish this machine cannot grant is refused before anything is there
    loaded = find_checkpoint(config.folder, request.mode, request.restore, require_offline)
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(process_scope(inside=config.report.videos > 0))  # videos render here
        task = prepare(config, environment, request.trust_code)
        stack.callback(task.store.close)
        folder = stack.enter_context(RunFolder.create(config.folder, request.mode))
        folder.set_state("running", "starting", loaded.frames if loaded else 0)
        handle = open_log(folder, to_console=request.console != "off" and not live_panel(request.console))
        stack.callback(handle.close)
        diary = open_diary(folder, config, request.mode, request.command, loaded)
        stack.callback(_report_run, folder)
        with ending(folder, diary, loaded.frames if loaded else 0) as life, folder.guarded():
            run = life.run = OfflineRun(task, folder, device, request)
            if loaded is not None:
                run.load_state(loaded)
                write_config(folder, config)  # only now: settings that fail must not stay
            if on_ready is not None:
                on_ready()
            log.info("%s", describe_data(task))
            run.loop()
            run.save()
            if not run.interrupt.signal and task.setup is not None:
                run.judge_until_signal()
            else:
                run.write_results()
    return run.outcome()


def _report_run(folder: RunFolder) -> None:
    """A page about the run, however it ended; the run has not failed if this does."""
    if folder.lost():
        return
    try:
        log.info("report of the run: %s", write_run_report(folder.path))
    except RollmillError as error:
        log.error("no report of the run: %s", error)


class OfflineRun:
    """An offline training in progress."""

    def __init__(self, task: Task, folder: RunFolder, device: torch.device, request: Request) -> None:
        config = task.config
        self.task, self.folder, self.device = task, folder, device
        self.interrupt = Interrupt()
        self.held_out = HeldOut(config.fit.patience)
        self.results: Results | None = None
        self.metrics: dict[str, float] = {}
        self.stop_reason = ""
        self._loaded: Path | None = None
        self._pace, self._told_at = Pace(), 0.0
        self._evaluations: list[dict[str, Any]] = []
        seeds = Seeds(config.run.seed)
        if device.type == "cpu":
            torch.set_num_threads(1)  # threads take whole pieces of a batch; see ``optim.replicas``
        else:
            torch.set_float32_matmul_precision("high")
        self.fitter = build_fitter(config, task.store, task.selection, task.scales, seeds, device)
        self.model: Network = self.fitter.model
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
        if self._loaded is None or not self._checkpoints.is_newest(self._loaded):
            self._save_or_complain()  # one that is killed early can be resumed, too
        with self.interrupt:
            while not self._over():
                self.fitter.train_step()
                self._reporter.refresh(self.steps)
                if self.steps % fit.report_steps == 0:
                    self._report(self._validate())
                if evaluation.every_steps and self.steps % evaluation.every_steps == 0 and self.task.setup is not None:
                    self._report(self._play(evaluation.episodes))
                if time.monotonic() - self._saved_at >= self.task.config.checkpoints.every_seconds:
                    self._save_or_complain()
        if self.fitter.fresh:
            self._report(self._validate())

    def _validate(self) -> dict[str, float]:
        """Held-out metrics; the weights are kept where the loss is the lowest so far."""
        metrics = self.fitter.validate()
        if "validation/loss" in metrics:
            self.held_out.note(self.steps, metrics["validation/loss"], lambda: weights_of(self.model))
            warning = self.held_out.warning()
            if warning:
                log.warning("%s; the weights of update %s will act", warning, f"{self.held_out.best_step:,}")
        return {**metrics, **self.held_out.metrics()}

    def _over(self) -> bool:
        fit = self.task.config.fit
        self.folder.watch()
        if self.interrupt.signal is not None:
            self.stop_reason = f"{self.interrupt.signal.name} received"
        elif self.steps >= fit.steps:
            self.stop_reason = f"reached fit.steps={fit.steps:_}"
        elif fit.seconds and self.fitter.seconds >= fit.seconds:
            self.stop_reason = f"reached fit.seconds={fit.seconds:g}"
        elif self.held_out.exhausted:
            self.stop_reason = (
                f"held-out loss has not fallen for {fit.patience} validations "
                f"(fit.patience; lowest: {self.held_out.best_loss:.4g} at update {self.held_out.best_step:,})"
            )
        return bool(self.stop_reason)

    def _report(self, metrics: Mapping[str, float]) -> None:
        self.metrics |= {**self.fitter.metrics(), **metrics}
        self._reporter.write(self.steps, self.metrics)

    def _play(self, episodes: int) -> dict[str, float]:
        """Returns by target, as metrics."""
        rows = self._rows(self.task.config.algorithm, self.model, episodes)
        self._evaluations.append({"step": self.steps, "rows": [[row.target, row.mean] for row in rows]})
        metrics = {"eval/return": max(row.mean for row in rows)}
        metrics |= {f"eval/return_target_{row.target:g}": row.mean for row in rows if row.target is not None}
        return metrics

    def _rows(self, name: str, model: Network, episodes: int) -> list[Row]:
        return self._judged(self._playable(name, model, self.task.targets), name, episodes)

    def _playable(self, name: str, model: Network, targets: Sequence[float | None]) -> OfflinePolicy:
        """The network as a policy that is asked for these returns (None: it is not asked)."""
        asked = tuple(target for target in targets if target is not None)
        deterministic = self.task.config.evaluation.deterministic
        return OfflinePolicy(
            name=name, network=model, targets=asked, autocast=self.fitter.autocast, deterministic=deterministic
        )

    def _judged(self, policy: LoadedPolicy, name: str, episodes: int) -> list[Row]:
        """Rows of the table, one for each return that the policy is asked for."""
        assert self.task.setup is not None
        scores = self.task.setup.play(policy, episodes, name=name, progress=self._tell).scores
        return [row_of(name, score, target) for score, target in zip(scores, policy.targets or (None,), strict=True)]

    def _tell(self, _rows: Sequence[EpisodeRow], metrics: Metrics) -> None:
        """A line about episodes that are being played, every few seconds."""
        self.folder.watch()
        left, now = self._pace.left(metrics), time.monotonic()
        self._reporter.redraw()
        if now - self._told_at >= self.task.config.report.console_seconds:
            self._told_at = now
            rest = "" if left is None else f", left {duration_text(left)}"
            log.info("evaluating %s: %d of %d episodes%s", metrics.policy, metrics.done, metrics.wanted, rest)

    @property
    def choice(self) -> Choice:
        """Which weights are the policy."""
        best = self.held_out.best_step
        return Choice(best or self.steps, self.steps, best > 0)

    def _policy(self) -> Network:
        """The network with those weights."""
        policy = copy.deepcopy(self.model)
        if self.held_out.weights is not None:
            load_weights(policy, self.held_out.weights)
        return policy.eval()

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
        """The final evaluation: all targets, and beside them the data, their maker and random play."""
        task, evaluation = self.task, self.task.config.evaluation
        assert task.setup is not None
        episodes, policy = evaluation.final_episodes, self._policy()
        log.info("evaluating the %s: %d episodes for each of %d targets", self.choice, episodes, len(task.targets))
        name = task.config.algorithm
        rows, notes = self._rows(name, policy, episodes), [f"{name}: {self.choice}"]
        self.metrics["eval/return"] = max(row.mean for row in rows)
        if self.held_out.rising:  # the lowest loss is not always the best play: let the reader compare
            log.info("evaluating the last weights, too, as held-out loss has risen")
            rows += self._rows(name + LAST, self.model, episodes)
            notes.append(f"{name}{LAST}: {Choice(self.steps, self.steps, False)}")
        if task.behaviour is not None:
            rows += self._judged(task.behaviour, "behaviour", episodes)
        if evaluation.random:
            rows += self._judged(load_policy("random"), "random", episodes)
        title, returns = f"{task.setup.env.id}, {self.folder.path.name}", task.selection.whole_returns
        self.results = Results(title, [*rows, *data_rows(returns)], notes=notes)
        self.write_results()  # before videos, which may fail
        videos = self._videos(task.setup, policy, rows)
        if videos:
            self.write_results(videos)
        self._reporter.write(self.steps, self.metrics)

    def _videos(self, setup: EvalSetup, policy: Network, rows: list[Row]) -> list[Video]:
        config = self.task.config
        own = sorted((row for row in rows if row.policy == config.algorithm), key=lambda row: -row.mean)
        videos = []
        for row in own[: config.report.videos]:
            self.folder.require()
            words = config.algorithm if row.target is None else f"{config.algorithm}, asked for {row.target:g}"
            playable = self._playable(words, policy, (row.target,))
            made = setup.typical_video(playable, words, self.folder.videos, self._tell)
            if made.problem:
                log.warning("no video of %s: %s", words, made.problem)
            else:
                videos.append(Video(words, Path(made.file)))
        return videos

    def write_results(self, videos: Sequence[Video] = ()) -> None:
        """``eval/results.json`` and ``eval/table.md``: what it was fitted to and what it is worth, as far as known."""
        task, place = self.task, self.folder.path / "eval"
        results = self.results or Results(self.folder.path.name, [])
        facts = {
            **results.to_dict(),
            "env": env_of(task.config, task.store).id,
            "store": str(task.store.path),
            "data": task.selection.summary(task.store),
            "steps": self.steps,
            "weights": asdict(self.choice),
            "seconds": round(self.fitter.seconds, 1),
            "metrics": dict(self.metrics),
            "evaluations": self._evaluations,
            "videos": [{"caption": video.caption, "file": video.path.name} for video in videos],
            "config": to_dict(task.config),
        }
        self.folder.require()
        place.mkdir(exist_ok=True)
        atomic.write_text(place / "results.json", json.dumps(facts, indent=1, default=str) + "\n")
        if results.rows:
            atomic.write_text(place / "table.md", results.markdown() + "\n")

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint now; CheckpointError when it cannot be written (older ones are safe)."""
        self.folder.require()
        rating = self.task.config.checkpoints.rated(self.metrics, "eval/return")
        path = self._checkpoints.save(self.state(), self.steps, rating)
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
            "scales": self.task.scales.to_dict(),
            "targets": list(self.task.targets),
            "fit": self.fitter.state(),
            "held_out": self.held_out.state(),
            "evaluations": self._evaluations,
        }

    def load_state(self, loaded: Loaded) -> None:
        state, self._loaded = loaded.state, loaded.path
        if state["spec"] != self.task.spec.to_dict() or state["scales"] != self.task.scales.to_dict():
            raise CheckpointError(
                f"{loaded.path} was fitted to other data than {self.task.store.path} holds now (its environment, "
                "returns or lengths differ); begin anew with --overwrite"
            )
        with restoring(loaded.path, "fit"):
            self.fitter.load_state(state["fit"])
        with restoring(loaded.path, "held_out"):
            self.held_out.load_state(state.get("held_out"))
            if self.held_out.weights is not None:
                load_weights(copy.deepcopy(self.model), self.held_out.weights)  # or they fail after hours of fitting
        self._evaluations = list(state["evaluations"])
        self._checkpoints.set_aside_after(self.steps)
        log.info("continuing from %s (%s updates)", loaded.path, f"{self.steps:,}")

    def outcome(self) -> OfflineOutcome:
        number = self.interrupt.signal
        state: Literal["finished", "interrupted"] = "interrupted" if number else "finished"
        signal = int(number) if number else 0
        return OfflineOutcome(
            *(state, self.stop_reason, self.steps, self.folder.path, self.results, self.metrics),
            str(self.choice),
            signal,
        )

    def close(self) -> None:
        self.fitter.close()
        self._reporter.close()
