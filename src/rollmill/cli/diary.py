"""``rollmill diary`` shows where runs come from."""

from __future__ import annotations

import json
from pathlib import Path

from rollmill.cli.options import Json
from rollmill.core.errors import ConfigError
from rollmill.launch.history import history, lines


def diary(
    experiment: Path,
    /,
    root: Path = Path("runs"),
    commands: bool = False,
    json_: Json = False,
) -> int:
    """The history of an experiment: every start of every run, oldest first: ``rollmill diary runs/gammas``.

    When, where, with which code, from which checkpoint, what was changed since then, and how it ended. Times are UTC.

    Args:
        experiment: The experiment's folder or its name, or the folder of one run.
        root: Folder of all experiments.
        commands: Print the command line below every start.
        json_: Print JSON, with command lines and versions of all packages.
    """
    folder = find_experiment(experiment, root)
    entries = history(folder)
    if json_:
        print(json.dumps([entry.to_dict() for entry in entries]))
        return 0
    head, *table = lines(entries)
    print(head)
    for line, entry in zip(table, entries, strict=True):
        print(line)
        if commands:
            print(f"    {entry.command}")
    return 0


def find_experiment(name: Path, root: Path) -> Path:
    """Find a folder as given, or as the name of an experiment below ``root``."""
    folder = name if name.is_dir() else root / name
    if not folder.is_dir():
        raise ConfigError(f"no experiment {str(name)!r} here or in {root}")
    return folder
