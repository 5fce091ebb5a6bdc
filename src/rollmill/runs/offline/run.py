"""``rollmill offline``: learn a policy from a store, judge it in the environment, write down what it is worth.

``train_offline`` shows everything in the order it happens: look at the store and the environment (all that can be
wrong is found here), take the run folder, build, load a checkpoint if asked, fit, judge, report.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rollmill.core import atomic
from rollmill.core.checkpoints import Loaded, restoring
from rollmill.core.config.plain import changed_settings, to_dict
from rollmill.core.errors import CheckpointError
from rollmill.core.process_scope import process_scope, temporary_files_in
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.models.saving import load_weights, weights_of
from rollmill.monitor.console import Row as PanelRow
from rollmill.monitor.console import count_text, duration_text
from rollmill.monitor.metrics import Progress
from rollmill.monitor.reporter import Display
from rollmill.monitor.wandb import TrackedRun
from rollmill.offline.actor_critic import ValuePolicy
from rollmill.offline.data import Selection, WindowLoader, fit_normaliser
from rollmill.offline.fit import FIT_SHAPE, PolicyFitter
from rollmill.offline.held_out import HeldOut
from rollmill.offline.model import Scales
from rollmill.offline.value_fit import TransitionLoader, ValueFitter
from rollmill.optim.device import choose_device, matmul_dtype
from rollmill.reports.run.offline import Video
from rollmill.reports.run.results import BEHAVIOUR, LAST, Results, Row, data_rows
from rollmill.runs.evaluate.play import Metrics, Pace
from rollmill.runs.evaluate.results import EpisodeRow, row_of
from rollmill.runs.evaluate.setup import EvalSetup
from rollmill.runs.lifecycle import Ended, Life, Request, live
from rollmill.runs.offline.task import Task, describe_data, env_of, prepare
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.policies.load import load_policy
from rollmill.runs.policies.offline import Choice, Network, OfflinePolicy, build_network, require_same_network
from rollmill.runs.settings.offline import OfflineConfig, check_offline
from rollmill.store.reader import Store

log = logging.getLogger("rollmill")

STATE_SHAPE: Shape = {"fit": FIT_SHAPE, "evaluations": [MAPPING]}
"""What going on needs besides what playing needs."""

ROWS = (
    PanelRow("loss", "learn/loss"),
    PanelRow("held-out loss", "validation/loss"),
    PanelRow("lowest so far", "validation/best_loss", in_line=False),
    PanelRow("at update", "validation/best_update", lambda step: f"{step:,.0f}", in_line=False),
    PanelRow("accuracy", "validation/accuracy", lambda share: f"{share:.1%}"),
    PanelRow("error", "validation/error"),
    PanelRow("return", "eval/return"),
    PanelRow("samples/s", "time/samples_per_s", count_text),
    PanelRow("waits for data", "data/wait_share", lambda share: f"{share:.1%}"),
    PanelRow("learning rate", "learn/learning_rate"),
    PanelRow("gradient norm", "learn/grad_norm"),
)


@dataclass(frozen=True)
class OfflineOutcome(Ended):
    """How an offline training ended."""

    steps: int
    results: Results | None
    metrics: Mapping[str, float]
    weights: str
    """Which weights are the policy, in words."""


def train_offline(config: OfflineConfig, request: Request | None = None) -> OfflineOutcome:
    """Run an offline training to its end. Raises RollmillError when it fails; the folder says why, too."""
    request = request or Request()
    check_offline(config)
    device = choose_device(config.fit.device, "fit.device")
    matmul_dtype(config.fit.precision, device)  # a wish this machine cannot grant is refused before anything is there
    with contextlib.ExitStack() as stack:
        stack.enter_context(temporary_files_in(config.run.temp_dir))
        environment = stack.enter_context(process_scope(inside=config.report.videos > 0))  # videos render here
        task = prepare(config, environment, request.trust_code)
        stack.callback(task.store.close)
        fits = functools.partial(require_same_network, config=config)
        living = live("offline", config.folder, config, request, fits, keep=config.checkpoints)
        life = stack.enter_context(living)
        run = OfflineRun(task, life, device)
        stack.callback(run.fitter.close)
        life.begin(run)
        request.on_ready()
        log.info("%s", describe_data(task))
        run.loop()
        run.save()
        if not life.stopped and task.setup is not None:
            with life.afterwards():
                run.judge()
        else:
            run.write_results()
    return OfflineOutcome(
        **life.ended(), steps=run.step, results=run.results, metrics=run.metrics, weights=str(run.choice)
    )


class OfflineRun:
    """An offline training in progress."""

    def __init__(self, task: Task, life: Life, device: torch.device) -> None:
        config = task.config
        self.task, self.life, self.folder, self.device = task, life, life.folder, device
        self.held_out = HeldOut(config.fit.patience)
        self.results: Results | None = None
        self.metrics: dict[str, float] = {}
        self._doubted = False
        self._pace, self._told_at = Pace(), 0.0
        self._evaluations: list[dict[str, Any]] = []
        seeds = Seeds(config.run.seed)
        if device.type == "cpu":
            torch.set_num_threads(1)  # threads take whole pieces of a batch; see ``optim.replicas``
        else:
            torch.set_float32_matmul_precision("high")
        self.fitter = build_fitter(config, task.store, task.selection, task.scales, seeds, device)
        self.model: Network = self.fitter.model

    @property
    def step(self) -> int:
        """Optimizer steps so far."""
        return self.fitter.step

    # -- the life of a run ---------------------------------------------------------------------

    def loop(self) -> None:
        """Fit until a limit or a signal ends it."""
        fit, evaluation = self.task.config.fit, self.task.config.evaluation
        self._open_reporter()
        if not self.life.can_be_resumed:
            self.life.try_save(*self._to_save())  # one that is killed early can be resumed, too
        with self.life.interrupt:
            while not self.life.over(self._limit):
                self.fitter.train_step()
                self.life.reporter.tick(self.step)
                if self.step % fit.report_steps == 0:
                    self._report(self._validate())
                if evaluation.every_steps and self.step % evaluation.every_steps == 0 and self.task.setup is not None:
                    self._report(self._play(evaluation.episodes))
                if self.life.save_due(self.step):
                    self.life.try_save(*self._to_save())
        if self.fitter.fresh:
            self._report(self._validate())

    def _open_reporter(self) -> None:
        config, folder = self.task.config, self.folder.path
        progress = Progress(config.fit.steps, config.fit.seconds, self.fitter.seconds)
        title = f"{config.algorithm}: {folder}"
        self.life.reporter.open(
            self.step,
            Display(self.life.console, title, ROWS, progress, config.report.console_seconds),
            tensorboard=config.report.tensorboard,
            wandb=config.wandb,
            trackio=config.trackio,
            about=TrackedRun(folder.name, f"offline {config.algorithm}", to_dict(config)),
            changed=changed_settings(config),
            compared_by=("eval/return", "validation/loss"),
        )

    def _validate(self) -> dict[str, float]:
        """Return held-out metrics; the weights are kept where the loss is the lowest so far."""
        metrics = self.fitter.validate()
        if "validation/loss" in metrics:
            self.held_out.note(self.step, metrics["validation/loss"], lambda: weights_of(self.model))
            warning = self.held_out.warning()
            if warning:
                log.warning("%s; the weights of update %s will act", warning, f"{self.held_out.best_step:,}")
        return {**metrics, **self.held_out.metrics()}

    def _limit(self) -> str:
        fit = self.task.config.fit
        if self.step >= fit.steps:
            return f"reached fit.steps={fit.steps:_}"
        if fit.seconds and self.fitter.seconds >= fit.seconds:
            return f"reached fit.seconds={fit.seconds:g}"
        if not self.held_out.exhausted:
            return ""
        return (
            f"held-out loss has not fallen for {fit.patience} validations "
            f"(fit.patience; lowest: {self.held_out.best_loss:.4g} at update {self.held_out.best_step:,})"
        )

    def _report(self, metrics: Mapping[str, float]) -> None:
        self.metrics |= {**self.fitter.metrics(), **metrics}
        if not self._doubted and (doubt := self.task.config.checkpoints.doubt(self.metrics)):
            self._doubted = True
            log.warning("%s", doubt)
        self.life.report(self.step, self.metrics)

    def _play(self, episodes: int) -> dict[str, float]:
        """Play episodes for every target and return their mean returns, as metrics."""
        rows = self._rows(self.task.config.algorithm, self.model, episodes)
        self._evaluations.append({"step": self.step, "rows": [[row.target, row.mean] for row in rows]})
        metrics = {"eval/return": max(row.mean for row in rows)}
        metrics |= {f"eval/return_target_{row.target:g}": row.mean for row in rows if row.target is not None}
        return metrics

    def _rows(self, name: str, model: Network, episodes: int) -> list[Row]:
        return self._judged(self._playable(name, model, self.task.targets), name, episodes)

    def _playable(self, name: str, model: Network, targets: Sequence[float | None]) -> OfflinePolicy:
        """Return the network as a policy that is asked for these returns (None: it is not asked)."""
        asked = tuple(target for target in targets if target is not None)
        deterministic = self.task.config.evaluation.deterministic
        return OfflinePolicy(
            name=name, network=model, targets=asked, dtype=self.fitter.dtype, deterministic=deterministic
        )

    def _judged(self, policy: LoadedPolicy, name: str, episodes: int) -> list[Row]:
        """Play a policy and return rows of the table, one for each return that it is asked for."""
        assert self.task.setup is not None
        scores = self.task.setup.play(policy, episodes, name=name, progress=self._tell).scores
        return [row_of(name, score, target) for score, target in zip(scores, policy.targets or (None,), strict=True)]

    def _tell(self, _rows: Sequence[EpisodeRow], metrics: Metrics) -> None:
        """Log a line about episodes that are being played, every few seconds."""
        self.folder.watch()
        left, now = self._pace.left(metrics), time.monotonic()
        self.life.reporter.refresh()
        if now - self._told_at >= self.task.config.report.console_seconds:
            self._told_at = now
            rest = "" if left is None else f", left {duration_text(left)}"
            log.info("evaluating %s: %d of %d episodes%s", metrics.policy, metrics.done, metrics.wanted, rest)

    @property
    def choice(self) -> Choice:
        """Which weights are the policy."""
        best = self.held_out.best_step
        return Choice(best or self.step, self.step, best > 0)

    def _policy(self) -> Network:
        """Return the network with the weights that are the policy (``choice``)."""
        policy = copy.deepcopy(self.model)
        if self.held_out.weights is not None:
            load_weights(policy, self.held_out.weights)
        return policy.eval()

    def judge(self) -> None:
        """Do the final evaluation: all targets, and beside them the data, their maker and random play."""
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
            notes.append(f"{name}{LAST}: {Choice(self.step, self.step, False)}")
        if task.behaviour is not None:
            rows += self._judged(task.behaviour, BEHAVIOUR, episodes)
        if evaluation.random:
            rows += self._judged(load_policy("random"), "random", episodes)
        title, returns = f"{task.setup.env.id}, {self.folder.path.name}", task.selection.whole_returns
        self.results = Results(title, [*rows, *data_rows(returns)], notes=notes)
        self.write_results()  # before videos, which may fail
        videos = self._videos(task.setup, policy, rows)
        if videos:
            self.write_results(videos)
        self.life.report(self.step, self.metrics)

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
        """Write ``eval/results.json`` and ``eval/table.md``: what it was fitted to and is worth, as far as known."""
        task, place = self.task, self.folder.path / "eval"
        results = self.results or Results(self.folder.path.name, [])
        facts = {
            **results.to_dict(),
            "env": env_of(task.config, task.store).id,
            "store": str(task.store.path),
            "data": task.selection.summary(task.store),
            "steps": self.step,
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
        """Write a checkpoint now. Raises CheckpointError if it cannot be written (older ones are safe)."""
        return self.life.save(*self._to_save())

    def _to_save(self) -> tuple[dict[str, Any], int, float | None]:
        rating = self.task.config.checkpoints.rated(self.metrics, "eval/return")
        return self.state(), self.step, rating

    def state(self) -> dict[str, Any]:
        return {
            "env": to_dict(env_of(self.task.config, self.task.store)),
            "spec": self.task.spec.to_dict(),
            "scales": self.task.scales.to_dict(),
            "targets": list(self.task.targets),
            "fit": self.fitter.state(),
            "held_out": self.held_out.state(),
            "evaluations": self._evaluations,
        }

    def load_state(self, loaded: Loaded) -> None:
        state = loaded.state
        with restoring(loaded.path):
            check_shape(state, STATE_SHAPE)
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


def build_fitter(
    config: OfflineConfig, store: Store, selection: Selection, scales: Scales, seeds: Seeds, device: torch.device
) -> PolicyFitter | ValueFitter:
    """Build a new network on ``device``, with moments of the data, and the fit that is to come."""
    spec, fit = store.schema.env, config.fit
    torch.manual_seed(seeds.branch("weights").integer())
    network = build_network(config, spec, scales)
    fit_normaliser(network.normaliser, store, selection.training, seeds.branch("moments").integer())
    network.to(device)
    order, seed = seeds.branch("data").integer(), seeds.branch("fit").integer()
    if isinstance(network, ValuePolicy):
        return ValueFitter(network, TransitionLoader(store, selection, spec, fit.batch_size, order), fit, seed)
    loader = WindowLoader(store, selection, spec, config.data, config.model, fit.batch_size, order, device)
    return PolicyFitter(network, loader, fit, seed)
