"""Starts, watches and ends the other ranks of a run (``learning.ranks``); rank 0 is the main process itself.

A rank is a learner with a share of the workers and of every batch (``ranks.following``). Without ``learning.meet``
all are processes of this machine, which rank 0 starts, reads and ends: they die with it, and the janitor knows them by
their token. With it they are on other machines and come by themselves. From there on there is no difference: the roll
call (``learning.roll_call``) says who lives, those that are left go on, and the end of rank 0 is the end of all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.machine import keep_to, usable_cores
from rollmill.core.process import Child, Lines
from rollmill.distributed.messages import differences, versions
from rollmill.distributed.ray_place import Place, is_loopback, place_of
from rollmill.runs.lifecycle import why_failed
from rollmill.runs.settings.train import TrainConfig
from rollmill.sampling.placement import share_cores

if TYPE_CHECKING:
    from rollmill.learning.ranks import Ranks
    from rollmill.learning.roll_call_leader import Leader
    from rollmill.learning.torch_ranks import TorchRanks
    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")

STOP_SECONDS = 20.0
"""How long ranks may take to close their workers at the end of a run."""
FAREWELL_SECONDS = 2.0
"""How long ranks of other machines may take to hear that the run has failed."""
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
HERE = Place("127.0.0.1", 0)
"""Where ranks of one machine meet: at any port that is free."""


@dataclass(frozen=True)
class RankTask:
    """What all the other ranks are to do."""

    config: TrainConfig
    """Of the whole run; ``share_of`` makes it a rank's."""
    spec: EnvSpec
    cuda: str
    """What moves tensors between GPUs: ``nccl``, or ``gloo`` where ranks share one."""


@dataclass(frozen=True)
class RankSetup:
    """What a rank's process on this machine is given."""

    task: RankTask
    rank: int
    place: Place
    cores: frozenset[int]
    """Cores to stay on; empty for all."""


