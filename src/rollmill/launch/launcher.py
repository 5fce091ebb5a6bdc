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
from rollmill.launch.backends.base import BackEnd, JobRequest, JobStatus
from rollmill.launch.plan import Plan
from rollmill.launch.records import Book, Handle, PlanRecord, RunRecord, Submission
from rollmill.launch.settings import LaunchSettings
from rollmill.launch.status import Standing, State, look

POLL_SECONDS = {"local": 2.0, "slurm": 15.0, "ray": 15.0, "ngc": 15.0}
"""Between two looks: other people's schedulers are not asked all the time."""
Tell = Callable[[Sequence[Standing]], None]


def make_backend(settings: LaunchSettings) -> BackEnd:
    """The back end that the settings name; it also looks after jobs that were handed to another one before."""
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

    def submit(self, book: Book, jobs: Sequence[JobRequest], active: Sequence[Handle]) -> list[Handle]:
        return self.main.submit(book, jobs, [h for h in active if h["kind"] == self._settings.backend])

    def status(self, book: Book, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        found: dict[str, JobStatus] = {}
        for kind in {self._kind(handle) for handle in handles.values()}:
            own = {run: handle for run, handle in handles.items() if self._kind(handle) == kind}
            found |= self._of(kind).status(book, own)
        return found

    def cancel(self, book: Book, handles: Mapping[str, Handle], force: bool = False) -> None:
        for kind in {handle["kind"] for handle in handles.values()}:
            own = {run: handle for run, handle in handles.items() if handle["kind"] == kind}
            self._of(kind).cancel(book, own, force)

    def _kind(self, handle: Handle | None) -> str:
        return self._settings.backend if handle is None else str(handle["kind"])

    def _of(self, kind: str) -> BackEnd:
        if kind not in self._made:
            self._made[kind] = _make(replace(self._settings, backend=kind))  # type: ignore[arg-type]
        return self._made[kind]


def _make(settings: LaunchSettings) -> BackEnd:
    if settings.backend == "slurm":
        from rollmill.launch.backends.slurm import SlurmBackEnd

        return SlurmBackEnd(settings.slurm)
    if settings.backend == "ray":
        from rollmill.launch.backends.ray import RayBackEnd

        return RayBackEnd(settings.ray)
    if settings.backend == "ngc":
        from rollmill.launch.backends.ngc import NgcBackEnd

        return NgcBackEnd(settings.ngc)
    from rollmill.launch.backends.local import LocalBackEnd

    return LocalBackEnd(settings.local)


# ---------------------------------------------------------------------------------------------------- the plan


def record_plan(book: Book, plan: Plan, settings: LaunchSettings, cwd: str) -> PlanRecord:
    """Write the plan down. An earlier plan of the same experiment may grow; runs that have begun must stay the same."""
    runs = [
        RunRecord(r.name, r.group, r.params, r.command, str(r.folder.absolute()), r.facts.frames) for r in plan.runs
    ]
    if book.exists:
        runs = _merged(book, runs)
    record = PlanRecord(plan.name, cwd, tuple(runs), to_dict(settings), to_dict(plan.expect))
    book.write_plan(record)
    return record


def _merged(book: Book, runs: list[RunRecord]) -> list[RunRecord]:
    wanted = {run.name: run for run in runs}
    kept: list[RunRecord] = []
    for old in book.read_plan().runs:
        begun = book.submission(old.name).count > 0
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
                f"{book.folder / 'runs' / old.name}.json"
            )
    return [*runs, *kept]


def settings_of(plan: PlanRecord, overrides: Sequence[str] = ()) -> LaunchSettings:
    """The settings a launch was made with, and what is changed now."""
    return load_config(LaunchSettings, [], overrides, base=plan.launch)


# --------------------------------------------------------------------------------------------------- launching


