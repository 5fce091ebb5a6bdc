"""The folder of one run: its layout, who may write in it, and how the run ended.

::

    <root>/<experiment>/<run>/
        config.yaml     the final configuration          diary.json     where the run comes from
        metrics.jsonl   metrics, one line per report     tb/            the same for TensorBoard
        log.txt         what was said (log.txt.1, ...)   checkpoints/   see core.checkpoints
        data/           recorded episodes                videos/        videos
        images/       sheets of reconstructions        report.html    a page about the run
        eval/           recorded evaluations             state.json     running, finished, failed or interrupted
        .lock           held by the training that writes here
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rollmill.core import atomic
from rollmill.core.errors import CheckpointError, RunFolderError, RunFolderLost, StoreError
from rollmill.core.opening import read_json
from rollmill.core.steps import FRAMES, place
from rollmill.core.text import closest, show

Mode = Literal["new", "resume", "overwrite"]
State = Literal["running", "finished", "failed", "interrupted"]

LOG_FILES = 3
PAUSED = 79
"""Exit code of a run that has ended to make room for another one, and that is to be resumed."""
LOOK_SECONDS = 1.0
"""How often a run looks whether its folder is still there."""

_LOCK = ".lock"
_PROBE = ".probe"
LONGEST_NAME = 255
"""Bytes that file systems allow."""
_MARKS = ("config.yaml", "diary.json", "state.json")
"""A folder with one of these is a run. They are removed last, so half an overwrite still is one."""
_LOGS = ("log.txt", *(f"log.txt.{i}" for i in range(1, LOG_FILES)))
_LAYOUT = {
    *_MARKS,
    *("metrics.jsonl", "tb", "checkpoints", "pool", "data", "videos", "report.html", "profile", "eval"),
    "cluster.json",  # how the nodes of the run stand
    "levels",  # which levels its episodes have drawn
    *("data_report.html", "data_report.json", "wandb", "trackio", "images", "encoder.bin", "cache"),
    "pictures",  # the images of version 0.1
    *_LOGS,
}
_STAGES = "stages"
"""In the folder of a whole world model: a record of each stage."""
_MODELS = {"dynamics.bin", "controller.bin"}
"""What single stages of a world model are there for."""
_START = {
    *(*_MARKS, *_LOGS, "metrics.jsonl", "tb", "checkpoints", "data", "levels", "report.html", "profile", "eval"),
    "cache",
}
"""What a run can have made by the time of its first training step."""
_EMPTY = ("metrics.jsonl", "data/shards", "data/index", "profile", "eval")
"""Those of them that have no content by then."""
_STORE = {"store.json", "played.json", "shards", "index"}
_UNTRAINED = re.compile(r"[a-z]+-0{12}\.ckpt")
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENOTCONN)
_PAGE = re.compile(r"report-[a-z]+(-\d+)?\.html")
"""A report that found another page under its usual name (``reports.html.document``)."""


def is_folder_name(name: str) -> bool:
    """Return whether a user's name can be that of a folder, here and on other disks, and be shown on one line."""
    odd = not name or name.startswith(".") or "/" in name or "\\" in name or not name.isprintable()
    return not odd and name == name.strip() and len(name.encode()) <= LONGEST_NAME


