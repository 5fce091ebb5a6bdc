"""What is known about the runs of a launch, on disk, so that it outlives every process::

    <root>/<experiment>/launch/
        plan.json             the runs: names, groups, parameters, command lines
        trials/N.json         of a search, written by the launcher: settings, runs, and what came of them
        best.yaml             of a search, written by the launcher: the settings of the best trial
        runs/<run>.json       written by the launcher: when it was handed to which back end, and its handle there
        cancelled/<run>       is there if somebody has cancelled the run
        jobs/<run>.json       what the job shall do: command, cores, GPU, folder (read by ``launch.job``)
        attempts/<run>/N.json written by the job itself: when and where it began, how it ended; N.log is its output
        attempts/<run>/.lock  held by the job while it lives
        population/           of a population: where its members meet (``pbt.exchange``)
        .lock                 held by the launcher

Every file is replaced in one piece and has one writer. What a run reached stands in its own folder.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rollmill.core import atomic
from rollmill.core.config.old_names import renamed
from rollmill.core.errors import LaunchError, RunFolderError
from rollmill.core.identity import Identity
from rollmill.core.opening import read_json
from rollmill.core.run_folder import PAUSED

FOLDER = "launch"
LOCK_SECONDS = 1.0
VERSION = 1

Handle = dict[str, Any]
"""How a back end finds a job again; plain values, ``kind`` names the back end."""


@dataclass(frozen=True)
class RunRecord:
    """What the plan says about one run."""

    name: str
    group: str
    params: Mapping[str, Any]
    command: tuple[str, ...]
    folder: str
    """Absolute."""
    frames: int
    """Frames after which it ends; 0 if something else ends it."""


@dataclass(frozen=True)
class PlanRecord:
    """The content of ``plan.json``."""

    name: str
    cwd: str
    runs: tuple[RunRecord, ...]
    launch: Mapping[str, Any]
    """Settings of the launch, as plain values."""
    expect: Mapping[str, Any] = field(default_factory=dict)
    written: float = 0.0
    host: str = ""
    search: Mapping[str, Any] | None = None
    """The description, if its runs are chosen one after the other (``launch.search``)."""
    population: Mapping[str, Any] | None = None
    """Who takes part and what is tuned (``pbt.exchange.About``), if its runs are members of a population."""


@dataclass(frozen=True)
class Trial:
    """One choice of a search: its settings, and what came of them."""

    number: int
    params: Mapping[str, Any]
    state: Literal["running", "finished", "pruned", "failed"] = "running"
    value: float | None = None
    """The mean over its seeds, once all have finished."""
    parts: tuple[float | None, ...] = ()
    """The metric in each part of the run that is over; None before it was first reported."""


@dataclass(frozen=True)
class Submission:
    """The launcher's side of a run."""

    handle: Handle | None = None
    """Of the job that was handed in last; None before the first, and while one is being handed in."""
    count: int = 0
    """How often the run was handed in."""
    submitted: float = 0.0
    failures_reset: int = 0
    """Failures that do not count any more: the user has asked to try again."""
    cancelled: bool = False
    """Not part of the file: whoever cancels is not the launcher, and each file has one writer."""

    @property
    def submitted_count(self) -> int:
        """How often the run surely was handed in: without a handle, the launcher may have been killed just before."""
        return self.count - (1 if self.handle is None and self.count else 0)


@dataclass(frozen=True)
class Attempt:
    """One start of a run, as its job wrote it down."""

    number: int
    started: float
    process: Identity
    job: str
    """The scheduler's number of the job; empty for a local process. The same again: the scheduler requeued it."""
    mode: str
    """new, resume or overwrite; skip if there was nothing to do."""
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    tail: str = ""
    """Last lines of the output of an attempt that failed."""

    @property
    def paused(self) -> bool:
        """Whether the run has made room for another one, and waits for being started again."""
        return self.exit_code == PAUSED

    @property
    def failed(self) -> bool:
        """Whether it ended badly, or nobody knows how."""
        return self.exit_code not in (0, PAUSED)


