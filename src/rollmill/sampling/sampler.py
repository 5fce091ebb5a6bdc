"""The sampler: keeps the workers stepping and the policies acting, and the finished segments in line.

One ``round`` is the whole cycle: wait for rows, infer actions for them, hand the commands back. In async mode a
``SamplerThread`` runs rounds for ever; in sync and serial mode the run calls them itself. Finished
segments are taken by the learner as slot numbers and given back when they have been copied.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.fields import TASK_FIELD, Array, EnvSpec
from rollmill.core.protocols import Actor, Ensemble, Matchmaker
from rollmill.core.room import check_room
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import ARRAY, FLAGS, FLOATS, INTS, MAPPING, Shape
from rollmill.core.slots import OBS, Arena, RowOut, SegmentLayout
from rollmill.envs.batch import EnvBatch
from rollmill.envs.levels.draw import LevelDraws, draws_of
from rollmill.envs.settings import EnvSettings
from rollmill.sampling.inference import Inference
from rollmill.sampling.mailbox import Mailbox
from rollmill.sampling.placement import default_workers
from rollmill.sampling.pool import InProcessPool, ProcessPool, WorkerPool
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.sampling.settings import SamplingSettings
from rollmill.sampling.worker import WorkerPlan

log = logging.getLogger("rollmill")

COUNTERS_SHAPE: Shape = {
    "steps": int,
    "steps_of?": [int],
    "frames_decided": int,
    "lost_segments": int,
    "env_faults": int,
    "worker_restarts": int,
    "variables?": {str: float},
    "episodes": [
        {"lane": int, "episode": int, "episode_return": float, "length": int, "terminated": bool, "policy_id": int}
        | {"frames": int, "first_frames?": int, "task?": int}
    ],
    "next_episode": INTS,
}
EXACT_SHAPE: Shape = {
    **COUNTERS_SHAPE,
    "first_frames?": INTS,
    "seats?": MAPPING,
    "opponents?": MAPPING,
    "held": [{"row": int, "fields": {str: ARRAY}}],
    "finished": [{"group": int, "fields": {str: ARRAY}}],
    "envs": [
        {"episode": INTS, "steps": INTS, "returns": FLOATS, "ended": FLAGS, "faults": INTS, "good_steps": INTS}
        | {"actions": [ARRAY], "variables?": [ARRAY]}
    ],
}
GATHER_SECONDS = 0.02
"""How long ready groups wait for others, to share a forward pass with them (``sampling.inference_batch_share``)."""


@dataclass(frozen=True)
class EpisodeEnd:
    """One finished episode."""

    lane: int
    episode: int
    episode_return: float
    length: int
    terminated: bool
    policy_id: int
    frames: int
    first_frames: int = -1
    """Frames of the run when its first action was chosen; -1: before this session."""
    task: int = 0
    """Of a suite: which one it was."""


@dataclass(frozen=True)
class SamplerPlan:
    """Everything a sampler is built from."""

    settings: SamplingSettings
    env: EnvSettings
    spec: EnvSpec
    seeds: Seeds
    segments_per_batch: int
    state_every: int = 0
    environment: Mapping[str, str] | None = None
    workers_before: int = 0
    """Workers of other samplers of the same run (ranks) that come before this one's."""
    pin_inference: bool = False
    """Give the inference thread a core that others leave or step aside from (``sampling.placement``)."""
    on_policy: bool = False
    """Every row of a segment is decided by the weights that are the newest when the segment is taken: groups that have
    filled theirs wait for all others, and go on when the learner has been there. Sync mode's promise."""
    even: bool = False
    """All groups fill as many segments as the others, give or take one: a group that is ahead waits. So tasks that are
    mixed over groups, and members of a population, get the same number of rows, at the pace of the slowest."""
    lockstep: bool = False
    """Infer only when every group is ready: slower, but the order of decisions is fixed."""
    schedule: EpisodeSchedule | None = None
    """Numbered episodes instead of one sequence for each env."""
    random_actions: bool = False
    """Workers act at random by themselves; the policy decides only where a segment begins. To measure simulators."""
    policy_of_group: tuple[int, ...] = ()
    """Of every group: the one policy that acts in it, and learns from batches of its own groups alone (a population).
    Empty: policies share groups, and batches."""
    level_tickets: Path | None = None
    """A folder of the run, where it is written down which levels its episodes have drawn (``env.levels``)."""
    spare_slots: int = 0
    """Slots that are not sampled into: a recorder exchanges them for finished ones that it wants to keep a while."""
    remote_slots: int = 0
    """Slots for segments that were sampled elsewhere (``Sampler.admit``)."""
    remote_groups: int = 0
    """Groups that fill those; they are numbered behind this sampler's own."""
    idle: bool = False
    """Nothing is sampled here: there are no workers, only slots for what comes from elsewhere."""

    def __post_init__(self) -> None:
        s, slots = self.settings, self.all_slots
        if not s.groups:  # automatic, and not decided yet
            return
        check_room(
            0 if s.mode == "serial" else self.workers,
            slots * SegmentLayout(self.spec, s.rollout, self.lanes_per_group).slot_bytes,
            f"{self.workers:,} workers x {s.envs_per_worker:,} environments, {slots:,} segments of {s.rollout:,} steps",
        )

    @property
    def workers(self) -> int:
        return 0 if self.idle else self.settings.workers or default_workers()

    @property
    def groups(self) -> int:
        return self.workers * self.settings.groups

    @property
    def lanes_per_group(self) -> int:
        return self.settings.envs_per_worker // self.settings.groups * self.spec.agents

    @property
    def lines(self) -> int:
        """In how many lines finished segments wait, each for a learner of its own."""
        return max(self.policy_of_group, default=0) + 1

    @property
    def slots(self) -> int:
        # In every other line a batch may lack one segment only, and still wait; where all wait for all, none lacks.
        others = self.segments_per_batch - (0 if self.on_policy else 1)
        waiting = (self.lines - 1) * others
        if self.settings.mode == "serial" or self.lockstep:
            # All groups fill up in the same round and must all find a place to go on.
            return 2 * self.groups + self.segments_per_batch + waiting
        return self.groups + self.segments_per_batch * (1 + self.settings.spare_batches) * (not self.idle) + waiting

    @property
    def all_slots(self) -> int:
        return self.slots + self.spare_slots + self.remote_slots


