"""The checkpoints of one run: which are kept, which is newest, which is best.

Every fact is in the files themselves, so a kill at any moment cannot make an index disagree with them:
frames and the role of milestone stand in the name (``frames-000000123456.ckpt``,
``milestone-000001000000.ckpt``), the metric stands in the header. Files appear by one rename, and older
ones are removed only after the new one is safely on disk.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollmill.core import atomic, tree_file
from rollmill.core.config.load import load_config
from rollmill.core.config.old_names import renamed
from rollmill.core.errors import CheckpointError, ConfigError, StoreError, error_text
from rollmill.core.fields import EnvSpec
from rollmill.core.shapes import ShapeError, check_shape
from rollmill.core.steps import FRAMES, is_placed, place, position

_LOG = logging.getLogger("rollmill")
_NAME = re.compile(r"(frames|updates|generations|milestone)-(\d{12,})\.ckpt")
"""Runs of version 0.1 called all of theirs ``frames``."""
_MB = 1_000_000

T = TypeVar("T")

ORIGIN = "(another version of rollmill has written it, or somebody has changed it)"
"""Why a whole file may not hold what it should."""


@dataclass(frozen=True)
class Checkpoint:
    """One file, as far as its name tells."""

    path: Path
    step: int
    """How far the run was, in its own unit."""
    milestone: bool


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read and verified; ``state`` is the tree that was saved."""

    path: Path
    step: int
    """How far the run was, in its own unit."""
    metric: float | None
    state: Any


def load_checkpoint(path: Path) -> Loaded:
    """Read one checkpoint, wherever it lies; raises ``CheckpointError`` unless it is whole."""
    content = tree_file.load_tree(path)
    step, metric = _facts(path, content)
    return Loaded(path, step, metric, _with_new_names(content["state"]))


def _with_new_names(state: Any) -> Any:
    """Give settings, and what workers keep of them, their present names in a file that version 0.1 may have written."""
    if not isinstance(state, dict):
        return state
    parts = {name: state[name] for name in ("config", "facts", "sampler") if isinstance(state.get(name), dict)}
    return {**state, **{name: renamed(part) for name, part in parts.items()}}


def _facts(path: Path, content: Any) -> tuple[int, float | None]:
    """Return step and metric from a loaded file or its outline."""
    if not isinstance(content, dict) or not {"metric", "state"} <= content.keys() or not is_placed(content):
        raise CheckpointError(f"{path}: not the checkpoint of a run (it has no frames or step, metric and state)")
    with restoring(path):
        check_shape(content, {"frames?": int, "step?": int, "unit?": str, "metric": (float, None)})
    return position(content) or 0, content["metric"]


