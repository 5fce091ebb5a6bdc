"""The launcher: hands in what is to be run, looks after it, and starts again what failed.

It holds nothing that is not on disk. Killed at any moment, the next one goes on: running jobs are found again,
finished runs are not repeated, and failures already counted stay counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollmill.core.config.load import load_config
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError, LaunchError
from rollmill.core.imports import import_object
from rollmill.launch.backends.base import BackEnd, JobRequest, JobStatus
from rollmill.launch.plan import Plan, PlannedRun
from rollmill.launch.records import Handle, LaunchRecords, PlanRecord, RunRecord, Submission
from rollmill.launch.settings import BACKENDS, LaunchSettings
from rollmill.launch.status import RunStatus, State, look

Tell = Callable[[Sequence[RunStatus]], None]


def make_backend(settings: LaunchSettings) -> BackEnd:
    """Make the back end that the settings name; it also looks after jobs that another one was handed before."""
    return _ByKind(settings)


class _ByKind:
    """Hands in to one back end, and asks for every job the one it was handed to; implements ``BackEnd``."""

    def __init__(self, settings: LaunchSettings) -> None:
        self._settings = settings
        self.main = _make(settings)
        self._made: dict[str, BackEnd] = {settings.backend: self.main}

    @property
    def capacity(self) -> int:
        return self.main.capacity

    @property
    def batch(self) -> bool:
        return self.main.batch

    @property
    def poll_seconds(self) -> float:
        return self.main.poll_seconds

    def submit(self, records: LaunchRecords, jobs: Sequence[JobRequest], active: Sequence[Handle]) -> list[Handle]:
        return self.main.submit(records, jobs, [h for h in active if h["kind"] == self._settings.backend])

    def status(self, records: LaunchRecords, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        found: dict[str, JobStatus] = {}
        for kind in {self._kind(handle) for handle in handles.values()}:
            own = {run: handle for run, handle in handles.items() if self._kind(handle) == kind}
            found |= self._of(kind).status(records, own)
        return found

    def cancel(self, records: LaunchRecords, handles: Mapping[str, Handle], force: bool = False) -> None:
        for kind in {handle["kind"] for handle in handles.values()}:
            own = {run: handle for run, handle in handles.items() if handle["kind"] == kind}
            self._of(kind).cancel(records, own, force)

    def _kind(self, handle: Handle | None) -> str:
        return self._settings.backend if handle is None else str(handle["kind"])

    def _of(self, kind: str) -> BackEnd:
        if kind not in BACKENDS:
            raise LaunchError(f"a run was handed to {kind!r}, and there is no such back end: {', '.join(BACKENDS)}")
        if kind not in self._made:
            self._made[kind] = _make(replace(self._settings, backend=kind))
        return self._made[kind]


def _make(settings: LaunchSettings) -> BackEnd:
    kind = import_object(BACKENDS[settings.backend], "launch.backend")
    own = getattr(settings, settings.backend, None)
    backend: BackEnd = kind() if own is None else kind(own)
    return backend


# ---------------------------------------------------------------------------------------------------- the plan


def run_record(run: PlannedRun) -> RunRecord:
    return RunRecord(run.name, run.group, run.params, run.command, str(run.folder.absolute()), run.facts.frames)


def record_plan(records: LaunchRecords, plan: Plan, settings: LaunchSettings, cwd: str) -> PlanRecord:
    """Write the plan down. An earlier plan of the same experiment may grow; runs that have begun must stay the same."""
    runs = [run_record(run) for run in plan.runs]
    if records.exists:
        runs = _merged(records, runs)
    record = PlanRecord(
        *(plan.name, cwd, tuple(runs), to_dict(settings), to_dict(plan.expect)),
        search=plan.search,
        population=plan.population,
    )
    records.write_plan(record)
    return record


def _merged(records: LaunchRecords, runs: list[RunRecord]) -> list[RunRecord]:
    wanted = {run.name: run for run in runs}
    kept: list[RunRecord] = []
    for old in records.read_plan().runs:
        begun = records.submission(old.name).count > 0
        new = wanted.get(old.name)
        if new is None:
            if begun:
                kept.append(old)  # it is there, so it is shown
            continue
        changed = sorted(set(old.command) ^ set(new.command))
        if begun and changed:
            raise ConfigError(
                f"run {old.name} has begun with other settings ({', '.join(changed[:6])}); "
                "give the experiment another name, or delete the run's folder and "
                f"{records.folder / 'runs' / old.name}.json"
            )
    return [*runs, *kept]


def settings_of(plan: PlanRecord, overrides: Sequence[str] = ()) -> LaunchSettings:
    """Return the settings a launch was made with, and what is changed now."""
    return load_config(LaunchSettings, [], overrides, base=plan.launch)


# --------------------------------------------------------------------------------------------------- launching


class Launcher:
    """Looks after the runs of one plan until all are settled. One per experiment: see ``LaunchRecords.as_launcher``."""

    def __init__(
        self,
        records: LaunchRecords,
        plan: PlanRecord,
        settings: LaunchSettings,
        backend: BackEnd | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.records, self.plan, self.settings = records, plan, settings
        self.backend = backend or make_backend(settings)
        self._sleep = sleep

    def run(self, tell: Tell = lambda _: None) -> list[RunStatus]:
        """Work until nothing is left to do; ``tell`` gets all runs after every look."""
        while True:
            statuses = self.tick()
            tell(statuses)
            if all(status.settled for status in statuses):
                return statuses
            self._sleep(self.settings.poll_seconds or self.backend.poll_seconds)

    def tick(self) -> list[RunStatus]:
        """Look once: write down what was found, start what there is room for."""
        statuses = self.look()
        self._remember(statuses)
        if self._start(statuses):
            statuses = self.look()
        return statuses

    def look(self) -> list[RunStatus]:
        return look(self.records, self.plan, self.backend, self.settings.retries)

    def reset_failures(self) -> list[str]:
        """Let runs that failed or were cancelled be tried again; returns their names."""
        again = []
        for status in self.look():
            if status.state not in ("failed", "cancelled"):
                continue
            self.retry(status)
            again.append(status.run.name)
        return again

    def retry(self, status: RunStatus) -> None:
        """Let a run be tried again: its failures so far do not count any more."""
        name = status.run.name
        old = self.records.submission(name)
        self.records.write_submission(name, replace(old, failures_reset=old.failures_reset + status.failures))
        self.records.set_cancelled(name, False)

    def may_start(self, run: RunRecord) -> bool:
        """Return whether a run that waits may be started now, if there is room."""
        return True

    def room(self, active: int, waiting: int) -> int:
        """Return how many runs may be started beside those that are ``active``."""
        return max(0, self.backend.capacity - active) if self.backend.capacity else waiting

    def _remember(self, statuses: Sequence[RunStatus]) -> None:
        """Write down handles of jobs that an earlier launcher started and could not write down."""
        for status in statuses:
            if status.active and status.handle is not None:
                old = self.records.submission(status.run.name)
                if old.handle != status.handle:
                    self.records.write_submission(status.run.name, replace(old, handle=status.handle))

    def _start(self, statuses: Sequence[RunStatus]) -> bool:
        waiting = [
            s.run
            for s in statuses
            if s.state == "waiting" and not self.records.submission(s.run.name).cancelled and self.may_start(s.run)
        ]
        active = [status for status in statuses if status.active]
        handles = [status.handle for status in active if status.handle is not None]
        if not waiting or len(handles) < len(active):  # somebody is about to say where it is: then we know the room
            return False
        chosen = waiting[: self.room(len(active), len(waiting))]
        groups = [chosen] if self.backend.batch and chosen else [[run] for run in chosen]
        for group in groups:
            handles += self._submit(group, handles)
        return bool(groups)

    def _submit(self, runs: Sequence[RunRecord], active: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Hand in runs; they are marked before, so that a launcher killed here leaves a trace."""
        marks: dict[str, Submission] = {}
        for run in runs:
            old = self.records.submission(run.name)
            marks[run.name] = replace(old, handle=None, count=old.submitted_count + 1, submitted=time.time())
            self.records.write_submission(run.name, marks[run.name])
        jobs = [JobRequest(run.name, self._spec(run)) for run in runs]
        handles = self.backend.submit(self.records, jobs, [dict(handle) for handle in active])
        for run, handle in zip(runs, handles, strict=True):
            self.records.write_submission(run.name, replace(marks[run.name], handle=handle))
        return handles

    def _spec(self, run: RunRecord) -> dict[str, Any]:
        return {"run": run.name, "command": list(run.command), "cwd": self.plan.cwd, "folder": run.folder}


