"""Plays the numbered episodes of an evaluation and counts those that are wanted.

Episode n has a seed of its own, environment e of ``envs`` plays the episodes e, e + envs, e + 2 * envs ..., and all
environments step together. So the policy is always asked about the same lanes in the same order: metrics depend on the
seed and on ``envs``, not on how many workers share the environments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rollmill.core.fields import EnvSpec
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.slots import Arena
from rollmill.envs.batch import random_actions
from rollmill.envs.tasks.suite import Task
from rollmill.runs.evaluate.record import EvalRecording
from rollmill.runs.evaluate.results import EpisodeRow, Score
from rollmill.sampling.sampler import EpisodeEnd, Sampler, SamplerPlan
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.store.assemble import Rows
from rollmill.store.extract import EpisodeExtractor, EpisodeQuota, Stats


@dataclass(frozen=True)
class Metrics:
    """How far one policy's episodes are."""

    policy: str
    done: int
    wanted: int
    """Episodes; steps where the evaluation goes by steps."""
    unit: str
    mean_return: float | None

    def to_dict(self) -> dict[str, object]:
        return {"policy": self.policy, "done": self.done, "wanted": self.wanted, "unit": self.unit}


Progress = Callable[[Sequence[EpisodeRow], Metrics], None]
"""Called with the episodes that have just been counted, and how far it is; every second at least, then without any."""
BEAT_SECONDS = 1.0