class Sampler:
    """Owns the arena, the mailbox, the pool and the acting side of the policies."""

    def __init__(
        self,
        plan: SamplerPlan,
        policies: Sequence[Actor],
        matchmaker: Matchmaker | None = None,
        ensemble: Ensemble | None = None,
    ) -> None:
        settings = plan.settings
        self.plan = plan
        state_size, several = policies[0].state_size, matchmaker is not None
        layout = SegmentLayout(
            plan.spec, settings.rollout, plan.lanes_per_group, state_size, plan.state_every, opponents=several
        )
        self.arena = Arena(layout, plan.all_slots)
        envs = plan.workers * settings.envs_per_worker
        variables = len(plan.env.variables)
        self.box = Mailbox(plan.groups, plan.workers, envs, variables=variables, policies=plan.lines)
        self.box.variables[:] = list(plan.env.variables.values())
        self.policies = policies
        try:
            for policy in policies:
                policy.attach(self.arena)
        except BaseException:
            self._let_go()
            raise
        self._matchmaker = matchmaker
        self.inference = Inference(self.arena, self.box, policies, matchmaker, plan.policy_of_group, ensemble)
        self.spare = [self.inference.free.pop() for _ in range(plan.spare_slots)]
        """Slots that are free for whoever returns as many others (``release``)."""
        self.remote = [self.inference.free.pop() for _ in range(plan.remote_slots)]
        """Slots for whoever brings segments from elsewhere."""
        self.hand_back: Callable[[Sequence[int]], None] | None = None
        """Told when as many of those are free again."""
        self.pool = self._build_pool()
        self._dismissed = False
        self.finished: deque[int] = deque()
        self.episodes: deque[EpisodeEnd] = deque(maxlen=100_000)
        self._first_frames = np.full((plan.groups + plan.remote_groups, plan.lanes_per_group), -1)
        """When the episode that is under way in each lane began."""
        self.steps = 0
        """Decisions that counted, in finished segments."""
        self.steps_of = [0] * plan.lines
        """The same, of the policy of every line."""
        self.lost_segments = 0
        self.rounds = 0
        """Rounds with a forward pass."""
        self.seconds_inference = 0.0
        """Time spent on inference (gathering, network, writing), as opposed to waiting for rows."""
        self._any_finished = threading.Condition()
        self._wanted = 0
        self._want(plan.groups)
        self._waiting = np.zeros(0, np.int64)
        """Groups that have all filled a segment and wait for the learner (``SamplerPlan.on_policy``)."""
        self._has_tasks = plan.spec.tasks > 0
        self._filled = np.zeros(plan.groups, np.int64)
        """Segments that each group has filled (``SamplerPlan.even``)."""
        self._short_since: float | None = None
        """When some groups became ready, but fewer than wanted."""
        self._kept_episodes: Array | None = None
        """What an idle sampler was told of unused episode numbers, for a session that samples here again."""

    @property
    def variables(self) -> dict[str, float]:
        """``env.variables`` as they stand; envs take them over when their next episode begins."""
        return dict(zip(self.plan.env.variables, self.box.variables[0].tolist(), strict=True))

    def set_variable(self, name: str, value: float, policy: int | None = None) -> None:
        """Turn one of ``env.variables``, for all envs or for those of one policy of a population."""
        index = tuple(self.plan.env.variables).index(name)
        self.box.variables[slice(None) if policy is None else policy, index] = value

    @property
    def frames(self) -> int:
        """Simulator frames in finished segments."""
        return self.steps * self.plan.spec.frames_per_step

    def _build_pool(self) -> WorkerPool:
        plan, settings = self.plan, self.plan.settings
        serial = settings.mode == "serial"
        plans = [
            WorkerPlan(
                index=index,
                env=plan.env,
                layout=self.arena.layout,
                seeds=plan.seeds,
                groups=settings.groups,
                envs_per_group=settings.envs_per_worker // settings.groups,
                decorrelate_steps=settings.decorrelate_steps,
                keep_actions=serial,
                workers_before=plan.workers_before,
                schedule=plan.schedule,
                random_actions=plan.random_actions,
                policy_of_group=plan.policy_of_group,
            )
            for index in range(plan.workers)
        ]
        levels = self._level_draws(plans)
        plans = [replace(one, levels=levels) for one in plans]
        if serial and plan.env.vector:
            log.warning(
                "%s is stepped as a vector (env.vector): the run repeats from its seed, but a resumed one begins fresh "
                "episodes instead of continuing bit for bit",
                plan.env.id,
            )
        if serial:
            return InProcessPool(plans, self.arena, self.box)
        return ProcessPool(plans, self.arena, self.box, settings, plan.environment or os.environ, plan.pin_inference)

    def _level_draws(self, plans: Sequence[WorkerPlan]) -> LevelDraws | None:
        plan = self.plan
        players = [
            (one.instance(env), one.policy_of(group))
            for one in plans
            for group in range(one.groups)
            for env in one.envs_of(group)
        ]
        randomness = Seeds(plan.seeds.root).branch("levels")  # the same for all ranks of a run
        return draws_of(plan.env, players, randomness, plan.level_tickets, again=plan.settings.mode == "serial")

    # -- the cycle -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers and tell every group to reset."""
        self._poison_fresh()
        self.box.row[:] = -1
        self.box.command[:] = self.box.done + 1
        self.pool.start()
        if self.plan.groups:
            self.pool.post(np.arange(self.plan.groups))

    def _poison_fresh(self) -> None:
        if self.plan.settings.poison:
            for slot in range(self.arena.slots):
                self.arena.poison(slot)

    def round(self, timeout: float = 0.1) -> int:
        """Infer actions for what is ready, waiting up to ``timeout`` seconds; returns the groups that got theirs."""
        lost = self.pool.check()
        if lost.size:
            self.lost_segments += int(lost.size)
            self._waiting = np.setdiff1d(self._waiting, lost)
            self.pool.post(lost)
        if self._waiting.size:
            return self._go_on()
        groups = self._servable()
        if not groups.size:
            self.pool.wait(timeout if self._short_since is None else min(timeout, GATHER_SECONDS))
            groups = self._servable()
        if groups.size:
            begun = time.perf_counter()
            self._short_since = None
            finished = self._infer(groups)
            for slot in finished:
                self._filled[self.inference.group_of_slot[slot]] += 1
                self._finish(slot)
            self.rounds += 1
            self.seconds_inference += time.perf_counter() - begun
        return int(groups.size)

    def _infer(self, groups: Array) -> list[int]:
        if self.plan.on_policy and groups.size == self.plan.groups and self.inference.full(groups).all():
            for policy in self.policies:
                policy.remember()
            self._waiting = groups
            return self.inference.infer(groups)
        self.box.main_sleeping[0] = 0
        finished = self.inference.infer(groups)
        self._send(groups)
        return finished

    def _send(self, groups: Array) -> None:
        self.box.command[groups] += 1
        self.box.main_sleeping[0] = 1
        self.pool.post(groups)

    def _go_on(self) -> int:
        """Go on after the learner: decide anew for what waits if there are new weights, and step it."""
        groups, self._waiting = self._waiting, self._waiting[:0]
        begun, before = time.perf_counter(), [policy.version for policy in self.policies]
        if [policy.refresh() for policy in self.policies] != before:
            for policy in self.policies:
                policy.rewind()
            self.inference.infer_again(groups)
        self._send(groups)
        self.rounds += 1
        self.seconds_inference += time.perf_counter() - begun
        return int(groups.size)

    def _want(self, active: int) -> None:
        """Wait for a share of the ``active`` groups, those being stepped, and let workers notify main from then on."""
        wanted = max(1, math.ceil(self.plan.settings.inference_batch_share * active))
        if wanted != self._wanted:
            self.box.wanted[0] = self._wanted = wanted

    def _servable(self) -> Array:
        ready = self.box.ready()
        if self.plan.lockstep and ready.size < self.plan.groups:
            return ready[:0]
        if self.plan.on_policy:
            stepping = ready[~self.inference.full(ready)]
            if stepping.size < ready.size:  # the others have filled their segments and wait for all
                full = ready.size - stepping.size
                self._want(self.plan.groups - full if full < self.plan.groups else full)
                ready = stepping if full < self.plan.groups else ready
            else:
                self._want(self.plan.groups)
        if self.plan.even:
            ahead = self.inference.full(ready) & (self._filled[ready] > self._filled.min())
            self._want(self.plan.groups - int(np.count_nonzero(ahead)))
            ready = ready[~ahead]
        return self.inference.servable(ready) if self._enough(ready.size) else ready[:0]

    def _enough(self, ready: int) -> bool:
        """Return whether to infer now: enough groups are ready, or the first of them has waited long enough."""
        if 0 < ready < self._wanted:
            now = time.monotonic()
            if self._short_since is None:
                self._short_since = now
            return now - self._short_since >= GATHER_SECONDS
        self._short_since = None
        return ready > 0

    def _finish(self, slot: int) -> None:
        segment = self.arena.segment(slot)
        with self._any_finished:  # segments from elsewhere come by another thread
            steps = int(np.count_nonzero(segment["valid"][:-1]))
            self.steps += steps
            self.steps_of[self._line_of(slot)] += steps
            self.episodes.extend(self._episode_ends(slot, segment))
            self.finished.append(slot)
            self._any_finished.notify()

    def _episode_ends(self, slot: int, segment: Mapping[str, Array]) -> list[EpisodeEnd]:
        # The slot has left its group; lanes are numbered by the group that filled it.
        over = (segment["terminated"] | segment["truncated"])[:-1] & segment["valid"][:-1]
        group, step, frames = int(self.inference.group_of_slot[slot]), segment["step"], segment["frames"]
        lane0, begun = group * self.arena.layout.lanes, self._first_frames[group]
        tasks = segment[OBS + TASK_FIELD] if self._has_tasks else None

        def first_frames(row: int, lane: int) -> int:
            start = row - int(step[row, lane])
            return int(frames[start, lane] if start >= 0 else begun[lane])

        found = [
            EpisodeEnd(
                lane=lane0 + int(lane),
                episode=int(segment["episode"][row, lane]),
                episode_return=float(segment["episode_return"][row, lane]),
                length=int(segment["step"][row, lane]) + 1,
                terminated=bool(segment["terminated"][row, lane]),
                policy_id=int(segment["policy_id"][row, lane]),
                frames=self.frames,
                first_frames=first_frames(row, lane),
                task=0 if tasks is None else int(tasks[row, lane].argmax()),
            )
            for row, lane in zip(*np.nonzero(over))
        ]
        starts = len(step) - 1 - step[-1]
        fresh = np.flatnonzero(starts >= 0)
        begun[fresh] = frames[starts[fresh], fresh]
        return found

    # -- finished segments ---------------------------------------------------------------------

    def admit(self, slot: int, group: int) -> None:
        """Treat one of the ``remote`` slots, which holds a segment of a remote group, like any other from here on."""
        self.inference.group_of_slot[slot] = group
        self._finish(slot)

    def take(self, count: int, timeout: float) -> list[int] | None:
        """Take ``count`` finished segments in the order they ended; None if ``timeout`` seconds pass first.

        Of a population they are all one policy's: whose batch was complete first.
        """
        with self._any_finished:
            found = self._first_batch(count)
            if not found and timeout:
                found = self._any_finished.wait_for(lambda: self._first_batch(count), timeout)
            for slot in found:
                self.finished.remove(slot)
            return found or None

    def _first_batch(self, count: int) -> list[int]:
        """Return the segments of the line that has as many first; empty if none has."""
        if len(self.finished) < count:
            return []
        if self.plan.lines == 1:
            return list(itertools.islice(self.finished, count))
        lines: list[list[int]] = [[] for _ in range(self.plan.lines)]
        for slot in self.finished:
            line = lines[self._line_of(slot)]
            line.append(slot)
            if len(line) == count:
                return line
        return []

    def _line_of(self, slot: int) -> int:
        owners = self.plan.policy_of_group
        return owners[self.inference.group_of_slot[slot]] if owners else 0

    def put_back(self, slots: Sequence[int]) -> None:
        """Return segments that were taken, unused; they are the next to be taken."""
        with self._any_finished:
            self.finished.extendleft(reversed(slots))

    def release(self, slots: Sequence[int]) -> None:
        """Give slots back; their contents may be overwritten from now on."""
        for slot in slots:
            if self.plan.settings.poison:
                self.arena.poison(slot)
        if self.hand_back is not None:
            remote = [slot for slot in slots if self.inference.group_of_slot[slot] >= self.plan.groups]
            if remote:
                self.hand_back(remote)
                slots = [slot for slot in slots if slot not in remote]
        self.inference.free.extend(slots)
        if isinstance(self.pool, ProcessPool):
            self.pool.wake()

    def dismiss(self) -> None:
        """End the workers. What they have written stays, and the policies can still be asked about it."""
        if not self._dismissed:
            self._dismissed = True
            self.pool.stop()

    def stop(self) -> None:
        self.dismiss()
        self._let_go()

    def _let_go(self) -> None:
        for policy in self.policies:
            policy.detach()
        for block in (self.arena.block, self.box.block):
            block.close_fd()  # the memory goes with the last array that refers to it

    # -- resume --------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """Return what survives when the envs themselves cannot be continued: counts and unused episode numbers."""
        used = self.box.next_episode + 1 if self._kept_episodes is None else self._kept_episodes
        return {**self._counts(), "next_episode": used}

    def load_counters(self, state: Mapping[str, Any]) -> None:
        """Count on from an earlier session; call before ``start``. Envs begin with fresh episodes."""
        self._load_counts(state)
        # With another number of envs, every env starts beyond all episodes that were ever used.
        used = state["next_episode"]
        if self.plan.idle:
            self._kept_episodes = used
        same = used.shape == self.box.next_episode.shape
        self.box.next_episode[:] = used if same else int(used.max(initial=0))

    def _counts(self) -> dict[str, Any]:
        report = self.pool.report
        return {
            "steps": self.steps,
            "steps_of": list(self.steps_of),
            "frames_decided": self.inference.frames,
            "lost_segments": self.lost_segments,
            "env_faults": report.env_faults,
            "worker_restarts": report.worker_restarts,
            "variables": self.variables,
            # Ended, but not yet counted by whoever reports.
            "episodes": [asdict(episode) for episode in self.episodes.copy()],
        }

    def _load_counts(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        if len(known := state.get("steps_of", [])) == self.plan.lines:
            self.steps_of = list(known)
        self.inference.frames = state["frames_decided"]
        self.lost_segments = state["lost_segments"]
        self.pool.report.env_faults = state["env_faults"]
        self.pool.report.worker_restarts = state["worker_restarts"]
        for name, value in state.get("variables", {}).items():
            if name in self.plan.env.variables:
                self.set_variable(name, value)
        self.episodes.extend(EpisodeEnd(**episode) for episode in state["episodes"])

    # -- deterministic resume (serial mode) ----------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that the next round depends on. Call it only between rounds of serial mode."""
        return {
            **self._counts(),
            "next_episode": self.box.next_episode.copy(),
            "first_frames": self._first_frames.copy(),
            "held": [self._held(group) for group in range(self.plan.groups)],
            "finished": [
                {"group": int(self.inference.group_of_slot[slot]), "fields": _copy(self.arena.segment(slot))}
                for slot in self.finished
            ],
            "envs": [batch.replay_state() for batch in self._local_batches()],
            **self._matches(),
        }

    def _matches(self) -> dict[str, Any]:
        """Return who plays whom in the running episodes; nothing without self-play."""
        if self._matchmaker is None:
            return {}
        return {"seats": self.inference.seats(), "opponents": self._matchmaker.acting_state()}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Start where ``state`` was taken (instead of ``start``); envs are replayed to where they were."""
        self._poison_fresh()
        self._load_counts(state)
        self.box.next_episode[:] = state["next_episode"]
        self._first_frames[:] = state.get("first_frames", -1)
        if self._matchmaker is not None:
            self.inference.load_seats(state["seats"])
            self._matchmaker.load_acting_state(state["opponents"])
        self.box.row[:] = -1
        self.pool.start()
        for group, (batch, env_state) in enumerate(zip(self._local_batches(), state["envs"], strict=True)):
            held = state["held"][group]
            if held["row"] >= 0:
                batch.replay(env_state, RowOut(self.arena, int(self.box.slot[group]), held["row"] - 1))
                self._restore_held(group, held)
        self.box.command[:] = self.box.done + 1
        for entry in state["finished"]:
            slot = self.inference.free.popleft()
            for name, array in self.arena.fields.items():
                array[slot] = entry["fields"][name]
            self.inference.group_of_slot[slot] = entry["group"]
            self.finished.append(slot)

    def _local_batches(self) -> list[EnvBatch]:
        assert isinstance(self.pool, InProcessPool), "only serial mode can be continued bit for bit"
        batches = [batch for worker in self.pool.workers for batch in worker.batches]
        assert all(isinstance(batch, EnvBatch) for batch in batches), "a vector env cannot be replayed"
        return [batch for batch in batches if isinstance(batch, EnvBatch)]

    def _held(self, group: int) -> dict[str, Any]:
        """Return the part of a group's unfinished segment that is already written."""
        slot, row = int(self.box.slot[group]), int(self.box.row[group])
        return {"row": row, "fields": _copy(self.arena.head(slot, row))}

    def _restore_held(self, group: int, held: Mapping[str, Any]) -> None:
        slot, row = int(self.box.slot[group]), held["row"]
        self.box.row[group] = row
        for name, array in self.arena.obs.items():
            if not np.array_equal(array[slot, row], held["fields"][OBS + name][row]):
                log.warning(
                    "%s is not reproducible from its seeds and actions (group %d, field %r differs after the "
                    "replay): this run does not continue bit for bit",
                    self.plan.env.id,
                    group,
                    name,
                )
        for name, view in self.arena.head(slot, row).items():
            view[:] = held["fields"][name]


def _copy(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


class SamplerThread:
    """Runs rounds in the background; an error there is raised to whoever asks for segments.

    The thread outlives its last round until ``join``: Linux ends a worker with the *thread* that started it
    (``worker.die_with_parent``), and a worker that this one has started must live to close its envs.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._sampler.pool.pin_inference_thread()
            while not self._stop.is_set():
                self._sampler.round()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread by check()
            self._error = error
        self._idle.set()
        self._end.wait()

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Return when the last round is done; the sampler may then be stopped from another thread."""
        self._stop.set()
        self._idle.wait()

    def join(self) -> None:
        """End the thread, after the sampler was stopped."""
        self._end.set()
        self._thread.join()
