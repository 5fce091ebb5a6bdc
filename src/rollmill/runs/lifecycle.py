"""The two ends of a run: what it goes on from and its diary, before anything starts; how it ended, after all."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rollmill.core import atomic
from rollmill.core.checkpoints import Checkpoints, Loaded, load_checkpoint, restoring
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import differences, dump_yaml, to_dict
from rollmill.core.diary import Diary
from rollmill.core.errors import CheckpointError, RollmillError, RunFolderError, error_text
from rollmill.core.run_folder import Mode, RunFolder, State
from rollmill.core.tree_file import stored_checksum
from rollmill.monitor.console import ConsoleMode
from rollmill.runs.trust import load_saved

log = logging.getLogger("rollmill")

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What the user asked for besides the config."""

    mode: Mode = "new"
    restore: Path | None = None
    """Start from this checkpoint instead of from scratch (or, resuming, from the newest)."""
    command: Sequence[str] = field(default_factory=lambda: tuple(sys.argv))
    console: ConsoleMode = "auto"
    profile: bool = False
    """Record traces of every process into the run folder's ``profile``."""
    trust_code: bool = False
    """Offline: run the code that a store or a checkpoint names (``runs.trust``)."""


def find_checkpoint(path: Path, mode: Mode, restore: Path | None, check: Callable[[Loaded], Loaded]) -> Loaded | None:
    """The checkpoint a run in the folder ``path`` goes on from, read and verified before anything is changed.

    None for a run that begins: a new one, or one to be resumed that never came to its first training step.
    """
    if restore is not None:
        return check(load_checkpoint(restore))
    if mode != "resume" or not path.is_dir():
        return None
    RunFolder.create(path, "resume").close()  # first: one that is in use may have no checkpoint yet
    folder = RunFolder(path)
    checkpoints = Checkpoints(folder.checkpoints)
    if checkpoints.newest() is None and folder.never_began():
        _require_no_parent(folder)
        return None
    return check(checkpoints.load_newest())


def _require_no_parent(folder: RunFolder) -> None:
    """A run that was to begin with the weights of another one must not begin without them."""
    parent = Diary.open(folder.diary).content.get("parent") if folder.diary.exists() else None
    if parent:
        raise CheckpointError(
            f"{folder.path}: the run ended before it had loaded {parent['checkpoint']}: start it again as it was "
            "started, without --resume"
        )


def resumed_settings(
    kind: type[T], folder: RunFolder, files: Sequence[Path], overrides: Sequence[str], restore: Path | None = None
) -> T:
    """The settings of a run below the given ones: from its ``config.yaml`` or, where that is gone, its checkpoint."""
    if folder.config.is_file():
        return load_config(kind, (folder.config, *files), overrides)
    if not folder.holds_run():
        return load_config(kind, files, overrides)  # there is nothing to resume, as taking the folder will say
    own = restore is not None and restore.resolve().parent == folder.checkpoints.resolve()
    checkpoints = Checkpoints(folder.checkpoints)
    if not own and checkpoints.newest() is None:
        raise RunFolderError(
            f"{folder.config} is missing, and there is no checkpoint, which would have the settings, too: "
            "start the run again without --resume, or choose another name"
        )
    loaded = load_checkpoint(restore) if restore is not None and own else checkpoints.load_newest()
    saved = loaded.state.get("config") if isinstance(loaded.state, Mapping) else None
    if not isinstance(saved, Mapping):
        raise CheckpointError(f"{loaded.path}: it has no settings, and {folder.config} is missing")
    print(f"{folder.config} is missing: the settings are those of {loaded.path}", file=sys.stderr)
    return load_saved(kind, saved, loaded.path, files=files, overrides=overrides, trains=True)


def open_diary(folder: RunFolder, config: object, mode: Mode, command: Sequence[str], loaded: Loaded | None) -> Diary:
    """Write down config and origin; ``loaded`` is the checkpoint the run goes on from."""
    changes: dict[str, tuple[Any, Any]] = {}
    if loaded is not None:
        with restoring(loaded.path, "config"):
            changes = differences(loaded.state["config"], to_dict(config))
    if mode == "resume" and folder.diary.exists():
        diary = Diary.open(folder.diary)
    else:
        diary = Diary.create(folder.diary, command)
        if loaded is not None:
            diary.set_parent(loaded.path, loaded.frames, stored_checksum(loaded.path), changes)
    diary.begin_session(command, loaded.frames if loaded else 0, changes)
    if mode != "resume" or loaded is None:
        write_config(folder, config)
    log.info("run folder %s", folder.path)
    if folder.took_over:
        log.info("it was left by a start that ended before its first training step; of that, the log is kept")
    for key, (old, new) in changes.items():
        log.info("changed since the checkpoint: %s: %s -> %s", key, old, new)
    return diary


def write_config(folder: RunFolder, config: object) -> None:
    """Write ``config.yaml``. The run goes on without it: its checkpoints have the settings, too."""
    try:
        atomic.write_text(folder.config, dump_yaml(config))
    except OSError as error:
        log.error("the settings could not be written: %s: %s", folder.config, error.strerror or error)


class Ended(Protocol):
    """How a run has ended, if nothing failed."""

    @property
    def state(self) -> State: ...

    @property
    def reason(self) -> str: ...


class Fit(Protocol):
    """A run that fits something to a store."""

    @property
    def steps(self) -> int: ...

    def outcome(self) -> Ended: ...

    def close(self) -> None: ...


@dataclass
class Life:
    """A run from the moment its folder is taken; ``run`` is None until it is built."""

    run: Fit | None = None


@contextlib.contextmanager
def ending(folder: RunFolder, diary: Diary, steps: int) -> Iterator[Life]:
    """Writes how the run ended into its folder, also where it could not be built and stays at ``steps``."""
    state: State = "failed"
    reason = ""
    life = Life()
    try:
        folder.set_state("running", frames=steps)
        yield life
        assert life.run is not None
        outcome = life.run.outcome()
        state, reason = outcome.state, outcome.reason
    except KeyboardInterrupt:
        state, reason = "interrupted", "interrupted and ended at once"
        raise
    except BaseException as error:
        reason = why_failed(error)
        raise
    finally:
        if life.run is not None:
            steps = max(steps, life.run.steps)
            life.run.close()
        log.log(logging.ERROR if state == "failed" else logging.INFO, "%s: %s", state, reason)
        write_down(folder, diary, state, reason, steps)


def why_failed(error: BaseException) -> str:
    """For ``state.json``; what user code has to say may be long, or not even be printable."""
    return f"{type(error).__name__}: {error}" if isinstance(error, RollmillError) else error_text(error)


def write_down(folder: RunFolder, diary: Diary | None, state: State, reason: str, steps: int) -> None:
    """How the run ended, for ``state.json`` and the diary; where the folder is lost, there is no place for it."""
    if folder.lost():
        return
    try:
        folder.set_state(state, reason, steps)
        if diary is not None:
            diary.end_session(f"{state}: {reason}"[:2000], steps)
    except RollmillError as second:  # a full disk: the first error is the one to report
        log.error("how the run ended could not be written down: %s", second)