class Pace:
    """How long the rest of a policy's episodes takes, at the pace so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._policy = ""
        self._begun, self._done = 0.0, 0

    def left(self, metrics: Metrics) -> float | None:
        """Return how many seconds are left; None before anything is done."""
        if metrics.policy != self._policy:
            self._policy, self._begun, self._done = metrics.policy, self._clock(), metrics.done
        done = metrics.done - self._done
        return (metrics.wanted - metrics.done) * (self._clock() - self._begun) / done if done > 0 else None


@dataclass(frozen=True)
class EvalPlan:
    """Who plays which episodes."""

    sampler: SamplerPlan
    schedule: EpisodeSchedule
    """Numbers of episodes; env seeds are drawn by it except where the env is a vector of them."""
    episodes: int | None
    """Of all tasks and targets together."""
    steps: int | None
    targets: Sequence[float | None] = (None,)
    """The returns that are asked for: episode n is played for ``targets[n % len(targets)]``."""
    tasks: tuple[Task, ...] = ()
    """Of a suite: episode n is of ``tasks[n % len(tasks)]``."""

    @property
    def lanes(self) -> int:
        """Lanes that count; workers of unlike size have some more."""
        return self.schedule.envs * self.sampler.spec.agents

    def number(self, lane: int, episode: int) -> int:
        return self.schedule.number(lane // self.sampler.spec.agents, episode)

    def quota(self) -> EpisodeQuota:
        """Return a quota that gives every lane its share of the episodes; where one fails, the lane plays another."""
        need = None if self.episodes is None else self.episodes * self.sampler.spec.agents
        return EpisodeQuota(self.lanes, need, own_place=True)

    def seed(self, lane: int, episode: int) -> int | None:
        if self.sampler.schedule is None:
            return None
        return self.schedule.env_seed(lane // self.sampler.spec.agents, episode)


class FirstLanes(Policy):
    """Asks a policy about the first lanes only; the rest, which nobody counts, act at random."""

    def __init__(self, policy: Policy, lanes: int, spec: EnvSpec) -> None:
        self._policy, self._lanes, self._spec = policy, lanes, spec
        self._rng = np.random.default_rng(0)
        self.state_size = policy.state_size

    @property
    def version(self) -> int:
        return self._policy.version

    def attach(self, arena: Arena) -> None:
        self._policy.attach(arena)

    def detach(self) -> None:
        self._policy.detach()

    def refresh(self) -> int:
        return self._policy.refresh()

    def act(self, request: ActRequest) -> PolicyOutput:
        n, rest = self._lanes, len(request.lanes) - self._lanes
        if rest <= 0:
            return self._policy.act(request)
        answer = self._policy.act(request.part(slice(n)))
        tail = random_actions(self._spec, self._rng, {name: array[n:] for name, array in request.obs.items()}, rest)
        blank = np.zeros(rest, np.float32)
        state = answer.state
        if state is not None:
            state = np.concatenate([state, np.zeros((rest, state.shape[1]), state.dtype)])
        return PolicyOutput(
            np.concatenate([answer.action, tail]),
            np.concatenate([answer.log_prob, blank]),
            np.concatenate([answer.value, blank]),
            state,
        )


class EpisodeCounter:
    """Which of the ended episodes count, and whether there are enough of them."""

    def __init__(self, plan: EvalPlan) -> None:
        self._plan, self._agents, self._quota = plan, plan.sampler.spec.agents, plan.quota()
        self._rows: dict[tuple[int, int], EpisodeRow] = {}
        self._next = np.zeros(plan.lanes, np.int64)  # the lane's first episode that has not ended yet
        self._lost: set[int] = set()
        self._stats: dict[tuple[int, int], Stats] = {}
        self._prefix = self._prefix_steps = 0  # by steps: episodes 0 .. prefix - 1 are settled

    def add(self, ended: EpisodeEnd) -> EpisodeRow | None:
        """Count an episode; returns its row, or None where it does not count."""
        lane, quota = ended.lane, self._quota
        if lane >= self._plan.lanes:
            return None
        missing = range(int(self._next[lane]), ended.episode)
        self._lost.update(self._plan.number(lane, k) for k in missing if quota.lose(lane, k))
        self._next[lane] = ended.episode + 1
        if not quota.wants(lane, ended.episode):
            return None
        quota.end(lane, ended.episode)
        number = self._plan.number(lane, ended.episode)
        row = EpisodeRow(
            episode=number,
            agent=lane % self._agents,
            seed=self._plan.seed(lane, ended.episode),
            episode_return=ended.episode_return,
            length=ended.length,
            terminated=ended.terminated,
            policy_id=ended.policy_id,
            target=self._plan.targets[number % len(self._plan.targets)],
            task=self._plan.tasks[number % len(self._plan.tasks)].name if self._plan.tasks else None,
        )
        self._rows[row.episode, row.agent] = row
        return row

    def add_stats(self, stats: Mapping[tuple[int, int], Stats]) -> None:
        """Add the environments' own metrics of ended episodes, by (lane, episode).

        A metric that is one number for all agents comes with the first agent.
        """
        for (lane, episode), own in stats.items():
            if lane < self._plan.lanes:
                self._stats[self._plan.number(lane, episode), lane % self._agents] = own

    @property
    def is_done(self) -> bool:
        if self._plan.episodes is not None:
            return self._quota.is_done
        assert self._plan.steps is not None, "an evaluation goes by episodes or by steps"
        while self._prefix_steps < self._plan.steps:
            rows = self._game(self._prefix)
            if len(rows) == self._agents:
                self._prefix_steps += max(row.length for row in rows)
            elif self._prefix not in self._lost:
                return False
            self._prefix += 1
        return True

    def _game(self, number: int) -> list[EpisodeRow]:
        return [row for agent in range(self._agents) if (row := self._rows.get((number, agent))) is not None]

    def scores(self) -> list[Score]:
        """Return one for each target."""
        return [self._score(k, len(self._plan.targets)) for k in range(len(self._plan.targets))]

    def _score(self, k: int, targets: int) -> Score:
        """Return the score of what counts for target ``k``: all that was wanted.

        By steps, these are the episodes before the one that reached the limit, and it.
        """
        keys = [key for key in sorted(self._rows) if key[0] % targets == k]
        if self._plan.episodes is None:
            keys = [key for key in keys if key[0] < self._prefix and len(self._game(key[0])) == self._agents]
        stats = {key: self._stats[key] for key in keys if key in self._stats}
        lost = sum(n % targets == k for n in self._lost)
        return Score([self._rows[key] for key in keys], lost, stats, self._plan.tasks)

    def metrics(self, policy: str) -> Metrics:
        returns = [row.episode_return for row in self._rows.values()]
        mean = float(np.mean(returns)) if returns else None
        if self._plan.episodes is None:
            assert self._plan.steps is not None
            return Metrics(policy, min(self._prefix_steps, self._plan.steps), self._plan.steps, "steps", mean)
        return Metrics(policy, self._quota.complete // self._agents, self._plan.episodes, "episodes", mean)


class SegmentReader(Protocol):
    """Somebody who reads finished segments before their slots are given back."""

    def take(self, segment: Rows, group: int) -> None: ...


@dataclass(frozen=True)
class RecordTarget:
    """Where the episodes of one policy are recorded, and what is the same in all of their rows."""

    recording: EvalRecording
    policy: str
    constants: Mapping[str, int]


def play(
    plan: EvalPlan,
    policy: Policy,
    name: str,
    progress: Progress | None = None,
    record: RecordTarget | None = None,
    reader: SegmentReader | None = None,
) -> list[Score]:
    """Play until enough whole episodes have ended; returns a score for each target.

    ``record`` keeps the episodes, ``reader`` sees all finished segments.
    """
    sampler = Sampler(plan.sampler, [FirstLanes(policy, plan.lanes, plan.sampler.spec)])
    counter = EpisodeCounter(plan)
    extractor = None
    if record is not None:
        assert plan.episodes is not None, "recordings go by episodes"
        extractor = record.recording.extractor(plan.sampler, plan.quota(), record.policy, record.constants)
    due = time.monotonic()
    stats: dict[tuple[int, int], Stats] = {}  # of episodes whose slot is not finished yet
    try:
        sampler.start()
        while not counter.is_done:
            sampler.round()
            if sampler.episodes:
                stats |= sampler.pool.pop_stats()
                counter.add_stats(stats)
            _empty_slots(sampler, extractor, reader, stats)
            fresh = _take_ended(sampler, counter)
            if fresh or time.monotonic() >= due:
                due = time.monotonic() + BEAT_SECONDS
                metrics = counter.metrics(name)
                if record is not None and fresh:
                    record.recording.note(record.policy, metrics.done, metrics.wanted)
                if progress is not None:
                    progress(fresh, metrics)
    finally:
        sampler.stop()
        if extractor is not None:
            extractor.discard_open()
    return counter.scores()


def _take_ended(sampler: Sampler, counter: EpisodeCounter) -> list[EpisodeRow]:
    fresh = []
    while sampler.episodes:
        row = counter.add(sampler.episodes.popleft())
        if row is not None:
            fresh.append(row)
    return sorted(fresh, key=lambda row: (row.episode, row.agent))


def _empty_slots(
    sampler: Sampler,
    extractor: EpisodeExtractor | None,
    reader: SegmentReader | None,
    stats: dict[tuple[int, int], Stats],
) -> None:
    """Give finished slots back, after their episodes were recorded; ``stats`` are used up."""
    while (slots := sampler.take(1, timeout=0)) is not None:
        segment = sampler.arena.segment(slots[0])
        group = int(sampler.inference.group_of_slot[slots[0]])
        if extractor is not None:
            extractor.take(segment, group, stats)
        stats.clear()
        if reader is not None:
            reader.take(segment, group)
        sampler.release(slots)