class RunFolder:
    """Paths of a run. ``RunFolder(path)`` only names them, ``RunFolder.create`` takes the folder in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.diary = path / "diary.json"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tb"
        self.log = path / "log.txt"
        self.checkpoints = path / "checkpoints"
        self.pool = path / "pool"
        self.data = path / "data"
        self.levels = path / "levels"
        self.videos = path / "videos"
        self.images = path / "images"
        self.state = path / "state.json"
        self.took_over = False
        """Whether it was left by a start that failed, whose log is still there."""
        self._lock: int | None = None
        self._descriptor: int | None = None
        self._marked = False
        self._looked = 0.0

    @classmethod
    def create(cls, path: Path, mode: Mode, min_free_mb: int = 50) -> RunFolder:
        """Take ``path`` for one training; raises ``RunFolderError`` before anything in it is changed.

        - ``new``: the folder must be missing, empty, or what a run left that ended before its first training step.
          Of that, only the log is kept.
        - ``resume``: it must hold a run.
        - ``overwrite``: a run in it is deleted first; a folder that holds anything else is refused.
        """
        folder = cls(path)
        try:
            _refuse(path, mode)  # before a folder is made for a run that is not to be
            path.mkdir(parents=True, exist_ok=True)
            folder._lock = _take_lock(path)
            folder._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _held.add(folder._descriptor)
            _refuse(path, mode)  # again: what another process did before we held the lock
            _require_space(path, min_free_mb)
            if mode == "overwrite":
                _delete_run(path)
            if mode == "new" and _names(path):
                _delete_run(path, keep=("state.json", *_LOGS))  # the state: it is a run's folder at any moment
                folder.took_over = True
            atomic.sweep_temporary(path)
        except OSError as error:
            folder.close()
            where = error.filename or path
            raise RunFolderError(f"{where}: cannot be used for a run: {error.strerror or error}") from error
        except BaseException:
            folder.close()
            raise
        return folder

    def set_state(self, state: State, reason: str = "", step: int | None = None, unit: str = FRAMES) -> None:
        """Write ``state.json``: how the run stands, why, and after how many frames (or steps of another ``unit``).

        A run whose file says ``running`` while its lock is free was killed.
        """
        self.require()
        value = {
            "state": state,
            "reason": reason,
            **({} if step is None else place(step, unit)),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        try:
            atomic.write_json(self.state, value)
        except OSError as error:
            raise RunFolderError(f"{self.state}: cannot be written: {error.strerror or error}") from error
        self._marked = True

    def read_state(self) -> dict[str, Any] | None:
        """Return what ``set_state`` wrote last, or None before the first time."""
        try:
            value = read_json(self.state)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.state}: cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise RunFolderError(f"{self.state}: cannot be read: not a JSON object")
        value = {"state": None, "reason": "", **value}
        value["step"] = value.get("frames", value.get("step", 0))
        for name, kind in {"state": str, "reason": str, "step": int}.items():
            if not isinstance(value[name], kind):
                raise RunFolderError(f"{self.state}: cannot be read: {name} is {show(value[name])}")
        return value

    def holds_run(self) -> bool:
        """Return whether a run has written here."""
        return any(os.path.lexists(self.path / name) for name in _MARKS)

    def never_began(self) -> bool:
        """Return whether all that is here was left by a run that ended, or was killed, before it trained."""
        return self.holds_run() and _never_began(self.path, _names(self.path))

    # -- the folder of a run that is under way -------------------------------------------------------

    def lost(self) -> str:
        """Say why this is no longer the folder that ``create`` took: an empty string as long as it is.

        Somebody may remove, move or empty it, or unmount its disk. Files that are open do not notice, and by its path
        another folder could be taken for it.
        """
        if self._descriptor not in _held:
            return ""
        try:
            found = os.stat(self.path)
        except OSError as error:  # any other error may pass, and whoever writes meets it, too
            return "it does not exist any more (removed, moved or unmounted)" if error.errno in _GONE else ""
        if not os.path.samestat(found, os.fstat(self._descriptor)):
            return "another folder has taken its place"
        return "it was emptied" if self._marked and not self.holds_run() else ""

    def require(self, cause: BaseException | None = None) -> None:
        """Raise ``RunFolderLost`` unless the folder is still there; ``cause``: the error by which one came to ask."""
        self._looked = time.monotonic()
        why = self.lost()
        if why:
            message = f"{self.path}: the folder of the run is lost: {why}. The run cannot go on without it"
            raise RunFolderLost(message) from cause

    def watch(self) -> None:
        """Call ``require``, at most once per ``LOOK_SECONDS``: for loops that call it all the time."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self.require()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Raise ``RunFolderLost`` if the folder is lost: instead of an error about some file, or at the end."""
        try:
            yield
        except (OSError, CheckpointError, StoreError, RunFolderError) as error:
            self.require(error)
            raise
        self.require()

    def close(self) -> None:
        """Let go of the lock. The lock file stays: removing it would let two processes hold "the" lock."""
        for descriptor in (self._lock, self._descriptor):
            if descriptor in _held:  # not so in a forked child, where the number may be somebody else's file
                _held.remove(descriptor)
                os.close(descriptor)
        self._lock = self._descriptor = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ------------------------------------------------------------------------------------- what may be used


def _refuse(path: Path, mode: Mode) -> None:
    """Raise unless ``path`` may be used in this mode; changes nothing."""
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path}: is a file, not a run folder")
    names = _names(path) if path.is_dir() else set()
    is_run = not names.isdisjoint(_MARKS)
    if mode == "resume" and not is_run:
        raise RunFolderError(_nothing_to_resume(path))
    if mode == "new" and names and not _never_began(path, names):
        raise RunFolderError(
            f"{path}: exists and is not empty: continue it with --resume, delete it with --overwrite, "
            "or choose another name"
        )
    if mode == "overwrite" and names:
        _refuse_to_delete(path, names, is_run)


def _names(path: Path) -> set[str]:
    """Return the names of what is in a folder, besides the remains of writes."""
    names = {entry.name for entry in path.iterdir()}
    return {name for name in names if name not in (_LOCK, _PROBE) and not atomic.is_temporary(name)}


def _never_began(path: Path, names: Collection[str]) -> bool:
    """Return whether a folder holds what the start of a run leaves, and nothing that anybody could miss.

    In doubt it does not: without the state that a run writes first, with a link, a file of another name, a folder that
    cannot be read.
    """
    if not set(names) <= _START or any((path / name).is_symlink() for name in (".", *names)):
        return False
    try:
        state = RunFolder(path).read_state()
        if state is None or state.get("state") not in ("running", "failed", "interrupted") or "pid" not in state:
            return False
        untrained = all(_UNTRAINED.fullmatch(name) for name in _content(path / "checkpoints"))
        known = untrained and _content(path / "data") <= _STORE
        return known and not any(_has_content(path / name) for name in _EMPTY)
    except (RunFolderError, OSError):
        return False


