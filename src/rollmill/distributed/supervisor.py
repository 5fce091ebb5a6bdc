"""Keeps one Ray node of this machine going: starts its processes, starts them anew when they end, clears up after them.

A Ray node ends itself when it has not heard of its head for a while, and a head that is started anew is another
cluster; a node that is looked after joins again in both cases. Each supervisor has a *record*, a file that says what it
looks after and how that stands: ``rollmill cluster status`` and ``down`` find it there. It holds a lock while it lives.

Nothing here imports Ray: its processes are started by ``ray_node_main``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from rollmill.core import atomic
from rollmill.core.errors import ClusterError
from rollmill.core.machine import cache_folder
from rollmill.core.opening import read_json
from rollmill.core.process import Errand, module_command
from rollmill.core.stopping import Interrupt
from rollmill.distributed.ray_place import Place, environment, missing_token, place_of, silence

Stage = Literal["starting", "up", "resting", "failed"]
STARTED = "Ray runtime started"
"""What ``ray start`` says when all its processes are there."""
LOOK_SECONDS = 0.2
FIRST_REST, LONGEST_REST = 1.0, 30.0
END_SECONDS = 20.0
"""Ray's processes may take so long to end when they are asked to."""
FOLDERS = "/tmp"
"""Ray makes sockets below its folder, whose path may have 107 characters: TMPDIR may be too deep."""
REFUSALS = ("AuthToken", "AuthenticationError", "Version mismatch")
"""What Ray says to a node that will not be let in the next time, either."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
HEAD_CONFIG = {
    "health_check_initial_delay_ms": 2000,
    "health_check_period_ms": 2000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}
"""A machine that has gone is noticed within 20 s; by itself Ray takes more than a minute."""
PATIENT = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}
"""A node gives its head up after 20 s; a slow machine may take two minutes to start; an end is an end."""


@dataclass(frozen=True)
class RayNode:
    """A Ray node that is to be kept going."""

    role: Literal["head", "node"]
    address: str
    """Of the head."""
    host: str = ""
    """Of this machine, as others reach it; empty: Ray finds out."""
    cpus: float = 0.0
    """0: all there are."""
    store_mb: int = 500
    """Of Ray's object store; segments and weights pass through it."""
    resource: str = ""
    """What the node offers, if it may sample."""
    patience: float = 300.0
    """Seconds a node tries to reach its head before it gives up."""

    @property
    def place(self) -> Place:
        return place_of(self.address)

    def options(self, folder: str) -> list[str]:
        """Return the options for ``ray start``."""
        found = ["--block", f"--object-store-memory={self.store_mb * 1_000_000}", "--include-log-monitor=false"]
        found += ["--disable-usage-stats", "--dashboard-agent-listen-port=0", f"--temp-dir={folder}"]
        if self.place.loopback:  # there is no firewall to tell of ports, and perhaps another cluster
            found += ["--min-worker-port=0", "--max-worker-port=0"]
        if self.role == "head":
            found += ["--head", f"--port={self.place.port}", "--include-dashboard=false", "--no-monitor"]
            found += [f"--system-config={json.dumps(HEAD_CONFIG)}"]
        else:
            found += [f"--address={self.address}"]
        if self.host:
            found += [f"--node-ip-address={self.host}"]
        if self.cpus:
            found += [f"--num-cpus={self.cpus:g}"]
        if self.resource:
            found += [f"--resources={json.dumps({self.resource: 1})}"]
        return found


@dataclass(frozen=True)
class Record:
    """How a supervisor and its node stand."""

    node: RayNode
    machine: str
    pid: int = 0
    """Of the supervisor."""
    stage: Stage = "starting"
    since: float = 0.0
    """Seconds since 1970."""
    restarts: int = 0
    reason: str = ""
    """Why the node ended last."""
    folder: str = ""
    """Where Ray keeps its files."""

    def write(self, file: Path) -> None:
        atomic.write_json(file, asdict(self))

    @classmethod
    def read(cls, file: Path) -> Record:
        found: dict[str, Any] = read_json(file)
        try:
            return cls(**{**found, "node": RayNode(**found["node"])})
        except (KeyError, TypeError) as error:
            raise ClusterError(f"{file} is damaged ({error}); remove it") from error


