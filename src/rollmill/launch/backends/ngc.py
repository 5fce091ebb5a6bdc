"""NVIDIA NGC Base Command, through its command line: a template for handing in, two commands for status and cancel.

The workspace must be mounted here under the same path as in the container (``ngc.workspace=NAME:PATH``), and the
experiment's folder must lie in it: runs write their records there.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import string
import subprocess
from collections.abc import Mapping, Sequence

from rollmill.core.errors import ConfigError, LaunchError
from rollmill.core.process import module_command
from rollmill.launch.backends.base import JobRequest, JobStatus, Stage
from rollmill.launch.records import Handle, LaunchRecords
from rollmill.launch.settings import NgcSettings

_STAGES: dict[str, Stage] = {
    **dict.fromkeys(("CREATED", "QUEUED", "STARTING", "PENDING_STORAGE_CREATION", "REQUESTING_RESOURCE"), "queued"),
    **dict.fromkeys(("RUNNING", "PREEMPTED", "PREEMPTED_PENDING"), "running"),
}


class NgcBackEnd:
    """Hands in jobs with ``ngc batch run``; implements ``BackEnd``."""

    batch = False
    poll_seconds = 15.0
    capacity = 0

    def __init__(self, settings: NgcSettings) -> None:
        for name in ("image", "workspace"):
            if not getattr(settings, name):
                raise ConfigError(f"launch with ngc needs ngc.{name}")
        self._settings = settings

    def submit(self, records: LaunchRecords, jobs: Sequence[JobRequest], active: Sequence[Handle]) -> list[Handle]:
        handles: list[Handle] = []
        for job in jobs:
            records.write_job(job.run, job.spec)
            answer = self._run(run_command(self._settings, records, job))
            number = _job_number(answer)
            handles.append({"kind": "ngc", "id": number})
        return handles

    def status(self, records: LaunchRecords, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        found = {}
        for run, handle in handles.items():
            if handle is None:  # NGC has no names that are unique: only the run's own lock can tell
                found[run] = JobStatus("unknown" if records.job_alive(run) else "ended")
                continue
            try:
                answer = self._run([self._settings.program, "batch", "info", handle["id"], "--format_type", "json"])
                state = str(json.loads(answer)["jobStatus"]["status"])
            except (LaunchError, ValueError, KeyError, TypeError) as error:
                found[run] = JobStatus("unknown", reason=f"ngc batch info: {error}")
                continue
            stage = _STAGES.get(state, "ended")
            ended_badly = stage == "ended" and state != "FINISHED_SUCCESS"
            found[run] = JobStatus(stage, reason=f"NGC: {state.lower().replace('_', ' ')}" if ended_badly else "")
        return found

    def cancel(self, records: LaunchRecords, handles: Mapping[str, Handle], force: bool = False) -> None:
        for handle in handles.values():
            self._run([self._settings.program, "batch", "kill", handle["id"]])

    def _run(self, command: Sequence[str]) -> str:
        if shutil.which(command[0]) is None:
            raise LaunchError(f"{command[0]} is not installed: it is NVIDIA's NGC command line")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise LaunchError(f"{shlex.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
        return done.stdout


def run_command(settings: NgcSettings, records: LaunchRecords, job: JobRequest) -> list[str]:
    """Return the command line that hands in one run, from the template."""
    _here, *rest = module_command("rollmill.launch.job", str(records.folder), job.run)
    child = shlex.join(["python", *rest])  # the one of the image
    inside = f"cd {shlex.quote(str(job.spec['cwd']))} && exec {child}"
    values = {
        "name": re.sub(r"[^\w.-]+", "-", f"{records.experiment.name}-{job.run}"),
        "instance": settings.instance,
        "image": settings.image,
        "workspace": settings.workspace,
        "command": f"bash -c {shlex.quote(inside)}",
    }
    quoted = {key: shlex.quote(value) for key, value in values.items()}
    quoted["team"] = "" if settings.team is None else f" --team {shlex.quote(settings.team)}"
    fields = {name for _, name, _, _ in string.Formatter().parse(settings.template) if name is not None}
    unknown = sorted(fields - quoted.keys())
    if unknown:
        raise ConfigError(f"ngc.template: unknown name {{{unknown[0]}}}; there are {', '.join(sorted(quoted))}")
    return shlex.split(settings.template.format(**quoted))


def _job_number(answer: str) -> str:
    try:
        value = json.loads(answer)
        return str(value["id"] if "id" in value else value["job"]["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"ngc batch run: its answer has no number of a job: {answer[:200]!r}") from error