def _content(path: Path) -> set[str]:
    return _names(path) if path.exists() else set()


def _has_content(path: Path) -> bool:
    """Return whether there is a file that is not empty."""
    if path.is_dir():
        return any(_has_content(entry) for entry in path.iterdir())
    return path.exists() and path.stat().st_size > 0


def _refuse_to_delete(path: Path, names: set[str], is_run: bool) -> None:
    if not is_run:
        raise RunFolderError(
            f"{path}: not deleted: it does not look like a run (no {' or '.join(_MARKS)}); "
            "delete it by hand or choose another name"
        )
    if path.is_symlink():
        raise RunFolderError(f"{path}: not deleted: it is a link to {path.resolve()}; delete it by hand")
    foreign = sorted(name for name in names - _LAYOUT if not _PAGE.fullmatch(name))
    if foreign:
        raise RunFolderError(
            f"{path}: not deleted: it holds what no run writes ({', '.join(foreign[:5])}); "
            "move it away first or choose another name"
        )


def _nothing_to_resume(path: Path) -> str:
    if path.is_dir():
        return f"{path}: nothing to resume: it does not hold a run (no {' or '.join(_MARKS)})"
    missing = path
    while not missing.parent.is_dir():
        missing = missing.parent
    names = sorted(entry.name for entry in missing.parent.iterdir() if entry.is_dir())
    near = closest(missing.name, names, limit=5) or names[:5]
    there = f"there are {', '.join(near)}" if near else "there are no others"
    return f"{path}: nothing to resume: {missing} does not exist; in {missing.parent} {there}"


def _require_space(path: Path, min_free_mb: int) -> None:
    free_mb = shutil.disk_usage(path).free / 1e6
    if free_mb < min_free_mb:
        raise RunFolderError(
            f"disk of {path} is too full for a run: {free_mb:.1f} MB free, at least {min_free_mb} MB needed"
        )
    probe = path / _PROBE
    atomic.write_bytes(probe, [bytes(4096)])
    probe.unlink()


def _delete_run(path: Path, keep: Collection[str] = ()) -> None:
    """Remove everything but the lock, which this process holds; the marks of a run go last."""
    for entry in sorted(path.iterdir(), key=lambda e: e.name in _MARKS):
        if entry.name == _LOCK or entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def is_run(path: Path) -> bool:
    """Return whether a folder holds a run, of whatever kind."""
    return any((path / name).is_file() for name in _MARKS)


def holder(path: Path) -> str:
    """Say who is at work in the run folder ``path``, as ``pid 12 on host``; empty where nobody is. Stages of a world
    model have folders, and locks, of their own.
    """
    for lock in (path / _LOCK, *path.glob(f"*/{_LOCK}")):
        try:
            descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not wait
        except OSError:  # none: nobody was ever there
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
        except OSError:  # a file system without locks: nobody can tell
            continue
        finally:
            os.close(descriptor)
    return ""


def refuse_removal(path: Path) -> None:
    """Raise RunFolderError unless ``remove_run`` may delete what is at ``path``; changes nothing."""
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    world = "config.yaml" in names and _STAGES in names
    if not names & {"diary.json", "state.json"} and not world:
        what = "it does not look like a run (no diary.json or state.json)" if names else "there is no such run folder"
        raise RunFolderError(f"{path}: not removed: {what}")
    if busy := holder(path):
        raise RunFolderError(f"{path}: not removed: in use by {busy}; stop it first")
    names = {name for name in names if name not in (_LOCK, _PROBE) and not atomic.is_temporary(name)}
    # What the stages of a world model leave beside the rest is not in the layout.
    _refuse_to_delete(path, names & _LAYOUT if world or names & _MODELS else names, is_run=True)


def remove_run(path: Path) -> None:
    """Delete a run and its folder. Raises RunFolderError, and changes nothing, where ``refuse_removal`` does."""
    refuse_removal(path)
    try:
        lock = _take_lock(path)
        try:
            _delete_run(path)
            (path / _LOCK).unlink()
            path.rmdir()
        finally:
            _held.discard(lock)
            os.close(lock)
    except OSError as error:
        raise RunFolderError(f"{error.filename or path}: cannot be removed: {error.strerror or error}") from error


# ------------------------------------------------------------------------------------------------- lock

_held: set[int] = set()


def _close_locks_in_child() -> None:
    """Close, in a forked child, the locks it shares with its parent: it would keep the folder after the parent died."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_locks_in_child)


def _take_lock(path: Path) -> int:
    lock = path / _LOCK
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
        os.close(descriptor)
        raise RunFolderError(f"{path}: in use by {holder}; stop it or choose another name") from error
    except OSError as error:
        os.close(descriptor)
        raise RunFolderError(f"{lock}: cannot be locked: {error.strerror or error}") from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError:
        os.close(descriptor)
        raise
    _held.add(descriptor)
    return descriptor
