"""The whole configuration of an offline training, and the checks that need no data."""

from __future__ import annotations

import re
from dataclasses import field, replace
from pathlib import Path

from rollmill.core.config.schema import settings
from rollmill.core.errors import ConfigError
from rollmill.envs.make import check_env_settings
from rollmill.envs.settings import EnvSettings
from rollmill.monitor.trackio import TrackioSettings, require_trackio
from rollmill.monitor.wandb import WandbSettings, require_wandb
from rollmill.offline.settings import (
    VALUE_BASED,
    Algorithm,
    DataSettings,
    EvaluationSettings,
    FitSettings,
    SequenceSettings,
    ValueSettings,
)
from rollmill.runs.settings.train import CheckpointSettings, RunSettings

_VALUE_BASED = " and ".join(VALUE_BASED)


@settings
class OfflineReportSettings:
    """What is written down while the run goes on."""

    console_seconds: float = 5.0
    """Seconds between console lines when there is no live panel."""

    tensorboard: bool = True
    """Write TensorBoard files beside metrics.jsonl."""

    videos: int = 0
    """Videos on the page: of the targets that brought most in the final evaluation, one episode each (needs images and
    PyAV). A policy that is not asked for a return has one."""

    def __post_init__(self) -> None:
        if self.console_seconds < 0 or self.videos < 0:
            raise ValueError("report settings must not be negative")


@settings
class OfflineConfig:
    """Everything ``rollmill offline`` can be told."""

    run: RunSettings = field(default_factory=RunSettings)

    store: Path | None = None
    """The store that is learnt from; the command's first word sets it."""

    algorithm: Algorithm = "dt"
    """dt: Decision Transformer, asked for a return. bc: behaviour cloning; with data.filter=["top=10%"] of the best
    episodes alone. iql, td3bc: implicit Q-learning, and TD3 with behaviour cloning, for continuous actions."""

    env: EnvSettings | None = None
    """The environment to be judged in; unset: the one the store names."""

    data: DataSettings = field(default_factory=DataSettings)
    model: SequenceSettings = field(default_factory=SequenceSettings)
    value: ValueSettings = field(default_factory=ValueSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    report: OfflineReportSettings = field(default_factory=OfflineReportSettings)
    wandb: WandbSettings = field(default_factory=WandbSettings)
    trackio: TrackioSettings = field(default_factory=TrackioSettings)

    @property
    def folder(self) -> Path:
        """The run's folder: ``<dir>/<experiment>/<name>``."""
        place = self.store.absolute() if self.store else Path("store")
        name = (place.name == "data" and place.parent.name) or place.name  # a recording is called as its run
        return self.run.dir / self.run.experiment / (self.run.name or self._name_after(name))

    def _name_after(self, data: str) -> str:
        plain = re.sub(r"[^\w.-]+", "-", data).strip(".-")
        return f"{self.algorithm}-{plain}-s{self.run.seed}"

    def as_named_by_0_1(self) -> OfflineConfig:
        """Give the run the name that version 0.1 would have given it: after the folder of its store, ``dt-data-s0``."""
        name = self._name_after(self.store.absolute().name if self.store else "store")
        return replace(self, run=replace(self.run, name=self.run.name or name))

    @property
    def plays(self) -> bool:
        """Whether the policy is judged in an environment."""
        return self.evaluation.episodes > 0


def check_offline(config: OfflineConfig) -> None:
    """Refuse what can be seen to be wrong before the store is opened."""
    if config.store is None:
        raise ConfigError("which store? `rollmill offline STORE`, or store=PATH")
    if config.env is not None:
        check_env_settings(config.env)
    if config.algorithm != "dt" and config.evaluation.targets:
        raise ConfigError(
            f"evaluation.targets={list(config.evaluation.targets)}: algorithm={config.algorithm} cannot be asked for a "
            "return; use algorithm=dt"
        )
    if config.algorithm not in VALUE_BASED and config.value != ValueSettings():
        raise ConfigError(f"value.* is set, but algorithm={config.algorithm} does not read it; {_VALUE_BASED} do")
    if config.fit.micro_batch > config.fit.batch_size:
        raise ConfigError(
            f"fit.micro_batch={config.fit.micro_batch} must not be above fit.batch_size={config.fit.batch_size}"
        )
    _refuse_own_folder(config)
    require_wandb(config.wandb)
    require_trackio(config.trackio)


def _refuse_own_folder(config: OfflineConfig) -> None:
    """Raise ConfigError if the run would learn from what lies in its own folder.

    A run that is begun anew deletes what is in its folder.
    """
    folder = config.folder.resolve()
    for key, path in (("store", config.store), ("evaluation.behaviour", config.evaluation.behaviour)):
        if path is not None and path.resolve().is_relative_to(folder):
            raise ConfigError(f"{key}={path} lies in the folder of this run ({config.folder}); choose another run.name")
