"""Runs the workers for the sampler: in this process (serial) or in processes of their own.

Both kinds offer the same few calls; the sampler does not know which one it has.
"""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rollmill.core.errors import EnvError, RollmillError, WorkerError
from rollmill.core.fields import Array
from rollmill.core.machine import keep_threads_to, keep_to, sleep_exactly
from rollmill.core.process import MOST_READS, Child, OutputLog, Recent
from rollmill.core.slots import Arena
from rollmill.envs.batch import CLOSE, MAKE, PHASES, RESET, STEP, Fault, NoWatch
from rollmill.sampling.mailbox import AWAKE_SECONDS, Mailbox, Wakeup
from rollmill.sampling.placement import Placement
from rollmill.sampling.settings import SamplingSettings
from rollmill.sampling.worker import Listener, ProcessSetup, Worker, WorkerPlan

log = logging.getLogger("rollmill")

WATCH_SECONDS = 0.5
STOP_SECONDS = 3.0
TELL_SECONDS = 5.0
"""Between two lines about workers that are being started."""
LONGEST_POLL_INTERVAL = 0.0005
SPIN_POLLS = 50
"""Naps of the shortest kind before it waits for the wakeup."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
"""Environment of workers, where the user's has none of these: libraries that start a thread per core in every worker
would fight for the cores that the workers share out among them."""


EpisodeStats = dict[tuple[int, int], dict[str, float]]
"""Envs' own metrics of ended episodes, by (lane, episode)."""


@dataclass
class PoolReport:
    """What happened in the pool since the run began."""

    env_faults: int = 0
    worker_restarts: int = 0
    faults: deque[Fault] = field(default_factory=lambda: deque(maxlen=20))
    episode_stats: deque[tuple[int, int, dict[str, float]]] = field(default_factory=lambda: deque(maxlen=10_000))

    def note_fault(self, fault: Fault) -> None:
        self.env_faults += 1
        self.faults.append(fault)
        log.warning("%s; restarting it", fault.describe())

    def note_episode(self, lane: int, episode: int, stats: dict[str, float]) -> None:
        self.episode_stats.append((lane, episode, stats))

    def pop_stats(self) -> EpisodeStats:
        found: EpisodeStats = {}
        while self.episode_stats:
            lane, episode, stats = self.episode_stats.popleft()
            found[lane, episode] = stats
        return found


class WorkerPool(Protocol):
    report: PoolReport

    def start(self) -> None: ...

    def pin_inference_thread(self) -> None:
        """Give the calling thread its core: it does inference from now on."""

    def post(self, groups: Array) -> None:
        """Have the commands done that the mailbox has for these groups."""

    def wait(self, timeout: float) -> None:
        """Return when some group may have become ready, or after ``timeout`` seconds."""

    def check(self) -> Array:
        """Look after the workers; returns groups that a replaced worker lost (mailbox already reset)."""

    def pop_stats(self) -> EpisodeStats:
        """Return the envs' own metrics of ended episodes that have come in; only from the thread that runs the rounds.

        Workers tell them before they hand over the row in which the episode ended, so whoever calls this after a slot
        was finished has those of all episodes in it.
        """

    def stop(self) -> None: ...


def _told(plans: Sequence[WorkerPlan]) -> Iterator[WorkerPlan]:
    """Yield the plans one by one, as workers are started; where there are many, the log says how far it is."""
    told = time.monotonic()
    for count, plan in enumerate(plans):
        if time.monotonic() - told > TELL_SECONDS:
            told = time.monotonic()
            log.info("%s of %s workers are started", f"{count:,}", f"{len(plans):,}")
        yield plan


class InProcessPool:
    """All workers inside this process, called in order: deterministic, and friendly to a debugger."""

    def __init__(self, plans: list[WorkerPlan], arena: Arena, box: Mailbox) -> None:
        self.report = PoolReport()
        self._plans, self._arena, self._box = plans, arena, box
        self.workers: list[Worker] = []

    def start(self) -> None:
        listener = Listener(self.report.note_fault, self.report.note_episode)
        for plan in _told(self._plans):
            self.workers.append(Worker(plan, self._arena, self._box, NoWatch(), listener))

    def pin_inference_thread(self) -> None:
        """Do nothing: everything happens in one thread."""

    def post(self, groups: Array) -> None:
        """Do nothing: the work is done in ``wait``, so that a checkpoint can stand in between."""

    def wait(self, timeout: float) -> None:
        for worker in self.workers:
            worker.work()

    def check(self) -> Array:
        return np.zeros(0, np.int64)

    def pop_stats(self) -> EpisodeStats:
        return self.report.pop_stats()

    def stop(self) -> None:
        for worker in self.workers:
            worker.close()


@dataclass(frozen=True)
class _Trouble:
    """A worker that must be replaced, and what to raise when it has been too often."""

    worker: int
    reason: str
    error: type[RollmillError]
    stack: str = ""


