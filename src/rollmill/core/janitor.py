"""No leftovers, whatever ends a run: the janitor outlives it, even a kill -9, and cleans up.

A run starts the janitor first, wears its mark (``marked``) while it starts processes, gives those that are
its own ``child_environment(token, scratch)``, and calls ``finish`` last. When the run ends in any other way,
the janitor notices the closed pipe and does the same work alone: kills every process of the run, removes
ViZDoom's orphaned shared memory, and removes the scratch folder.

How it tells the run's processes from others is in ``janitor_main``. On systems other than Linux only the
scratch folder is removed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.core import janitor_main
from rollmill.core.errors import RollmillError, RunFolderError

log = logging.getLogger("rollmill")

TOKEN_VARIABLE = janitor_main.TOKEN_VARIABLE
SCRATCH_VARIABLE = "ROLLMILL_SCRATCH"
FINISH_SECONDS = 30.0
"""The janitor's own limits add up to less; one that takes longer is stuck."""


def child_environment(token: str, scratch: Path) -> dict[str, str]:
    """Return the environment for the run's processes: this one's, plus the token and the scratch folder."""
    return os.environ | {TOKEN_VARIABLE: token, SCRATCH_VARIABLE: str(scratch)}


@contextlib.contextmanager
def marked(token: str) -> Iterator[None]:
    """Let this process wear the run's mark, and so all that it starts meanwhile, by fork or by exec.

    The janitor never takes this process itself for a leftover of its own run.
    """
    if sys.platform != "linux":
        yield
        return
    before, hard = resource.getrlimit(janitor_main.MARK_LIMIT)
    try:
        resource.setrlimit(janitor_main.MARK_LIMIT, (janitor_main.mark_of(token), hard))
    except (OSError, ValueError) as error:
        log.warning(
            "the limit of file locks cannot be set (%s): processes that an environment starts and that shed their "
            "variables would outlive this run",
            error,
        )
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(janitor_main.MARK_LIMIT, (before, hard))


@dataclass(frozen=True)
class JanitorReport:
    """What was left at the end of the run and has been removed; all empty after a clean end."""

    killed: tuple[int, ...] = ()
    """Processes of the run that still lived."""
    segments: tuple[str, ...] = ()
    """Names of ViZDoom's segments in shared memory."""
    survivors: tuple[int, ...] = ()
    """Processes that SIGKILL did not end in time (stuck in the kernel)."""
    scratch_removed: bool = True


class Janitor:
    """The running janitor of one run; see the module's text."""

    def __init__(self, process: subprocess.Popen[bytes], alarm: int, token: str, scratch: Path) -> None:
        self._process = process
        self._alarm = alarm
        self._token = token
        self._scratch = scratch
        self._report: JanitorReport | None = None

    @staticmethod
    def start(token: str, scratch: Path) -> Janitor:
        """Start the janitor. It makes the folder ``scratch``, or takes an empty one, before this returns."""
        if not (token.isascii() and token.isalnum()):
            raise ValueError(f"the token must be letters and digits, got {token!r}")
        scratch = scratch.resolve()
        if scratch.exists() and any(scratch.iterdir()):
            raise RunFolderError(f"scratch folder {scratch} is not empty; it would be deleted at the end of the run")
        if sys.platform != "linux":
            log.warning("no /proc on %s: if this run is killed, its processes stay", sys.platform)
        watched, alarm = os.pipe()  # neither is inherited by other children: Python sets close-on-exec
        try:
            process = _spawn(token, scratch, watched)
        except BaseException:
            os.close(alarm)
            raise
        finally:
            os.close(watched)
        return Janitor(process, alarm, token, scratch)

    @property
    def pid(self) -> int:
        return self._process.pid

    def finish(self) -> JanitorReport:
        """Have everything cleaned up and the janitor ended when this returns. May be called again."""
        if self._report is None:
            with contextlib.suppress(BrokenPipeError):  # somebody has killed it
                os.write(self._alarm, b"\n")  # closing is not enough: what was forked from here holds it open, too
            os.close(self._alarm)
            self._report = self._hear() or self._clean_here()
        return self._report

    def _hear(self) -> JanitorReport | None:
        """Wait for the janitor's report; returns None when it was killed or is stuck."""
        try:
            output, _ = self._process.communicate(timeout=FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return None
        return _report(json.loads(output)) if self._process.returncode == 0 else None

    def _clean_here(self) -> JanitorReport:
        """Do the janitor's work in this process, since somebody ended the janitor."""
        return _report(janitor_main.clean(self._token, str(self._scratch), exclude=set()))


def _spawn(token: str, scratch: Path, watched: int) -> subprocess.Popen[bytes]:
    """Start the process and wait until it ignores signals: from then on it cannot be lost with the run."""
    command = [sys.executable, "-I", "-S", janitor_main.__file__, token, str(scratch), str(os.getpid())]
    # Inside another run, that run's janitor must not kill this one before its work is done.
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    process = subprocess.Popen(command, stdin=watched, stdout=subprocess.PIPE, env=environment, start_new_session=True)
    assert process.stdout is not None
    answer = process.stdout.readline().decode(errors="replace").strip()
    if answer != "ready":
        process.kill()
        process.communicate()
        raise RollmillError(f"the janitor process did not start: {answer or ' '.join(command)}")
    return process


def _report(data: dict[str, Any]) -> JanitorReport:
    return JanitorReport(
        killed=tuple(data["killed"]),
        segments=tuple(data["segments"]),
        survivors=tuple(data["survivors"]),
        scratch_removed=data["scratch_removed"],
    )


def leftovers(token: str) -> dict[int, str]:
    """Return command lines of the run's processes besides this one, by their pids; none where there is no ``/proc``."""
    found = janitor_main.processes_of(token, {os.getpid()}) if janitor_main.can_look() else []
    return {pid: janitor_main.command_of(pid) for pid in found}


# -- for `doctor` -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StaleSegment:
    """A ViZDoom segment in shared memory that no living process uses."""

    name: str
    nbytes: int
    age: float
    """Seconds since it was made."""


def find_stale_segments() -> list[StaleSegment]:
    """Find this user's ViZDoom segments that no living process maps; the youngest may be in the making."""
    return [StaleSegment(*segment) for segment in janitor_main.stale_segments()]


def sweep_stale_segments() -> list[str]:
    """Remove stale segments older than two seconds; returns their names. Running games are not touched."""
    old = [s.name for s in find_stale_segments() if s.age >= janitor_main.SEGMENT_AGE]
    return janitor_main.remove_segments(old)
