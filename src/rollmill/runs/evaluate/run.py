"""``rollmill eval``: what policies are worth, over a number of whole episodes.

``evaluate_all`` shows everything in the order it happens: check what was asked for and where it is to go, find the
policies (``runs.policies``), look at their environments, play (``setup``), video (``video``), write. Which episodes are
played is settled beforehand, so that short ones do not count more often than long ones, and the same seed gives the
same metrics.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rollmill.core.diary import command_line
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.process_scope import process_scope
from rollmill.core.tree_file import stored_checksum
from rollmill.envs.probe import probe_here
from rollmill.envs.settings import EnvSettings
from rollmill.reports.run.offline import Video as ShownVideo
from rollmill.reports.run.offline import write_comparison
from rollmill.reports.run.results import BEHAVIOUR
from rollmill.runs.evaluate.options import EvalOptions, check_outputs, check_targets
from rollmill.runs.evaluate.play import Metrics, RecordTarget
from rollmill.runs.evaluate.record import EvalRecording
from rollmill.runs.evaluate.render_env import without_display
from rollmill.runs.evaluate.results import CsvFile, EpisodeRow, EvalResult, Score, Video, comparison, write_document
from rollmill.runs.evaluate.setup import EvalSetup, Played
from rollmill.runs.evaluate.to_wandb import send, wandb_settings
from rollmill.runs.evaluate.video import VideoPlan, file_name, make_videos
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions, told_apart
from rollmill.runs.policies.find import find_targets, record_folder
from rollmill.runs.policies.load import load_each
from rollmill.runs.policies.simple import RANDOM, load_built_in
from rollmill.runs.probing import keeping_info, probe_in_child
from rollmill.store.extract import check_writable
from rollmill.store.format.schema import StoreSchema

log = logging.getLogger("rollmill")

Progress = Callable[[Metrics], None]
Source = str | Path | LoadedPolicy
"""A policy, or a word for it."""

POLICY = "policy"
"""The role of a policy that is asked about; the other role is ``BEHAVIOUR``."""


def evaluate(policy: Source, options: EvalOptions | None = None, progress: Progress | None = None) -> EvalResult:
    """Evaluate one policy: ``evaluate(load_policy("runs/default/x"), EvalOptions(episodes=20))``."""
    return evaluate_all([policy], options or EvalOptions(), progress)[0]


def evaluate_all(
    policies: Sequence[Source], options: EvalOptions, progress: Progress | None = None
) -> list[EvalResult]:
    """Evaluate every policy that is given or that the words mean (runs, files, patterns), on the same episodes.

    Returns a result for each of them, and for each of the returns that it is asked for, in their order.
    """
    options.check()
    if not policies:
        raise ConfigError("what is to be evaluated? Give a run folder, a checkpoint file or a pattern; see --help")
    jobs = _told_apart(_jobs(policies, options))
    check_outputs(options)
    if options.wandb:
        for job in jobs:
            wandb_settings(job.policy.path, job.policy.name, options.overrides)
    if options.record:
        for job in jobs:
            check_writable(_record_folder(job, options))
    results: list[EvalResult] = []
    with contextlib.ExitStack() as stack:
        context = EvalContext(options, progress)
        inside = options.serial or options.video is not None
        context.environment = stack.enter_context(process_scope(inside=inside))
        if options.video is not None:
            without_display()  # process scope restores the variables
        jobs = _in_their_places(jobs, context)
        if options.csv is not None:
            context.csv = stack.enter_context(CsvFile(options.csv))
        if options.video is not None:
            context.fps = [context.video_plan(job, range(0)).check() for job in jobs]
        for number, job in enumerate(jobs):
            context.number, context.count = number, len(jobs)
            results += _evaluate(job, context)
            if options.out is not None:
                write_document(options.out, results)  # after each one: what is known survives a failure later
    if options.report is not None:
        _write_page(options.report, results, context)
    if options.wandb:
        for link in send(results, options.overrides):
            log.info("W&B: %s", link)
    return results


# -- what is to be played ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One policy that is to be evaluated."""

    policy: LoadedPolicy
    name: str = ""
    """What tables call it."""
    stem: str = ""
    """What its files are called: the run and the frames."""
    role: str = POLICY
    seed: int | None = None
    """Which of several seeds it plays."""
    place: EvalSetup | None = None
    """Where it plays, once that is known."""

    @property
    def setup(self) -> EvalSetup:
        assert self.place is not None, "_in_their_places comes first"
        return self.place