@contextlib.contextmanager
def restoring(path: Path, field: str = "") -> Iterator[None]:
    """Take over what a file holds, the whole or one ``field`` of it: what does not fit is a CheckpointError about it.

    Errors of environments, of memory and of the machine pass through: they are not the file's.
    """
    try:
        yield
    except CheckpointError as error:
        if str(error).startswith(str(path)):
            raise
        raise CheckpointError(_about(path, field, str(error))) from error
    except ShapeError as error:
        at = ".".join(filter(None, (field, error.at)))
        raise CheckpointError(f"{_about(path, at, error.reason)} {ORIGIN}") from error
    except (StoreError, ConfigError) as error:
        raise CheckpointError(f"{_about(path, field, str(error))} {ORIGIN}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error_text(error)
        raise CheckpointError(f"{_about(path, field, reason)} {ORIGIN}") from error


def _about(path: Path, field: str, reason: str) -> str:
    return f"{path}: {f'field {field}: ' if field else ''}{' '.join(reason.split())}"


def require_version(path: Path, content: Mapping[str, Any], known: int, key: str = "version") -> None:
    """Raise CheckpointError if a newer version has written the file in a format that is not known here."""
    with restoring(path):
        check_shape(content, {key: int})
    if content[key] > known:
        raise CheckpointError(
            f"{path}: written by a newer version of rollmill ({key} {content[key]}; this one reads up to {known})"
        )


def saved_spec(path: Path, content: Mapping[str, Any]) -> EnvSpec:
    """Return the environment's spec that a file holds; raises CheckpointError where it makes no sense."""
    with restoring(path, "spec"):
        spec = EnvSpec.from_dict(content)
        if not spec.action.agrees:
            raise ValueError(f"the parts of the action do not agree: {spec.action}")
        return spec


def saved_settings(
    cls: type[T],
    saved: Mapping[str, Any],
    source: Path,
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
) -> T:
    """Load settings that a file holds, changed by what the user gives; a CheckpointError tells of wrong ones in the
    file.

    They may name code, which is not to be run unasked: see ``runs.trust``.
    """
    try:
        return load_config(cls, files, overrides, base=saved)
    except (ConfigError, TypeError):
        with restoring(source):
            load_config(cls, (), (), base=saved)
        raise


class Checkpoints:
    """The folder of checkpoints of one run.

    Kept are the newest ``keep_last`` (0: all), the ``keep_best`` with the highest metric, and the first
    one after every ``milestone_frames`` frames (0: no milestones; those that exist stay). A save needs
    the size of the file plus ``min_free_mb`` (of 10^6 bytes) free on the disk. ``unit``: what the run counts.

    Only ``save``, ``remove`` and ``set_aside_after`` write; looking into the folder of a running training is safe.
    """

    def __init__(
        self,
        folder: Path,
        keep_last: int = 3,
        keep_best: int = 1,
        milestone_frames: int = 0,
        min_free_mb: int = 200,
        unit: str = FRAMES,
    ) -> None:
        if min(keep_last, keep_best, milestone_frames, min_free_mb) < 0:
            raise ValueError("keep_last, keep_best, milestone_frames and min_free_mb must not be negative")
        self.folder = folder
        self._unit = unit
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._milestone_frames = milestone_frames
        self._min_free_mb = min_free_mb
        self._metrics: dict[Path, float | None] = {}  # of files looked into; they never change in place

    # ------------------------------------------------------------------------------------------ looking

    def list(self) -> tuple[Checkpoint, ...]:
        """Return all checkpoints, oldest first. Files under other names are not ours and not listed."""
        if not self.folder.is_dir():
            return ()
        found = []
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None:
                found.append(Checkpoint(path, int(match.group(2)), match.group(1) == "milestone"))
        return tuple(sorted(found, key=lambda c: (c.step, c.milestone)))

    def newest(self) -> Checkpoint | None:
        """Return the one that is furthest."""
        found = self.list()
        return found[-1] if found else None

    def is_newest(self, path: Path) -> bool:
        """Return whether a file is the checkpoint that ``load_newest`` would take."""
        newest = self.newest()
        return newest is not None and newest.path.resolve() == path.resolve()

    def best(self) -> Checkpoint | None:
        """Return the checkpoint with the highest metric, the newer of equals; None where no metric is known."""
        ranked = self._ranked(self.list())
        return ranked[0] if ranked else None

    def load_newest(self) -> Loaded:
        """Load the newest checkpoint or raise; never takes an older one by itself."""
        found = self.list()
        if not found:
            raise CheckpointError(
                f"{self.folder}: no checkpoint to continue from; choose another name, or start again with --overwrite, "
                "which deletes everything that the run has recorded"
            )
        newest, *older = reversed(found)
        try:
            return load_checkpoint(newest.path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}. {self._advice(older)}") from error

    def _advice(self, older: Iterable[Checkpoint]) -> str:
        for checkpoint in older:
            try:
                tree_file.check_tree(checkpoint.path)
            except CheckpointError as error:
                _LOG.warning("checkpoint not usable: %s", error)
                continue
            return (
                f"The newest good checkpoint is at {checkpoint.step} {self._unit}; "
                f"to continue from it: --resume --restore {checkpoint.path}"
            )
        return f"No other checkpoint in {self.folder} is whole; to start again: --overwrite"

    def _ranked(self, found: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
        """Return those with a metric, best first."""
        metrics = {c: self._metric(c.path) for c in found}
        known = [(value, c.step, c) for c, value in metrics.items() if value is not None]
        return tuple(c for _, _, c in sorted(known, key=lambda item: item[:2], reverse=True))

    def _metric(self, path: Path) -> float | None:
        if path not in self._metrics:
            try:
                value = _facts(path, tree_file.read_header(path))[1]
            except CheckpointError as error:
                _LOG.warning("checkpoint cannot be compared: %s", error)
                value = None
            self._metrics[path] = None if value is None or math.isnan(value) else value
        return self._metrics[path]

    # ------------------------------------------------------------------------------------------- saving

    def save(self, state: Any, step: int, metric: float | None, keep: bool = False) -> Path:
        """Write ``state`` (see ``tree_file``), then prune. ``metric``: higher is better, None if unknown.

        ``keep``: it stays for ever, as a milestone.
        Raises ``CheckpointError`` and leaves all older checkpoints as they are when the disk is full.
        """
        newest = self.newest()
        if newest is not None and newest.step > step:
            raise CheckpointError(
                f"{newest.path} is ahead of the run (now at {step} {self._unit}): "
                f"it would be taken for the newest. Set it aside first (set_aside_after({step}))"
            )
        content = {**place(step, self._unit), "metric": metric, "state": state}
        path = self._path_for(step, keep)
        save_guarded(path, content, self._min_free_mb)
        self._metrics.pop(path, None)
        self._prune(path, step)
        return path

    def set_aside_after(self, step: int) -> tuple[Path, ...]:
        """Rename checkpoints beyond ``step`` to ``<name>.abandoned``; for runs restored from an older one.

        Returns the new names. Nothing is deleted: what the user left behind may still be wanted.
        """
        moved = []
        for checkpoint in self.list():
            if checkpoint.step > step:
                target = checkpoint.path.with_name(checkpoint.path.name + ".abandoned")
                os.replace(checkpoint.path, target)
                self._metrics.pop(checkpoint.path, None)
                _LOG.info("checkpoint set aside: %s (the run continues from %d %s)", target, step, self._unit)
                moved.append(target)
        if moved:
            atomic.sync_folder(self.folder)
        return tuple(moved)

    def _path_for(self, step: int, keep: bool) -> Path:
        milestone = keep or self._is_milestone(step)
        return self.folder / f"{'milestone' if milestone else self._unit}-{step:012d}.ckpt"

    def _is_milestone(self, step: int) -> bool:
        milestones = [c.step for c in self.list() if c.milestone]
        if step in milestones:
            return True
        every = self._milestone_frames
        return every > 0 and step >= every and all(m // every != step // every for m in milestones)

    # ------------------------------------------------------------------------------------------ pruning

    def _prune(self, written: Path, step: int) -> None:
        """Remove what no rule keeps; ``written`` is the checkpoint just saved, at ``step``."""
        # The same moment under another name: saved again after milestones were turned on, or begun by version 0.1.
        twins = [c for c in self.list() if c.step == step and c.path != written]
        for checkpoint in twins:
            self.remove(checkpoint)
        for checkpoint in self.surplus():
            self.remove(checkpoint)

    def surplus(self, milestones: bool = True) -> tuple[Checkpoint, ...]:
        """Return what no rule keeps, oldest first; ``milestones``: whether those stay."""
        found = self.list()
        kept = {c for c in found if c.milestone and milestones}
        kept.update(found if self._keep_last == 0 else found[-self._keep_last :])
        kept.update(self._ranked(found)[: self._keep_best] if self._keep_best > 0 else ())
        return tuple(c for c in found if c not in kept)

    def remove(self, checkpoint: Checkpoint) -> None:
        """Delete a file; logs a warning where that is not possible."""
        try:
            checkpoint.path.unlink(missing_ok=True)
        except OSError as error:  # the new checkpoint is safe, so the run goes on
            _LOG.warning("could not remove old checkpoint %s: %s", checkpoint.path, error.strerror or error)
            return
        self._metrics.pop(checkpoint.path, None)
        _LOG.info("removed old checkpoint %s", checkpoint.path)


def save_guarded(path: Path, content: Mapping[str, Any], min_free_mb: int) -> None:
    """Write a tree into a folder of such files (which is made), unless that would fill the disk to the last megabytes.

    CheckpointError says what is missing; other files there are untouched, and what a kill has left of some is swept.
    """
    folder, needed = path.parent, tree_file.tree_file_bytes(content)
    try:
        folder.mkdir(exist_ok=True)  # without parents: a run folder that was lost does not come back like this
        for leftover in atomic.sweep_temporary(folder):
            _LOG.info("removed the remains of an unfinished checkpoint: %s", leftover)
        free = _free_bytes(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror or error}") from error
    if free < needed + min_free_mb * _MB:
        raise _disk_error(path, needed, free, min_free_mb)
    try:
        tree_file.save_tree(path, content)
    except CheckpointError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_error(path, needed, _free_bytes(folder), min_free_mb) from error
        raise


def _disk_error(path: Path, needed: int, free: int, min_free_mb: int) -> CheckpointError:
    reserve = f" and {min_free_mb} MB in reserve" if min_free_mb else ""
    return CheckpointError(
        f"disk of {path.parent} is too full for {path.name}: needs {needed / _MB:.1f} MB{reserve}, "
        f"free {free / _MB:.1f} MB. Older checkpoints are untouched; free some space and resume"
    )


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
