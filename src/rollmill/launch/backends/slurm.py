"""SLURM: runs are tasks of an array job. A thin driver over sbatch, squeue, scontrol and scancel.

Where a cluster keeps accounts, ``sacct`` says how jobs ended; without it a job that squeue no longer knows has ended,
and the run's own records say how. That is all the launcher needs, so nothing here depends on accounting.
"""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollmill.core import atomic
from rollmill.core.errors import LaunchError
from rollmill.core.process import module_command
from rollmill.launch.backends.base import JobRequest, JobStatus, Stage
from rollmill.launch.records import Handle, LaunchRecords
from rollmill.launch.settings import SlurmSettings

LIVING: dict[str, Stage] = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"), "queued"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "RESIZING", "STOPPED"), "running"),
}
"""States of jobs that have not ended; all others have."""


MOST_TASKS = 1000
"""Of one array: what clusters allow if nobody has changed it (MaxArraySize)."""


class SlurmBackEnd:
    """Hands in array jobs; implements ``BackEnd``."""

    batch = True
    poll_seconds = 15.0
    capacity = 0  # the scheduler decides; ``parallel`` is part of the array

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings

    # ------------------------------------------------------------------------------------------------ submit

    def submit(self, records: LaunchRecords, jobs: Sequence[JobRequest], active: Sequence[Handle]) -> list[Handle]:
        arrays = [jobs[start : start + MOST_TASKS] for start in range(0, len(jobs), MOST_TASKS)]
        return [handle for array in arrays for handle in self._submit(records, array)]

    def _submit(self, records: LaunchRecords, jobs: Sequence[JobRequest]) -> list[Handle]:
        settings = self._settings
        for job in jobs:
            extra = {
                "temp_dir": None if settings.temp_dir is None else str(settings.temp_dir),
                "virtual_display": settings.virtual_display,
            }
            records.write_job(job.run, {**job.spec, **extra})
        folder = records.folder / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        # The token is in the job's name: a job whose number was not written down can be found by it.
        token = secrets.token_hex(6)
        tasks, script = folder / f"{token}.txt", folder / f"{token}.sh"
        atomic.write_text(tasks, "".join(f"{job.run}\n" for job in jobs))
        atomic.write_text(script, batch_script(settings, records.folder, tasks, len(jobs), jobs[0].spec["cwd"], token))
        number = _run("sbatch", "--parsable", str(script)).split(";")[0].strip()
        if not number.isdigit():
            raise LaunchError(f"sbatch answered {number!r} instead of the number of a job")
        return [self._handle(number, index, token) for index in range(len(jobs))]

    @staticmethod
    def _handle(number: str, index: int, token: str) -> Handle:
        return {"kind": "slurm", "job": number, "task": index, "token": token}

    # ------------------------------------------------------------------------------------------------ status

    def status(self, records: LaunchRecords, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        try:
            return self._status(records, handles)
        except LaunchError as error:  # the controller restarts now and then: nothing is known until it answers
            return {name: JobStatus("unknown", reason=str(error)) for name in handles}

    def _status(self, records: LaunchRecords, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        known = {name: handle for name, handle in handles.items() if handle is not None}
        lost = self._find(records, [name for name in handles if name not in known])
        known |= {name: handle for name, handle in lost.items() if handle is not None}
        tasks = query({handle["job"] for handle in known.values()})
        found: dict[str, JobStatus] = {}
        for name in handles:
            handle = known.get(name)
            task = None if handle is None else tasks.get((handle["job"], handle["task"]))
            status = JobStatus("ended") if task is None else task.status
            is_found = name in lost and status.stage != "ended"
            found[name] = JobStatus(status.stage, status.host, status.reason, handle if is_found else None)
        return found

    def _find(self, records: LaunchRecords, runs: Sequence[str]) -> dict[str, Handle | None]:
        """Find jobs of runs whose launcher was killed while it handed them in, by the token in their name."""
        found: dict[str, Handle | None] = dict.fromkeys(runs)
        if not runs:
            return found
        numbers = {}
        for line in _run("squeue", "--noheader", "--states=all", "--array", "--format=%F|%j").splitlines():
            number, _, name = line.strip().partition("|")
            numbers[name] = number
        for path in sorted((records.folder / "slurm").glob("*.txt"), key=lambda p: p.stat().st_mtime):
            number = numbers.get(job_name(path.stem), "")
            if number:
                for index, run in enumerate(path.read_text(encoding="utf-8").splitlines()):
                    if run in found:
                        found[run] = self._handle(number, index, path.stem)
        return found

    # ------------------------------------------------------------------------------------------------ cancel

    def cancel(self, records: LaunchRecords, handles: Mapping[str, Handle], force: bool = False) -> None:
        names = [f"{handle['job']}_{handle['task']}" for handle in handles.values()]
        for start in range(0, len(names), 200):  # a command line has an end
            options = ["--signal=KILL", "--full"] if force else []
            _run("scancel", "--quiet", *options, *names[start : start + 200])


def job_name(token: str) -> str:
    return f"rollmill-{token}"


def batch_script(settings: SlurmSettings, launch: Path, tasks: Path, count: int, cwd: str, token: str) -> str:
    """Return the script for sbatch. The job replaces the shell, so that signals for the batch step reach it."""
    log = f"{launch / 'slurm' / token}".replace("%", "%%") + "-%a.out"
    limit = f"%{settings.parallel}" if settings.parallel else ""
    options = [
        f"--job-name={job_name(token)}",
        f"--array=0-{count - 1}{limit}",
        f"--chdir={_quoted(cwd)}",
        f"--output={_quoted(log)}",
        "--open-mode=append",
        "--requeue" if settings.requeue else "--no-requeue",
    ]
    named = {
        "partition": settings.partition,
        "time": settings.time,
        "mem": settings.memory,
        "cpus-per-task": settings.cpus or None,
        "gres": f"gpu:{settings.gpus}" if settings.gpus else None,
        "account": settings.account,
        "signal": f"B:USR1@{settings.warn_seconds}" if settings.warn_seconds else None,
    }
    options += [f"--{key}={value}" for key, value in named.items() if value is not None]
    options += settings.lines
    command = module_command("rollmill.launch.job", str(launch), "--array", str(tasks))
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        *settings.setup,
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """Quote a value for an #SBATCH line, which sbatch cuts at spaces that are not in quotes."""
    if not re.search(r"[\s\"'\\]", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


# ------------------------------------------------------------------------------------------------------ asking


@dataclass(frozen=True)
class Task:
    """One task of an array job, as squeue or sacct tells."""

    state: str
    host: str = ""
    reason: str = ""

    @property
    def status(self) -> JobStatus:
        stage = LIVING.get(self.state, "ended")
        if stage == "ended":
            words = "" if self.state == "COMPLETED" else f"SLURM: {self.state.lower().replace('_', ' ')}"
            return JobStatus(stage, self.host, words)
        waits = stage == "queued" and self.reason not in ("", "None")
        return JobStatus(stage, self.host, f"SLURM: {self.reason}" if waits else "")


def query(jobs: set[str]) -> dict[tuple[str, int], Task]:
    """Return all tasks of the jobs that SLURM still knows, by (number of the array job, index)."""
    if not jobs:
        return {}
    found = _accounts(jobs)
    listed = ",".join(sorted(jobs, key=int))
    text = _run(
        "squeue", "--noheader", "--states=all", "--array", f"--jobs={listed}", "--format=%F|%K|%T|%N|%r", may_miss=True
    )
    for line in text.splitlines():
        number, index, state, host, reason = (part.strip() for part in line.split("|", 4))
        if index.isdigit():
            found[number, int(index)] = Task(state, host, reason)
    return found


def _accounts(jobs: set[str]) -> dict[tuple[str, int], Task]:
    """Return what sacct tells about jobs that have ended; nothing where there is no accounting."""
    if shutil.which("sacct") is None:
        return {}
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--array", "--format=JobID,State,NodeList"]
    done = subprocess.run([*command, f"--jobs={','.join(sorted(jobs))}"], capture_output=True, text=True)
    if done.returncode != 0:  # "Slurm accounting storage is disabled": squeue and the runs' own records must do
        return {}
    return parse_accounts(done.stdout)


def parse_accounts(text: str) -> dict[tuple[str, int], Task]:
    """Return the tasks of arrays from the output of sacct: lines such as ``12_3|CANCELLED by 0|n2``."""
    found = {}
    for line in text.splitlines():
        name, state, host = line.split("|")[:3]
        match = re.fullmatch(r"(\d+)_(\d+)", name)
        if match:
            found[match.group(1), int(match.group(2))] = Task(state.split()[0], host)
    return found


def _run(*command: str, may_miss: bool = False) -> str:
    """Return the output of one of SLURM's commands. ``may_miss``: jobs it has forgotten are no error."""
    if shutil.which(command[0]) is None:
        raise LaunchError(f"{command[0]} is not installed: launch from a login node of the cluster")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        if may_miss and "Invalid job id" in done.stderr:
            return done.stdout
        raise LaunchError(f"{shlex.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
