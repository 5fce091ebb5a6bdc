"""Runs as processes of this machine, each in a session of its own: they go on when the launcher ends.

A *slot* is a place for one run: a share of the cores and, if there are GPUs, one of them. Slot k has GPU k modulo
their number, so all GPUs get their first run before any gets a second.
"""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollmill.core.errors import LaunchError
from rollmill.core.identity import Identity
from rollmill.core.machine import usable_cores
from rollmill.core.process import module_command
from rollmill.launch.backends.base import JobRequest, JobStatus
from rollmill.launch.records import Handle, LaunchRecords
from rollmill.launch.settings import LocalSettings


@dataclass(frozen=True)
class Slot:
    """A place for one run. ``cores``: none means all."""

    number: int
    cores: tuple[int, ...]
    gpu: int | None

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": str(self.gpu)}


def make_slots(settings: LocalSettings, cores: Sequence[int]) -> list[Slot]:
    """Return all slots of a machine with these cores."""
    count = settings.slots
    shares: list[tuple[int, ...]] = [()] * count
    if settings.cores == "share" and cores:
        # Neighbouring cores share caches: a run gets a stretch of them. More runs than cores: they take turns.
        bounds = [round(k * len(cores) / count) for k in range(count + 1)]
        pairs = itertools.pairwise(bounds)
        shares = [tuple(cores[a:b]) or (cores[k % len(cores)],) for k, (a, b) in enumerate(pairs)]
    gpus = settings.gpus
    return [Slot(k, shares[k], gpus[k % len(gpus)] if gpus else None) for k in range(count)]


class LocalBackEnd:
    """Starts jobs here; implements ``BackEnd``."""

    batch = False
    poll_seconds = 2.0

    def __init__(
        self,
        settings: LocalSettings,
        cores: Sequence[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self.slots = make_slots(settings, usable_cores() if cores is None else cores)
        self._clock, self._sleep = clock, sleep
        self._started = -math.inf
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def capacity(self) -> int:
        return len(self.slots)

    def submit(self, records: LaunchRecords, jobs: Sequence[JobRequest], active: Sequence[Handle]) -> list[Handle]:
        taken = {handle["slot"] for handle in active}
        free = [slot for slot in self.slots if slot.number not in taken]
        if len(jobs) > len(free):
            raise LaunchError(f"{len(jobs)} runs to start, but only {len(free)} of {len(self.slots)} slots are free")
        return [self._start(records, job, slot) for job, slot in zip(jobs, free)]

    def _start(self, records: LaunchRecords, job: JobRequest, slot: Slot) -> Handle:
        wait = self._started + self._settings.pause - self._clock()
        if wait > 0:
            self._sleep(wait)
        handle: Handle = {"kind": "local", "slot": slot.number, "gpu": slot.gpu}
        own = {"cores": list(slot.cores), "environment": slot.environment, "handle": handle}
        display = {"virtual_display": self._settings.virtual_display}
        records.write_job(job.run, {**job.spec, **own, **display})
        process = subprocess.Popen(
            module_command("rollmill.launch.job", str(records.folder), job.run),
            cwd=job.spec["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._children.append(process)
        self._started = self._clock()
        identity = Identity.of(process.pid)
        return {**handle, "process": identity.to_dict() if identity else None}

    def status(self, records: LaunchRecords, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        # A child that ended stays a zombie until its parent has asked how.
        self._children = [child for child in self._children if child.poll() is None]
        return {run: self._status(records, run, handle) for run, handle in handles.items()}

    def _status(self, records: LaunchRecords, run: str, handle: Handle | None) -> JobStatus:
        if handle is None:
            return self._find(records, run)
        if handle["process"] is None:  # it had ended before it could be looked at
            return JobStatus("ended")
        process = Identity.from_dict(handle["process"])
        if not process.is_here:
            return JobStatus("unknown", process.host, f"started on {process.host}, cannot be seen from here")
        return JobStatus("running" if process.alive else "ended", process.host)

    def _find(self, records: LaunchRecords, run: str) -> JobStatus:
        """Find a job that somebody started: it holds its lock, and its attempt says which process it is."""
        if not records.job_alive(run):
            return JobStatus("ended")
        attempts, spec = records.attempts(run), records.read_job(run)
        if spec is None or not attempts or attempts[-1].ended is not None:
            return JobStatus("unknown", reason="about to start")
        if "handle" not in spec:
            return JobStatus("unknown", attempts[-1].process.host, "alive, but started by another back end")
        process = attempts[-1].process
        return JobStatus("running", process.host, handle={**spec["handle"], "process": process.to_dict()})

    def cancel(self, records: LaunchRecords, handles: Mapping[str, Handle], force: bool = False) -> None:
        elsewhere = {}
        for run, handle in handles.items():
            if handle["process"] is None:
                continue
            process = Identity.from_dict(handle["process"])
            if process.is_here:
                process.signal_group(signal.SIGKILL if force else signal.SIGTERM)
            else:
                elsewhere[run] = process.host
        if elsewhere:
            run, host = next(iter(elsewhere.items()))
            more = f" (and {len(elsewhere) - 1} more runs)" if elsewhere.keys() - {run} else ""
            raise LaunchError(f"{run} was started on {host}{more}: cancel it there")
