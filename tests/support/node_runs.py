"""Runs that nodes sample for: their settings, and an observer that looks at what is learnt from."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil
from running import LIMIT_SECONDS

from rollmill.core.seeds import INCARNATION_EPISODES
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

MARKER = ("env=recordable_env:Recordable", "env.args.longest=29", "learning.reward_scale=1e-4", "sampling.workers=1")
NODES = (
    "cluster.nodes=2",
    f"cluster.start_timeout={LIMIT_SECONDS}",
    "learning.max_policy_lag=1000000",
)
ENDLESS = ("stop.frames=0", f"stop.seconds={LIMIT_SECONDS}")
"""For runs that an observer ends; the seconds are for broken ones."""
RECORDED = ("recording=all", "recording.queue_segments=300", "recording.drain_seconds=300")
GROUPS = 2
"""Of each worker (``running.SMALL``), of which there is one on every node."""


class Until(Observer):
    """Calls ``act`` once whenever the next of its conditions holds; ends the run after the last one."""

    def __init__(self, *stages: Callable[[Until], bool]) -> None:
        self._stages = list(stages)
        self.incarnations: set[int] = set()
        """Of all segments that were learnt from; 0 are the run's own."""
        self.workers: set[int] = set()
        self.count = self.since = 0
        """Segments of nodes, in all and since the last stage."""
        self.gateways: list[int] = []
        self.row: dict[str, float] = {}
        self.left: list[psutil.Process] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        for trajectory in run.trajectories():
            self.workers.add(trajectory.worker)
            incarnation = int(trajectory.episodes.max()) // INCARNATION_EPISODES
            self.incarnations.add(incarnation)
            self.count += incarnation > 0
            self.since += incarnation > 0
            assert trajectory.lanes.start // 4 == trajectory.worker
            assert (trajectory.obs["where"][..., 0] == list(trajectory.lanes)).all()
        gateway = gateway_of(os.getpid())
        if gateway not in self.gateways:
            self.gateways.append(gateway)
        if self._stages and self._stages[0](self):
            self._stages.pop(0)
            self.since = 0
            if not self._stages:
                run.write_row()
                assert run.cluster is not None
                self.row = run.cluster.metrics()
                self.left = psutil.Process(gateway).children(recursive=True)
                run.stop("the test has seen enough")


def gateway_of(pid: int) -> int:
    """The gateway of a run, 0 where there is none just now."""
    found = [p.pid for p in psutil.Process(pid).children() if "gateway_main" in " ".join(cmdline(p))]
    return found[0] if found else 0


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def both_sample(until: Until) -> bool:
    return {1, 2} <= until.workers and until.count > 20
