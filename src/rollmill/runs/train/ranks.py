"""Starts, watches and ends the other ranks of a run (``learning.ranks``); rank 0 is the main process itself.

A rank is a process of its own (``runs.train.rank_main``) with a share of the workers and of every batch. Rank 0 starts
it, reads what it says, and ends it: a rank that dies ends the run with an error that names it, and when the run
ends in whatever way, no rank is left (they die with their parent, and the janitor knows them by their token).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.core import errors
from rollmill.core.errors import ConfigError, RankError, RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.core.imports import module_command
from rollmill.core.janitor import SCRATCH_VARIABLE
from rollmill.runs.train.settings import TrainConfig

if TYPE_CHECKING:
    from rollmill.learning.ranks import Ranks, TorchRanks
    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")

START_SECONDS = 300.0
"""How long ranks may take to import torch and to build their parts."""
STOP_SECONDS = 20.0
"""How long ranks may take to close their workers at the end of a run."""
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class RankSetup:
    """What a rank's process is given."""

    config: TrainConfig
    """Of the whole run; ``share_of`` makes it a rank's."""
    spec: EnvSpec
    rank: int
    checkpoint: Path | None
    meeting_place: Path
    cuda: str
    cores: frozenset[int]
    """Cores to stay on; empty for all."""
    events_fd: int
    parent: int
    path: list[str]


