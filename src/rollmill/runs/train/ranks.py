"""Starts, watches and ends the other ranks of a run (``learning.ranks``); rank 0 is the main process itself.

A rank is a process of its own (``runs.train.rank_main``) with a share of the workers and of every batch. Rank 0 starts
it, reads what it says, and ends it: a rank that dies ends the run with an error that names it, and when the run
ends in whatever way, no rank is left (they die with their parent, and the janitor knows them by their token).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.core import errors
from rollmill.core.errors import ConfigError, RankError, RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.core.janitor import SCRATCH_VARIABLE
from rollmill.core.machine import keep_to, usable_cores
from rollmill.core.process import Child, Lines
from rollmill.runs.settings.train import TrainConfig
from rollmill.sampling.placement import share_cores

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
    rendezvous: Path
    cuda: str
    cores: frozenset[int]
    """Cores to stay on; empty for all."""


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
    if config.learning.ranks > 1:
        log.info("starting %d ranks", config.learning.ranks)
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
    child: Child
    ready: bool = False
    failure: dict[str, Any] = field(default_factory=dict)
    """What it said before it ended (``core.child.failure``)."""

    def listen(self) -> None:
        """Take in what has been said."""
        for event in self.child.read_events():
            self.ready |= event["kind"] == "ready"
            self.failure = event if event["kind"] == "failed" else self.failure

    @property
    def is_victim(self) -> bool:
        """Whether it ended only because it lost the others: then another one is to blame."""
        return self.failure.get("type") == RankError.__name__

    def error(self) -> RollmillError:
        """What to raise for a rank that has ended."""
        pid = self.child.pid
        if self.failure:
            found = getattr(errors, self.failure["type"], RankError)
            if trace := self.failure["trace"]:
                log.error("rank %d:\n%s", self.rank, trace)
            return found(f"rank {self.rank} (pid {pid}) failed: {self.failure['error']}")
        how = self.child.how_it_ended()
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
        self._cores_before: list[int] = []

    def start(self, spec: EnvSpec, checkpoint: Path | None) -> None:
        """Start the processes and return at once: they build their parts while rank 0 builds its own."""
        from rollmill.learning.ranks import SingleRank, TorchRanks

        s = self._config.learning
        if s.ranks == 1:
            self.ranks = SingleRank()
            return
        gpus = visible_gpus(s.device, s.ranks)
        cuda = "nccl" if gpus else "gloo"
        place = Path(self._environment[SCRATCH_VARIABLE]) / "ranks"
        self.ranks = self._line = TorchRanks(0, s.ranks, place, s.rank_timeout, cuda)
        self._line.watch = self.check
        cores = share_cores(s.ranks) if self._config.sampling.affinity else [frozenset[int]()] * s.ranks
        for rank in range(1, s.ranks):
            setup = RankSetup(self._config, spec, rank, checkpoint, place, cuda, cores[rank])
            self._spawn(setup, {GPUS_VARIABLE: gpus[rank]} if gpus else {})
        self._cores_before = usable_cores()
        keep_to(cores[0])

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
            over = not handle.child.alive
            handle.listen()
            if over or (handle.failure and not handle.is_victim):  # what has failed may take long to end
                dead.append(handle)
        if dead:
            raise min(dead, key=lambda handle: handle.is_victim).error()

    def pids(self) -> list[int]:
        return [handle.child.pid for handle in self._handles]

    def end(self, patience: float) -> None:
        """See that all ranks have ended: by themselves within ``patience`` seconds, or else by force."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and any(handle.child.alive for handle in self._handles):
            time.sleep(0.02)
        for handle in self._handles:
            if handle.child.alive:
                if patience:
                    log.warning("rank %d did not end within %g s; it is killed", handle.rank, patience)
            elif patience and handle.child.code:
                handle.listen()
                log.error("at the end of the run, %s", handle.error())
            handle.child.end()
            handle.child.events.close()
        for reader in self._readers:
            reader.join(timeout=1.0)  # a simulator that is still being killed may hold the pipe open
        self._handles.clear()
        if self._line is not None:
            self._line.close(abandon=not patience)
        keep_to(self._cores_before)

    # -- processes -----------------------------------------------------------------------------

    def _spawn(self, setup: RankSetup, extra: Mapping[str, str]) -> None:
        child = Child("rollmill.runs.train.rank_main", setup, {**self._environment, **extra})
        self._handles.append(_Handle(setup.rank, child))
        # By a thread: this one waits for the other ranks again and again, and a full pipe would hold them up.
        reader = threading.Thread(target=_log_output, args=(setup.rank, child.output), daemon=True, name="rank-output")
        reader.start()
        self._readers.append(reader)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while waiting := [handle for handle in self._handles if not handle.ready]:
            waiting[0].child.events.wait(0.2)
            for handle in waiting:
                handle.listen()
            self.check()
            if time.monotonic() > deadline:
                raise RankError(
                    f"rank {waiting[0].rank} (pid {waiting[0].child.pid}) has not built its network within "
                    f"{START_SECONDS:g} s; the log may say what it is doing"
                )


def _log_output(rank: int, output: Lines) -> None:
    """Pass on what a rank logs or prints; lines of its log begin with their level."""
    levels = logging.getLevelNamesMapping()
    while not output.ended:
        output.wait()
        for line in output.read():
            text = line.decode(errors="replace")
            level, _, rest = text.partition(" ")
            known = level in levels
            log.log(levels[level] if known else logging.INFO, "rank %d: %s", rank, rest if known else text)
    output.close()


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
