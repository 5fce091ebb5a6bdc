"""The worker: steps its groups of envs when told to, writes into the slots, notifies the main process.

The same ``Worker`` object serves a process of its own (``python -m rollmill.sampling.worker``) and
serial mode, where the sampler calls ``work`` directly. It never imports torch.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollmill.core.child import PARENT_CHECK_SECONDS, Parent, run_child
from rollmill.core.exits import leave
from rollmill.core.machine import pin_to, step_aside, wait_for_turn
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OUTPUT_FIELDS, Arena, RowOut, SegmentLayout, SharedBlock
from rollmill.envs.batch import BatchSetup, EnvBatch, Fault, Watch, random_actions
from rollmill.envs.levels.draw import LevelDraws
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.variables import EnvVariables
from rollmill.sampling.mailbox import AWAKE_SECONDS, SECONDS_ENV, SECONDS_WAIT, SLEEPING, Mailbox, SharedWatch, Wakeup
from rollmill.sampling.schedule import EpisodeSchedule

if TYPE_CHECKING:
    from rollmill.envs.vector import VectorBatch


@dataclass(frozen=True)
class WorkerPlan:
    """Which part of the run one worker does."""

    index: int
    env: EnvSettings
    layout: SegmentLayout
    seeds: Seeds
    groups: int
    """Groups of this worker; they are numbered ``index * groups`` onwards over the run."""
    envs_per_group: int
    decorrelate_steps: int = 0
    keep_actions: bool = False
    workers_before: int = 0
    """Workers of other samplers of the same run (ranks) that come before this sampler's."""
    schedule: EpisodeSchedule | None = None
    """Numbered episodes (see there); None: every env goes through a branch of ``seeds`` of its own."""
    random_actions: bool = False
    """Fill segments with random actions alone, and ask for a decision only where the next one begins."""
    policy_of_group: tuple[int, ...] = ()
    """Of every group of the run: the one policy that acts in it, whose ``env.variables`` its envs see; empty: the first
    one's."""
    levels: LevelDraws | None = None
    """Levels that episodes draw their seeds from (``env.levels``)."""

    @property
    def draw_seed(self) -> Callable[[int, int], int] | None:
        """The seed of (env, episode) where it is not the env's own; to be called by whoever plays the episode."""
        schedule, levels = self.schedule, self.levels
        if levels is None:
            return schedule.env_seed if schedule is not None else None
        if schedule is not None:
            return lambda env, episode: levels.numbered(env, schedule.number(env, episode))
        return levels.seed

    def episode_seed(self, env: int, episode: int) -> int | None:
        """Return what an episode's reset is seeded with; None: it is not seeded alone (``env.vector``), or not yet."""
        if self.env.vector:
            return None
        if self.levels is not None and self.schedule is None:
            return self.levels.told_seed(env, episode)
        if self.draw_seed is not None:
            return self.draw_seed(env, episode)
        return self.seeds.branch("worker", self.index).branch(env).branch("episode", episode).integer()

    def instance(self, env: int) -> EnvInstance:
        """Return which of the whole run's envs ``env`` is."""
        before = self.workers_before
        return EnvInstance(index=before * self.groups * self.envs_per_group + env, worker=before + self.index)

    def policy_of(self, group: int) -> int:
        """Return the policy whose variables this worker's ``group``-th group sees."""
        return self.policy_of_group[self.index * self.groups + group] if self.policy_of_group else 0

    def envs_of(self, group: int) -> range:
        """Return the sampler-wide env numbers of this worker's ``group``-th group."""
        first = (self.index * self.groups + group) * self.envs_per_group
        return range(first, first + self.envs_per_group)


@dataclass(frozen=True)
class Listener:
    """Who hears what happens in the envs besides the data."""

    on_fault: Callable[[Fault], None]
    on_episode: Callable[[int, int, dict[str, float]], None]


