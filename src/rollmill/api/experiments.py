"""Launching many runs from Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rollmill.api.notebook import NotebookLine, in_notebook
from rollmill.api.run import Run
from rollmill.api.words import said_in_python, setting_words
from rollmill.core.run_folder import is_run
from rollmill.launch.experiment import Experiment
from rollmill.launch.launcher import Launcher, record_plan
from rollmill.launch.table import summary
from rollmill.runs.launching import open_launch


def launch_experiment(
    experiment: Experiment | str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] = "runs",
    again: bool = False,
    progress: bool = True,
    **settings: Any,
) -> dict[str, Run]:
    """Start all runs of an experiment, look after them, and return them by name; what ``rollmill launch run`` does.

    ``rollmill.launch_experiment("grid.yaml", local={"parallel": 2})``. Calling it once more continues after anything:
    finished runs are not repeated, failed ones are tried again from their checkpoints. Ctrl-C ends the launcher, not
    its runs: calling it again finds them, ``rollmill launch cancel`` ends them. A run that has failed is among those
    that are returned, and its ``state`` says so.

    Args:
        experiment: An ``Experiment``, or its description: a YAML file, ``path/to/file.py``, ``package.module``, or the
            folder of one that was launched before.
        root: Folder of all experiments.
        again: Also try runs again that failed for good or were cancelled.
        progress: Show how far they are, in a notebook.
        settings: How to launch (``launch:`` of a description): ``backend="slurm"``, ``local={"parallel": 2}``.
    """
    description = experiment if isinstance(experiment, Experiment) else os.fspath(experiment)
    line = NotebookLine() if progress and in_notebook() else None
    with said_in_python():
        records, chosen, made = open_launch(description, setting_words(settings), Path(root))
        with records.as_launcher():
            record = record_plan(records, made, chosen, os.getcwd()) if made else records.read_plan()
            launcher = Launcher(records, record, chosen)
            if again:
                launcher.reset_failures()
            statuses = launcher.run(lambda found: line.show(summary(found)) if line else None)
    folders = {status.run.name: Path(status.run.folder) for status in statuses}
    return {name: Run(folder) for name, folder in folders.items() if is_run(folder)}