class ProcessPool:
    """One process per worker: watched, replaced when dead or hung, never waited for without end."""

    def __init__(
        self,
        plans: list[WorkerPlan],
        arena: Arena,
        box: Mailbox,
        settings: SamplingSettings,
        environment: Mapping[str, str],
        pin_inference: bool = False,
    ) -> None:
        """Set up the pool without processes; with ``pin_inference`` the inference thread keeps to one core
        (``sampling.placement``). It pays where the network runs on a GPU: each time that thread runs beside a
        simulator, that one goes on with cold caches, and sleeping between two passes costs time."""
        self.report = PoolReport()
        self._plans, self._arena, self._box, self._settings = plans, arena, box, settings
        self._environment = dict(environment)
        self._wakeup = Wakeup.create()
        self._wakeups = [Wakeup.create() for _ in plans]
        self._children: list[Child | None] = [None] * len(plans)
        self._restarts = [Recent() for _ in plans]
        self._output = [OutputLog(f"worker {index}") for index in range(len(plans))]
        self._poll = select.poll()
        self._poll.register(self._wakeup.fd, select.POLLIN)
        self._next_check = 0.0
        self._stopping = False
        self._placement = Placement.of(settings, len(plans), pin_inference)

    # -- what the sampler calls ----------------------------------------------------------------

    def start(self) -> None:
        for plan in _told(self._plans):
            self._spawn(plan.index)

    def pin_inference_thread(self) -> None:
        own = self._placement.inference
        if own is None:
            return
        # Whoever shared that core would not take its turn for microseconds: the scheduler deals out milliseconds.
        keep_threads_to({*self._placement.cores} - {own.core})
        keep_to({own.core})
        sleep_exactly()

    def post(self, groups: Array) -> None:
        for worker in set((groups // self._plans[0].groups).tolist()):
            if self._box.sleeping[worker]:
                self._wakeups[worker].notify()

    def wait(self, timeout: float) -> None:
        own = self._placement.inference
        if own is not None and timeout and self._watch_workers(own.pause):
            return
        for fd, _ in self._poll.poll(int(timeout * 1000)):
            if fd == self._wakeup.fd:
                self._wakeup.clear()
            else:
                self._read(fd)

    def _watch_workers(self, pause: float) -> bool:
        """Look out for ready groups, for a moment; False when sleeping is better."""
        box = self._box
        missing = box.missing()
        if not missing:
            return False  # it is not workers that are waited for
        box.main_sleeping[0] = 0
        end = time.perf_counter() + AWAKE_SECONDS + SPIN_POLLS * pause
        while missing and time.perf_counter() < end:
            # Others may have the interpreter meanwhile. The more are missing the longer it will take, and each look
            # costs the worker on this core more than the moment it takes.
            time.sleep(min(pause * missing, LONGEST_POLL_INTERVAL))
            missing = box.missing()
        box.main_sleeping[0] = 1
        return box.enough_ready()

    def check(self) -> Array:
        now = time.monotonic()
        if now < self._next_check:
            return np.zeros(0, np.int64)
        self._next_check = now + WATCH_SECONDS
        self.wait(0)  # a sampler that is never idle must still hear its workers
        for wakeup in self._wakeups:
            wakeup.notify()  # no worker sleeps longer than this, whatever came between it and a notification
        lost = [self._replace(trouble) for trouble in self._troubles(now)]
        return np.concatenate(lost) if lost else np.zeros(0, np.int64)

    def pop_stats(self) -> EpisodeStats:
        self.wait(0)
        return self.report.pop_stats()

    def stop(self) -> None:
        """Ask every worker to end, give them a moment, then end them."""
        self._stopping = True
        self._box.stop[0] = 1
        for wakeup in self._wakeups:
            wakeup.notify()
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and any(child and child.alive for child in self._children):
            self.wait(0.02)  # a worker that is held up by a full pipe could not end
        for index, child in enumerate(self._children):
            if child is not None:
                self._end(index, child)
        for output in self._output:
            output.close()
        for wakeup in (self._wakeup, *self._wakeups):
            wakeup.close()
        if self._placement.inference is not None:
            keep_threads_to(self._placement.cores)

    def wake(self) -> None:
        """End a ``wait`` in another thread (a slot became free)."""
        self._wakeup.notify()

    def pids(self) -> list[int]:
        return [child.pid for child in self._children if child is not None]

    # -- watching ------------------------------------------------------------------------------

    def _troubles(self, now: float) -> list[_Trouble]:
        found = []
        for index, child in enumerate(self._children):
            if child is None:
                continue
            if not child.alive:
                self._drain(index, child)  # its last words may say why, or raise
                reason = f"worker {index} (pid {child.pid}) {child.how_it_ended()} {self._where(index)}"
                found.append(_Trouble(index, reason, WorkerError, child.crash_stack()))
            elif reason := self._hang(index, now):
                found.append(_Trouble(index, reason, EnvError))
        return found

    def _hang(self, index: int, now: float) -> str:
        box, s = self._box, self._settings
        phase = int(box.phase[index])
        limits = {MAKE: s.start_timeout, RESET: s.reset_timeout, STEP: s.step_timeout, CLOSE: s.reset_timeout}
        limit = limits.get(phase, 0.0)
        if not limit or now - float(box.since[index]) < limit:
            return ""
        return (
            f"{self._env(index)} hangs in {PHASES[phase]} for more than {limit:g} s (worker {index}, "
            f"{self._moment(index)})"
        )

    def _where(self, index: int) -> str:
        """Say in which call a worker has ended; mostly it is an env that has ended it."""
        phase = int(self._box.phase[index])
        if not phase:
            return "outside of any call of an env"
        return f"while {self._env(index)} was in {PHASES[phase]} ({self._moment(index)})"

    def _env(self, index: int) -> str:
        """Name the env whose code a worker is in."""
        return f"env {int(self._box.env[index])} ({self._plans[index].env.id})"

    def _moment(self, index: int) -> str:
        """Say how far that env is, and how to get there again."""
        box = self._box
        episode = int(box.episode[index])
        seed = self._plans[index].episode_seed(int(box.env[index]), episode)
        seeded = "seeded by group" if seed is None else f"seed {seed}"
        return f"{seeded}, episode {episode}, step {int(box.step[index])}"

    def _replace(self, trouble: _Trouble) -> Array:
        """End what is left of a worker and start it anew; its groups begin again."""
        index = trouble.worker
        child = self._children[index]
        assert child is not None
        self._end(index, child)
        restarts = self._restarts[index].add()
        stack = f"\n{trouble.stack}" if trouble.stack else ""
        if restarts > self._settings.worker_restarts:
            raise trouble.error(
                f"{trouble.reason}; replaced {restarts - 1} times within ten minutes, "
                f"sampling.worker_restarts is {self._settings.worker_restarts}\n"
                f"{self._plans[index].env.check_hint}{stack}"
            )
        log.warning("%s; replacing the worker%s", trouble.reason, stack)
        self.report.worker_restarts += 1
        plan = self._plans[index]
        groups = np.arange(index * plan.groups, (index + 1) * plan.groups)
        first, last = plan.envs_of(0).start, plan.envs_of(plan.groups - 1).stop
        self._box.next_episode[first:last] += 1  # the interrupted episodes are not used again
        self._box.phase[index] = 0
        self._box.restart(groups)
        self._spawn(index)
        return groups

    # -- processes and pipes -------------------------------------------------------------------

    def _spawn(self, index: int) -> None:
        box, placement = self._box, self._placement
        setup = ProcessSetup(
            plan=self._plans[index],
            slots=self._arena.slots,
            arena=(self._arena.block.fd, self._arena.block.nbytes),
            mailbox=(box.block.fd, box.block.nbytes),
            shape=(len(box.command), len(box.phase), len(box.next_episode)),
            main_wakeup=(self._wakeup.fd, self._wakeup.notify_fd),
            own_wakeup=(self._wakeups[index].fd, self._wakeups[index].notify_fd),
            core=placement.worker(index),
            awake=placement.inference is not None,
            shares_inference_core=placement.beside_inference(index),
            nice=self._settings.nice,
        )
        inherit = {setup.arena[0], setup.mailbox[0], *setup.main_wakeup, *setup.own_wakeup}
        child = Child("rollmill.sampling.worker", setup, ONE_THREAD | self._environment, inherit)
        for fd in (child.events.fd, child.output.fd):
            self._poll.register(fd, select.POLLIN)
        self._children[index] = child

    def _end(self, index: int, child: Child) -> None:
        child.end()
        self._drain(index, child)
        for fd in (child.events.fd, child.output.fd):
            self._ignore(fd)
        child.close()
        self._children[index] = None

    def _drain(self, index: int, child: Child) -> None:
        """Take what a worker that has ended left in its pipes; what it has started may go on writing."""
        self._take_events(child, MOST_READS)
        self._output[index].write(child.read_output(MOST_READS))

    def _read(self, fd: int) -> None:
        """Take what a pipe holds."""
        for index, child in enumerate(self._children):
            if child is not None and fd == child.events.fd:
                self._take_events(child, most=1)
                ended = child.events.ended
            elif child is not None and fd == child.output.fd:
                self._output[index].write(child.read_output(most=1))
                ended = child.output.ended
            else:
                continue
            if ended:
                self._ignore(fd)  # the worker is gone, which the next check sees; polling a closed pipe would spin

    def _ignore(self, fd: int) -> None:
        with contextlib.suppress(KeyError):  # ignored before
            self._poll.unregister(fd)

    def _take_events(self, child: Child, most: int) -> None:
        for event in child.read_events(most):
            self._on_event(event.pop("kind"), event)

    def _on_event(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "fault":
            self.report.note_fault(Fault(**event))
        elif kind == "episode":
            self.report.note_episode(event["lane"], event["episode"], event["stats"])
        elif kind == "failed" and event["trace"]:  # it is replaced
            log.error("a worker failed:\n%s", event["trace"])
        elif kind == "failed" and self._stopping:
            log.error("while stopping: %s", event["error"])  # the run is over already; let the others end, too
        elif kind == "failed":
            raise EnvError(event["error"])