class Worker:
    """Steps the groups of one worker; all state that others need is in the arena and the mailbox."""

    def __init__(self, plan: WorkerPlan, arena: Arena, box: Mailbox, watch: Watch, listener: Listener) -> None:
        self._arena = arena
        self._box = box
        self._command, self._done = box.numbers("command"), box.numbers("done")
        self._slot, self._row = box.numbers("slot"), box.numbers("row")
        self._actions = arena["action"]
        self.groups = range(plan.index * plan.groups, (plan.index + 1) * plan.groups)
        self._rng = plan.seeds.branch("actions", plan.index).generator() if plan.random_actions else None
        self.batches: list[EnvBatch | VectorBatch] = []
        self._noted = [0] * plan.groups
        """Episodes begun by each batch whose numbers are published."""
        try:
            for group in range(plan.groups):
                self.batches.append(self._build(plan, group, watch, listener))
        except BaseException:
            self.close()  # nobody else knows of those that stand
            raise

    def _build(self, plan: WorkerPlan, group: int, watch: Watch, listener: Listener) -> EnvBatch | VectorBatch:
        envs = plan.envs_of(group)
        names, source = tuple(plan.env.variables), self._box.variables[plan.policy_of(group)]
        variables = tuple(EnvVariables(names, source) for _ in envs) if names else ()
        spec = plan.layout.spec
        setup = BatchSetup(
            spec=spec,
            make=lambda env: make_env(
                plan.env, plan.instance(env), variables[env - envs.start] if variables else None, spec
            ),
            envs=envs,
            seeds=plan.seeds.branch("worker", plan.index),
            watch=watch,
            on_fault=listener.on_fault,
            on_episode=listener.on_episode,
            first_episode=self._box.next_episode[envs.start : envs.stop].copy(),
            decorrelate_steps=plan.decorrelate_steps,
            keep_actions=plan.keep_actions,
            seed_of=plan.draw_seed,
            variables=variables,
        )
        if not plan.env.vector:
            return EnvBatch(plan.env, setup)
        from rollmill.envs.vector import VectorBatch  # imports gymnasium, which the main process may not need

        return VectorBatch(plan.env, setup)

    def work(self) -> int:
        """Do every command that waits; returns how many there were."""
        done, count = self._done, 0
        for number, (group, batch) in enumerate(zip(self.groups, self.batches)):
            command = self._command[group]
            if command == done[group]:
                continue
            slot, row = self._slot[group], self._row[group]
            self._step(batch, slot, row)
            if self._rng is not None:
                self._row[group] = self._play_on(batch, slot, row, self._rng)
            if batch.begun != self._noted[number]:
                self._note_episodes(number)
            done[group] = command
            count += 1
        return count

    def has_work(self) -> bool:
        """Return whether a command waits."""
        begin, end = self.groups.start, self.groups.stop
        return bool(self._command[begin:end] != self._done[begin:end])

    def _step(self, batch: EnvBatch | VectorBatch, slot: int, row: int) -> None:
        out = RowOut(self._arena, slot, row)
        if row < 0:
            batch.reset(out)
        else:
            batch.step(self._actions[slot, row], out)

    def _play_on(self, batch: EnvBatch | VectorBatch, slot: int, row: int, rng: np.random.Generator) -> int:
        """Act at random until the segment is full; returns the last row that was stepped from."""
        arena, layout = self._arena, self._arena.layout
        spec, rows = layout.spec, range(row + 1, layout.steps)
        for field in OUTPUT_FIELDS:
            arena[field.name][slot, rows.start : rows.stop] = 0
        actions = arena["action"][slot]
        if not spec.masked:
            drawn = random_actions(spec, rng, {}, len(rows) * layout.lanes)
            actions[rows.start : rows.stop] = drawn.reshape(len(rows), *actions.shape[1:])
        for k in rows:
            if spec.masked:
                obs = {name: array[slot, k] for name, array in arena.obs.items()}
                actions[k] = random_actions(spec, rng, obs, layout.lanes)
            self._step(batch, slot, k)
        return layout.steps - 1

    def _note_episodes(self, number: int) -> None:
        """Publish the episode numbers in use: a replacement of this worker must not repeat them."""
        batch = self.batches[number]
        self._noted[number], envs = batch.begun, batch.envs
        self._box.next_episode[envs.start : envs.stop] = batch.next_episode

    def close(self) -> None:
        for batch in self.batches:
            batch.close()


