"""``rollmill eval``: what trained policies are worth, over a number of whole episodes.

``evaluate_all`` shows everything in the order it happens: check what was asked for and where it is to go, find the
checkpoints, play (``play``), video (``video``), write. Which episodes are played is settled beforehand, so that
short ones do not count more often than long ones, and the same seed gives the same figures.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rollmill.core.checkpoints import Loaded, load_checkpoint, restoring, saved_settings
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.process_scope import process_scope
from rollmill.core.protocols import Policy
from rollmill.core.seeds import Seeds
from rollmill.core.tree_file import stored_checksum
from rollmill.envs.make import check_env_settings
from rollmill.runs.evaluate.options import EvalOptions, check_outputs, check_targets
from rollmill.runs.evaluate.play import EvalPlan, Metrics, RecordTarget, make_plan, play
from rollmill.runs.evaluate.record import EvalRecording
from rollmill.runs.evaluate.render_env import without_display
from rollmill.runs.evaluate.results import CsvFile, EpisodeRow, EvalResult, Score, Video, write_document
from rollmill.runs.evaluate.targets import (
    checkpoint_name,
    find_checkpoints,
    find_targets,
    load_agent,
    record_folder,
    require_fit,
)
from rollmill.runs.evaluate.video import ScriptWriter, VideoPlan, make_videos
from rollmill.runs.probing import probe_in_child
from rollmill.runs.settings import TrainConfig
from rollmill.runs.trust import SavedEnv, load_saved
from rollmill.sampling.policies.episode import EpisodeRandom
from rollmill.sampling.policies.per_agent import PolicyPerAgent
from rollmill.sampling.sampler import SamplerPlan
from rollmill.store.extract import check_writable
from rollmill.store.format.schema import StoreSchema

log = logging.getLogger("rollmill")

Progress = Callable[[Metrics], None]


def evaluate(target: Path, options: EvalOptions, progress: Progress | None = None) -> EvalResult:
    """Evaluate a run folder's checkpoint, or a checkpoint file."""
    return evaluate_all([target], options, progress)[0]


def evaluate_all(
    targets: Sequence[str | Path], options: EvalOptions, progress: Progress | None = None
) -> list[EvalResult]:
    """Evaluate every checkpoint that the words mean (runs, files, patterns), in their order, on the same episodes."""
    options.check()
    paths = find_targets(targets)
    check_targets(options, paths)
    jobs = [
        _prepare(path, target, options)
        for target in paths
        for path in find_checkpoints(target, options.best, options.all_checkpoints)
    ]
    jobs = _tell_apart(jobs)
    check_outputs(options)
    if options.record:
        for job in jobs:
            check_writable(_record_folder(job, options))
    results: list[EvalResult] = []
    with contextlib.ExitStack() as stack:
        context = EvalContext(options, progress)
        context.environment = stack.enter_context(process_scope(inside=options.video is not None))
        if options.video is not None:
            without_display()  # process scope restores the variables
        jobs = [_fitted(job, options, context.environment) for job in jobs]
        if options.csv is not None:
            context.csv = stack.enter_context(CsvFile(options.csv))
        context.fps = [context.video_plan(job).check() if options.video is not None else 0.0 for job in jobs]
        for number, job in enumerate(jobs):
            context.number, context.count = number, len(jobs)
            results.append(_evaluate(job, context))
            if options.out is not None:
                write_document(options.out, results)  # after each one: what is known survives a failure later
    return results


@dataclass(frozen=True)
class Job:
    """One checkpoint that could be evaluated."""

    loaded: Loaded
    """Without its state, which is read again when it is needed: there may be many."""
    config: TrainConfig
    spec: EnvSpec
    plan: EvalPlan
    stem: str
    """What its files are called: the run and the frames."""
    elsewhere: bool
    """Whether the environment is told something else than in training."""


