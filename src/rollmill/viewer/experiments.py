"""Launched experiments as the viewer shows them: how their runs stand, and which parameters matter. Only reads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, LaunchError, RollmillError
from rollmill.core.identity import Identity
from rollmill.core.opening import check_within, plain_file
from rollmill.core.run_folder import RunFolder
from rollmill.launch.backends.base import JobStatus
from rollmill.launch.compare.aggregate import Family, aggregate
from rollmill.launch.records import Handle, LaunchRecords, PlanRecord
from rollmill.launch.settings import LaunchSettings
from rollmill.launch.status import look
from rollmill.launch.table import summary
from rollmill.launch.verbs import SEED
from rollmill.pbt.ledger import NAME as LEDGER
from rollmill.viewer.facts import written
from rollmill.viewer.index import Stamp, stamp_of

SECONDS = 1.0
"""After which a page asks again, at least."""
SHARE = 50
"""Comparing the runs of an experiment takes at most one of so many parts of the time."""
_ASK = "rollmill launch status asks there"
_READ = ("config.yaml", "state.json", "metrics.jsonl")
"""Files of a run that are looked into."""
LOG_BYTES = 60_000
"""Of the output of an attempt that are shown, its last ones."""


class RecordedJobs:
    """Where jobs stand as their records, locks and processes of this machine say; implements ``Jobs``.

    Nobody else is asked. Which program or address would tell stands in the plan, and whoever may write into a folder
    of runs must not choose what the viewer starts.
    """

    def status(self, records: LaunchRecords, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        return {run: _recorded(records, run, handle) for run, handle in handles.items()}


def _recorded(records: LaunchRecords, run: str, handle: Handle | None) -> JobStatus:
    attempts, submission = records.attempts(run), records.submission(run)
    last = attempts[-1] if attempts else None
    host = last.process.host if last is not None else ""
    if records.job_alive(run):
        return JobStatus("running", host)
    if last is not None and last.ended is None:
        if last.process.is_here:
            return JobStatus("running" if last.process.alive else "ended", host)
        if _has_finished(records, run):  # its node was given up while it tidied up: there is nothing left to ask about
            return JobStatus("ended", host)
        return JobStatus("running", host, f"as its records say; {_ASK}")
    if handle is not None and handle.get("process"):
        process = Identity.from_dict(handle["process"])  # of this machine, and about to write down its attempt
        return JobStatus("running" if process.is_here and process.alive else "ended", host or process.host)
    jobs = {attempt.job or attempt.number for attempt in attempts}
    if handle is None or submission.cancelled or submission.submitted_count <= len(jobs):
        return JobStatus("ended", host)
    return JobStatus("queued", reason=f"handed in to {handle['kind']}; {_ASK}")


def _has_finished(records: LaunchRecords, run: str) -> bool:
    with contextlib.suppress(RollmillError):
        state = RunFolder(records.experiment / run).read_state()
        return state is not None and state["state"] == "finished"
    return False


class Experiments:
    """Experiments of a folder, with what takes long to work out kept. Usable by several threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._kept: dict[Path, _Compared] = {}

    def __call__(self, folder: Path) -> dict[str, Any]:
        """Return what ``rollmill launch status`` and ``rollmill report`` tell about an experiment.

        ``again``: seconds after which there is more to tell, as comparing many runs all the time would cost too much.
        """
        with _saying_damage():
            return self._told(folder)

    def _told(self, folder: Path) -> dict[str, Any]:
        records, plan = _open(folder, self._root)
        statuses = look(records, plan, RecordedJobs(), _retries(plan))
        runs = [
            {key: value for key, value in status.to_dict().items() if key not in ("folder", "attempts")}
            | {"attempts": _attempts(records, status.run.name)}
            for status in statuses
        ]
        compared, again = self._compared(folder)
        told = {"summary": summary(statuses), "runs": written(runs), "again": again}
        return told | {"importance": compared.importance, "scores": compared.scores}

    def _compared(self, folder: Path) -> tuple[_Compared, float | None]:
        """Compare the runs; returns what came of it, and in how many seconds it is worth asking again."""
        with self._lock:
            stamps, now = _stamps(folder), time.monotonic()
            kept = self._kept.get(folder)
            if kept is not None and (kept.stamps == stamps or now < kept.due):
                return kept, None if kept.stamps == stamps else max(SECONDS, kept.due - now)
            families = _families(folder)
            importance, scores = [_importance(family) for family in families], [_scores(family) for family in families]
            ended = time.monotonic()
            self._kept[folder] = _Compared(stamps, ended + SHARE * (ended - now), importance, scores)
            return self._kept[folder], None