def share_of(config: TrainConfig) -> TrainConfig:
    """The config one rank builds its parts from: its share of workers and rows."""
    count = config.learning.ranks
    return replace(
        config,
        sampling=replace(config.sampling, workers=config.sampling.workers // count),
        learning=replace(config.learning, batch_size=config.learning.batch_size // count, ranks=1),
    )


@contextlib.contextmanager
def start_ranks(
    config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str], checkpoint: Path | None
) -> Iterator[RankProcesses]:
    """The other ranks for as long as this context lasts; with one rank there are none."""
    processes = RankProcesses(config, environment)
    try:
        processes.start(spec, checkpoint)
        yield processes
    except BaseException:
        processes.end(patience=0.0)
        raise
    else:
        processes.end(patience=STOP_SECONDS)


@dataclass
class _Handle:
    """One rank's process as rank 0 sees it."""

    rank: int
    process: subprocess.Popen[bytes]
    events: int
    pending: bytes = b""
    ready: bool = False
    failure: dict[str, Any] = field(default_factory=dict)
    """What it said before it ended: type of the error, its text, its traceback."""

    def listen(self) -> None:
        """Take in what has been said."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.events, 1 << 16):
                *lines, self.pending = (self.pending + data).split(b"\n")
                for event in map(json.loads, lines):
                    self.ready |= event["kind"] == "ready"
                    self.failure = event if event["kind"] == "failed" else self.failure

    @property
    def is_victim(self) -> bool:
        """Whether it ended only because it lost the others: then another one is to blame."""
        return self.failure.get("type") == RankError.__name__

    def error(self) -> RollmillError:
        """What to raise for a rank that has ended."""
        code, pid = self.process.returncode, self.process.pid
        if self.failure:
            found = getattr(errors, self.failure["type"], RankError)
            log.debug("rank %d:\n%s", self.rank, self.failure["trace"])
            return found(f"rank {self.rank} (pid {pid}) failed: {self.failure['error']}")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return RankError(
            f"rank {self.rank} (pid {pid}) {how}; the others cannot go on without it. The log may hold its last words; "
            "the same command with --resume continues from the last checkpoint"
        )


class RankProcesses:
    """The ranks 1, 2, ... of a run, and rank 0's end of the line to them."""

    def __init__(self, config: TrainConfig, environment: Mapping[str, str]) -> None:
        self.ranks: Ranks
        self._config, self._environment = config, dict(environment)
        self._handles: list[_Handle] = []
        self._readers: list[threading.Thread] = []
        self._line: TorchRanks | None = None
        self._cores_before: set[int] = set()

    def start(self, spec: EnvSpec, checkpoint: Path | None) -> None:
        """Start the processes and return at once: they build their parts while rank 0 builds its own."""
        from rollmill.learning.ranks import Alone, TorchRanks

        s = self._config.learning
        if s.ranks == 1:
            self.ranks = Alone()
            return
        gpus = visible_gpus(s.device, s.ranks)
        cuda = "nccl" if gpus else "gloo"
        place = Path(self._environment[SCRATCH_VARIABLE]) / "ranks"
        self.ranks = self._line = TorchRanks(0, s.ranks, place, s.rank_timeout, cuda)
        self._line.watch = self.check
        cores = share_cores(s.ranks) if self._config.sampling.affinity else [frozenset[int]()] * s.ranks
        for rank in range(1, s.ranks):
            setup = RankSetup(
                self._config, spec, rank, checkpoint, place, cuda, cores[rank], -1, os.getpid(), list(sys.path)
            )
            self._handles.append(self._spawn(setup, {GPUS_VARIABLE: gpus[rank]} if gpus else {}))
        if cores[0]:
            self._cores_before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores[0])

    def join(self, run: OnlineRun) -> None:
        """Return when all ranks are built, connected, and hold the weights of this one."""
        if self._line is None:
            return
        self._await_ready()
        self._line.connect(run.parts.device)
        for learner in run.parts.learners:
            learner.agree()
        log.info("%d ranks: this process and %s", self._line.count, ", ".join(map(str, self.pids())))

    def check(self) -> None:
        """Raise what ended a rank, if anything did."""
        dead = []
        for handle in self._handles:
            over = handle.process.poll() is not None
            handle.listen()
            if over or (handle.failure and not handle.is_victim):  # what has failed may take long to end
                dead.append(handle)
        if dead:
            raise min(dead, key=lambda handle: handle.is_victim).error()

    def pids(self) -> list[int]:
        return [handle.process.pid for handle in self._handles]

    def end(self, patience: float) -> None:
        """See that all ranks have ended: by themselves within ``patience`` seconds, or else by force."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and any(h.process.poll() is None for h in self._handles):
            time.sleep(0.02)
        for handle in self._handles:
            if handle.process.poll() is None:
                if patience:
                    log.warning("rank %d did not end within %g s; it is killed", handle.rank, patience)
                handle.process.kill()
            elif patience and handle.process.returncode:
                handle.listen()
                log.error("at the end of the run, %s", handle.error())
            handle.process.wait()
            os.close(handle.events)
        for reader in self._readers:
            reader.join(timeout=1.0)  # a simulator that is still being killed may hold the pipe open
        self._handles.clear()
        if self._line is not None:
            self._line.close(abandon=not patience)
        if self._cores_before:
            os.sched_setaffinity(0, self._cores_before)

    # -- processes -----------------------------------------------------------------------------

    def _spawn(self, setup: RankSetup, extra: Mapping[str, str]) -> _Handle:
        setup_read, setup_write = os.pipe()
        events_read, events_write = os.pipe()
        os.set_blocking(events_read, False)
        process = subprocess.Popen(
            module_command("rollmill.runs.train.rank_main", str(setup_read)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(setup_read, events_write),
            env={**self._environment, **extra, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            process_group=0,  # a Ctrl-C in the terminal is for rank 0, which ends the others in order
        )
        os.close(setup_read)
        os.close(events_write)
        with contextlib.suppress(BrokenPipeError), os.fdopen(setup_write, "wb") as pipe:
            pickle.dump(replace(setup, events_fd=events_write), pipe)  # one that died at once is seen by ``check``
        reader = threading.Thread(target=_log_output, args=(setup.rank, process), daemon=True, name="rank-output")
        reader.start()
        self._readers.append(reader)
        return _Handle(setup.rank, process, events_read)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while waiting := [handle for handle in self._handles if not handle.ready]:
            select.select([handle.events for handle in waiting], [], [], 0.2)
            for handle in waiting:
                handle.listen()
            self.check()
            if time.monotonic() > deadline:
                raise RankError(
                    f"rank {waiting[0].rank} (pid {waiting[0].process.pid}) has not built its network within "
                    f"{START_SECONDS:g} s; the log may say what it is doing"
                )


def _log_output(rank: int, process: subprocess.Popen[bytes]) -> None:
    """Pass on what a rank logs or prints; lines of its log begin with their level."""
    assert process.stdout is not None
    levels = logging.getLevelNamesMapping()
    with process.stdout:
        for line in process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            level, _, rest = text.partition(" ")
            known = level in levels
            log.log(levels[level] if known else logging.INFO, "rank %d: %s", rank, rest if known else text)


# -- cores and GPUs ---------------------------------------------------------------------------------


def share_cores(count: int) -> list[frozenset[int]]:
    """The cores of each rank: equal shares, none in common; empty sets where there are too few, or none are known."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // count
    return [frozenset(cores[rank * each : (rank + 1) * each]) for rank in range(count)]


def visible_gpus(device: str, count: int) -> list[str]:
    """For each rank the one GPU it is to see; empty where they learn on CPUs, or share the GPU ``cuda:N``."""
    import torch

    if device not in ("auto", "cuda") or (device == "auto" and not torch.cuda.is_available()):
        return []
    found = torch.cuda.device_count()
    if found < count:
        raise ConfigError(
            f"learning.ranks={count} with learning.device={device} needs a GPU for each rank, and this process sees "
            f"{found}; use learning.ranks={max(1, found)}, or learning.device=cuda:0 to have all ranks share one GPU"
        )
    names = [name.strip() for name in os.environ.get(GPUS_VARIABLE, "").split(",") if name.strip()]
    return (names or [str(index) for index in range(found)])[:count]