def _tell_apart(jobs: Sequence[Job]) -> list[Job]:
    """Runs of one name in different folders: a number behind the stems, or they would write the same files."""
    taken: dict[str, list[Path]] = {}
    named = []
    for job in jobs:
        path = job.loaded.path.absolute()
        paths = taken.setdefault(job.stem, [])
        if path not in paths:
            paths.append(path)
        place = paths.index(path)
        named.append(replace(job, stem=f"{job.stem}-{place + 1}") if place else job)
    return named


def _prepare(path: Path, target: Path, options: EvalOptions) -> Job:
    """Read and check one checkpoint and its settings; nothing is started."""
    loaded = load_agent(path, target)
    saved = loaded.state["config"]
    config = load_saved(TrainConfig, saved, path, overrides=options.overrides, trust_code=options.trust_code)
    check_env_settings(config.env)
    if config.env.vector:
        log.warning("env.vector: episodes are seeded by the group, so metrics depend on the number of workers, too")
    spec = EnvSpec.from_dict(loaded.state["spec"])
    stem = re.sub(r"[^\w.-]+", "-", checkpoint_name(loaded).removesuffix(".ckpt"))
    elsewhere = config.env != saved_settings(SavedEnv, {"env": saved["env"]}, path).env
    return Job(replace(loaded, state=None), config, spec, _plan(config, spec, options), stem, elsewhere)


def _plan(config: TrainConfig, spec: EnvSpec, options: EvalOptions) -> EvalPlan:
    return make_plan(
        config,
        spec,
        seed=options.seed,
        workers=options.workers,
        envs=options.envs,
        episodes=options.wanted,
        steps=options.steps,
    )


def _fitted(job: Job, options: EvalOptions, environment: dict[str, str]) -> Job:
    """The job with the spec of the environment it is to be played in; ConfigError where the policy does not fit."""
    if not job.elsewhere:
        return job
    found = probe_in_child(job.config.env, environment, job.config.sampling.start_timeout)
    require_fit(job.spec, found)
    return replace(job, spec=found, plan=_plan(job.config, found, options))


@dataclass
class EvalContext:
    """What all checkpoints of one evaluation share: where rows and progress go."""

    options: EvalOptions
    progress: Progress | None
    csv: CsvFile | None = None
    environment: dict[str, str] = field(default_factory=dict)
    fps: list[float] = field(default_factory=list)
    """Images per second of each job's videos."""
    comparators: dict[str, Score] = field(default_factory=dict)
    """Of the random policy, by environment."""
    number: int = 0
    count: int = 1

    def begin(self, job: Job, policy: str) -> None:
        if self.csv is not None:
            self.csv.begin(str(job.loaded.path), job.loaded.frames, policy)

    def show(self, rows: Sequence[EpisodeRow], metrics: Metrics) -> None:
        if self.csv is not None:
            self.csv.add(rows, metrics.to_dict())
        if self.progress is not None:
            self.progress(metrics)

    def end(self, score: Score) -> None:
        if self.csv is not None:
            self.csv.keep(score)

    def video_plan(self, job: Job) -> VideoPlan:
        o = self.options
        assert o.video is not None, "asked for videos"
        return VideoPlan(job.config.env, o.video, range(o.shown_episodes), o.cells, o.fps, not o.no_captions)


def _evaluate(job: Job, context: EvalContext) -> EvalResult:
    """One checkpoint and, where asked for, a random policy on the same episodes."""
    options, loaded = context.options, load_checkpoint(job.loaded.path)
    job = replace(job, plan=replace(job.plan, sampler=replace(job.plan.sampler, environment=context.environment)))
    seeds = Seeds(options.seed)
    videos: list[Video] = []
    with contextlib.ExitStack() as stack:
        recording = stack.enter_context(_recording(job, options)) if options.record else None
        policy = trained_policy(
            job.config, loaded, job.plan.sampler, seeds.branch("actions").integer(), options.deterministic
        )
        trained_for = {"version": int(loaded.state["learners"][0]["version"]), "global_step": loaded.frames}
        record = RecordTarget(recording, checkpoint_name(loaded), trained_for) if recording else None
        score = _play(job, policy, "policy", job.stem, record, context, videos)
        comparator = _play_random(job, recording, context, videos) if options.random else None
    return EvalResult(
        str(loaded.path),
        loaded.frames,
        job.config.env.id,
        score,
        comparator,
        options.to_dict(),
        str(recording.folder) if recording else None,
        videos,
    )