def share_of(config: TrainConfig) -> TrainConfig:
    """Return the config one rank builds its parts from: its share of workers and rows."""
    count = config.learning.ranks
    return replace(
        config,
        sampling=replace(config.sampling, workers=config.sampling.workers // count),
        learning=replace(config.learning, batch_size=config.learning.batch_size // count, ranks=1, meet=""),
    )


@contextlib.contextmanager
def start_ranks(config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str]) -> Iterator[RankProcesses]:
    """Run the other ranks for as long as this context lasts; with one rank there are none."""
    processes = RankProcesses(config, environment)
    try:
        processes.start(spec)
        yield processes
    except BaseException as error:
        processes.end(why_failed(error))
        raise
    else:
        processes.end()


@dataclass
class _Handle:
    """One rank's process as rank 0 sees it."""

    rank: int
    child: Child
    failure: dict[str, Any] = field(default_factory=dict)
    """What it said before it ended (``core.child.failure``), until somebody has heard it."""

    def listen(self) -> None:
        """Take in what has been said."""
        for event in self.child.read_events():
            self.failure = event if event["kind"] == "failed" else self.failure


class RankProcesses:
    """The ranks 1, 2, ... of a run, and rank 0's end of the line to them."""

    def __init__(self, config: TrainConfig, environment: Mapping[str, str]) -> None:
        self.ranks: Ranks
        self._config, self._environment = config, dict(environment)
        self._handles: list[_Handle] = []
        self._readers: list[threading.Thread] = []
        self._leader: Leader | None = None
        self._line: TorchRanks | None = None
        self._cores_before: list[int] = []

    def start(self, spec: EnvSpec) -> None:
        """Start the processes and return at once: they build their parts while rank 0 builds its own."""
        from rollmill.learning.ranks import SingleRank
        from rollmill.learning.roll_call_leader import Leader
        from rollmill.learning.torch_ranks import TorchRanks

        s = self._config.learning
        if s.ranks == 1:
            self.ranks = SingleRank()
            return
        place = _meeting_place(s.meet) if s.meet else HERE
        gpus = visible_gpus(s.device, 1 if s.meet else s.ranks)
        task = RankTask(self._config, spec, "nccl" if gpus else "gloo")
        self._leader = Leader(place.host, place.port, s.ranks, s.rank_silence)
        self._leader.watch = self._watch
        self.ranks = self._line = TorchRanks(self._leader, s.ranks, s.rank_timeout, task.cuda)
        if s.meet:
            self._invite(task)
        else:
            self._spawn_all(task, gpus)

    def join(self, run: OnlineRun) -> None:
        """Return when all ranks are built, connected, and hold the weights of this one."""
        if self._line is None:
            return
        self._line.connect(run.parts.device)
        run.begin_together()
        log.info("%d ranks learn", self._line.count)

    def end(self, why: str = "") -> None:
        """See that all ranks have ended: by themselves, or else by force; ``why`` the run has failed, if it has."""
        if self._leader is None:
            return
        remote = bool(self._config.learning.meet)
        deadline = time.monotonic() + (STOP_SECONDS if not why else FAREWELL_SECONDS if remote else 0.0)
        self._leader.end(why, deadline - time.monotonic())
        for handle in self._handles:
            if not handle.child.ends_within(max(0.0, deadline - time.monotonic())) and not why:
                log.warning("rank %d did not end within %g s; it is killed", handle.rank, STOP_SECONDS)
            elif handle.child.code and not why and handle.rank in self.ranks.present:
                log.error("at the end of the run, rank %d %s", handle.rank, handle.child.how_it_ended())
            handle.child.end()
            handle.child.events.close()
        for reader in self._readers:
            reader.join(timeout=1.0)  # a simulator that is still being killed may hold the pipe open
        self._handles.clear()
        if self._line is not None:
            self._line.close(abandon=bool(why))
        keep_to(self._cores_before)

    # -- ranks of other machines ---------------------------------------------------------------

    def _invite(self, task: RankTask) -> None:
        """Give whoever comes to ``learning.meet`` a rank, if it can learn with this one."""
        from rollmill.optim.device import choose_device

        assert self._leader is not None
        learning = self._config.learning
        mine = {**versions(), "device": choose_device(learning.device).type}
        self._leader.refuse = lambda card: differences(card["versions"], mine)
        self._leader.seats = list(range(1, learning.ranks))
        told = {"config": to_dict(task.config), "spec": task.spec.to_dict(), "cuda": task.cuda}
        self._leader.open({"versions": versions(), **told})
        log.info(
            "waiting for %d more ranks, each started on its machine by: rollmill join-learner %s",
            learning.ranks - 1,
            learning.meet,
        )

    # -- processes of this machine -------------------------------------------------------------

    def _spawn_all(self, task: RankTask, gpus: list[str]) -> None:
        assert self._leader is not None
        count = self._config.learning.ranks
        log.info("starting %d ranks", count)
        place = Place(self._leader.host, self._leader.port)
        cores = share_cores(count) if self._config.sampling.affinity else [frozenset[int]()] * count
        for rank in range(1, count):
            setup = RankSetup(task, rank, place, cores[rank])
            self._spawn(setup, {GPUS_VARIABLE: gpus[rank]} if gpus else {})
        self._cores_before = usable_cores()
        keep_to(cores[0])
        self._leader.open({})

    def _spawn(self, setup: RankSetup, extra: Mapping[str, str]) -> None:
        assert self._leader is not None
        child = Child("rollmill.runs.train.ranks.rank_main", setup, {**self._environment, **extra})
        self._handles.append(_Handle(setup.rank, child))
        self._leader.name(setup.rank, f"rank {setup.rank} (pid {child.pid})")
        # By a thread: this one waits for the other ranks again and again, and a full pipe would hold them up.
        reader = threading.Thread(target=_log_output, args=(setup.rank, child.output), daemon=True, name="rank-output")
        reader.start()
        self._readers.append(reader)

    def _watch(self) -> None:
        """Tell the roll call what it cannot know by itself: that a process has ended, and how."""
        assert self._leader is not None
        for handle in self._handles:
            over = not handle.child.alive
            handle.listen()
            if handle.failure:  # what has failed may take long to end
                self._leader.hear_failure(handle.rank, handle.failure)
                handle.failure = {}
            elif over:
                self._leader.lose(handle.rank, handle.child.how_it_ended())
            elif handle.rank in self._leader.lost:
                handle.child.end()  # it was silent, and would be in the way


def _meeting_place(meet: str) -> Place:
    """Return where rank 0 listens.

    Raises ConfigError if the name of this machine is no address that others reach.
    """
    place = place_of(meet, "learning.meet")
    try:
        address = socket.gethostbyname(place.host)
    except OSError as error:
        raise ConfigError(f"learning.meet={meet}: there is no host {place.host} ({error.strerror or error})") from error
    if is_loopback(address) and not place.loopback:
        raise ConfigError(
            f"learning.meet={meet}: {place.host} is {address} on this machine, where no other one reaches it; give an "
            "address of its network"
        )
    return Place(address, place.port)


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
    """Return for each rank the one GPU it is to see; empty if they learn on CPUs, or share the GPU ``cuda:N``."""
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