class Launcher:
    """Looks after the runs of one plan until all are settled. Only one per experiment: see ``Book.as_launcher``."""

    def __init__(
        self,
        book: Book,
        plan: PlanRecord,
        settings: LaunchSettings,
        backend: BackEnd | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.book, self.plan, self.settings = book, plan, settings
        self.backend = backend or make_backend(settings)
        self._sleep = sleep

    def run(self, tell: Tell = lambda _: None) -> list[Standing]:
        """Until nothing is left to do; ``tell`` gets all runs after every look."""
        while True:
            standings = self.tick()
            tell(standings)
            if all(standing.settled for standing in standings):
                return standings
            self._sleep(self.settings.poll_seconds or POLL_SECONDS[self.settings.backend])

    def tick(self) -> list[Standing]:
        """One look: write down what was found, start what there is room for."""
        standings = self.look()
        self._remember(standings)
        if self._start(standings):
            standings = self.look()
        return standings

    def look(self) -> list[Standing]:
        return look(self.book, self.plan, self.backend, self.settings.retries)

    def forgive(self) -> list[str]:
        """Let runs that failed or were cancelled be tried again; their names."""
        again = []
        for standing in self.look():
            if standing.state not in ("failed", "cancelled"):
                continue
            name = standing.run.name
            old = self.book.submission(name)
            self.book.write_submission(name, replace(old, forgiven=old.forgiven + standing.failures))
            self.book.set_cancelled(name, False)
            again.append(name)
        return again

    def _remember(self, standings: Sequence[Standing]) -> None:
        """Handles of jobs that an earlier launcher started and could not write down."""
        for standing in standings:
            if standing.active and standing.handle is not None:
                old = self.book.submission(standing.run.name)
                if old.handle != standing.handle:
                    self.book.write_submission(standing.run.name, replace(old, handle=standing.handle))

    def _start(self, standings: Sequence[Standing]) -> bool:
        waiting = [s.run for s in standings if s.state == "waiting" and not self.book.submission(s.run.name).cancelled]
        active = [standing for standing in standings if standing.active]
        handles = [standing.handle for standing in active if standing.handle is not None]
        if not waiting or len(handles) < len(active):  # somebody is about to say where it is: then we know the room
            return False
        room = self.backend.capacity - len(active) if self.backend.capacity else len(waiting)
        chosen = waiting[: max(0, room)]
        groups = [chosen] if self.backend.batch and chosen else [[run] for run in chosen]
        for group in groups:
            handles += self._submit(group, handles)
        return bool(groups)

    def _submit(self, runs: Sequence[RunRecord], active: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Hand in runs; they are marked before, so that a launcher killed here leaves a trace."""
        marks: dict[str, Submission] = {}
        for run in runs:
            old = self.book.submission(run.name)
            marks[run.name] = replace(old, handle=None, count=old.handed_in + 1, submitted=time.time())
            self.book.write_submission(run.name, marks[run.name])
        jobs = [JobRequest(run.name, self._spec(run)) for run in runs]
        handles = self.backend.submit(self.book, jobs, [dict(handle) for handle in active])
        for run, handle in zip(runs, handles, strict=True):
            self.book.write_submission(run.name, replace(marks[run.name], handle=handle))
        return handles

    def _spec(self, run: RunRecord) -> dict[str, Any]:
        return {"run": run.name, "command": list(run.command), "cwd": self.plan.cwd, "folder": run.folder}


def cancel(
    book: Book,
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
        raise LaunchError(f"no run called {', '.join(unknown)} in {book.experiment}")
    retries = settings_of(plan).retries
    chosen = [s for s in look(book, plan, backend, retries) if s.run.name in set(names) and not s.settled]
    for standing in chosen:  # first the mark: a launcher, or a job that is about to begin, must not start it
        book.set_cancelled(standing.run.name, True)
    handles = {s.run.name: s.handle for s in chosen if s.active and s.handle is not None}
    backend.cancel(book, handles)
    deadline = time.monotonic() + grace
    left = handles
    while left and time.monotonic() < deadline:
        sleep(0.2)
        stages = backend.status(book, dict(left))
        left = {name: handle for name, handle in left.items() if stages[name].stage not in ("ended", "unknown")}
    if left:
        backend.cancel(book, left, force=True)
    return {standing.run.name: standing.state for standing in chosen}