# -- the process ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessSetup:
    """What a worker process is given: its plan and the inherited file descriptors."""

    plan: WorkerPlan
    slots: int
    arena: tuple[int, int]  # fd, bytes
    mailbox: tuple[int, int]
    shape: tuple[int, int, int]  # groups, workers, envs of the whole run
    main_wakeup: tuple[int, int]
    own_wakeup: tuple[int, int]
    core: int | None
    awake: bool
    """Nobody else needs the core while this worker has nothing to do: look out for commands before sleeping."""
    shares_inference_core: bool
    """The inference thread has this core, too, and comes first."""
    nice: int


class WorkerProcess:
    """The life of a worker process: attach, build the envs, serve until told to stop."""

    def __init__(self, setup: ProcessSetup, parent: Parent) -> None:
        self._parent = parent
        self._awake = setup.awake
        arena_block, box_block = SharedBlock(*setup.arena), SharedBlock(*setup.mailbox)
        variables, policies = len(setup.plan.env.variables), max(setup.plan.policy_of_group, default=0) + 1
        self._box = Mailbox(*setup.shape, block=box_block, variables=variables, policies=policies)
        self._main_wakeup = Wakeup(*setup.main_wakeup)
        self._own_wakeup = Wakeup(*setup.own_wakeup)
        index = setup.plan.index
        line = self._box.line(index)
        self._seconds, self._numbers = line.cast("d"), line.cast("q")
        arena = Arena(setup.plan.layout, setup.slots, block=arena_block)
        for block in (arena_block, box_block):
            block.close_fd()  # simulators started from here must not keep our memory alive
        listener = Listener(
            on_fault=lambda fault: parent.tell("fault", fault.to_dict()),
            on_episode=lambda lane, episode, stats: parent.tell(
                "episode", {"lane": lane, "episode": episode, "stats": stats}
            ),
        )
        self._worker = Worker(setup.plan, arena, self._box, SharedWatch(self._box, index), listener)

    def serve(self) -> None:
        box, seconds = self._box, self._seconds
        stop, main_sleeping = box.numbers("stop"), box.numbers("main_sleeping")
        idle_since = time.perf_counter()
        while not stop[0]:
            begun = time.perf_counter()
            if self._worker.work():
                seconds[SECONDS_WAIT] += begun - idle_since
                if main_sleeping[0] and box.enough_ready():
                    self._main_wakeup.notify()
                idle_since = time.perf_counter()
                seconds[SECONDS_ENV] += idle_since - begun
            elif not self._sleep() and self._parent.is_gone:
                break  # the run is gone: end quietly
        self._worker.close()

    def _sleep(self) -> bool:
        """Wait for a command; False when none came for a while."""
        if self._awake and self._look_out():
            return True
        self._numbers[SLEEPING] = 1
        notified = self._worker.has_work() or self._own_wakeup.wait(PARENT_CHECK_SECONDS)
        self._numbers[SLEEPING] = 0
        if notified:
            self._own_wakeup.clear()  # before looking at the numbers: a later notification wakes again
        return notified

    def _look_out(self) -> bool:
        """Stay awake for a moment; False when sleeping is better."""
        end = time.perf_counter() + AWAKE_SECONDS
        while time.perf_counter() < end:
            if self._worker.has_work():
                return True
        return False


def work(setup: ProcessSetup, parent: Parent) -> None:
    if setup.core is not None:
        pin_to(setup.core)
    os.nice(setup.nice)
    wait_for_turn()
    for fd in (*setup.main_wakeup, *setup.own_wakeup):
        os.set_inheritable(fd, False)
    process = WorkerProcess(setup, parent)
    gc.collect()
    gc.freeze()  # what stands by now stays; going through it again and again would evict the simulators' data
    if setup.shares_inference_core:
        step_aside()  # only now: on a busy machine, building the envs would time out
    process.serve()


if __name__ == "__main__":
    leave(run_child(work))
