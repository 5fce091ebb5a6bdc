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
from collections.abc import Callable, Collection, Mapping, Sequence
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
_SHAPE: Shape = {"format": int, "next_id": int, "entries": [_ENTRY], "former?": {str: int}}
FORMER = 1000
"""So many models that have given way keep their ids: a run that goes on from a checkpoint may come to them again."""
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


@dataclass(frozen=True)
class _Index:
    """What the index says."""

    next_id: int
    entries: tuple[Entry, ...]
    former: Mapping[str, int]
    """Ids of models that have given way, by their file."""


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
        return self._read().entries

    def latest(self) -> Loaded:
        """Return the newest model."""
        return self._load(lambda found: found[-1])

    def by_id(self, number: int) -> Loaded:
        """Load the model of this id; a CheckpointError names those that are there."""
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

    def _read(self) -> _Index:
        path = self.folder / INDEX
        try:
            index = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return _Index(0, (), {})
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        require_version(path, index, FORMAT, "format")
        with restoring(path):
            check_shape(index, _SHAPE)
            entries = tuple(Entry(**entry) for entry in index["entries"])
            return _Index(index["next_id"], entries, index.get("former", {}))

    # -- publishing ----------------------------------------------------------------------------

    def publish(self, content: Mapping[str, Any], version: int, needed: Collection[int] = ()) -> Entry:
        """Add a model: ``content`` has ``frames``, ``metric`` and ``state``, as a checkpoint has.

        A model that was there already, to the last bit, has the id that it had: a run that goes on from a checkpoint
        may come to it again. ``needed``: ids of models that must not give way to this one.

        Raises CheckpointError when it cannot be written; those that are there stay.
        """
        index = self._read()
        content = dict(content)
        name = f"{tree_file.tree_checksum(content)}.ckpt"
        if (same := next((entry for entry in index.entries if entry.file == name), None)) is not None:
            return same
        number = index.former.get(name, index.next_id)
        milestone = self._is_milestone(version, index.entries)
        entry = Entry(number, version, content["frames"], content["metric"], milestone, name)
        if not (self.folder / name).exists():
            save_guarded(self.folder / name, content, self._min_free_mb)
        found = tuple(sorted((*index.entries, entry), key=lambda own: own.id))
        kept = self._kept(found, {*needed, number})
        gone = {own.file: own.id for own in found if own not in kept}
        former = {**{file: own for file, own in index.former.items() if file != name}, **gone}
        former = dict(list(former.items())[-FORMER:])
        try:
            self._write(_Index(max(index.next_id, number + 1), kept, former))
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

    def kept(self, found: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return those of ``found`` that stay by the pool's rules."""
        return self._kept(found, ())

    def _kept(self, found: tuple[Entry, ...], needed: Collection[int]) -> tuple[Entry, ...]:
        stay = {entry.id for entry in found[-self._keep :]} | {*needed}
        return tuple(entry for entry in found if entry.milestone or entry.id in stay)

    def take_over(self, entries: Sequence[Entry], source: Path) -> None:
        """Have these models, too, under their ids: from the folder ``source`` of the pool that they are in.

        For a run that goes on from a checkpoint of another run. Raises CheckpointError when one of them cannot be had.
        """
        index = self._read()
        missing = [entry for entry in entries if entry not in index.entries]
        for entry in missing:
            if not (self.folder / entry.file).exists():
                save_guarded(self.folder / entry.file, tree_file.load_tree(source / entry.file), self._min_free_mb)
        if missing:
            both = sorted((*index.entries, *missing), key=lambda entry: entry.id)
            self._write(_Index(max(index.next_id, both[-1].id + 1), tuple(both), index.former))

    def _write(self, index: _Index) -> None:
        listed = [asdict(entry) for entry in index.entries]
        content = {"format": FORMAT, "next_id": index.next_id, "entries": listed, "former": dict(index.former)}
        atomic.write_json(self.folder / INDEX, content)

    def _sweep(self, kept: tuple[Entry, ...]) -> None:
        named = {entry.file for entry in kept}
        for path in self.folder.glob("*.ckpt"):
            if path.name not in named:
                path.unlink(missing_ok=True)
                _LOG.debug("model gave way: %s", path)
