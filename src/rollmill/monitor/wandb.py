"""Sends metrics to Weights & Biases.

The package is optional. It is looked for before anything starts, and imported when a run opens its sinks. Every row is
sent with its step (frames, updates, generations) as a column that all metrics are drawn over: W&B's own step only goes
up, a resumed run goes back.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollmill.core import atomic
from rollmill.core.config.schema import settings
from rollmill.core.errors import ConfigError, MissingExtraError, RunFolderError

_LOG = logging.getLogger("rollmill")
_ID_FILE = "run_id.txt"
INIT_SECONDS = 60
"""How long W&B may take to answer before the run gives up on it."""


@settings(shorthand="on")
class WandbSettings:
    """Weights & Biases; ``wandb=true`` is short for ``wandb.on=true``."""

    on: bool = False
    """Send metrics to W&B, too (needs ``pip install "rollmill[wandb]"`` and, online, ``wandb login``)."""

    mode: Literal["online", "offline"] = "online"
    """``offline`` writes into the run's folder and needs no network; ``wandb sync`` uploads it later."""

    entity: str | None = None
    """User or team; unset: the default of the account."""

    project: str = "rollmill"
    """Project the run belongs to."""

    group: str | None = None
    """Group of runs; unset: the environment's name."""

    job_type: str = "train"
    """Kind of job, to tell apart runs of one group."""

    tags: tuple[str, ...] = ()
    """Words to find the run by."""

    def __post_init__(self) -> None:
        if not self.project or "/" in self.project:
            raise ValueError(f"project={self.project!r} is no name for a project")


def require_wandb(wanted: WandbSettings) -> None:
    """Raise MissingExtraError if W&B is asked for and not installed."""
    if wanted.on and importlib.util.find_spec("wandb") is None:
        raise MissingExtraError('wandb.on=true needs wandb: pip install "rollmill[wandb]"')


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told about a run besides its metrics."""

    name: str
    group: str
    """Where the settings name none."""
    config: Mapping[str, Any] = field(default_factory=dict)


class WandbSink:
    """Sends rows to W&B; implements ``Sink``. Its files lie in ``folder``, and the id by which a resumed run goes on.

    Raises ConfigError when W&B refuses (nobody is logged in, no such project).
    """

    def __init__(self, folder: Path, wanted: WandbSettings, about: TrackedRun, axis: str = "frames") -> None:
        """Begin the run at W&B, or go on with it; ``axis``: the column that all metrics are drawn over."""
        require_wandb(wanted)
        import wandb

        self._axis = axis

        self._error: type[Exception] = wandb.Error
        self._mode = wanted.mode
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # The console is ours: W&B neither captures it (into files without bound) nor writes to it.
            quiet = wandb.Settings(
                console="off", silent=True, init_timeout=INIT_SECONDS, x_disable_stats=True, root_dir=str(folder.parent)
            )
            self._run: Any = wandb.init(
                dir=str(folder.parent),
                id=kept_id(folder),
                resume="allow",
                name=about.name,
                entity=wanted.entity,
                project=wanted.project,
                group=wanted.group or about.group,
                job_type=wanted.job_type,
                tags=list(wanted.tags),
                config=dict(about.config),
                mode=wanted.mode,
                settings=quiet,
            )
        except wandb.Error as error:
            raise ConfigError(
                f"W&B: {error} (log in with `wandb login`, or set wandb.mode=offline and upload later)"
            ) from error
        except OSError as error:
            raise RunFolderError(f"{folder}: cannot be written: {error.strerror or error}") from error
        self._run.define_metric(axis, hidden=True)
        self._run.define_metric("*", step_metric=axis)
        _LOG.info("W&B: %s", self.link)

    @property
    def link(self) -> str:
        """Where the run can be seen; offline: the command that uploads it."""
        if self._mode == "offline":
            return f"offline, `wandb sync {self.files}` uploads it"
        return str(self._run.url)

    @property
    def files(self) -> Path:
        """Folder of this session's files."""
        return Path(self._run.dir).parent

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, {name: float(value) for name, value in metrics.items() if math.isfinite(value)})

    def write_table(self, step: int, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Log a table."""
        import wandb

        self._log(step, {name: wandb.Table(columns=list(columns), data=[list(row) for row in rows])})

    def write_video(self, step: int, name: str, path: Path) -> None:
        """Log an mp4 file; W&B takes a copy."""
        import wandb

        self._log(step, {name: wandb.Video(str(path), format="mp4")})

    def _log(self, step: int, row: Mapping[str, Any]) -> None:
        if self._run is None:
            raise ValueError("the W&B run is closed")
        try:
            self._run.log({self._axis: int(step), **row})
        except (self._error, OSError) as error:
            raise RunFolderError(f"W&B: metrics cannot be sent: {error}") from error

    def close(self) -> None:
        if self._run is None:
            return
        import wandb

        run, self._run = self._run, None
        try:
            run.finish()
            # Its service is a process of ours: it ends here, and not by the hand of whoever cleans up after the run.
            wandb.teardown()
        except (self._error, OSError) as error:
            raise RunFolderError(f"W&B: the run could not be completed: {error}") from error


def kept_id(folder: Path) -> str:
    """Return the id by which a tracker knows this run, kept in the folder: made once, or given by a sweep's agent."""
    path = folder / _ID_FILE
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    made = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:12]
    atomic.write_text(path, made + "\n")
    return made
