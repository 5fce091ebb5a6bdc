"""A whole population plays at once: many environments, one pass through encoder, memory and all controllers.

The workers, slots and mailbox of ``sampling`` do the stepping and stay for all generations. Which lane plays which
episode of which member is fixed beforehand (``TrialSchedule``). A lane that has played its share of a generation is
parked, a group of nothing but parked lanes is not stepped at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch

from rollmill.core.fields import Array, EnvSpec
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.seeds import Seeds
from rollmill.core.slots import Arena
from rollmill.envs.settings import EnvSettings
from rollmill.sampling.placement import default_workers
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.settings import SamplingSettings
from rollmill.worldmodel.controller.model import ControllerAgent
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.controller.trial_env import TrialSchedule, parked

SPARE_CORE_FROM = 4
"""Cores from which on one of them can be left to the process that decides."""
ROLLOUT = 32
"""Rows of a slot. Nothing is learnt from slots here, they are only given back."""


@dataclass(frozen=True)
class Played:
    """What a generation has brought: returns ``[members, trials]`` (NaN: lost to a fault) and steps that counted."""

    returns: Array
    steps: int


@dataclass(frozen=True)
class Layout:
    """How the episodes of a generation are shared out."""

    workers: int
    envs_per_worker: int
    groups: int

    @property
    def envs(self) -> int:
        return self.workers * self.envs_per_worker


def share_out(episodes: int, envs: int, workers: int) -> Layout:
    """Choose the most environments (up to ``envs``) that divide ``episodes`` and can be divided among workers.

    Two groups for each worker where that is possible: one is stepped while the other's actions are decided.
    """
    for count in range(min(envs, episodes), 0, -1):
        if episodes % count == 0 and count % workers == 0:
            each = count // workers
            return Layout(workers, each, 2 if each % 2 == 0 else 1)
    return share_out(episodes, envs, workers - 1)


def layout_of(settings: ControllerSettings, cores: int, gpu: bool) -> Layout:
    """Choose workers and environments for a generation.

    A generation is over when its slowest worker is. Where a GPU decides, this process is busy all the time: it finds
    a core without a worker if the episodes can be divided among the others.
    """
    episodes = settings.population * settings.trials
    if settings.mode == "serial":
        return share_out(episodes, settings.envs, 1)
    workers = settings.workers or cores
    if gpu and not settings.workers and cores >= SPARE_CORE_FROM:
        layout = share_out(episodes, settings.envs, cores - 1)
        if layout.workers == cores - 1:
            return layout
    return share_out(episodes, settings.envs, workers)


class PopulationPolicy(Policy):
    """Decides for the lanes of a generation and writes down their returns."""

    def __init__(self, agent: ControllerAgent, schedule: TrialSchedule, spec: EnvSpec, field: str) -> None:
        self._agent, self._schedule, self._spec, self._field = agent, schedule, spec, field
        self._parked = parked(spec.action)
        lanes = schedule.envs
        self._place = np.arange(lanes)  # position in the schedule of the lane's episode
        self._over = np.zeros(lanes, bool)  # its episode has ended, the next one has not begun
        self._fresh = np.ones(lanes, bool)  # it has not been decided for in this episode
        self._members = torch.zeros(schedule.members, agent.state.net.weights)
        self._generation = -1  # since the start of this session
        self.returns = np.zeros((schedule.members, schedule.trials))
        self.steps = 0
        self._arena: Arena | None = None

    # -- a generation --------------------------------------------------------------------------

    def begin(self, members: Array) -> None:
        """Let the next generation play with these weights ``[members, P]``."""
        self._generation += 1
        self._members = torch.from_numpy(np.asarray(members, np.float32))
        self.returns = np.full((self._schedule.members, self._schedule.trials), np.nan)
        self.steps = 0

    @property
    def waiting(self) -> Array:
        """``[lanes]`` bool: has played its share of this generation."""
        following = self._place + self._over * self._schedule.envs
        done: Array = following // self._schedule.episodes > self._generation
        return done

    # -- Policy --------------------------------------------------------------------------------

    def attach(self, arena: Arena) -> None:
        self._arena = arena

    def detach(self) -> None:
        self._arena = None

    def act(self, request: ActRequest) -> PolicyOutput:
        assert self._arena is not None, "attach comes first"
        lanes = request.lanes
        self._note_ends(request)
        self._note_starts(request)
        active = (self._place[lanes] // self._schedule.episodes == self._generation) & ~self._over[lanes]
        field = self._spec.action.field
        actions = np.full((len(lanes), *field.shape), self._parked, field.dtype)
        if active.any():
            playing = lanes[active]
            self._begin_episodes(playing[self._fresh[playing]])
            images = request.obs[self._field]
            actions[active] = self._agent.decide(playing, images if active.all() else images[active])
            self.steps += len(playing)
        return PolicyOutput.of(actions)

    def _note_ends(self, request: ActRequest) -> None:
        """Take the returns of episodes that ended with the decisions before these ones."""
        assert self._arena is not None
        arena, rows = self._arena, request.rows
        slots = np.where(rows > 0, request.slots, request.closing)
        rows = np.where(rows > 0, rows - 1, arena.layout.steps - 1)
        ended = (arena["terminated"][slots, rows] | arena["truncated"][slots, rows]) & arena["valid"][slots, rows]
        ended &= (slots >= 0)[:, None]  # what a group has just begun with follows no decision
        if not ended.any():
            return
        which = ended.ravel()
        returns = arena["episode_return"][slots, rows].ravel()[which]
        for lane, value in zip(request.lanes[which].tolist(), returns.tolist(), strict=True):
            generation, place = divmod(int(self._place[lane]), self._schedule.episodes)
            if generation == self._generation and not self._over[lane]:
                trial, member = divmod(place, self._schedule.members)
                self.returns[member, trial] = value
            self._over[lane] = True

    def _note_starts(self, request: ActRequest) -> None:
        first = np.flatnonzero(request.first)
        if first.size:
            episodes = request.episode[first]
            lanes = request.lanes[first]
            self._place[lanes] = lanes + self._schedule.envs * episodes
            self._over[lanes] = False
            self._fresh[lanes] = True

    def _begin_episodes(self, lanes: Array) -> None:
        if lanes.size:
            members = self._place[lanes] % self._schedule.episodes % self._schedule.members
            self._agent.take(lanes, self._members[torch.from_numpy(members)])
            self._fresh[lanes] = False


class PatientSampler(Sampler):
    """Leaves groups alone whose lanes all wait for the next generation."""

    def __init__(self, plan: SamplerPlan, policy: PopulationPolicy) -> None:
        self._population = policy
        super().__init__(plan, [policy])

    def _servable(self) -> Array:
        waiting: Array = np.logical_and.reduce(self._population.waiting.reshape(self.plan.groups, -1), axis=1)
        active = int((~waiting).sum())
        self._want(active)  # before the look at what is ready, or a worker might not ring for it
        ready = self.box.ready()
        ready = ready[~waiting[ready]]
        if self.plan.lockstep and ready.size < active:
            return ready[:0]
        return self.inference.servable(ready) if self._enough(ready.size) else ready[:0]


class Trials:
    """Plays generations; start it once, close it at the end."""

    def __init__(
        self,
        settings: ControllerSettings,
        env: EnvSettings,
        spec: EnvSpec,
        first_generation: int,
        environment: Mapping[str, str],
        gpu: bool = False,
    ) -> None:
        """Choose workers and environments; ``gpu``: whether encoder and memory run on one."""
        serial = settings.mode == "serial"
        self.layout = layout_of(settings, default_workers(), gpu)
        self._schedule = TrialSchedule(
            seeds=Seeds(settings.seed).branch("trials"),
            envs=self.layout.envs,
            members=settings.population,
            trials=settings.trials,
            first_generation=first_generation,
        )
        self._settings, self._spec = settings, spec
        sampling = SamplingSettings(
            mode="serial" if serial else "sync",
            workers=self.layout.workers,
            envs_per_worker=self.layout.envs_per_worker,
            groups=self.layout.groups,
            rollout=ROLLOUT,
        )
        trial = EnvSettings(
            id="rollmill.worldmodel.controller.trial_env:TrialEnv",
            args={"settings": asdict(env), "max_steps": settings.max_steps, "patience": settings.patience},
            fault_limit=env.fault_limit,
            fault_window=env.fault_window,
        )
        self._plan = SamplerPlan(
            settings=sampling,
            env=trial,
            spec=spec,
            seeds=self._schedule.seeds,
            segments_per_batch=self.layout.workers * self.layout.groups,
            environment=environment,
            lockstep=settings.lockstep,
            schedule=self._schedule,
        )
        self._sampler: PatientSampler | None = None
        self._policy: PopulationPolicy | None = None

    def start(self, agent: ControllerAgent, field: str) -> None:
        """Start the workers; ``agent`` has ``layout.envs`` lanes."""
        self._policy = PopulationPolicy(agent, self._schedule, self._spec, field)
        self._sampler = PatientSampler(self._plan, self._policy)
        self._sampler.start()

    def play(self, members: Array) -> Played:
        """Play the next generation to its end."""
        sampler, policy = self._sampler, self._policy
        assert sampler is not None, "start comes first"
        assert policy is not None
        policy.begin(members)
        while not policy.waiting.all():
            sampler.round()
            while (slots := sampler.take(1, timeout=0)) is not None:
                sampler.release(slots)
        sampler.episodes.clear()
        return Played(policy.returns, policy.steps)

    @property
    def faults(self) -> int:
        """Faults of environments so far."""
        return self._sampler.pool.report.env_faults if self._sampler is not None else 0

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


class ControllerPolicy(Policy):
    """One controller plays all lanes, for evaluations."""

    def __init__(self, agent: ControllerAgent, weights: Array, field: str) -> None:
        self._agent, self._field = agent, field
        self._weights = torch.from_numpy(np.asarray(weights, np.float32))

    def act(self, request: ActRequest) -> PolicyOutput:
        first = request.lanes[request.first]
        if first.size:
            self._agent.take(first, self._weights)
        actions = self._agent.decide(request.lanes, request.obs[self._field])
        return PolicyOutput.of(actions)
