"""``rollmill eval``: what a trained policy is worth, over a number of whole episodes.

Episodes are shared out to the lanes beforehand, so that short episodes do not count more often than
long ones. All lanes step together (lockstep): the same seed gives the same figures.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.checkpoints import Checkpoints, Loaded, load_checkpoint
from rollmill.core.config import load_config
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.protocols import Policy
from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.envs.make import check_env_settings
from rollmill.runs.eval_record import EvalRecording, share_out
from rollmill.runs.harvest import Harvest, pop_stats
from rollmill.runs.household import household
from rollmill.runs.settings import TrainConfig
from rollmill.runs.train import require_online
from rollmill.sampling.random_policy import RandomPolicy
from rollmill.sampling.sampler import EpisodeEnd, Sampler, SamplerPlan, default_workers
from rollmill.store.schema import StoreSchema

log = logging.getLogger("rollmill")

Progress = Callable[[int, int], None]
"""Called with (episodes done, episodes wanted)."""


@dataclass(frozen=True)
class EvalOptions:
    """How to evaluate."""

    episodes: int = 100
    deterministic: bool = False
    """Take the most likely action instead of sampling."""
    seed: int = 1
    workers: int = 0
    """Worker processes; 0 takes one per core."""
    envs_per_worker: int = 8
    best: bool = False
    """Evaluate the checkpoint with the highest training return instead of the newest."""
    random: bool = False
    """Evaluate a random policy in the same way, beside the trained one."""
    overrides: tuple[str, ...] = ()
    record: bool = False
    """Write the episodes into a store."""
    record_dir: Path | None = None
    """The store; None: ``eval/<checkpoint>`` in the run's folder."""

    def check(self) -> None:
        if self.episodes < 1 or self.envs_per_worker < 1 or self.workers < 0:
            raise ConfigError("--episodes and --envs-per-worker must be at least 1, --workers not negative")
        if self.seed < 0:
            raise ConfigError("--seed must not be negative")


@dataclass(frozen=True)
class Score:
    """Returns and lengths (steps) of some episodes."""

    returns: list[float]
    lengths: list[int]

    def summary(self) -> dict[str, float | None]:
        """Mean, standard error (None for a single episode), median, extremes, mean length."""
        values = np.asarray(self.returns)
        count = len(values)
        return {
            "episodes": count,
            "mean": float(values.mean()),
            "standard_error": float(values.std(ddof=1) / math.sqrt(count)) if count > 1 else None,
            "median": float(np.median(values)),
            "min": float(values.min()),
            "max": float(values.max()),
            "mean_length": float(np.mean(self.lengths)),
        }


@dataclass(frozen=True)
class EvalResult:
    """What ``rollmill eval`` prints."""

    checkpoint: str
    frames: int
    env: str
    policy: Score
    random: Score | None = None
    options: dict[str, Any] = field(default_factory=dict)
    record: str | None = None
    """The store with the episodes."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "checkpoint": self.checkpoint,
            "frames": self.frames,
            "env": self.env,
            **self.policy.summary(),
            "random": self.random.summary() if self.random else None,
            "returns": self.policy.returns,
            "lengths": self.policy.lengths,
            "options": self.options,
            "record": self.record,
        }


def evaluate(target: Path, options: EvalOptions, progress: Progress | None = None) -> EvalResult:
    """Evaluate a run folder's checkpoint, or a checkpoint file."""
    options.check()
    loaded = find_checkpoint(target, options.best)
    config = load_config(TrainConfig, [], options.overrides, base=loaded.state["config"])
    check_env_settings(config.env)
    spec = EnvSpec.from_dict(loaded.state["spec"])
    plan = _plan(config, spec, options)
    with contextlib.ExitStack() as stack:
        recording = None
        if options.record:  # before anything starts: a folder that cannot be written is found out now
            recording = stack.enter_context(_recording(config, spec, loaded, options))
        plan = replace(plan, environment=stack.enter_context(household()))
        seed = Seeds(options.seed).branch("actions").integer()
        policy = trained_policy(config, loaded, plan, seed, options.deterministic)
        trained_for = {"version": int(loaded.state["learners"][0]["version"]), "global_step": loaded.frames}
        tape = Tape(recording, checkpoint_name(loaded), trained_for) if recording else None
        score = play(plan, policy, options.episodes, progress, tape)
        comparator = None
        if options.random:
            seed = Seeds(options.seed).branch("random").integer()
            tape = Tape(recording, "random", {"version": 0, "global_step": 0}) if recording else None
            comparator = play(plan, RandomPolicy(spec, seed), options.episodes, progress, tape)
    return EvalResult(
        str(loaded.path),
        loaded.frames,
        config.env.id,
        score,
        comparator,
        asdict(options),
        str(recording.folder) if recording else None,
    )


@dataclass(frozen=True)
class Tape:
    """Where the episodes of one policy are recorded, and what is the same in all of their rows."""

    recording: EvalRecording
    policy: str
    constants: Mapping[str, int]


def _recording(config: TrainConfig, spec: EnvSpec, loaded: Loaded, options: EvalOptions) -> EvalRecording:
    schema = StoreSchema.for_env(spec, env_id=config.env.id, env_kwargs=config.env.args)
    same = replace(options, random=False, record=False, record_dir=None, best=False)
    name = f"{checkpoint_name(loaded)}|{loaded.frames}|{asdict(same)}"
    return EvalRecording(options.record_dir or record_folder(loaded.path), schema, name)