class LaunchRecords:
    """The launch folder of one experiment."""

    def __init__(self, experiment: Path) -> None:
        self.experiment = experiment.absolute()
        self.folder = self.experiment / FOLDER

    @property
    def exists(self) -> bool:
        return (self.folder / "plan.json").is_file()

    # ------------------------------------------------------------------------------------------------- plan

    def read_plan(self) -> PlanRecord:
        value = _read(self.folder / "plan.json")
        if value is None:
            raise LaunchError(f"{self.experiment}: not an experiment that was launched (no {FOLDER}/plan.json)")
        if value.get("version") != VERSION:
            raise LaunchError(f"{self.folder / 'plan.json'}: written by another version of rollmill")
        with _naming(self.folder / "plan.json"):
            runs = tuple(_run_record(run) for run in value["runs"])
            fields = {key: value[key] for key in ("name", "cwd", "launch", "expect", "written", "host")}
            if not isinstance(fields["launch"], dict):
                raise ValueError("launch must be settings by their names")
            chosen = {name: value.get(name) for name in ("search", "population")}
            return PlanRecord(**{**fields, **chosen, "runs": runs})

    def write_plan(self, plan: PlanRecord) -> None:
        plan = replace(plan, written=time.time(), host=socket.gethostname())
        _write(self.folder / "plan.json", {"version": VERSION, **asdict(plan)})

    # ----------------------------------------------------------------------------------------------- trials

    def trials(self) -> list[Trial]:
        """Return the trials of a search, in their order; each was written before the next one."""
        found: list[Trial] = []
        while (value := _read(path := self._trial_path(len(found)))) is not None:
            with _naming(path):
                found.append(Trial(**{**value, "parts": tuple(value["parts"])}))
        return found

    def write_trial(self, trial: Trial) -> None:
        _write(self._trial_path(trial.number), asdict(trial))

    def _trial_path(self, number: int) -> Path:
        return self.folder / "trials" / f"{number}.json"

    @property
    def best_settings(self) -> Path:
        """Settings of the best trial, a file for ``-f``."""
        return self.folder / "best.yaml"

    # --------------------------------------------------------------------------------------------- launcher

    def submission(self, run: str) -> Submission:
        path = self.folder / "runs" / f"{run}.json"
        value = _read(path)
        with _naming(path):
            return Submission(**renamed(value or {}), cancelled=self._cancel_mark(run).exists())

    def write_submission(self, run: str, value: Submission) -> None:
        fields = asdict(value)
        del fields["cancelled"]
        _write(self.folder / "runs" / f"{run}.json", fields)

    def set_cancelled(self, run: str, cancelled: bool) -> None:
        mark = self._cancel_mark(run)
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch() if cancelled else mark.unlink(missing_ok=True)
        except OSError as error:
            raise LaunchError(f"{mark}: cannot be changed: {error.strerror or error}") from error

    def _cancel_mark(self, run: str) -> Path:
        return self.folder / "cancelled" / run

    def write_job(self, run: str, spec: Mapping[str, Any]) -> None:
        _write(self.job_path(run), spec)

    def read_job(self, run: str) -> dict[str, Any] | None:
        return _read(self.job_path(run))

    def job_path(self, run: str) -> Path:
        return self.folder / "jobs" / f"{run}.json"

    @contextmanager
    def as_launcher(self) -> Iterator[None]:
        """Be the only launcher of this experiment; LaunchError names the other one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunFolderError(f"{self.folder}: cannot be used: {error.strerror or error}") from error
        try:
            # Whoever looks whether the lock is held has it for a moment.
            if not within(LOCK_SECONDS, lambda: try_lock(descriptor)):
                holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
                raise LaunchError(f"{self.experiment}: {holder} launches it already; `rollmill launch status` watches")
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def launcher_alive(self) -> bool:
        """Return whether a launcher holds the lock."""
        return is_locked(self.folder / ".lock")

    # -------------------------------------------------------------------------------------------------- jobs

    def attempts_folder(self, run: str) -> Path:
        return self.folder / "attempts" / run

    def attempts(self, run: str) -> list[Attempt]:
        """Return all starts of a run, oldest first."""
        folder = self.attempts_folder(run)
        names = os.listdir(folder) if folder.is_dir() else []
        numbers = sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json") and name[0] != ".")
        found = []
        for number in numbers:
            value = _read(folder / f"{number}.json")
            if value is not None:
                with _naming(folder / f"{number}.json"):
                    found.append(Attempt(**{**value, "process": Identity.from_dict(value["process"])}))
        return found

    def write_attempt(self, run: str, attempt: Attempt) -> None:
        _write(self.attempts_folder(run) / f"{attempt.number}.json", asdict(attempt))

    def log_path(self, run: str, attempt: int) -> Path:
        return self.attempts_folder(run) / f"{attempt}.log"

    def job_alive(self, run: str) -> bool:
        """Return whether a job of this run holds its lock: surely on this host, else as the file system tells."""
        return is_locked(self.attempts_folder(run) / ".lock")


# ---------------------------------------------------------------------------------------------------------- files


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file; False if somebody has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock of this file; being able to read it is enough."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO in its place must not wait
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Ask until the answer is yes, for so long at most."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn what is missing from a record, or too much in it, into an error that names the file."""
    try:
        yield
    except (TypeError, KeyError, ValueError) as error:
        raise LaunchError(f"{path}: not a record of this version of rollmill: {error}") from error


def _run_record(value: Mapping[str, Any]) -> RunRecord:
    """Return a run as a plan has it, whose values are what they must be: others may have written the file."""
    run = RunRecord(**{**value, "command": tuple(value["command"])})
    texts = (run.name, run.group, run.folder, *run.command)
    if not all(isinstance(text, str) for text in texts) or not isinstance(run.params, dict):
        raise ValueError("a run's name, group, folder and command must be text, its params settings by their names")
    if type(run.frames) is not int or run.frames < 0:
        raise ValueError(f"a run's frames must be a number, 0 or more, not {run.frames!r}")
    return run


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LaunchError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise LaunchError(f"{path}: cannot be read: not a JSON object")
    return value


def _write(path: Path, value: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(path, value)
    except OSError as error:
        raise LaunchError(f"{path}: cannot be written: {error.strerror or error}") from error
