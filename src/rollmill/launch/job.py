"""The job of one run, on whatever machine it was sent to: ``python -m rollmill.launch.job LAUNCH_FOLDER RUN``.

It decides how to start (anew, or from the checkpoint that an earlier attempt left), prepares the place (cores, GPU,
temporary folder, display), waits, and writes down how it ended. So nobody has to watch it: a launcher that was killed,
or a scheduler that starts the job again on another node, changes nothing.

``--array FILE`` takes the run from the line of FILE that the scheduler's array index names.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from rollmill.core.child import die_with_parent
from rollmill.core.errors import LaunchError, RollmillError
from rollmill.core.identity import Identity
from rollmill.core.machine import keep_to
from rollmill.core.opening import plain_file
from rollmill.core.process import module_command
from rollmill.core.run_folder import PAUSED, RunFolder
from rollmill.launch.display import start_display
from rollmill.launch.records import LOCK_SECONDS, Attempt, LaunchRecords, is_locked, try_lock, within
from rollmill.launch.verbs import has_run_folder

BUSY = 75
"""Exit code if another job of the same run is alive."""
REQUEUED = 76
"""Exit code after the job has put itself back into the queue."""
WRONG = 2
"""Exit code if the run cannot be started as it is described."""
CANCELLED = 77
"""Exit code of a job whose run was cancelled before it began."""
FOLDER_SECONDS = 60.0
"""How long to wait for the trainer of an earlier attempt to let go of the run's folder."""
_TAIL_LINES = 20
_TAIL_BYTES = 4000
END_WITH_PARENT = functools.partial(die_with_parent, signal.SIGTERM)
"""Before exec: if this job is killed -9, its program is asked to end instead of going on unseen."""


def main(arguments: Sequence[str]) -> int:
    """Run the job and return the program's exit code."""
    launch = Path(arguments[0])
    if arguments[1] == "--array":
        lines = Path(arguments[2]).read_text(encoding="utf-8").splitlines()
        run = lines[int(os.environ["SLURM_ARRAY_TASK_ID"])]
    else:
        run = arguments[1]
    return Job(LaunchRecords(launch.parent), run).run()


class _BusyError(RollmillError):
    """The folder is in use: later it may not be."""


