"""Where policies are evaluated: an environment, seeds and processes, the same for all that are compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.seeds import Seeds
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.suite import Task, tasks_of
from rollmill.runs.evaluate.options import TYPICAL_OF
from rollmill.runs.evaluate.play import EvalPlan, Progress, RecordTarget, play
from rollmill.runs.evaluate.results import Score, Video
from rollmill.runs.evaluate.video import Script, ScriptWriter, VideoPlan, file_name, make_videos
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.sampling.placement import default_workers
from rollmill.sampling.sampler import SamplerPlan
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.sampling.settings import SamplingSettings


@dataclass(frozen=True)
class Played:
    """What a policy has done."""

    scores: list[Score]
    """One for each of the returns that were asked for; a single one where none was."""
    scripts: Mapping[int, Script]
    """What the first episodes were made of, for videos."""

    def typical(self, k: int = 0) -> range:
        """Return, as a range, the number of an episode as it usually is, of those a video can show for target ``k``."""
        rows = [row for row in self.scores[k].rows if row.episode in self.scripts]
        if not rows:
            return range(0)
        returns = np.array([row.episode_return for row in rows])
        number = rows[int(np.argmin(np.abs(returns - np.median(returns))))].episode
        return range(number, number + 1)


@dataclass(frozen=True)
class EvalSetup:
    """The environment and how it is played; no policy yet."""

    env: EnvSettings
    spec: EnvSpec
    seed: int = 1
    """Of environments and actions."""
    workers: int = 0
    """Worker processes; 0 takes one per core."""
    envs: int = 16
    """Environments that play side by side."""
    serial: bool = False
    """Environments run in this very process."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Environment variables of worker processes."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Those of a suite that are played; none where the environment is no suite, or one task of it is wanted."""
        return () if self.env.task else tasks_of(self.env)

    def plan(self, episodes: int | None, steps: int | None = None, targets: int = 1) -> EvalPlan:
        """Plan who plays what: ``episodes`` for each task of a suite, and for each of so many targets.

        No more environments than episodes, in equal parts to the workers; one group each, as all step together. Their
        number is one that tasks and targets divide, so each of them plays the same task, for the same target, all the
        time: episode n is of task ``n % tasks``.
        """
        if targets > 1 and self.tasks:
            raise ConfigError(f"--targets: {self.env.id} is a suite; give one target, or one task (env.task=NAME)")
        shares = targets * max(1, len(self.tasks))
        envs = max(shares, self.envs // shares * shares)
        if episodes is not None:
            episodes *= shares
            envs = min(envs, episodes)
        count = 1 if self.serial else min(self.workers or default_workers(), envs)
        if self.env.vector and not self.workers:
            count = next(fewer for fewer in range(count, 0, -1) if envs % fewer == 0)
        if self.env.vector and envs % count:
            raise ConfigError(f"env.vector: {envs} environments cannot be shared out evenly to --workers {count}")
        settings = replace(
            self.sampling,
            mode="serial" if self.serial else "sync",
            workers=count,
            envs_per_worker=-(-envs // count),
            groups=1,
            inference_batch_share=1.0,
            decorrelate_steps=0,
        )
        seeds = Seeds(self.seed).branch("evaluation")
        schedule = EpisodeSchedule(seeds, envs)
        plan = SamplerPlan(
            settings=settings,
            env=replace(self.env, task_spread="mixed"),
            spec=self.spec,
            seeds=seeds,
            segments_per_batch=1,
            environment=self.environment,
            lockstep=True,
            schedule=None if self.env.vector else schedule,
        )
        return EvalPlan(plan, schedule, episodes, steps, tasks=self.tasks)

    def play(
        self,
        policy: LoadedPolicy,
        episodes: int | None,
        *,
        name: str = "",
        steps: int | None = None,
        progress: Progress | None = None,
        record: RecordTarget | None = None,
        shown_episodes: int = 0,
    ) -> Played:
        """Let a policy play so many episodes for each of its targets, all at the same time.

        ``shown_episodes``: of how many episodes for each target a video may be made.
        """
        targets = policy.require_targets()
        plan = self.plan(episodes, steps, max(1, len(targets)))
        plan = replace(plan, targets=targets or (None,))
        of_env = np.arange(plan.schedule.envs) % len(plan.targets)
        lanes = np.asarray(targets or (0.0,))[of_env].repeat(self.spec.agents).tolist()
        acting = policy.build(self.spec, plan.schedule, Seeds(self.seed).branch("actions").integer(), lanes)
        shown = range(shown_episodes * len(plan.targets) * max(1, len(plan.tasks)))
        scripts = ScriptWriter(plan, shown) if shown_episodes else None
        scores = play(plan, acting, name or policy.name, progress, record, scripts)
        return Played(scores, scripts.scripts if scripts else {})

    def check(self, policy: LoadedPolicy) -> None:
        """Raise ConfigError or CheckpointError unless the policy can be built and fits: now rather than after hours."""
        policy.check(self.spec)
        policy.build(self.spec, self.plan(1).schedule, 0, [0.0] * self.spec.agents)

    # -- videos ---------------------------------------------------------------------------------

    def check_videos(self) -> float:
        """Return images per second. Raises RollmillError if episodes cannot be shown in a video on this machine."""
        return VideoPlan(self.env, Path(), range(0)).check()

    def typical_video(self, policy: LoadedPolicy, name: str, folder: Path, progress: Progress | None = None) -> Video:
        """Play some episodes and video one as it usually is into ``folder``."""
        played = self.play(policy, TYPICAL_OF, name=f"video of {name}", progress=progress, shown_episodes=TYPICAL_OF)
        folder.mkdir(parents=True, exist_ok=True)
        plan = VideoPlan(self.env, folder, played.typical())
        return make_videos(plan, file_name(name), played.scripts, plan.check())[0]