@dataclass(frozen=True)
class _Compared:
    """What came of comparing the runs of an experiment; ``stamps``: of the files that this was read from."""

    stamps: tuple[Stamp | None, ...]
    due: float
    """On the clock of ``time.monotonic``: not compared again before."""
    importance: Sequence[Mapping[str, Any]]
    scores: Sequence[Mapping[str, Any]]


def _stamps(folder: Path) -> tuple[Stamp | None, ...]:
    runs = [RunFolder(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    files = (file for run in runs for file in (run.config, run.state, run.metrics))
    return tuple(map(stamp_of, (folder / "launch" / "plan.json", folder / LEDGER, *files)))


def _retries(plan: PlanRecord) -> int:
    """Return how often runs are tried again: the only setting that says how they stand."""
    found = plan.launch.get("retries")
    return found if isinstance(found, int) else LaunchSettings().retries


@contextlib.contextmanager
def _saying_damage() -> Iterator[None]:
    """Refuse by a sentence whatever is damaged in the records: others may have written them."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise LaunchError(f"what is written about the launch is damaged: {error!r}") from error


def attempt_log(folder: Path, root: Path, run: str, number: int) -> str:
    """Return the end of what an attempt has written; ``run``: a name of the plan, nothing else."""
    with _saying_damage():
        records, plan = _open(folder, root)
        known = run in {one.name for one in plan.runs} and number in {one.number for one in records.attempts(run)}
    if not known:
        raise ConfigError("there is no such attempt")
    path = records.log_path(run, number)
    try:
        with open(path, "rb", opener=plain_file) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return "(this attempt has no log)"
    return text if size <= LOG_BYTES else f"(the last {LOG_BYTES:,} of {size:,} bytes)\n{text}"


def _open(folder: Path, root: Path) -> tuple[LaunchRecords, PlanRecord]:
    """Read records and plan of an experiment, its runs placed below it, whatever the plan says."""
    records = LaunchRecords(folder)
    inside = (Path(place, name) for place, folders, files in os.walk(records.folder) for name in (*folders, *files))
    runs = (path / name for path in folder.iterdir() if path.is_dir() for name in ("", *_READ))
    for path in (records.folder, *inside, *runs):
        if path.is_symlink():
            check_within(path, root)
    plan = records.read_plan()
    if any(not run.name or Path(run.name).name != run.name for run in plan.runs):
        raise LaunchError("plan.json: a run of it has a name that is no name of a folder")
    return records, replace(plan, runs=tuple(replace(run, folder=str(folder / run.name)) for run in plan.runs))


def _attempts(records: LaunchRecords, run: str) -> list[dict[str, Any]]:
    return [
        {
            "number": attempt.number,
            "started": attempt.started,
            "ended": attempt.ended,
            "host": attempt.process.host,
            "mode": attempt.mode,
            "exit_code": attempt.exit_code,
            "reason": attempt.reason,
        }
        for attempt in records.attempts(run)
    ]


def _families(folder: Path) -> list[Family]:
    try:
        return list(aggregate(folder).families)
    except LaunchError:  # no run has begun, or none has a value yet
        return []


def _title(family: Family) -> str:
    return f"{family.title}, {family.metric}".strip(", ")


def _importance(family: Family) -> dict[str, Any]:
    items = [
        {"param": item.param, "share": item.share, "seen": item.seen, "levels": [list(level) for level in item.levels]}
        for item in family.shares.items
    ]
    return {"title": _title(family), "why_not": family.shares.why_not, "items": written(items)}


def _scores(family: Family) -> dict[str, Any]:
    """Return every run that has a score, with the parameters that vary."""
    runs = [run for run in family.runs if run.score is not None]
    varying = _varying([run.params for run in runs])
    rows = [
        {
            "run": run.name,
            "group": run.group,
            "seconds": run.seconds,
            "score": run.score,
            "params": [run.params.get(key) for key in varying],
        }
        for run in runs
    ]
    return {"title": _title(family), "lower": family.lower, "keys": varying, "runs": written(rows)}


def _varying(params: Sequence[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for one in params for key in one if key != SEED)
    return [key for key in keys if len({repr(one.get(key)) for one in params}) > 1]
