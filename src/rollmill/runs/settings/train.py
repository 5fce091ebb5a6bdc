"""The whole configuration of a training run, and the checks that need more than one room's settings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from rollmill.core.config.load import load_config
from rollmill.core.config.schema import require_least, settings
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.given import MAIN
from rollmill.core.room import LEAST_ROW_BYTES, check_room
from rollmill.core.run_folder import is_folder_name
from rollmill.core.text import nearest, show
from rollmill.distributed.settings import ClusterSettings
from rollmill.envs.levels.draw import check_levels
from rollmill.envs.make import check_env_settings
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.suite import tasks_of
from rollmill.learning.sac_settings import SacSettings
from rollmill.learning.settings import LearningSettings
from rollmill.models.settings import ModelSettings
from rollmill.monitor.trackio import TrackioSettings, require_trackio
from rollmill.monitor.wandb import WandbSettings, require_wandb
from rollmill.pbt.selfplay_settings import SelfPlaySettings
from rollmill.pbt.settings import PbtSettings
from rollmill.recording.settings import RecordingSettings
from rollmill.recording.window import Window
from rollmill.replay.settings import ReplaySettings
from rollmill.runs.settings.learning_checks import check_algorithm, check_cluster, check_ranks, check_sac_env
from rollmill.runs.settings.population_checks import check_population
from rollmill.runs.settings.replay_checks import check_replay, check_replay_room
from rollmill.runs.settings.selfplay_checks import check_selfplay, check_selfplay_env
from rollmill.sampling.settings import SamplingSettings
from rollmill.store.format.jpeg import load_opencv

CHECKPOINT_SECONDS = 120.0
"""Between checkpoints, where nothing else is said."""


@settings
class RunSettings:
    """Where the run lives, and the seed everything random grows from."""

    dir: Path = Path("runs")
    """Folder of all experiments."""

    experiment: str = "default"
    """Name of the experiment the run belongs to."""

    name: str | None = None
    """Name of the run; unset: environment and seed."""

    seed: int = 0
    """Root of the run's seed tree."""

    temp_dir: Path | None = None
    """Folder for temporary files of the run and all its processes (a node's own disk, for instance); unset: TMPDIR, or
    /tmp."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError("seed must not be negative")
        for name in (self.experiment, *([] if self.name is None else [self.name])):
            if not is_folder_name(name):
                raise ValueError(f"{show(name)} cannot be a folder name")


@settings
class StopSettings:
    """When the run is over: whatever comes first."""

    frames: int = 1_000_000
    """Simulator frames (frame skip included); 0 is no limit."""

    seconds: float = 0.0
    """Seconds of training, earlier sessions of the same run included; 0 is no limit."""

    mean_return: float | None = None
    """Mean return of the last ``report.window`` episodes."""

    batches: int = 0
    """Training steps; 0 is no limit. ``stop.batches=1`` is a test run."""

    def __post_init__(self) -> None:
        if min(self.frames, self.seconds, self.batches) < 0:
            raise ValueError("limits must be 0 (off) or positive")
        if not self.frames and not self.seconds and not self.batches and self.mean_return is None:
            raise ValueError("give at least one of frames, seconds, batches and mean_return")


LATER = ("episode/", "eval/", "suite/", "task/", "validation/")
"""Groups of metrics that the first rows may lack: nothing has ended, or been judged, yet."""


@settings
class CheckpointSettings:
    """How often the run is saved and what is kept."""

    every_seconds: float | None = None
    """Seconds between checkpoints; unset: 120, or none by the clock where ``every_updates`` is set. One is always
    written at the end."""

    every_updates: int = 0
    """Training steps between checkpoints (offline: optimizer steps); 0 is off. With both, each writes its own."""

    keep_last: int = 3
    """Newest checkpoints to keep; 0 keeps all."""

    keep_best: int = 1
    """Checkpoints with the highest mean return (of a suite: the highest score) to keep besides."""

    best_metric: str = ""
    """Metric to take for ``keep_best`` instead, as the row before the checkpoint has it; with a minus before its name
    the lowest is the best (``-learn/value_loss``). A name that no row has is warned of."""

    milestone_frames: int = 0
    """Keep one checkpoint for ever every so many frames; 0 is off."""

    min_free_mb: int = 200
    """Never fill the disk below this many megabytes with a checkpoint."""

    def __post_init__(self) -> None:
        counts = (self.every_updates, self.keep_last, self.keep_best, self.milestone_frames, self.min_free_mb)
        if min(self.every_seconds or 0.0, *counts) < 0:
            raise ValueError("checkpoint settings must not be negative")

    @property
    def seconds(self) -> float:
        """Seconds between checkpoints by the clock."""
        if self.every_seconds is None:
            return math.inf if self.every_updates else CHECKPOINT_SECONDS
        return self.every_seconds

    def rated(self, metrics: Mapping[str, float], usual: str = "") -> float | None:
        """Return the value of ``best_metric`` (or the ``usual`` one), such that higher is better; None if unknown."""
        name = self.best_metric or usual
        value = metrics.get(name.removeprefix("-"))
        return -value if value is not None and name.startswith("-") else value

    def doubt(self, metrics: Mapping[str, float]) -> str:
        """Return why ``best_metric`` may be misspelt: a row of metrics lacks it, though it has others of its group."""
        name = self.best_metric.removeprefix("-")
        group = f"{name.partition('/')[0]}/"
        if not name or name in metrics or (group in LATER and not any(other.startswith(group) for other in metrics)):
            return ""
        hint = nearest(name, metrics)
        return (
            f"checkpoints.best_metric={self.best_metric}: a row of metrics has none of this name"
            f"{f'; {hint}' if hint else ''}; no checkpoint is kept as the best until one has"
        )


@settings
class PoolSettings:
    """Models that others may load while the run goes on (``pool/`` in its folder), for self-play and for comparison."""

    every_updates: int = 0
    """Batches learnt from between two models; 0 is off."""

    every_seconds: float = 0.0
    """Seconds between two models; 0 is off. With both, whichever comes first."""

    keep: int = 10
    """Newest models to keep."""

    milestone_updates: int = 0
    """Keep one model for ever every so many batches; 0 is off."""

    def __post_init__(self) -> None:
        if min(self.every_updates, self.every_seconds, self.milestone_updates) < 0:
            raise ValueError("every_updates, every_seconds and milestone_updates must be 0 (off) or positive")
        if self.keep < 1:
            raise ValueError("keep must be at least 1")
        if not self.on and (self.milestone_updates or self.keep != 10):
            raise ValueError("nothing is published: set every_updates or every_seconds")

    @property
    def on(self) -> bool:
        return bool(self.every_updates or self.every_seconds)


@settings
class ReportSettings:
    """What is written down while the run goes on."""

    every_frames: int = 0
    """Frames between rows of metrics; 0: about 500 rows over the run."""

    console_seconds: float = 5.0
    """Seconds between console lines when there is no live panel."""

    window: int = 100
    """Episodes behind a mean return."""

    tensorboard: bool = True
    """Write TensorBoard files beside metrics.jsonl."""

    page: bool = True
    """Write report.html, a page about the run, when it ends."""

    sim_rate: float = 0.0
    """Frames per second of bare simulators on this machine (``rollmill bench sim`` measures it); the panel then shows
    the share of it that the training reaches. 0: not known."""

    def __post_init__(self) -> None:
        if min(self.every_frames, self.console_seconds, self.sim_rate) < 0 or self.window < 1:
            raise ValueError("report settings must not be negative, and window must be at least 1")


@settings
class EvaluationSettings:
    """Whole episodes of the current policy, played by a process of its own while the training goes on."""

    every_frames: int = 0
    """Frames between two evaluations; 0 is off. One that is due while another is running is left out and counted."""

    episodes: int = 10
    """Episodes of each evaluation; always the same ones, so that metrics compare."""

    envs: int = 4
    """Environments that play side by side, all in the one process."""

    deterministic: bool = False
    """Take the most likely action instead of sampling one."""

    final: bool = False
    """Evaluate the last weights when the training ends, and wait for it."""

    nice: int = 19
    """How far the process steps back behind others: 0 (not at all) to 19 (it gets what they leave over)."""

    def __post_init__(self) -> None:
        if self.every_frames < 0:
            raise ValueError("every_frames must be 0 (off) or positive")
        if self.episodes < 1 or self.envs < 1:
            raise ValueError("episodes and envs must be at least 1")
        if not 0 <= self.nice <= 19:
            raise ValueError("nice goes from 0 to 19")

    @property
    def on(self) -> bool:
        return self.every_frames > 0 or self.final


@settings(shorthand="use")
class ObserverSettings:
    """Code of your own that is told what happens (``observers: [a:B]`` is short for ``observers: {use: [a:B]}``)."""

    use: tuple[str, ...] = ()
    """Observers, each ``module:Class`` or ``path/to/file.py:Class`` (code that is imported and run)."""

    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for their constructors, by class name: ``observers.args.HitRate.enough=0.9``."""


