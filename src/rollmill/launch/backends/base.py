"""What every back end can do, and nothing more: submit, status, cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rollmill.launch.records import Handle, LaunchRecords

Stage = Literal["queued", "running", "ended", "unknown"]


@dataclass(frozen=True)
class JobRequest:
    """A run to be started: what its job has to know, apart from what a back end adds."""

    run: str
    spec: Mapping[str, Any]
    """``command``, ``cwd`` and ``folder``; back ends add cores, environment, temporary folder and display."""


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands. ``unknown``: it cannot be told from here, so it must be taken for alive."""

    stage: Stage
    host: str = ""
    reason: str = ""
    handle: Handle | None = None
    """A job that was found again: its handle had not been written down."""


class Jobs(Protocol):
    """What says where jobs stand."""

    def status(self, records: LaunchRecords, handles: Mapping[str, Handle | None]) -> dict[str, JobStatus]:
        """Return where the job of every run stands, by the run's name.

        A handle is None if the launcher was killed while it handed the job in: that job is to be found, or ``ended``.
        """
        ...


class BackEnd(Jobs, Protocol):
    """A place where jobs run. All it has to remember is in the handles, so any process can go on with them.

    A handle has ``kind``, the name in ``settings.BACKENDS``. A job is a process that runs ``rollmill.launch.job`` with
    the path of its request: that writes down how an attempt has ended, which is how a run counts as done.
    """

    @property
    def capacity(self) -> int:
        """The most jobs at the same time; 0: no limit."""
        ...

    @property
    def batch(self) -> bool:
        """Whether jobs are handed in together (an array) instead of one by one."""
        ...

    @property
    def poll_seconds(self) -> float:
        """Seconds between two looks: other people's schedulers are not asked all the time."""
        ...

    def submit(self, records: LaunchRecords, jobs: Sequence[JobRequest], active: Sequence[Handle]) -> list[Handle]:
        """Start the jobs, or hand them in, beside the ``active`` ones; returns one handle for each."""
        ...

    def cancel(self, records: LaunchRecords, handles: Mapping[str, Handle], force: bool = False) -> None:
        """Ask jobs to end; ``force`` kills those that were asked before."""
        ...
