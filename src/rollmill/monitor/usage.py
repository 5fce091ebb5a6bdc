"""What a run takes of the machine: processes, threads, memory and cores, read from Linux's ``/proc``.

A process counts if it descends from this one: workers, the simulators they start, the recorder, the janitor. Elsewhere
than on Linux nothing is known and nothing is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollmill.monitor.metrics import Clock

PROC = Path("/proc")
LOOK_SECONDS = 5.0
_TICK = os.sysconf("SC_CLK_TCK")
_STATUS = {b"Threads": "threads", b"RssAnon": "anon", b"RssShmem": "shared"}


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    pid: int
    parent: int
    name: str
    threads: int
    own_mb: float
    """Memory that nobody shares with it."""
    shared_mb: float
    """Shared memory it has touched: slots, a simulator's screen."""
    cpu_seconds: float


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """Return what ``/proc`` says of one process; None when it is gone."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
        status = (proc / str(pid) / "status").read_bytes()
    except OSError:
        return None
    name = stat[stat.index(b"(") + 1 : stat.rindex(b")")].decode(errors="replace")
    words = stat[stat.rindex(b")") + 2 :].split()
    found = dict.fromkeys(_STATUS.values(), 0)
    for line in status.splitlines():
        key, _, value = line.partition(b":")
        if key in _STATUS:
            found[_STATUS[key]] = int(value.split()[0])
    return Process(
        pid=pid,
        parent=int(words[1]),
        name=name,
        threads=found["threads"],
        own_mb=found["anon"] * 1024 / 1e6,
        shared_mb=found["shared"] * 1024 / 1e6,
        cpu_seconds=(int(words[11]) + int(words[12])) / _TICK,
    )


def descendants(root: int, proc: Path = PROC) -> dict[int, Process]:
    """Return ``root`` and everything it has started, directly or not, by process id."""
    if not proc.is_dir():
        return {}
    numbers = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    every = {pid: found for pid in numbers if (found := read_process(pid, proc)) is not None}
    children: dict[int, list[int]] = {}
    for pid, process in every.items():
        children.setdefault(process.parent, []).append(pid)
    below: dict[int, Process] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in every and pid not in below:
            below[pid] = every[pid]
            waiting += children.get(pid, [])
    return below


def tree_of(pid: int, among: Mapping[int, Process]) -> list[Process]:
    """Return a process and its descendants, out of those that were found."""
    found = [among[pid]] if pid in among else []
    for process in found:
        found += [other for other in among.values() if other.parent == process.pid]
    return found


class Usage:
    """Metrics of a run's processes; looked up at most every ``every_s`` seconds, however often they are asked for."""

    def __init__(
        self, root: int | None = None, every_s: float = LOOK_SECONDS, clock: Clock = time.monotonic, proc: Path = PROC
    ) -> None:
        self._root = os.getpid() if root is None else root
        self._every_s, self._clock, self._proc = every_s, clock, proc
        self._looked_at: float | None = None
        self._cpu: dict[int, float] = {}
        self._cpu_at: float | None = None
        self._metrics: dict[str, float] = {}

    def begin(self) -> None:
        """Count busy cores from now on."""
        self._note_cpu(descendants(self._root, self._proc), self._clock())

    def _note_cpu(self, found: Mapping[int, Process], now: float) -> None:
        self._cpu, self._cpu_at = {pid: process.cpu_seconds for pid, process in found.items()}, now

    def metrics(self, workers: Iterable[int] = ()) -> dict[str, float]:
        """Return ``usage/*`` (see docs/metrics.md), empty without ``/proc``; ``workers``: their process ids."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at >= self._every_s:
            found = descendants(self._root, self._proc)
            if found:
                self._metrics = self._count(found, tuple(workers), now)
            self._looked_at = now
        return dict(self._metrics)

    def _count(self, found: Mapping[int, Process], workers: tuple[int, ...], now: float) -> dict[str, float]:
        trees = [tree_of(pid, found) for pid in workers if pid in found]
        # Shared memory is the same for all who map it: the largest view of it counts, once.
        own, shared = sum(p.own_mb for p in found.values()), max(p.shared_mb for p in found.values())
        metrics = {
            "usage/processes": float(len(found)),
            "usage/threads": float(sum(p.threads for p in found.values())),
            "usage/threads_main": float(found[self._root].threads),
            "usage/threads_worker": float(max((sum(p.threads for p in tree) for tree in trees), default=0)),
            "usage/memory_mb": own + shared,
            "usage/memory_main_mb": found[self._root].own_mb,
            "usage/memory_worker_mb": max((sum(p.own_mb for p in tree) for tree in trees), default=0.0),
        }
        if self._cpu_at is not None and now > self._cpu_at:  # else there is nothing to compare with
            used = sum(process.cpu_seconds - self._cpu.get(pid, 0.0) for pid, process in found.items())
            metrics["usage/cores"] = max(0.0, used) / (now - self._cpu_at)
        self._note_cpu(found, now)
        return metrics