@settings
class ProfileSettings:
    """What ``--profile`` records."""

    after: float = 5.0
    """Seconds of training before the recording begins: the first steps are not typical."""

    steps: int = 3
    """Training steps in torch's trace of the main process."""

    seconds: int = 10
    """Seconds that py-spy records the Python stacks of every process, after that."""

    rate: int = 100
    """Stacks per second."""

    py_spy: bool = True
    """Record Python stacks; false takes torch's trace alone."""

    def __post_init__(self) -> None:
        if self.after < 0:
            raise ValueError("after must not be negative")
        require_least(self, 1, "steps", "seconds", "rate")


@settings
class TrainConfig:
    """Holds everything that ``rollmill train`` can be told."""

    run: RunSettings = field(default_factory=RunSettings)
    env: EnvSettings = field(default_factory=EnvSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    sac: SacSettings = field(default_factory=SacSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    pbt: PbtSettings = field(default_factory=PbtSettings)
    selfplay: SelfPlaySettings = field(default_factory=SelfPlaySettings)
    stop: StopSettings = field(default_factory=StopSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    wandb: WandbSettings = field(default_factory=WandbSettings)
    trackio: TrackioSettings = field(default_factory=TrackioSettings)
    observers: ObserverSettings = field(default_factory=ObserverSettings)
    recording: RecordingSettings = field(default_factory=RecordingSettings)
    profile: ProfileSettings = field(default_factory=ProfileSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)

    @property
    def folder(self) -> Path:
        """Return the run's folder: ``<dir>/<experiment>/<name>``."""
        plain = re.sub(r"[^\w.-]+", "-", self.env.id.removeprefix(f"{MAIN}:")).strip(".-")
        return self.run.dir / self.run.experiment / (self.run.name or f"{plain}-s{self.run.seed}")

    @property
    def policy_count(self) -> int:
        """Count the policies of the run: those of agents, or the members of a population."""
        return max(self.env.policy_count, self.pbt.members)

    @property
    def on_policy(self) -> bool:
        """Say whether every row is learnt from by the weights that decided it (sync mode, without any replay)."""
        return self.sampling.mode == "sync" and self.learning.algorithm == "appo" and not self.replay.on

    @property
    def report_frames(self) -> int:
        """Return the frames between two rows of metrics."""
        return self.report.every_frames or (max(1, self.stop.frames // 500) if self.stop.frames else 10_000)


def require_env(files: Sequence[Path], overrides: Sequence[str], command: str) -> None:
    """Raise ConfigError unless a file or a word names the environment: nobody means the default one."""
    named = load_config(TrainConfig, files, overrides, base={"env": {"id": ""}}).env.id
    if not named:
        raise ConfigError(
            f"which environment? For example `{command} env=CartPole-v1` or `{command} env=my_env.py:MyEnv`; "
            "`rollmill envs` lists those that come along"
        )


def check(config: TrainConfig) -> None:
    """Refuse what can be seen to be wrong before any process starts."""
    check_env_settings(config.env)
    check_levels(config.env)
    check_population(config)
    check_selfplay(config)
    _check_frozen(config)
    _check_tasks(config)
    check_algorithm(config)
    check_replay(config)
    s, learning = config.sampling, config.learning
    if learning.recurrence and s.rollout % learning.recurrence:
        raise ConfigError(f"learning.recurrence={learning.recurrence} must divide sampling.rollout={s.rollout}")
    if learning.recurrence and config.model.memory == "none" and config.model.custom is None:
        raise ConfigError("learning.recurrence is set, but model.memory=none has nothing to recur")
    _check_room(config)
    check_ranks(config)
    _check_recording(config)
    check_cluster(config)
    require_wandb(config.wandb)
    require_trackio(config.trackio)
    if s.envs_per_worker and s.groups and learning.batch_size:  # 0: ``runs.settings.sizing`` decides
        _segments(config, agents=1)  # what does not fit one agent fits several even less


def _check_frozen(config: TrainConfig) -> None:
    frozen, policies = config.learning.frozen, config.env.policy_count
    for k in frozen:
        if not 0 <= k < policies:
            raise ConfigError(f"learning.frozen={list(frozen)}: there is no policy {k}, env.policies has {policies}")
    if frozen and len({*frozen}) == policies:
        raise ConfigError(f"learning.frozen={list(frozen)}: nobody is left who learns")


def _check_tasks(config: TrainConfig) -> None:
    """Refuse numbers that do not give every task of a suite the same number of environments (or of workers)."""
    tasks, s = len(tasks_of(config.env)), config.sampling
    if not tasks or config.env.task:
        return
    by_worker = config.env.task_spread == "worker"
    count = s.workers if by_worker else s.workers * s.envs_per_worker  # 0: ``runs.settings.sizing`` decides
    if count % tasks:
        what = "sampling.workers" if by_worker else "environments in all (sampling.workers x sampling.envs_per_worker)"
        near = sorted({max(1, count // tasks) * tasks, -(-count // tasks) * tasks})
        raise ConfigError(
            f"env.tasks: {tasks} tasks cannot share {count} {what} evenly; near: {', '.join(map(str, near))}"
        )


def _check_room(config: TrainConfig) -> None:
    """Refuse what cannot fit whatever the environment shows; ``SamplerPlan`` looks again when its rows are known."""
    s, batch = config.sampling, config.learning.batch_size
    rows = batch * (1 + s.spare_batches) + (s.workers or 1) * (s.envs_per_worker or 1) * s.rollout
    names = ("workers", "envs_per_worker", "rollout", "spare_batches")
    asked = {**{f"sampling.{name}": getattr(s, name) for name in names}, "learning.batch_size": batch}
    words = ", ".join(f"{key}={value}" for key, value in asked.items() if value)  # 0 is decided later, and fits
    here = config.learning.machines  # each has its share
    check_room(0 if s.mode == "serial" else s.workers // here, rows // here * LEAST_ROW_BYTES, words)


def _check_recording(config: TrainConfig) -> None:
    recording = config.recording
    if not recording.on:
        return
    if recording.image_codec.startswith("jpeg"):
        load_opencv()
    if config.learning.ranks > 1:
        raise ConfigError(
            f"recording.keep={recording.keep} with learning.ranks={config.learning.ranks}: a recorder sees the workers "
            "of rank 0 alone, and what it kept would be no sample of the whole run; use learning.ranks=1"
        )
    window, limit = Window.parse(recording.when), config.stop.frames
    if window.needs_limit and not limit:
        raise ConfigError(f"recording.when={recording.when} needs to know where the run ends: set stop.frames")
    if limit and window.start(limit) >= limit:
        raise ConfigError(f"recording.when={recording.when} begins after the end of the run (stop.frames={limit})")


def segments_per_batch(config: TrainConfig, spec: EnvSpec) -> int:
    """Return how many segments make a batch. Raises ConfigError if they do not fit evenly, or cannot be used."""
    if config.learning.exploration == "symmetric_kl" and not spec.action.discrete:
        raise ConfigError("learning.exploration=symmetric_kl needs discrete actions; use learning.exploration=entropy")
    if config.learning.algorithm == "sac":
        check_sac_env(config, spec)
    check_replay_room(config, spec)
    _check_policies(config, spec)
    check_selfplay_env(config, spec)
    return _segments(config, spec.agents)


def segments_taken(config: TrainConfig, spec: EnvSpec) -> int:
    """Return how many finished segments the learner is given at a time: a batch, or what replay makes one of."""
    batch = segments_per_batch(config, spec)
    return max(1, int(batch / max(1.0, config.replay.samples_per_insert))) if config.replay.on else batch


def _check_policies(config: TrainConfig, spec: EnvSpec) -> None:
    owners = config.env.policies
    if owners and len(owners) != spec.agents:
        raise ConfigError(f"env.policies names {len(owners)} agents, {spec.name} has {spec.agents}")
    if config.env.policy_count > 1 and config.learning.algorithm != "appo":
        raise ConfigError("several policies (env.policies) need learning.algorithm=appo")


def _segments(config: TrainConfig, agents: int) -> int:
    s, learning = config.sampling, config.learning
    if not s.envs_per_worker or not s.groups:
        raise ConfigError(
            "sampling.envs_per_worker and sampling.groups are automatic: settings.sizing.size decides them"
        )
    lanes = s.envs_per_worker // s.groups * agents
    rows = s.rollout * lanes
    if learning.batch_size % (rows * learning.ranks):
        unit = rows * learning.ranks
        shares = f", and of each of learning.ranks={learning.ranks} the same number" if learning.ranks > 1 else ""
        near = sorted({max(1, learning.batch_size // unit) * unit, -(-learning.batch_size // unit) * unit})
        raise ConfigError(
            f"learning.batch_size={learning.batch_size} is not a multiple of a segment's {rows} rows "
            f"(sampling.rollout={s.rollout} x {lanes} lanes of a group{shares}); near: {', '.join(map(str, near))}"
        )
    _check_on_policy(config, agents)
    return learning.batch_size // rows


def rows_in_flight(config: TrainConfig, agents: int = 1) -> int:
    """Return the rows that all lanes of a resolved config are filling at a time: one segment each."""
    s = config.sampling
    return s.workers * s.envs_per_worker * s.rollout * agents


def _check_on_policy(config: TrainConfig, agents: int) -> None:
    """Refuse batches that are not whole rounds, from which sync mode learns: one segment of every lane, or several."""
    s, batch = config.sampling, config.learning.batch_size
    rows = rows_in_flight(config, agents) // config.pbt.members
    if not config.on_policy or not rows or batch % rows == 0:
        return
    lanes, near = batch // (s.rollout * agents), max(1, round(batch / rows)) * rows
    lanes *= config.pbt.members
    each = f"{s.workers} workers x {s.envs_per_worker} envs x {s.rollout} steps" + f" x {agents} agents" * (agents > 1)
    each += f" / {config.pbt.members} members" * config.pbt.on
    raise ConfigError(
        f"sampling.mode=sync learns from segments of all environments together, {rows:,} rows at a time ({each}), and "
        f"learning.batch_size={batch} is no multiple of that. Set learning.batch_size={near}, or {lanes} environments "
        "in all (sampling.workers x sampling.envs_per_worker; 0 chooses), or sampling.mode=async"
    )