class Job:
    """One attempt at one run."""

    def __init__(self, records: LaunchRecords, run: str) -> None:
        spec = records.read_job(run)
        if spec is None:
            raise LaunchError(f"{records.job_path(run)}: there is no such job")
        self.records, self.name = records, run
        self.spec: dict[str, Any] = spec
        self.folder = RunFolder(Path(self.spec["folder"]))
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_by: str = ""
        self._requeue = False

    def run(self) -> int:
        folder = self.records.attempts_folder(self.name)
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with ExitStack() as stack:
            stack.callback(os.close, lock)
            # Whoever looks whether the lock is held has it for a moment.
            if not within(LOCK_SECONDS, lambda: try_lock(lock)):
                print(f"{self.name}: another job of this run is alive", file=sys.stderr)
                return BUSY
            if self.records.submission(self.name).cancelled:  # while it waited in a queue, or its launcher paused
                print(f"{self.name}: was cancelled", file=sys.stderr)
                return CANCELLED
            # From here on signals end the program, and this process tells how it ended.
            signal.signal(signal.SIGTERM, self._on_end)
            signal.signal(signal.SIGINT, self._on_end)
            signal.signal(signal.SIGUSR1, self._on_warning)
            return self._attempt(stack)

    def _attempt(self, stack: ExitStack) -> int:
        number = max((a.number for a in self.records.attempts(self.name)), default=0) + 1
        me = Identity.of(os.getpid())
        assert me is not None
        attempt = Attempt(number, time.time(), me, job_id(), "new")
        with open(self.records.log_path(self.name, number), "ab") as log:
            try:
                mode = self._mode(attempt.number)
                attempt = replace(attempt, mode=mode)
                self.records.write_attempt(self.name, attempt)
                before = self.folder.read_state()
                code = 0 if mode == "skip" else self._start(mode, log, stack)
                attempt = replace(attempt, exit_code=code, reason=self._reason(code, number, before))
            except (RollmillError, OSError) as error:
                # Only what another attempt would meet again is a mistake in the settings.
                code = BUSY if isinstance(error, _BusyError) else 1 if isinstance(error, OSError) else WRONG
                attempt = replace(attempt, exit_code=code, reason=str(error))
                log.write(f"{error}\n".encode())
        failed = attempt.failed
        tail = tail_of(self.records.log_path(self.name, number)) if failed else ""
        self.records.write_attempt(self.name, replace(attempt, ended=time.time(), tail=tail))
        if failed and self._requeue and subprocess.run(["scontrol", "requeue", job_id()]).returncode == 0:
            return REQUEUED
        assert attempt.exit_code is not None
        return 0 if attempt.paused else attempt.exit_code  # no scheduler has to know

    # --------------------------------------------------------------------------------------------- how to start

    def _mode(self, attempt: int) -> str:
        """Decide by what is in the folder: a finished run is not repeated, a checkpoint is gone on from."""
        if not within(FOLDER_SECONDS, lambda: not is_locked(self.folder.path / ".lock")):
            raise _BusyError(f"{self.folder.path}: still in use by the program of an earlier attempt")
        if not has_run_folder(self.spec["command"]):
            done = any(attempt.exit_code == 0 for attempt in self.records.attempts(self.name))
            return "skip" if done else "new"
        state = self.folder.read_state()
        if state is not None and state["state"] == "finished":
            return "skip"
        if self.folder.never_began():  # a checkpoint of the start is no reason to keep its settings
            return "new"
        if has_checkpoint(self.folder):
            return "resume"
        if self.folder.config.exists() or self.folder.diary.exists():
            if attempt == 1:
                raise RollmillError(
                    f"{self.folder.path}: holds a run without a checkpoint that this launch did not start; "
                    "delete it, or choose another name for the experiment"
                )
            return "overwrite"
        return "new"

    def _command(self, mode: str) -> list[str]:
        command = list(self.spec["command"])
        if command[0] == "rollmill":  # this very installation, wherever PATH leads
            command[:1] = module_command("rollmill.cli.main")
        if mode in ("resume", "overwrite"):
            command.append(f"--{mode}")
        return command

    def _environment(self, stack: ExitStack) -> dict[str, str]:
        environment = {**os.environ, **self.spec.get("environment", {})}
        if self.spec.get("temp_dir"):
            own = tempfile.mkdtemp(prefix=f"rollmill-{self.name[:40]}-", dir=self.spec["temp_dir"])
            stack.callback(shutil.rmtree, own, ignore_errors=True)
            environment["TMPDIR"] = own
        if self.spec.get("virtual_display"):
            environment |= start_display(stack, END_WITH_PARENT)
        return environment

    def _start(self, mode: str, log: IO[bytes], stack: ExitStack) -> int:
        command = self._command(mode)
        environment = self._environment(stack)
        keep_to(self.spec.get("cores", ()))  # inherited by everything the run starts
        if self._ended_by:
            return 128 + signal.SIGTERM
        if not has_run_folder(self.spec["command"]):
            self.folder.path.mkdir(parents=True, exist_ok=True)  # for what the command writes there
        self._process = subprocess.Popen(
            command,
            cwd=self.spec["cwd"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=END_WITH_PARENT,
        )
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    # --------------------------------------------------------------------------------------------- how it ended

    def _on_end(self, number: int, _frame: FrameType | None) -> None:
        """Note the signal: schedulers, and ``launch cancel``, send it to the whole group, the program included."""
        self._ended_by = signal.Signals(number).name

    def _on_warning(self, _number: int, _frame: FrameType | None) -> None:
        """End the program, and go back into the queue: the time limit is near."""
        self._ended_by, self._requeue = "SIGUSR1", bool(job_id())
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def _reason(self, code: int, number: int, before: Mapping[str, Any] | None) -> str:
        """Return why it ended; ``before`` is what the run's folder said when the attempt began."""
        if code == 0:
            return ""
        state = self.folder.read_state()
        if code == PAUSED and state is not None:
            return str(state["reason"])
        if state is not None and state != before and state["state"] in ("failed", "interrupted"):
            return f"{state['state']}: {state['reason']}"
        if self._ended_by:
            return f"ended by {self._ended_by}"
        if code > 128:
            return f"killed by {_signal_name(code - 128)}"
        lines = tail_of(self.records.log_path(self.name, number)).splitlines()
        return f"exit code {code}" + (f": {lines[-1]}" if lines else "")


def has_checkpoint(folder: RunFolder) -> bool:
    """Return whether there is something to resume from."""
    return any(folder.checkpoints.glob("*.ckpt"))


def job_id(environment: Mapping[str, str] | None = None) -> str:
    """Return the scheduler's name for this job; empty outside one. It stays the same when the job is requeued."""
    environment = os.environ if environment is None else environment
    array = environment.get("SLURM_ARRAY_JOB_ID")
    if array:
        return f"{array}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID", "")


def tail_of(path: Path) -> str:
    """Return the last lines of a log."""
    try:
        with open(path, "rb", opener=plain_file) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:  # it tells how the run ended; that it is gone is no reason to fail
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
