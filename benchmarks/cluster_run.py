"""What all benchmarks of nodes need: a training watched through its files, its processes, marks to compare with."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from common import OWN, ROOT, Marks

sys.path.insert(0, str(ROOT / "tests" / "support"))

from running import shared_memory, unused

from rollmill.core.opening import read_json
from rollmill.distributed.standing import RunStanding

QUIET = ("report.tensorboard=false", "report.page=false")
CARTPOLE = ("env=CartPole-v1", "sampling.envs_per_worker=16", *QUIET)
ENDLESS = ("stop.frames=0", "stop.seconds=100000")
OFTEN = ("report.every_frames=4000",)
LIMIT_SECONDS = 300.0
"""Ends a benchmark that is broken."""
PAUSE_SECONDS = 0.1
MARK = "ROLLMILL_BENCHMARK"
"""Every process that a benchmark has started, however indirectly, has its value in its environment."""
GONE_SECONDS = 30.0
ASKED = (True, 128 + signal.SIGTERM)


# -- a training beside this program ------------------------------------------------------------------


@dataclass
class Training:
    """``rollmill train`` in a process of its own, watched through its files."""

    folder: Path
    process: subprocess.Popen[bytes]
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _read: tuple[int, int] = (0, 0)
    """Which file those are of, and where the next begins."""

    def rows(self) -> list[dict[str, Any]]:
        """All rows of metrics. Only new ones are read: it is asked ten times per second, beside what is measured."""
        with contextlib.suppress(FileNotFoundError), open(self.folder / "metrics.jsonl", "rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_ino != self._read[0] or stat.st_size < self._read[1]:  # one that goes on has cut some off
                self._rows, self._read = [], (stat.st_ino, 0)
            file.seek(self._read[1])
            whole, end, _ = file.read().rpartition(b"\n")
            self._rows += map(json.loads, whole.splitlines())
            self._read = (stat.st_ino, self._read[1] + len(whole) + len(end))
        return list(self._rows)

    def standing(self) -> RunStanding | None:
        with contextlib.suppress(FileNotFoundError):
            return RunStanding.read(self.folder)
        return None

    def told(self) -> RunStanding:
        found = self.standing()
        assert found is not None, "the run has written how its nodes stand"
        return found

    def incarnations(self) -> set[int]:
        """Of nodes that sample."""
        found = self.standing()
        return {node.incarnation for node in found.nodes if node.stage == "sampling"} if found else set()

    def sampling(self, count: int) -> Callable[[], bool]:
        """Asks whether so many nodes sample."""
        return lambda: len(self.incarnations()) == count

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = read_json(self.folder / "state.json")
        return found

    def said(self, pattern: str) -> list[str]:
        log = self.folder / "log.txt"
        return re.findall(pattern, log.read_text()) if log.exists() else []

    def checkpoints(self) -> list[Path]:
        return sorted((self.folder / "checkpoints").glob("*.ckpt"))

    def until(self, what: str, done: Callable[[], Any], seconds: float = LIMIT_SECONDS) -> float:
        """Seconds until it is so."""
        begun = time.monotonic()
        while not done():
            assert self.process.poll() is None, f"the training has ended: {self.output()}"
            assert time.monotonic() - begun < seconds, f"not within {seconds} s: {what}; {self.output()}"
            time.sleep(PAUSE_SECONDS)
        return time.monotonic() - begun

    def gap(self, since: float) -> float:
        """The longest time between two rows of metrics after a moment (seconds since 1970); without any, until now."""
        times = [*(row["time"] for row in self.rows()), time.time()]
        return float(max((b - a for a, b in itertools.pairwise(times) if b > since), default=times[-1] - since))

    def rate(self, seconds: float, name: str = "frames") -> float:
        """Of what a row counts, per second, over so long from now on."""
        first = self.rows()[-1]
        time.sleep(seconds)
        last = self.rows()[-1]
        return float((last[name] - first[name]) / (last["time"] - first["time"]))

    def below(self, name: str) -> list[psutil.Process]:
        """Its processes of a module."""
        return modules_below(psutil.Process(self.process.pid), name)

    def output(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.out").read_text()[-2000:]

    def end(self, marks: Marks, task: str = "") -> None:
        """Ask it to end; it must do so, and not have ended before."""
        alive = self.process.poll() is None
        self.process.terminate()
        marks.equal(f"{task}the learner lives to its end, and ends when asked to", (alive, self.process.wait()), ASKED)


@contextlib.contextmanager
def training(
    folder: Path, name: str, *words: str, resume: bool = False, before: Sequence[str] = ()
) -> Iterator[Training]:
    """``before``: words before the command, for another network for instance."""
    place = folder / "default" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    verb = [sys.executable, "-m", "rollmill.cli.main", "train", *(["--resume"] if resume else [])]
    with open(place.parent / f"{name}.out", "ab") as output:
        command = [*before, *verb, f"run.dir={folder}", f"run.name={name}", *words]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield Training(place, process)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


# -- processes ---------------------------------------------------------------------------------------


def modules_below(top: psutil.Process, name: str) -> list[psutil.Process]:
    """Processes below one whose command line names a module."""
    found = []
    for process in top.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if name in " ".join(process.cmdline()):
                found.append(process)
    return found


def pss_mb(*processes: psutil.Process, kinds: tuple[str, ...] = OWN) -> float:
    """Memory of processes, without those below them; 0 for those that have ended."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(kinds))
    return total / 1000


def growth(values: Sequence[float]) -> tuple[float, float]:
    """Mean of the second fifth (the first one is the start), and the share by which that of the last fifth is above."""
    fifth = max(1, len(values) // 5)
    before, after = statistics.mean(values[fifth : 2 * fifth] or values), statistics.mean(values[-fifth:])
    return before, after / before - 1 if before else 0.0


def backwards(segments: Iterable[tuple[int, Mapping[str, Any]]], newest: dict[int, int]) -> int:
    """Rows that older weights decided than an earlier row of their group. ``newest``: of every group; it is changed."""
    found = 0
    for group, segment in segments:
        for version in segment["version"][:-1].min(axis=1).tolist():
            found += version < newest.get(group, -1)
            newest[group] = max(version, newest.get(group, -1))
    return found


def twice(data: Path) -> int:
    """Episodes of the recording that are there more than once: seeds are of lane and episode."""
    from rollmill.store.reader import Store

    store = Store(data)
    ends = [store.end_record(i) for i in range(len(store))]
    names = [(end.lane, end.worker, end.seed, end.first_step) for end in ends]
    return len(names) - len(set(names))


class Leftovers:
    """What a benchmark leaves behind: processes that carry its mark, and shared memory that nobody uses."""

    def __init__(self) -> None:
        os.environ[MARK] = self._mark = uuid.uuid4().hex
        self._before = shared_memory()

    def judge(self, marks: Marks) -> None:
        """After everything was ended."""
        begun = time.monotonic()
        while (left := self._processes()) and time.monotonic() < begun + GONE_SECONDS:
            time.sleep(PAUSE_SECONDS)
        marks.equal("processes left", len(left), 0)
        marks.equal("segments left in /dev/shm", len(unused(shared_memory() - self._before)), 0)

    def _processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(MARK) == self._mark:
                    found.append(" ".join(process.cmdline()))
        return found


def segments_of(standing: RunStanding) -> dict[str, int]:
    return {"received": standing.received, "lost": standing.lost, "refused": standing.refused}


def show(what: object) -> None:
    """How far it is."""
    print(what if isinstance(what, str) else json.dumps(what), file=sys.stderr, flush=True)
