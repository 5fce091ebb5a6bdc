"""``rollmill offline-eval``: several offline policies, the run that made their data and random play in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from rollmill.core.checkpoints import Loaded, load_checkpoint, saved_settings
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.process_scope import process_scope
from rollmill.envs.probe import Probe
from rollmill.envs.settings import EnvSettings
from rollmill.offline.data import check_spec
from rollmill.offline.model import SequencePolicy
from rollmill.offline.settings import EvaluationSettings, FitSettings
from rollmill.optim.device import choose_device, matmul_dtype
from rollmill.reports.run.offline import Video, write_comparison
from rollmill.reports.run.results import Results, Row
from rollmill.runs.evaluate.play import Metrics
from rollmill.runs.evaluate.targets import find_checkpoints
from rollmill.runs.offline.play import Stage, find_behaviour
from rollmill.runs.offline.policy import Choice, load_policy, require_offline
from rollmill.runs.offline.settings import OfflineConfig
from rollmill.runs.offline.task import PROBE_SECONDS
from rollmill.runs.trust import SavedEnv, load_saved


@dataclass(frozen=True)
class CompareOptions:
    """How to compare."""

    targets: tuple[float, ...] = ()
    episodes: int = 100
    deterministic: bool | None = None
    """None: as each run was told."""
    seed: int = 1
    workers: int = 0
    envs: int = 16
    behaviour: Path | None = None
    random: bool = False
    videos: bool = False
    report: Path | None = None
    device: str = "auto"
    last: bool = False
    """Judge the last weights of every run instead of those with the lowest held-out loss."""
    overrides: tuple[str, ...] = ()
    """``env=...``: words for another environment than the one the policies were fitted for."""
    trust_code: bool = False
    """Run the code that checkpoints name (``runs.trust``)."""

    def check(self) -> None:
        if self.episodes < 1:
            raise ConfigError("--episodes must be at least 1")
        if self.videos and self.report is None:
            raise ConfigError("--videos are shown on the page: give --report page.html")
        if self.report is not None and self.report.suffix != ".html":
            raise ConfigError(f"--report {self.report}: the page needs a name that ends in .html")
        try:
            self.settings()
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def settings(self, deterministic: bool = False) -> EvaluationSettings:
        return EvaluationSettings(
            targets=self.targets,
            final_episodes=self.episodes,
            deterministic=deterministic if self.deterministic is None else self.deterministic,
            seed=self.seed,
            workers=self.workers,
            envs=self.envs,
        )


@dataclass(frozen=True)
class Entry:
    """One offline policy that takes part."""

    name: str
    loaded: Loaded
    config: OfflineConfig
    targets: tuple[float | None, ...]
    env: EnvSettings


def compare(
    runs: Sequence[Path], options: CompareOptions, progress: Callable[[Metrics], None] | None = None
) -> Results:
    """Let all policies play; returns the table and writes the page. ``progress`` is told how far it is."""
    options.check()
    entries = [_entry(run, options) for run in runs]
    if not entries:
        raise ConfigError("which runs? `rollmill offline-eval RUN ...`")
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise ConfigError(f"two runs have the same name: {', '.join(sorted(names))}; rename a folder")
    with process_scope() as environment:
        spec = Probe(entries[0].env, environment).result(PROBE_SECONDS)
        for entry in entries:
            if entry.env.id != entries[0].env.id:
                raise ConfigError(
                    f"{entry.name} plays {entry.env.id}, {entries[0].name} {entries[0].env.id}: one table has one "
                    "environment; give those of each by themselves"
                )
            check_spec(EnvSpec.from_dict(entry.loaded.state["spec"]), spec, str(entry.loaded.path))
        behaviour = find_behaviour(options.behaviour, spec, options.trust_code) if options.behaviour else None
        stage = Stage(entries[0].env, spec, options.settings(), environment)
        if behaviour is not None:
            stage.check(behaviour)
        if options.videos:
            stage.check_videos()
        rows, videos = _play(stage, entries, behaviour, options, progress)
    results = Results(entries[0].env.id, rows, notes=[_which_weights(entry, options.last) for entry in entries])
    if options.report is not None:
        about = f"{options.episodes} episodes for every row, seed {options.seed}"
        write_comparison(options.report, results, videos, about)
    return results


def _play(
    stage: Stage,
    entries: Sequence[Entry],
    behaviour: Loaded | None,
    options: CompareOptions,
    progress: Callable[[Metrics], None] | None,
) -> tuple[list[Row], list[Video]]:
    rows: list[Row] = []
    videos: list[Video] = []
    folder = options.report.with_suffix("") if options.report is not None else Path()
    wanted = sum(len(entry.targets) for entry in entries) + (behaviour is not None) + options.random

    def show(metrics: Metrics) -> None:
        if progress is not None:
            progress(replace(metrics, policy=f"{metrics.policy} ({len(rows)} of {wanted} rows done)"))

    stage = replace(stage, progress=show)

    def video(name: str, stage: Stage, policy: tuple[SequencePolicy, float | None] | Loaded | None) -> None:
        if options.videos:
            videos.append(Video(name, stage.video(name, folder, policy)))

    for entry in entries:
        device = choose_device(options.device, "--device")
        if device.type == "cpu":
            torch.set_num_threads(1)
        model = load_policy(entry.loaded, entry.config, device, options.last)
        own = replace(stage, settings=options.settings(entry.config.evaluation.deterministic))
        found = own.targets(entry.name, model, entry.targets, options.episodes, _precision(entry.config.fit, device))
        rows += found
        best = found[int(np.argmax([row.mean for row in found]))]
        words = "" if best.target is None else f", asked for {best.target:g}"
        video(entry.name + words, own, (model, best.target))
    if behaviour is not None:
        rows.append(stage.behaviour(behaviour, options.episodes))
        video("behaviour", stage, behaviour)
    if options.random:
        rows.append(stage.random(options.episodes))
        video("random", stage, None)
    return rows, videos


def _which_weights(entry: Entry, last: bool) -> str:
    choice = Choice.of(entry.loaded.state, last)
    return f"{entry.name}: {choice}" + (" (--last plays those of the end)" if choice.step < choice.steps else "")


def _precision(fit: FitSettings, device: torch.device) -> torch.dtype | None:
    """As it was fitted; where that was on a machine with bfloat16 and this is none, float32."""
    return matmul_dtype("auto" if fit.precision == "bfloat16" else fit.precision, device)


def _entry(run: Path, options: CompareOptions) -> Entry:
    """Read one checkpoint; nothing is started."""
    path = find_checkpoints(run)[0]
    loaded = require_offline(load_checkpoint(path))
    config = saved_settings(OfflineConfig, loaded.state["config"], path)
    targets: tuple[float | None, ...] = (None,)
    if config.algorithm == "dt":
        targets = options.targets or tuple(loaded.state["targets"])
        if targets == (None,):
            raise ConfigError(f"{run} was never judged, so no targets are known: give --targets")
    saved = {"env": loaded.state["env"]}  # not from the store, which may be elsewhere
    env = load_saved(SavedEnv, saved, path, overrides=options.overrides, trust_code=options.trust_code).env
    name = run.parent.parent.name if run.is_file() and run.parent.name == "checkpoints" else run.absolute().name
    return Entry(name, loaded, config, targets, env)