def record_folder(checkpoint: Path) -> Path:
    """Where the episodes of a checkpoint go by default: ``<run>/eval/<checkpoint>``."""
    inside_run = checkpoint.parent.name == RunFolder(Path()).checkpoints.name
    return (checkpoint.parent.parent if inside_run else checkpoint.parent) / "eval" / checkpoint.stem


def checkpoint_name(loaded: Loaded) -> str:
    """Short and the same on every machine: ``<run>/<file>``."""
    path = loaded.path.absolute()
    inside_run = path.parent.name == RunFolder(Path()).checkpoints.name
    return f"{path.parent.parent.name}/{path.name}" if inside_run else path.name


def find_checkpoint(target: Path, best: bool) -> Loaded:
    """The checkpoint a path means: a file itself, or the newest (best) of a run folder."""
    if target.is_file():
        return require_online(load_checkpoint(target))
    folder = RunFolder(target)
    if not folder.checkpoints.is_dir():
        raise CheckpointError(f"{target}: neither a checkpoint nor a run folder with checkpoints")
    checkpoints = Checkpoints(folder.checkpoints)
    found = checkpoints.best() if best else checkpoints.newest()
    if found is None:
        what = "no checkpoint has a known return; leave out --best" if best else "no checkpoint yet"
        raise CheckpointError(f"{target}: {what}")
    try:
        return require_online(load_checkpoint(found.path))
    except CheckpointError as error:
        raise CheckpointError(f"{error}. Others in {folder.checkpoints} can be given by their path") from error


def _plan(config: TrainConfig, spec: EnvSpec, options: EvalOptions) -> SamplerPlan:
    """No more lanes than episodes; one group per worker, because all lanes step together."""
    wanted = -(-options.episodes // spec.agents)
    workers = min(options.workers or default_workers(), wanted)
    per_worker = min(options.envs_per_worker, -(-wanted // workers))
    settings = replace(
        config.sampling,
        mode="sync",
        workers=workers,
        envs_per_worker=per_worker,
        groups=1,
        decorrelate_steps=0,
    )
    return SamplerPlan(
        settings=settings,
        env=config.env,
        spec=spec,
        seeds=Seeds(options.seed).branch("evaluation"),
        segments_per_batch=1,
        environment=os.environ,
        lockstep=True,
    )


def trained_policy(
    config: TrainConfig, loaded: Loaded, plan: SamplerPlan, seed: int, deterministic: bool = False
) -> Policy:
    """The policy that a checkpoint holds, for the lanes of a plan."""
    from rollmill.learning.appo import load_weights
    from rollmill.models.actor_critic import build_model
    from rollmill.models.policy import TorchPolicy
    from rollmill.models.weights import WeightBoard
    from rollmill.runs.build import choose_device

    model = build_model(plan.spec, config.model)
    load_weights(model, loaded.state["learners"][0]["model"])
    model.to(choose_device(config.learning.device))
    lanes = plan.groups * plan.lanes_per_group
    return TorchPolicy(model, WeightBoard(model), lanes, seed, deterministic)


def play(
    plan: SamplerPlan, policy: Policy, episodes: int, progress: Progress | None = None, tape: Tape | None = None
) -> Score:
    """Play ``episodes`` whole episodes, shared out evenly over the lanes in advance; ``tape`` records them."""
    sampler = Sampler(plan, [policy])
    quota = share_out(episodes, plan.groups * plan.lanes_per_group)
    harvest = tape.recording.harvest(sampler, quota, tape.policy, tape.constants) if tape else None
    kept: list[EpisodeEnd] = []
    try:
        sampler.start()
        while len(kept) < episodes:
            sampler.round()
            _empty_slots(sampler, harvest)
            before = len(kept)
            kept += _within_quota(sampler.episodes, quota)
            if len(kept) > before:
                if tape is not None:
                    tape.recording.note(tape.policy, len(kept), episodes)
                if progress is not None:
                    progress(len(kept), episodes)
    finally:
        sampler.stop()
        if harvest is not None:
            harvest.discard_open()
    kept.sort(key=lambda e: (e.lane, e.episode))
    return Score([e.episode_return for e in kept], [e.length for e in kept])


def _empty_slots(sampler: Sampler, harvest: Harvest | None) -> None:
    """Give finished slots back, after their episodes were recorded."""
    while (slots := sampler.take(1, timeout=0)) is not None:
        if harvest is not None:
            harvest.take(slots[0], int(sampler.inference.group_of_slot[slots[0]]), pop_stats(sampler))
        sampler.release(slots)


def _within_quota(ended: Any, quota: np.ndarray) -> Sequence[EpisodeEnd]:
    kept = []
    while ended:
        episode = ended.popleft()
        if quota[episode.lane] > 0:
            quota[episode.lane] -= 1
            kept.append(episode)
    return kept


def table(result: EvalResult) -> str:
    """The result as text."""
    rows: list[tuple[str, Mapping[str, float | None]]] = [("policy", result.policy.summary())]
    if result.random is not None:
        rows.append(("random", result.random.summary()))
    lines = [f"{result.env}, {result.checkpoint} ({result.frames:,} frames)"]
    for name, s in rows:
        error = "" if s["standard_error"] is None else f" +- {s['standard_error']:.2g} (standard error)"
        lines.append(
            f"{name:8} return {s['mean']:.4g}{error}, median {s['median']:.4g}, "
            f"from {s['min']:.4g} to {s['max']:.4g}; length {s['mean_length']:.1f} steps; {s['episodes']:.0f} episodes"
        )
    if result.record is not None:
        lines.append(f"episodes in {result.record}")
    return "\n".join(lines)
