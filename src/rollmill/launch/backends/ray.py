"""Ray: every run is a job of a running cluster, handed in through its dashboard.

Nodes must see the experiment's folder under the same path. Ray's ports listen on all interfaces, also where it was
told 127.0.0.1: keep clusters on networks you trust.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rollmill.core.errors import LaunchError, MissingExtraError
from rollmill.core.process import module_command
from rollmill.launch.backends.base import JobRequest, JobStatus, Stage
from rollmill.launch.records import Handle, LaunchRecords
from rollmill.launch.settings import RaySettings

_STAGES: dict[str, Stage] = {"PENDING": "queued", "RUNNING": "running"}


class RayBackEnd:
    """Hands in Ray jobs; implements ``BackEnd``."""

    batch = False
    poll_seconds = 15.0

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._client: Any = None

    @property
    def capacity(self) -> int:
        return self._settings.parallel

    def submit(self, records: LaunchRecords, jobs: Sequence[JobRequest], active: Sequence[Handle]) -> list[Handle]:
        handles: list[Handle] = []
        for job in jobs:
            records.write_job(job.run, job.spec)
            child = module_command("rollmill.launch.job", str(records.folder), job.run)
            command = f"cd {shlex.quote(str(job.spec['cwd']))} && exec {shlex.join(child)}"
            name = submission_id(records, job.run)
            try:
                self._connect().submit_job(
                    entrypoint=command,
                    submission_id=name,
                    entrypoint_num_cpus=self._settings.cpus,
                    entrypoint_num_gpus=self._settings.gpus or None,
                )
            except (RuntimeError, ValueError, ConnectionError) as error:
                raise LaunchError(f"Ray did not take {job.run}: {error}") from error
            handles.append({"kind": "ray", "id": name})
        return handles

    def status(self, records: LaunchRecords, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        if not handles:
            return {}
        try:
            known = {info.submission_id: info for info in self._connect().list_jobs()}
        except (LaunchError, RuntimeError, ConnectionError) as error:
            return {name: JobStatus("unknown", reason=f"Ray does not answer: {error}") for name in handles}
        found = {}
        for run, handle in handles.items():
            name = handle["id"] if handle is not None else submission_id(records, run)
            info = known.get(name)
            stage = "ended" if info is None else _STAGES.get(str(info.status.value), "ended")
            reason = "" if info is None or str(info.status.value) == "SUCCEEDED" else f"Ray: {info.message or ''}"
            lost = {"kind": "ray", "id": name} if handle is None and stage != "ended" else None
            found[run] = JobStatus(stage, reason=reason if stage != "running" else "", handle=lost)
        return found

    def cancel(self, records: LaunchRecords, handles: Mapping[str, Handle], force: bool = False) -> None:
        """Ask Ray to stop the jobs.

        Ray itself kills what does not end (RAY_JOB_STOP_WAIT_TIME_S of the cluster), so ``force`` adds nothing.
        """
        for handle in handles.values():
            try:
                self._connect().stop_job(handle["id"])
            except (RuntimeError, ConnectionError) as error:
                raise LaunchError(f"Ray did not stop {handle['id']}: {error}") from error

    def _connect(self) -> Any:
        if self._client is None:
            try:
                from ray.job_submission import JobSubmissionClient
            except ImportError as error:
                raise MissingExtraError('launch.backend=ray needs Ray: pip install "rollmill[ray]"') from error
            try:
                self._client = JobSubmissionClient(self._settings.address)
            except (RuntimeError, ConnectionError) as error:
                raise LaunchError(f"no Ray cluster answers at {self._settings.address}: {error}") from error
        return self._client


def submission_id(records: LaunchRecords, run: str) -> str:
    """Return the job's name in Ray.

    It follows from what is on disk, so a job that was not written down can be found. The time tells it from jobs of
    other experiments, or of one that was deleted, with the same name.
    """
    plain = re.sub(r"[^\w.-]+", "-", f"{records.experiment.name}-{run}")
    submission = records.submission(run)
    return f"rollmill-{plain}-{submission.count}-{round(submission.submitted * 1000):x}"
