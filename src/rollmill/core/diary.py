"""Where a run comes from: command, code, machine, parent, and every time it was started.

``diary.json`` is written for people and scripts who look at a run later; training never reads it except
to append the next session.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rollmill
from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.machine import usable_cores
from rollmill.core.opening import read_json
from rollmill.core.steps import FRAMES, place

PACKAGES = ("torch", "numpy", "gymnasium", "vizdoom")
_GIT_SECONDS = 5
_MISSING = "(not set)"


def command_line() -> tuple[str, ...]:
    """Return how this process was started, word by word: ``rollmill`` and its words, or the script of the user."""
    program = sys.argv[0] if sys.argv else ""
    return ("rollmill" if Path(program).name in ("rollmill", "__main__.py") else program, *sys.argv[1:])


class Diary:
    """The content of one ``diary.json``; every change is written at once, atomically."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.content = content

    @classmethod
    def create(cls, path: Path, command: Sequence[str]) -> Diary:
        """Start the diary of a new run; ``command`` is the command line, word by word."""
        diary = cls(
            path,
            {
                "created": _now(),
                "command": shlex.join(command),
                "folder": str(Path.cwd()),
                "git": git_state(Path.cwd()),
                "versions": versions(),
                "machine": machine(),
                "parent": None,
                "sessions": [],
            },
        )
        diary._write()
        return diary

    @classmethod
    def open(cls, path: Path) -> Diary:
        """Read the diary of an existing run."""
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path}: the diary of the run cannot be read: {error}") from error
        if not isinstance(content, dict) or not isinstance(content.get("sessions"), list):
            raise RunFolderError(f"{path}: not the diary of a run (no list of sessions)")
        return cls(path, new_names(content))

    def set_parent(
        self, checkpoint: Path, step: int, checksum: str, difference: Mapping[str, Sequence[Any]], unit: str = FRAMES
    ) -> None:
        """Record the checkpoint this run was born from and what was changed, ``{key: (old, new)}``."""
        self.content["parent"] = {
            "checkpoint": str(checkpoint),
            **place(step, unit),
            "checksum": checksum,
            "difference": _plain(difference),
        }
        self._write()

    def begin_session(
        self,
        command: Sequence[str],
        step: int,
        overrides: Mapping[str, Sequence[Any]] | None = None,
        unit: str = FRAMES,
    ) -> None:
        """Append a start of the run at ``step``; ``overrides``: what was changed since the last start."""
        if self.sessions and not (isinstance(self.sessions[-1], dict) and "ended" in self.sessions[-1]):
            raise RunFolderError(f"{self.path}: not the diary of a run (a session that has no end)")
        if self.sessions and self.sessions[-1]["ended"] is None:
            self.sessions[-1]["how"] = "killed (its end was not recorded)"
        session = {
            "started": _now(),
            "command": shlex.join(command),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": rollmill.__version__,
            "git": git_state(Path.cwd()),
            "overrides": _plain(overrides or {}),
            "unit": unit,
            "step_at_start": step,
            "step_at_end": None,
            "ended": None,
            "how": None,
        }
        self.sessions.append(session)
        self._write()

    def end_session(self, how: str, step: int) -> None:
        """Complete the session that was begun last: ``how`` it ended and at which step."""
        if not self.sessions or self.sessions[-1]["ended"] is not None:
            raise RuntimeError("end_session without begin_session")
        self.sessions[-1].update(ended=_now(), how=how, step_at_end=step)
        self._write()

    @property
    def sessions(self) -> list[dict[str, Any]]:
        sessions: list[dict[str, Any]] = self.content["sessions"]
        return sessions

    def _write(self) -> None:
        try:
            atomic.write_json(self.path, self.content)
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be written: {error.strerror or error}") from error


# ------------------------------------------------------------------------------------------------ facts


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the repository around ``folder`` and whether tracked files differ from it (``dirty``).

    None outside a repository or without git. ``dirty`` is None where git could not tell in time.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    # Untracked files do not count: the runs themselves usually lie in the repository.
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else changes != ""}


def _git(folder: Path, *words: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # do not disturb a git command of the user
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str | None]:
    """Return versions by package, None where not installed; nothing is imported to find out."""
    found: dict[str, str | None] = {"rollmill": rollmill.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def machine() -> dict[str, Any]:
    """Return host name, platform, cores this process may use, and memory in bytes."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cores": len(usable_cores()),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def _plain(value: Any) -> Any:
    """Return ``value`` in JSON's terms; what JSON lacks (infinity, paths, enums) is written as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_names(diary: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a diary with its present names; version 0.1 counted frames in every kind of run."""
    sessions = diary.get("sessions")
    old = {"frames_at_start": "step_at_start", "frames_at_end": "step_at_end"}
    if isinstance(sessions, list):
        named = [{old.get(k, k): v for k, v in s.items()} if isinstance(s, dict) else s for s in sessions]
        diary = {**diary, "sessions": named}
    return diary