def _play_random(job: Job, recording: EvalRecording | None, context: EvalContext, videos: list[Video]) -> Score:
    """The comparator; once for all checkpoints of the same environment, unless each is to be recorded."""
    same = repr((job.config.env, job.spec))
    if recording is None and same in context.comparators:
        return context.comparators[same]
    record = RecordTarget(recording, "random", {"version": 0, "global_step": 0}) if recording else None
    policy = EpisodeRandom(job.spec, job.plan.schedule)
    context.comparators[same] = _play(job, policy, "random", f"{job.stem}-random", record, context, videos)
    return context.comparators[same]


def _play(
    job: Job,
    policy: Policy,
    role: str,
    name: str,
    record: RecordTarget | None,
    context: EvalContext,
    videos: list[Video],
) -> Score:
    """Play, and make videos of what was played."""
    scripts = (
        ScriptWriter(job.plan, range(context.options.shown_episodes)) if context.options.video is not None else None
    )
    context.begin(job, role)
    shown = f"{name} ({context.number + 1} of {context.count})" if context.count > 1 else role
    score = play(job.plan, policy, shown, context.show, record, scripts)
    context.end(score)
    if scripts is not None:
        videos += make_videos(context.video_plan(job), name, scripts.scripts, context.fps[context.number])
    return score


@contextlib.contextmanager
def _recording(job: Job, options: EvalOptions) -> Iterator[EvalRecording]:
    schema = StoreSchema.for_env(job.spec, env_id=job.config.env.id, env_kwargs=job.config.env.args)
    # All that decides what is played in an episode with a given number.
    envs = job.plan.schedule.envs
    how = f"{options.seed}|{options.deterministic}|{envs}|{options.overrides}"
    # Runs in different folders may have one name: the checksum tells their checkpoints apart.
    name = f"{checkpoint_name(job.loaded)}|{job.loaded.frames}|{stored_checksum(job.loaded.path)}|{how}"
    with EvalRecording(_record_folder(job, options), schema, name) as recording:
        yield recording


def _record_folder(job: Job, options: EvalOptions) -> Path:
    return options.record_dir or record_folder(job.loaded.path)


def trained_policy(
    config: TrainConfig, loaded: Loaded, plan: SamplerPlan, seed: int, deterministic: bool = False
) -> Policy:
    """The policy that a checkpoint holds, for the lanes of a plan; several act as a team."""
    import torch

    from rollmill.models.acting.policy import TorchPolicy
    from rollmill.models.acting.weights import WeightBoard
    from rollmill.models.actor_critic import build_model
    from rollmill.models.saving import load_weights
    from rollmill.optim.device import choose_device

    owners = config.env.policies or (0,) * plan.spec.agents
    if len(owners) != plan.spec.agents or config.env.policy_count != len(loaded.state["learners"]):
        raise ConfigError(
            f"env.policies={list(config.env.policies)} does not fit: {plan.spec.name} has {plan.spec.agents} agents, "
            f"the checkpoint {len(loaded.state['learners'])} policies"
        )
    torch.set_num_threads(1)  # as in training; how an operator is shared out to threads changes the last bits
    members: list[Policy] = []
    for number, learner in enumerate(loaded.state["learners"]):
        model = build_model(plan.spec, config.model)
        with restoring(loaded.path, f"learners.{number}.model"):
            load_weights(model, learner["model"])
        model.to(choose_device(config.learning.device))
        lanes = plan.groups * plan.lanes_per_group
        members.append(TorchPolicy(model, WeightBoard(model), lanes, seed + number, deterministic))
    return members[0] if len(members) == 1 else PolicyPerAgent(members, owners)