# -- records ----------------------------------------------------------------------------------------


def records_folder() -> Path:
    return cache_folder() / "cluster"


def log_of(record: Path) -> Path:
    """Return the file of what the supervisor and Ray have printed; the supervisor holds a lock on it."""
    return record.with_suffix(".log")


def alive(record: Path) -> bool:
    """Return whether a record's supervisor is at work."""
    try:
        with open(log_of(record), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def records() -> Iterator[tuple[Path, Record]]:
    """Yield records of supervisors at work on this machine (homes may be shared); removes what dead ones left."""
    for file in sorted(records_folder().glob("*.json")):
        try:
            record = Record.read(file)
        except FileNotFoundError:
            continue
        if record.machine != socket.gethostname() or not record.pid:  # without one it is just being started
            continue
        if alive(file):
            yield file, record
        else:
            forget(file, record)


def forget(file: Path, record: Record) -> None:
    """Remove a record, and what Ray has left."""
    if record.folder:
        shutil.rmtree(record.folder, ignore_errors=True)
    for one in (file, log_of(file)):
        one.unlink(missing_ok=True)


def place_of_this_machine() -> Place | None:
    """Return the cluster that a supervisor here belongs to, None without one; raises ClusterError if several."""
    found = {record.node.address for _, record in records()}
    if len(found) > 1:
        raise ClusterError(f"this machine is in several clusters; choose one by cluster.address: {', '.join(found)}")
    return place_of(found.pop()) if found else None


# -- the supervisor ---------------------------------------------------------------------------------


class Supervisor:
    """Looks after one node until it is told to stop, or gives up."""

    def __init__(self, record: Path) -> None:
        self._file = record
        self._record = replace(Record.read(record), pid=os.getpid())
        self._node = self._record.node
        self._log: IO[str] | None = None
        self._ray: Errand | None = None
        self._down_since = time.monotonic()
        self._failures = 0
        """Since it was up."""

    def run(self) -> int:
        with Interrupt() as interrupt, open(log_of(self._file), "a", encoding="utf-8") as self._log:
            fcntl.flock(self._log, fcntl.LOCK_EX)
            self._record = replace(self._record, folder=tempfile.mkdtemp(prefix="rm-ray-", dir=FOLDERS))
            try:
                while interrupt.signal is None:
                    self._live(interrupt)
                    if self._given_up:
                        return 1
                    self._rest(interrupt)
            finally:
                self._end()
                if not self._given_up:  # else whoever started it reads why
                    forget(self._file, self._record)
        return 0

    @property
    def _given_up(self) -> bool:
        return self._record.stage == "failed"

    def _live(self, interrupt: Interrupt) -> None:
        """Run Ray's processes once, from their start to their end."""
        began = time.monotonic()
        self._tell("starting")
        why = (silence(self._node.place) or missing_token()) if self._node.role == "node" else ""
        if why:
            self._fail(why, was_up=False)
            return
        self._ray = self._start()
        while not self._ray.has_ended and interrupt.signal is None:
            if self._record.stage == "starting" and STARTED in self._ray.noise:
                self._tell("up")
                self._write(f"up after {time.monotonic() - began:.1f} s")
            time.sleep(LOOK_SECONDS)
        if interrupt.signal is None:
            self._lost()
        self._end()

    def _start(self) -> Errand:
        node = self._node
        question = {"loopback": node.place.loopback, "options": node.options(self._record.folder)}
        return Errand(
            "rollmill.distributed.ray_node_main",
            question,
            {**os.environ, **PATIENT, **environment(node.place.loopback)},
        )

    def _lost(self) -> None:
        """Write down why Ray has ended by itself."""
        assert self._ray is not None
        lines = [line for line in COLOURS.sub("", self._ray.last_noise).splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        said = (errors or lines or ["it said nothing"])[-1].strip()
        was_up = self._record.stage == "up"
        if was_up:
            self._down_since = time.monotonic()
        self._write("\n".join(lines))
        self._fail(said, was_up)

    def _fail(self, said: str, was_up: bool) -> None:
        """Plan another try, unless it never was up and will not be."""
        never = self._record.restarts == 0 and self._node.role == "head"
        refused = any(sign in said for sign in REFUSALS)
        hopeless = not was_up and (never or refused or time.monotonic() - self._down_since > self._node.patience)
        self._tell("failed" if hopeless else "resting", said)

    def _rest(self, interrupt: Interrupt) -> None:
        until = time.monotonic() + min(LONGEST_REST, FIRST_REST * 2.0 ** min(self._failures - 1, 8))
        while time.monotonic() < until and interrupt.signal is None:
            time.sleep(LOOK_SECONDS)

    def _tell(self, stage: Stage, reason: str = "") -> None:
        self._failures = 0 if stage == "up" else self._failures + (stage == "resting")
        restarts = self._record.restarts + (stage == "resting")
        reason = reason or self._record.reason
        self._record = replace(self._record, stage=stage, since=time.time(), restarts=restarts, reason=reason)
        self._record.write(self._file)
        self._write(f"{stage}{f': {reason}' if stage in ('resting', 'failed') else ''}")

    def _write(self, text: str) -> None:
        assert self._log is not None
        for line in text.splitlines():
            print(time.strftime("%Y-%m-%d %H:%M:%S"), line, file=self._log, flush=True)

    def _end(self) -> None:
        """End Ray's processes: they are asked to, then made to, with all that they have started."""
        if self._ray is None:
            return
        if not self._ray.has_ended:
            with contextlib.suppress(ProcessLookupError):
                self._ray.signal(signal.SIGTERM)
            self._ray.ends_within(END_SECONDS)
        self._ray.close()
        self._ray = None


# -- starting and ending one ------------------------------------------------------------------------


def prepare(node: RayNode) -> Path:
    """Write a record for a supervisor that is about to start."""
    folder = records_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    machine = socket.gethostname()
    file = folder / f"{machine}-{node.role}-{os.getpid()}-{time.time_ns() // 1_000_000}.json"
    Record(node, machine, since=time.time()).write(file)
    return file


def start_in_background(record: Path) -> subprocess.Popen[bytes]:
    """Start a supervisor that outlives this process."""
    with open(log_of(record), "ab") as log:
        return subprocess.Popen(
            module_command("rollmill.distributed.supervisor_main", str(record)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_until_up(record: Path, process: subprocess.Popen[bytes]) -> Record:
    """Wait until the record's node is there; raises ClusterError where it will not be."""
    while True:
        ended = process.poll() is not None  # before the record is read: it is written last
        found = Record.read(record)
        if found.stage == "up":
            return found
        if ended or found.stage == "failed":
            process.wait()
            said = found.reason or "the supervisor has ended"
            raise ClusterError(f"{found.node.address}: {said} (all that was said: {log_of(record)})")
        time.sleep(LOOK_SECONDS)


def end(record: Path, found: Record) -> bool:
    """Ask a supervisor to end its node, and wait; by force when it takes too long. Returns whether that was needed."""
    if found.pid <= 0:  # to the system that is not one process: 0 is the group of whoever asks, -1 all there are
        raise ClusterError(f"{record} names no process yet (pid {found.pid}): nothing was ended; try again in a moment")
    forced = False
    for number, seconds in ((signal.SIGTERM, END_SECONDS + 10), (signal.SIGKILL, END_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, number)
        until = time.monotonic() + seconds
        while alive(record) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS / 4)
        if not alive(record):
            break
        forced = True
    forget(record, found)
    return forced


def about(found: Record) -> Mapping[str, Any]:
    """Return the record as JSON values."""
    return {**asdict(found.node), **{k: v for k, v in asdict(found).items() if k != "node"}}
