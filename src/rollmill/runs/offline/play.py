"""Plays the episodes by which offline policies are judged: their own, and those they are compared with."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rollmill.core.checkpoints import Loaded, saved_settings
from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.protocols import Policy
from rollmill.core.seeds import Seeds
from rollmill.envs.settings import EnvSettings
from rollmill.offline.acting import TargetPolicy
from rollmill.offline.data import check_spec
from rollmill.offline.model import SequencePolicy
from rollmill.offline.settings import EvaluationSettings
from rollmill.reports.run.results import Row
from rollmill.reports.video.stored_episodes import VideoOptions, write_videos
from rollmill.runs.evaluate.play import EvalPlan, Metrics, RecordTarget, make_plan, play
from rollmill.runs.evaluate.record import EvalRecording
from rollmill.runs.evaluate.results import EpisodeRow, Score
from rollmill.runs.evaluate.run import trained_policy
from rollmill.runs.evaluate.targets import find_checkpoint
from rollmill.runs.settings import TrainConfig
from rollmill.runs.trust import load_saved
from rollmill.sampling.policies.episode import EpisodeRandom
from rollmill.store.convert.h264 import VideoFile
from rollmill.store.format.schema import StoreSchema
from rollmill.store.images import choose_image
from rollmill.store.reader import Store

VIDEO_EPISODES = 8
"""Episodes that are played for a video; it shows the one whose return is nearest to their median."""


@dataclass(frozen=True)
class Stage:
    """Where policies play: the environment, its spec, and how."""

    env: EnvSettings
    spec: EnvSpec
    settings: EvaluationSettings
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of worker processes."""
    progress: Callable[[Metrics], None] | None = None
    """Told how far the episodes of a policy are, every second at least."""

    def _show(self, _rows: Sequence[EpisodeRow], metrics: Metrics) -> None:
        if self.progress is not None:
            self.progress(metrics)

    def plan(self, episodes: int, multiple: int = 1) -> EvalPlan:
        """A plan for so many episodes, with a number of environments that ``multiple`` divides."""
        s = self.settings
        envs = max(multiple, s.envs // multiple * multiple)
        config = TrainConfig(env=self.env)
        plan = make_plan(config, self.spec, seed=s.seed, workers=s.workers, envs=envs, episodes=episodes)
        return replace(plan, sampler=replace(plan.sampler, environment=self.environment))

    def targets(
        self,
        name: str,
        model: SequencePolicy,
        targets: Sequence[float | None],
        episodes: int,
        autocast: torch.dtype | None = None,
    ) -> list[Row]:
        """A row for each target (None: the policy is not asked), all played at the same time."""
        plan = self.plan(episodes * len(targets), len(targets))
        of_env = np.arange(plan.schedule.envs) % len(targets)
        lanes = np.asarray([target or 0.0 for target in targets])[of_env].repeat(self.spec.agents)
        score = play(plan, self._policy(model, lanes, autocast), name, self._show)
        rows = []
        for k, target in enumerate(targets):
            own = Score([row for row in score.rows if of_env[row.episode % plan.schedule.envs] == k])
            rows.append(_row(name, own, target))
        return rows

    def _policy(
        self, model: SequencePolicy, lanes: Sequence[float] | Array, autocast: torch.dtype | None
    ) -> TargetPolicy:
        seed = Seeds(self.settings.seed).branch("actions").integer()
        return TargetPolicy(model, lanes, seed, self.settings.deterministic, autocast)

    def random(self, episodes: int) -> Row:
        plan = self.plan(episodes)
        return _row("random", play(plan, EpisodeRandom(self.spec, plan.schedule), "random", self._show))

    def behaviour(self, loaded: Loaded, episodes: int) -> Row:
        """The policy of an online run on the same episodes."""
        plan = self.plan(episodes)
        return _row("behaviour", play(plan, self._trained(loaded, plan), "behaviour", self._show))

    def check(self, loaded: Loaded) -> None:
        """CheckpointError unless the network of an online run can be built and takes its weights."""
        self._trained(loaded, self.plan(1))

    def _trained(self, loaded: Loaded, plan: EvalPlan) -> Policy:
        config = saved_settings(TrainConfig, _without_env(loaded), loaded.path)
        seed = Seeds(self.settings.seed).branch("actions").integer()
        return trained_policy(config, loaded, plan.sampler, seed, self.settings.deterministic)

    # -- videos ---------------------------------------------------------------------------------

    def check_videos(self) -> None:
        """RollmillError unless its episodes can be shown in a video on this machine: better before they are played."""
        choose_image(self._schema(), None)
        VideoFile(Path("probe.mp4"), VideoOptions().fps)  # PyAV is there; nothing is written yet

    def _schema(self) -> StoreSchema:
        return StoreSchema.for_env(self.spec, env_id=self.env.id, env_kwargs=self.env.args)

    def video(self, name: str, folder: Path, policy: tuple[SequencePolicy, float | None] | Loaded | None) -> Path:
        """Play some episodes of a policy and write a video of a typical one into ``folder``; None plays at random."""
        plan = self.plan(VIDEO_EPISODES)
        acting: Policy
        if policy is None:
            acting = EpisodeRandom(self.spec, plan.schedule)
        elif isinstance(policy, Loaded):
            acting = self._trained(policy, plan)
        else:
            model, target = policy
            acting = self._policy(model, [target or 0.0] * plan.lanes, None)
        folder.mkdir(parents=True, exist_ok=True)
        # A store of its own: in one that is kept, episodes of an earlier policy of this name would count as played.
        with tempfile.TemporaryDirectory(prefix=".episodes-", dir=folder) as scratch:
            with EvalRecording(Path(scratch), self._schema(), name) as recording:
                record = RecordTarget(recording, name, {"version": 0, "global_step": 0})
                play(plan, acting, f"video of {name}", self._show, record)
            with Store(Path(scratch)) as store:
                returns = store.table.return_
                typical = np.argmin(np.abs(returns - np.median(returns)))
                return write_videos(store, [int(typical)], folder, VideoOptions())[0]


def find_behaviour(path: Path, spec: EnvSpec, trust_code: bool = False) -> Loaded:
    """The checkpoint of the run that made the data; ConfigError if it acts in another environment."""
    loaded = find_checkpoint(path, best=False)
    load_saved(TrainConfig, _without_env(loaded), loaded.path, trust_code=trust_code)
    made_for = EnvSpec.from_dict(loaded.state["spec"])
    if made_for.action != spec.action:
        raise ConfigError(f"{loaded.path} takes other actions than {spec.name}: it did not make these data")
    check_spec(made_for, spec, str(loaded.path))
    return loaded


def _without_env(loaded: Loaded) -> dict[str, Any]:
    """The configuration of an online run whose policy plays elsewhere: its environment is not built."""
    saved = loaded.state["config"]
    return {**saved, "env": {"policies": saved["env"].get("policies", [])}}


def _row(name: str, score: Score, target: float | None = None) -> Row:
    return Row.of(name, score.returns, target, float(np.mean(score.lengths)))