def _jobs(sources: Sequence[Source], options: EvalOptions) -> list[Job]:
    """Return all that is to be played, checked as far as that goes without building an environment."""
    how = _how(options)
    policies = _policies(sources, options, how)
    env = next((policy.env for policy in policies if policy.env is not None), None)
    jobs = [Job(policy if policy.env is not None else replace(policy, env=env)) for policy in policies]
    if options.behaviour is not None:
        there = replace(how, env=jobs[0].policy.require_env(), overrides=(), targets=(), best=False)
        jobs.append(Job(load_each(str(options.behaviour), there)[0], BEHAVIOUR, role=BEHAVIOUR))
    for job in jobs:
        if job.policy.require_env().vector:
            log.warning("env.vector: episodes are seeded by the group, so metrics depend on the number of workers, too")
        if len(job.policy.require_targets()) > 1 and options.record:
            raise ConfigError(f"--record: {job.policy.name} is asked for several returns; give one with --targets")
    _require_one_env(jobs, options)
    return jobs


def _how(options: EvalOptions) -> LoadOptions:
    if options.device is not None:
        from rollmill.optim.device import choose_device

        choose_device(options.device, "--device")
    return LoadOptions(
        overrides=options.overrides,
        best=options.best,
        member=options.member,
        targets=options.targets,
        deterministic=True if options.deterministic else None,
        device=options.device,
        last=options.last,
        encoder=options.encoder,
        dynamics=options.dynamics,
        trust_code=options.trust_code,
    )


def _policies(sources: Sequence[Source], options: EvalOptions, how: LoadOptions) -> list[LoadedPolicy]:
    """Return the policies that are given, then those that words mean."""
    given = [source for source in sources if isinstance(source, LoadedPolicy)]
    words = find_targets([source for source in sources if not isinstance(source, LoadedPolicy)])
    check_targets(options, words)
    policies = [_as_told(policy, options) for policy in given]
    policies += [policy for word in words for policy in load_each(word, how, options.all_checkpoints)]
    if options.targets and not any(policy.asked for policy in policies):
        raise ConfigError("--targets: none of these policies can be asked for a return")
    return policies


def _as_told(policy: LoadedPolicy, options: EvalOptions) -> LoadedPolicy:
    targets = options.targets if policy.asked and options.targets else policy.targets
    return replace(policy, deterministic=policy.deterministic or options.deterministic, targets=targets)


def _require_one_env(jobs: Sequence[Job], options: EvalOptions) -> None:
    first = jobs[0].policy
    other = next((job.policy for job in jobs if job.policy.require_env().id != first.require_env().id), None)
    if other is not None and (options.report is not None or options.behaviour is not None):
        raise ConfigError(
            f"{other.run} plays {other.require_env().id}, {first.run} {first.require_env().id}: one table has one "
            "environment; give those of each by themselves"
        )


def _told_apart(jobs: Sequence[Job]) -> list[Job]:
    """Give the jobs names for tables and files."""
    names = told_apart([job.policy for job in jobs])
    return [
        replace(job, name=job.name or shown, stem=file_name(name))
        for job, (shown, name) in zip(jobs, names, strict=True)
    ]


