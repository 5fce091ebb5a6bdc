"""A run as one looks at it from Python: how it ended, its settings, its metrics, its data, its policy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.api.metrics import Metrics
from rollmill.api.stores import open_store
from rollmill.core.config.load import load_config
from rollmill.core.config.old_names import read_saved
from rollmill.core.errors import RunFolderError
from rollmill.core.imports import import_object
from rollmill.core.run_folder import RunFolder, is_run
from rollmill.core.run_kind import FOLDERS, RunKind, run_kind
from rollmill.launch.listing import RunRow, describe
from rollmill.monitor.jsonl import read_jsonl
from rollmill.store.reader import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rollmill.runs.policies.base import LoadedPolicy

CONFIGS: dict[RunKind, str] = {
    "online": "rollmill.runs.settings.train:TrainConfig",
    "offline": "rollmill.runs.settings.offline:OfflineConfig",
    "world": "rollmill.runs.settings.world:WorldConfig",
    "encoder": "rollmill.runs.settings.world:VaeConfig",
    "dynamics": "rollmill.worldmodel.dynamics.settings:DynamicsSettings",
    "controller": "rollmill.worldmodel.controller.settings:ControllerSettings",
}
"""The settings of each kind of run."""


class Run:
    """Reads a run folder: ``Run("runs/default/CartPole-v1-s0")``; ``rollmill.train`` returns one.

    Trainings, offline runs, world models and their stages all open. Nothing is kept in memory: a run that goes on can
    be looked at again and again.
    """

    def __init__(self, path: str | os.PathLike[str], *, is_own: bool = False) -> None:
        """Open a run; ``is_own``: this process has trained it, so the code that its checkpoints name is the user's."""
        self.path, self.is_own = Path(path), is_own
        if not is_run(self.path):
            raise RunFolderError(f"{self.path}: there is no run")
        self._folder = RunFolder(self.path)

    def __repr__(self) -> str:
        row = self._row()
        done = "" if row.frames is None else f", {row.frames:,} {row.unit}"
        mean = "" if row.mean_return is None else f", return {row.mean_return:.4g}"
        return f"<Run {self.path}: {row.state}{f' ({row.reason})' if row.reason else ''}{done}{mean}>"

    def _row(self) -> RunRow:
        return describe(self.path, self.path.parent)

    # -- how it went ---------------------------------------------------------------------------

    @property
    def kind(self) -> RunKind:
        """Say what it is: ``online``, ``offline``, ``world``, or a stage of that (``encoder``, ``dynamics``,
        ``controller``).
        """
        return run_kind(read_saved(self._folder.config))

    @property
    def state(self) -> str:
        """Say how it stands: ``running``, ``finished``, ``interrupted``, ``failed``, or ``killed`` (it says that it is
        running, and nobody is there).
        """
        return self._row().state

    @property
    def reason(self) -> str:
        """Say why it ended."""
        return self._row().reason

    @property
    def frames(self) -> int:
        """Say how far it came: simulator frames; updates, steps or generations in runs that have no frames."""
        return self._row().frames or 0

    @property
    def mean_return(self) -> float | None:
        """Return the return in the last row of its metrics; None where there is none."""
        return self._row().mean_return

    @property
    def config(self) -> Any:
        """Return all its settings: a ``TrainConfig``, or the like of other kinds of runs."""
        return load_config(import_object(CONFIGS[self.kind], "config"), (self._folder.config,), ())

    # -- what it left --------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """Read all rows of its metrics as columns by name (``docs/metrics.md`` explains them)."""
        if not self._folder.metrics.exists():
            stages = ", ".join(self.stages)
            hint = f"its stages have, which are: {stages} (run.stages)" if stages else "it has not come that far"
            raise RunFolderError(f"{self.path}: there are no metrics; {hint}")
        return Metrics.of_rows(read_jsonl(self._folder.metrics))

    def plot(self, *names: str, x: str = "", ax: Axes | None = None) -> Axes:
        """Draw some of its metrics, by default the return; needs matplotlib. See ``Metrics.plot``."""
        axes = self.metrics().plot(*names, x=x, ax=ax)
        if ax is None:
            axes.set_title(self.path.name)
        return axes

    @property
    def data(self) -> Store:
        """Open what it has recorded (``recording={"keep": "all"}``); raises StoreError where it has not."""
        return open_store(self.path)

    def policy(self, **options: Any) -> LoadedPolicy:
        """Load what it has learnt, as ``rollmill.load_policy`` does, with its options."""
        from rollmill.api.policies import load_policy

        return load_policy(self, **options)

    @property
    def report(self) -> Path:
        """Return the path of its page, ``report.html``, which is written when a run ends."""
        return self.path / "report.html"

    @property
    def stages(self) -> dict[str, Run]:
        """Return the stages of a world model that are runs of their own, by name; none in other kinds of runs."""
        folders = {stage: self.path / folder for stage, folder in FOLDERS.items()}
        return {stage: Run(folder) for stage, folder in folders.items() if is_run(folder)}
