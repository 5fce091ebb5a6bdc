"""How every run of a launch stands: put together from its folder, its attempts and what the back end says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rollmill.core.errors import RollmillError
from rollmill.core.run_folder import RunFolder
from rollmill.core.steps import position
from rollmill.launch.backends.base import Jobs, JobStatus
from rollmill.launch.progress import last_row, number_of
from rollmill.launch.records import Attempt, Handle, LaunchRecords, PlanRecord, RunRecord, Submission
from rollmill.launch.verbs import has_run_folder

State = Literal["waiting", "queued", "running", "finished", "failed", "cancelled"]
STATES: tuple[State, ...] = ("running", "queued", "waiting", "failed", "cancelled", "finished")
WRONG_CONFIG = 2
"""Exit code of a run whose settings are wrong: trying it again would not help."""


@dataclass(frozen=True)
class RunStatus:
    """One run. ``state`` waiting: to be started, for the first time or once more."""

    run: RunRecord
    state: State
    attempts: int
    failures: int
    """Attempts that ended badly and count against the retries."""
    paused: bool = False
    """Whether the last attempt has made room for another run, and is no failure."""
    host: str = ""
    reason: str = ""
    """Why it failed, or the last attempt did."""
    tail: str = ""
    """Last lines of the failed attempt's output."""
    frames: int | None = None
    mean_return: float | None = None
    frames_per_s: float | None = None
    seconds_left: float | None = None
    handle: Handle | None = None
    """Of the job that is queued or running; None for one that is just about to tell who it is."""

    @property
    def active(self) -> bool:
        return self.state in ("queued", "running")

    @property
    def settled(self) -> bool:
        return self.state in ("finished", "failed", "cancelled")

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run.name,
            "group": self.run.group,
            "params": dict(self.run.params),
            "folder": self.run.folder,
            "state": self.state,
            "attempts": self.attempts,
            "frames": self.frames,
            "frames_wanted": self.run.frames or None,
            "return": self.mean_return,
            "frames_per_s": self.frames_per_s,
            "seconds_left": self.seconds_left,
            "host": self.host,
            "reason": self.reason,
            "tail": self.tail,
        }


def look(records: LaunchRecords, plan: PlanRecord, jobs: Jobs, retries: int) -> list[RunStatus]:
    """Return how all runs stand, in the order of the plan. Only reads."""
    submissions = {run.name: records.submission(run.name) for run in plan.runs}
    asked = {name: s.handle for name, s in submissions.items() if s.count}
    statuses = jobs.status(records, asked)
    found = []
    for run in plan.runs:
        submission = submissions[run.name]
        job = statuses.get(run.name)
        if job is not None and job.stage == "ended" and records.job_alive(run.name):
            job = _still_alive(records, run.name, jobs)
        found.append(run_status(records, run, submission, job, retries))
    return found


def _still_alive(records: LaunchRecords, run: str, jobs: Jobs) -> JobStatus:
    """Return where a run stands that holds its lock though its job has ended.

    Another job of it is alive, or its node was given up early.
    """
    found = jobs.status(records, {run: None})[run]
    attempts = records.attempts(run)
    host = attempts[-1].process.host if attempts else ""
    return found if found.stage != "ended" else JobStatus("running", host, "alive, though its job has ended")


def run_status(
    records: LaunchRecords, run: RunRecord, submission: Submission, job: JobStatus | None, retries: int
) -> RunStatus:
    """Return how one run stands."""
    attempts = records.attempts(run.name)
    folder = RunFolder(Path(run.folder))
    failures = _failures(attempts, submission) if job is None or job.stage == "ended" else 0
    last = attempts[-1] if attempts else None
    state, reason = _state(folder, run.command, attempts, submission, job, failures, retries)
    host = (job.host if job is not None and job.host else "") or (last.process.host if last else "")
    shows_tail = last is not None and state in ("failed", "waiting")
    metrics = _metrics(folder, run, state)
    return RunStatus(
        run=run,
        state=state,
        attempts=sum(not attempt.paused for attempt in attempts[:-1]) + bool(attempts),
        paused=bool(attempts) and attempts[-1].paused,
        failures=failures,
        host=host,
        reason=reason,
        tail=last.tail if last is not None and shows_tail else "",
        handle=(job.handle if job is not None and job.handle else submission.handle),
        **metrics,
    )


def _state(
    folder: RunFolder,
    command: Sequence[str],
    attempts: Sequence[Attempt],
    submission: Submission,
    job: JobStatus | None,
    failures: int,
    retries: int,
) -> tuple[State, str]:
    try:
        recorded = folder.read_state()
    except RollmillError as error:
        return "failed", str(error)
    finished = recorded is not None and recorded["state"] == "finished"
    if not has_run_folder(command):
        finished = bool(attempts) and attempts[-1].exit_code == 0
    if finished and (job is None or job.stage != "running"):  # as long as it tidies up, its place is taken
        return "finished", ""
    if job is not None and job.stage != "ended":
        return ("running" if job.stage == "running" else "queued"), job.reason or _before(attempts)
    if submission.cancelled:
        return "cancelled", ""
    if not submission.count:
        return "waiting", ""
    reason = why(attempts, job)
    wrong = bool(attempts) and attempts[-1].exit_code == WRONG_CONFIG
    return ("failed" if failures > (0 if wrong else retries) else "waiting"), reason


def _before(attempts: Sequence[Attempt]) -> str:
    """Return why the attempt before the one under way ended."""
    ended = [attempt for attempt in attempts if attempt.failed][:-1]
    return f"before: {ended[-1].reason or 'killed'}" if ended else ""


def why(attempts: Sequence[Attempt], job: JobStatus | None) -> str:
    """Return why the last attempt ended, in one sentence."""
    if attempts and attempts[-1].reason:
        return attempts[-1].reason
    if attempts and attempts[-1].ended is None:
        return "killed (its end was not recorded)" + (f": {job.reason}" if job is not None and job.reason else "")
    return job.reason if job is not None and job.reason else "the job ended before it had started"


def _failures(attempts: Sequence[Attempt], submission: Submission) -> int:
    """Return how often the run failed. An attempt that its scheduler started again is not a failure."""
    bad = 0
    for attempt, following in zip(attempts, [*attempts[1:], None]):
        requeued = following is not None and attempt.job and attempt.job == following.job
        if attempt.failed and not requeued:
            bad += 1
    jobs = {attempt.job or attempt.number for attempt in attempts}
    never_started = max(0, submission.submitted_count - len(jobs))
    return max(0, bad + never_started - submission.failures_reset)


def _metrics(folder: RunFolder, run: RunRecord, state: State) -> dict[str, Any]:
    """Return what the last row of metrics says, and where a run has ended, which may be before its first row."""
    row = last_row(folder.metrics) or {}
    ended = position(folder.read_state() or {}) if state == "finished" else None
    if not row and ended is None:
        return {}
    frames = ended or position(row) or 0
    rate = number_of(row, "time/frames_per_s")
    left = None
    if state == "running" and rate and run.frames:
        left = max(0.0, (run.frames - frames) / rate)
    return {
        "frames": frames,
        "mean_return": number_of(row, "episode/return"),
        "frames_per_s": rate,
        "seconds_left": left,
    }


def count_states(statuses: Sequence[RunStatus]) -> Mapping[str, int]:
    """Return how many runs are in which state; states without any are left out."""
    counts = Counter(status.state for status in statuses)
    return {state: counts[state] for state in STATES if counts[state]}