def _in_their_places(jobs: Sequence[Job], context: EvalContext) -> list[Job]:
    """Return the jobs with the environments they are to be played in.

    Raises ConfigError if a policy does not fit.
    """
    placed, options = [], context.options
    for job in jobs:
        policy, env = job.policy, job.policy.require_env()
        if options.save_info is not None:
            env = keeping_info(env, options.save_info, context.environment, policy.sampling.start_timeout)
            policy = replace(policy, env=env, probe=True)
        spec = policy.spec
        if policy.probe or spec is None:
            spec = context.spec_of(env, policy.sampling.start_timeout)
            policy.check(spec)
        for seed in options.all_seeds:
            setup = EvalSetup(
                *(env, spec, seed, options.workers, options.envs, options.serial),
                sampling=policy.sampling,
                environment=context.environment,
            )
            setup.plan(1)  # what cannot be shared out is refused before anything is played
            placed.append(_with_seed(replace(job, place=setup), seed) if options.seeds else replace(job, place=setup))
    return placed


def _with_seed(job: Job, seed: int) -> Job:
    """Return a job for one of several seeds, told from the others in tables and files."""
    return replace(job, name=f"{job.name}, seed {seed}", role=f"{job.role}-s{seed}", seed=seed)


@dataclass
class EvalContext:
    """What all policies of one evaluation share: where rows and progress go."""

    options: EvalOptions
    progress: Progress | None
    csv: CsvFile | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    fps: list[float] = field(default_factory=list)
    """Images per second of each job's videos."""
    comparators: dict[str, Score] = field(default_factory=dict)
    """Of the random policy, by environment."""
    specs: dict[str, EnvSpec] = field(default_factory=dict)
    shown: list[ShownVideo] = field(default_factory=list)
    """Videos for the page."""
    number: int = 0
    count: int = 1

    def spec_of(self, env: EnvSettings, timeout: float) -> EnvSpec:
        """Return what an environment shows and takes; each is built once."""
        if repr(env) not in self.specs:
            serial = self.options.serial
            self.specs[repr(env)] = probe_here(env) if serial else probe_in_child(env, self.environment, timeout)
        return self.specs[repr(env)]

    def begin(self, job: Job, role: str) -> None:
        if self.csv is not None:
            self.csv.begin(str(job.policy.path or job.policy.name), job.policy.frames, role)

    def show(self, rows: Sequence[EpisodeRow], metrics: Metrics) -> None:
        if self.csv is not None:
            self.csv.add(rows, metrics.to_dict())
        if self.progress is not None:
            self.progress(metrics)

    def end(self, played: Played) -> None:
        if self.csv is not None:
            rows = [row for score in played.scores for row in score.rows]
            self.csv.keep(Score(sorted(rows, key=lambda row: (row.episode, row.agent))))

    def video_plan(self, job: Job, episodes: range) -> VideoPlan:
        o = self.options
        assert o.video is not None, "asked for videos"
        return VideoPlan(job.setup.env, o.video, episodes, o.cells, o.fps, not o.no_captions)


# -- playing -------------------------------------------------------------------------------------------


def _evaluate(job: Job, context: EvalContext) -> list[EvalResult]:
    """Evaluate one policy and, where asked for, a random one on the same episodes."""
    options, policy = context.options, job.policy
    with contextlib.ExitStack() as stack:
        recording = stack.enter_context(_recording(job, options)) if options.record else None
        asked = f", asked for {policy.targets[0]:g}" if policy.targets else ""
        constants = {"version": policy.version, "global_step": policy.frames}
        record = RecordTarget(recording, policy.name + asked, constants) if recording else None
        played = _play(job, policy, job.role, job.stem, record, context)
        random, more = _play_random(job, recording, context) if options.random else (None, [])
    results = []
    for k, score in enumerate(played.scores):
        target = policy.targets[k] if policy.targets else None
        results.append(
            EvalResult(
                str(policy.path or policy.name),
                policy.frames,
                job.setup.env.id,
                score,
                random,
                options.to_dict(),
                str(recording.folder) if recording else None,
                _videos(job, played, k, context),
                job.name,
                target,
                policy.note,
                policy.unit if policy.path is not None else "",
                job.seed,
            )
        )
    results[0].videos.extend(more)
    return results


