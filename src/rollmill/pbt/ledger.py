"""The ledger of a population: one JSON line for its beginning and one for every round of decisions.

The lines are part of the run's checkpoint, and the file is a copy that people and programs may read: a run that goes on
from a checkpoint writes it anew from there, so the two cannot disagree, whenever the run was killed. Only the main
process of the run writes.

    {"begin": [{"learning.learning_rate": 0.001}, ...], "objective": "return", "seed": 0, ...}
    {"round": 1, "members": [{"member", "frames", "objective", "error", "episodes", "settings"}, ...],
     "moves": [{"member", "from", "settings": {key: [before, after]}}, ...], "kept": {member: why}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.opening import read_text

NAME = "population.jsonl"
"""Of the file, in the run's folder."""

Entry = Mapping[str, Any]


class Ledger:
    """Appends to the file ``name`` of a folder; ``entries`` are all lines."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self.path = folder / name
        self.entries: list[Entry] = []

    def begin(self, entries: Sequence[Entry]) -> None:
        """Replace the file, so that it holds just these lines from now on."""
        self.entries = list(entries)
        try:
            atomic.write_text(self.path, "".join(_line(entry) for entry in self.entries))
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def add(self, entry: Entry) -> None:
        """Append a line; it is on the disk when this returns."""
        self.entries.append(entry)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written: {error.strerror or error}") from error


def _line(entry: Entry) -> str:
    return json.dumps(entry, allow_nan=False) + "\n"


def read_ledger(path: Path) -> list[Entry]:
    """Return all whole lines; raises RunFolderError if it is no ledger. A line that was being written is left out."""
    try:
        lines = read_text(path).splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    try:
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        begun = isinstance(found[0]["begin"], list)
    except (ValueError, LookupError, TypeError):
        begun = False
    if not begun:
        raise RunFolderError(f"{path} is no ledger of a population")
    return found
