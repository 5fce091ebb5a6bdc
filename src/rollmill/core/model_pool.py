"""The models of a run that others may load while it goes on: the newest few, and milestones.

::

    pool/index.json         which models there are: id, version, frames, metric, milestone, file
    pool/<sha256>.ckpt      a model, named by its contents (``core.tree_file``), a checkpoint that can be played

A model is there once the index names it. Its file is written before, and removed after the index forgets it, each by
one rename: a kill at any moment leaves the old index or the new one, and at most a file that nobody names, which the
next session sweeps. Ids go up over all sessions and are never given twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core import atomic, tree_file
from rollmill.core.checkpoints import Loaded, load_checkpoint, require_version, restoring, save_guarded
from rollmill.core.errors import CheckpointError
from rollmill.core.opening import read_json
from rollmill.core.shapes import Shape, check_shape

_LOG = logging.getLogger("rollmill")

INDEX = "index.json"
FORMAT = 1
_ENTRY: Shape = {"id": int, "version": int, "frames": int, "metric": (float, None), "milestone": bool, "file": str}
_SHAPE: Shape = {"format": int, "next_id": int, "entries": [_ENTRY]}
TRIES = 5
"""How often a reader looks again when a model gives way between the index and the file."""


@dataclass(frozen=True)
class Entry:
    """One model."""

    id: int
    version: int
    """Batches it has learnt from."""
    frames: int
    metric: float | None
    milestone: bool
    """Stays for ever."""
    file: str


class ModelPool:
    """A folder of models. Kept are the newest ``keep`` and, for ever, the first after every ``milestone_updates``.

    One process publishes, the run itself; any number may read.
    """

    def __init__(self, folder: Path, keep: int = 10, milestone_updates: int = 0, min_free_mb: int = 0) -> None:
        if keep < 1 or min(milestone_updates, min_free_mb) < 0:
            raise ValueError("a pool keeps at least 1 model; milestone_updates and min_free_mb must not be negative")
        self.folder = folder
        self._keep, self._every, self._min_free_mb = keep, milestone_updates, min_free_mb

    # -- reading -------------------------------------------------------------------------------

    def entries(self) -> tuple[Entry, ...]:
        """Return all models, oldest first."""
        return self._read()[1]

    def latest(self) -> Loaded:
        """Return the newest model."""
        return self._load(lambda found: found[-1])

    def by_id(self, number: int) -> Loaded:
        """A certain model; CheckpointError names those that are there."""
        return self._load(lambda found: next((entry for entry in found if entry.id == number), None), str(number))

    def random(self, rng: np.random.Generator) -> Loaded:
        """Return any model, each with the same probability."""
        return self._load(lambda found: found[int(rng.integers(len(found)))])

    def path_of(self, entry: Entry) -> Path:
        return self.folder / entry.file

    def _load(self, choose: Callable[[tuple[Entry, ...]], Entry | None], wanted: str = "") -> Loaded:
        for attempt in range(TRIES):
            found = self.entries()
            if not found:
                raise CheckpointError(f"{self.folder}: no model has been published yet")
            chosen = choose(found)
            if chosen is None:
                there = ", ".join(str(entry.id) for entry in found)
                raise CheckpointError(f"{self.folder}: there is no model {wanted}; there are {there}")
            try:
                return load_checkpoint(self.path_of(chosen))
            except CheckpointError:
                # It may have given way since the index was read.
                if attempt + 1 == TRIES or chosen in self.entries():
                    raise
        raise AssertionError("the loop returns or raises")

    def _read(self) -> tuple[int, tuple[Entry, ...]]:
        """(next id, models)"""
        path = self.folder / INDEX
        try:
            index = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return 0, ()
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        require_version(path, index, FORMAT, "format")
        with restoring(path):
            check_shape(index, _SHAPE)
            return index["next_id"], tuple(Entry(**entry) for entry in index["entries"])

    # -- publishing ----------------------------------------------------------------------------

    def publish(self, content: Mapping[str, Any], version: int) -> Entry:
        """Add a model: ``content`` has ``frames``, ``metric`` and ``state``, as a checkpoint has.

        CheckpointError when it cannot be written; those that are there stay.
        """
        next_id, found = self._read()
        content = dict(content)
        name = f"{tree_file.tree_checksum(content)}.ckpt"
        milestone = self._is_milestone(version, found)
        entry = Entry(next_id, version, content["frames"], content["metric"], milestone, name)
        if not (self.folder / name).exists():
            save_guarded(self.folder / name, content, self._min_free_mb)
        kept = self._kept((*found, entry))
        try:
            self._write(next_id + 1, kept)
            self._sweep(kept)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: no model can be published: {error.strerror or error}") from error
        return entry

    def tidy(self) -> None:
        """Remove what a kill has left behind; for the run that publishes here."""
        if self.folder.is_dir():
            atomic.sweep_temporary(self.folder)
            self._sweep(self.entries())

    def _is_milestone(self, version: int, found: tuple[Entry, ...]) -> bool:
        every = self._every
        if not every or version < every:
            return False
        return all(entry.version // every != version // every for entry in found if entry.milestone)

    def _kept(self, found: tuple[Entry, ...]) -> tuple[Entry, ...]:
        newest = {entry.id for entry in found[-self._keep :]}
        return tuple(entry for entry in found if entry.milestone or entry.id in newest)

    def _write(self, next_id: int, entries: tuple[Entry, ...]) -> None:
        listed = [asdict(entry) for entry in entries]
        atomic.write_json(self.folder / INDEX, {"format": FORMAT, "next_id": next_id, "entries": listed})

    def _sweep(self, kept: tuple[Entry, ...]) -> None:
        named = {entry.file for entry in kept}
        for path in self.folder.glob("*.ckpt"):
            if path.name not in named:
                path.unlink(missing_ok=True)
                _LOG.debug("model gave way: %s", path)