def _play(
    job: Job, policy: LoadedPolicy, role: str, name: str, record: RecordTarget | None, context: EvalContext
) -> Played:
    context.begin(job, role)
    played = job.setup.play(
        policy,
        context.options.wanted,
        name=f"{name} ({context.number + 1} of {context.count})" if context.count > 1 else role,
        steps=context.options.steps,
        progress=context.show,
        record=record,
        shown_episodes=context.options.shown_episodes,
    )
    context.end(played)
    return played


def _play_random(job: Job, recording: EvalRecording | None, context: EvalContext) -> tuple[Score, list[Video]]:
    """Play at random for comparison; once for all policies in the same environment, unless each is recorded."""
    same = repr((job.setup.env, job.setup.spec, job.seed))
    if recording is None and same in context.comparators:
        return context.comparators[same], []
    record = RecordTarget(recording, RANDOM, {"version": 0, "global_step": 0}) if recording else None
    role = RANDOM if job.seed is None else f"{RANDOM}-s{job.seed}"
    played = _play(job, load_built_in(RANDOM, LoadOptions()), role, f"{job.stem}-random", record, context)
    (context.comparators[same],) = played.scores
    return context.comparators[same], _videos(replace(job, name=RANDOM, stem=f"{job.stem}-random"), played, 0, context)


def _videos(job: Job, played: Played, k: int, context: EvalContext) -> list[Video]:
    """Make videos of what was played for target ``k``; for a page only of the target that has brought most."""
    options, targets = context.options, len(played.scores)
    if options.video is None:
        return []
    target = played.scores[k].rows[0].target
    stem = job.stem if targets == 1 else f"{job.stem}-target-{target:g}"
    tasks = 1 if options.cells is not None else max(1, len(job.setup.tasks))
    episodes = range(k, targets * tasks * options.shown_episodes, targets)
    if options.typical:
        means = [score.summary()["mean"] or 0.0 for score in played.scores]
        episodes = played.typical(k) if k == means.index(max(means)) else range(0)
    made = make_videos(context.video_plan(job, episodes), stem, played.scripts, context.fps[context.number])
    caption = job.name if target is None else f"{job.name}, asked for {target:g}"
    context.shown += [ShownVideo(caption, Path(video.file)) for video in made if not video.problem]
    return made


# -- what is left of it --------------------------------------------------------------------------------


@contextlib.contextmanager
def _recording(job: Job, options: EvalOptions) -> Iterator[EvalRecording]:
    setup, policy = job.setup, job.policy
    origin = {"command": shlex.join(command_line()), "policy": policy.name, "seed": setup.seed}
    schema = StoreSchema.for_env(setup.spec, **setup.env.for_store, made=origin)
    # All that decides what is played in an episode with a given number.
    envs = setup.plan(options.wanted, options.steps).schedule.envs
    how = f"{setup.seed}|{options.deterministic}|{envs}|{options.overrides}"
    # Runs in different folders may have one name: the checksum tells their checkpoints apart.
    checksum = stored_checksum(policy.path) if policy.path is not None else ""
    who = f"{policy.name}|{policy.frames}|{checksum}" + (f"|{policy.variant}" if policy.variant else "")
    with EvalRecording(_record_folder(job, options), schema, f"{who}|{how}") as made:
        yield made


def _record_folder(job: Job, options: EvalOptions) -> Path:
    if options.record_dir is None and job.policy.path is None:
        raise ConfigError(f"--record: {job.policy.name} has no run folder; give --record FOLDER")
    return options.record_dir or record_folder(job.policy.path or Path())


def _write_page(path: Path, results: Sequence[EvalResult], context: EvalContext) -> None:
    options = context.options
    about = f"{options.wanted} episodes" if options.steps is None else f"{options.steps:,} steps"
    seeds = ", ".join(map(str, options.all_seeds))
    write_comparison(path, comparison(results), context.shown, f"{about} for every row, seed {seeds}")