def cancel(
    records: LaunchRecords,
    plan: PlanRecord,
    backend: BackEnd,
    names: Sequence[str],
    grace: float = 30.0,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, State]:
    """End runs: those that wait are not started, those that run are asked to save and end, and killed after ``grace``.

    What has finished, or failed for good, stays so. Returns the runs that were ended and the state each was in.
    """
    known = {run.name for run in plan.runs}
    unknown = sorted(set(names) - known)
    if unknown:
        raise LaunchError(f"no run called {', '.join(unknown)} in {records.experiment}")
    retries = settings_of(plan).retries
    chosen = [s for s in look(records, plan, backend, retries) if s.run.name in set(names) and not s.settled]
    for status in chosen:  # first the mark: a launcher, or a job that is about to begin, must not start it
        records.set_cancelled(status.run.name, True)
    handles = {s.run.name: s.handle for s in chosen if s.active and s.handle is not None}
    backend.cancel(records, handles)
    deadline = time.monotonic() + grace
    left = handles
    while left and time.monotonic() < deadline:
        sleep(0.2)
        stages = backend.status(records, dict(left))
        left = {name: handle for name, handle in left.items() if stages[name].stage not in ("ended", "unknown")}
    if left:
        backend.cancel(records, left, force=True)
    return {status.run.name: status.state for status in chosen}
