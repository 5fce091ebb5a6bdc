"""Sends metrics to Trackio, the tracker of Hugging Face that keeps everything on this machine unless told otherwise.

The package is optional, as W&B is. ``trackio show`` opens its dashboard over the runs of all projects.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollmill.core.config.schema import settings
from rollmill.core.errors import ConfigError, MissingExtraError, RunFolderError
from rollmill.monitor.wandb import TrackedRun, kept_id

_LOG = logging.getLogger("rollmill")


@settings(shorthand="on")
class TrackioSettings:
    """Trackio; ``trackio=true`` is short for ``trackio.on=true``."""

    on: bool = False
    """Send metrics to Trackio, too (needs ``pip install "rollmill[trackio]"``)."""

    project: str = "rollmill"
    """Project the run belongs to."""

    group: str | None = None
    """Group of runs; unset: the environment's name."""

    space_id: str | None = None
    """Hugging Face Space that the metrics are sent to (``user/name``); unset: they stay on this machine."""

    def __post_init__(self) -> None:
        if not self.project or "/" in self.project:
            raise ValueError(f"project={self.project!r} is no name for a project")


def require_trackio(wanted: TrackioSettings) -> None:
    """Raise MissingExtraError if Trackio is asked for and not installed."""
    if wanted.on and importlib.util.find_spec("trackio") is None:
        raise MissingExtraError('trackio.on=true needs trackio: pip install "rollmill[trackio]"')


class TrackioSink:
    """Sends rows to Trackio; implements ``Sink``. ``folder`` keeps the name by which a resumed run goes on.

    Raises ConfigError when Trackio refuses (no such Space, nobody is logged in).
    """

    def __init__(self, folder: Path, wanted: TrackioSettings, about: TrackedRun) -> None:
        require_trackio(wanted)
        import trackio

        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{about.name}-{kept_id(folder)[:6]}"
        except OSError as error:
            raise RunFolderError(f"{folder}: cannot be written: {error.strerror or error}") from error
        try:
            with _said() as said:
                self._run: Any = trackio.init(
                    project=wanted.project,
                    name=name,
                    group=wanted.group or about.group,
                    space_id=wanted.space_id,
                    config=dict(about.config),
                    resume="allow",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        except Exception as error:  # the package declares no error of its own for a Space that cannot be had
            raise ConfigError(f"Trackio: {str(error).strip() or type(error).__name__}") from error
        _LOG.debug("Trackio: %s", said.getvalue().strip())
        _LOG.info("Trackio: run %s; `trackio show --project %s` opens it", name, wanted.project)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._run is None:
            raise ValueError("the Trackio run is closed")
        row = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        try:
            self._run.log(row, step=int(step))
        except OSError as error:
            raise RunFolderError(f"Trackio: metrics cannot be written: {error}") from error

    def close(self) -> None:
        if self._run is None:
            return
        import trackio

        self._run = None
        try:
            with _said():
                trackio.finish()  # the run's own method would leave it to be finished, and told, once more at the exit
        except OSError as error:
            raise RunFolderError(f"Trackio: the run could not be completed: {error}") from error


@contextlib.contextmanager
def _said() -> Iterator[io.StringIO]:
    """Catch what the package prints: it is kept off the console, which is ours (and JSON under ``--json``)."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        yield said
