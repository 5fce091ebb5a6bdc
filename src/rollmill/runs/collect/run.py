"""``rollmill collect``: whole episodes of some policy into a store, by any number of instances and machines.

``collect`` shows everything around the loop in the order it happens; ``_Collection.loop`` is the loop. The main thread
runs the sampler's rounds, a second one compresses and writes (in serial mode one thread does both in turn).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rollmill.core.config.load import load_config
from rollmill.core.config.plain import to_dict
from rollmill.core.diary import command_line
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.process_scope import process_scope
from rollmill.core.protocols import Policy
from rollmill.core.stopping import Interrupt
from rollmill.envs.probe import Probe, probe_here
from rollmill.envs.tasks.suite import tasks_of
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.series import EpisodeSeries, StoreContents, refuse_twins
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions
from rollmill.runs.policies.load import load_each
from rollmill.runs.probing import keeping_info
from rollmill.runs.settings.sizing import ENVS, GROUPS, SERIAL_ENVS
from rollmill.runs.settings.train import TrainConfig, require_env
from rollmill.sampling.placement import default_workers
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.sampling.settings import SamplingSettings
from rollmill.store.care.recover import recover
from rollmill.store.episode import EpisodeInfo
from rollmill.store.extract import EpisodeExtractor, EpisodeQuota, ProgressFile, Stats, check_writable
from rollmill.store.format.schema import STORE_FILE, StoreSchema
from rollmill.store.writer import StoreWriter

log = logging.getLogger("rollmill")

EPISODES_PER_ENV = 4
"""Automatic number of envs: so few that each plays this many episodes. At the end all wait for the longest one."""
IMAGE_ENVS = 4
"""Automatic number of envs of a worker where they show images: their steps take so long that few keep it busy."""
GB = 1e9


@dataclass(frozen=True)
class Metrics:
    """How far a collection is."""

    episodes: int
    """Env episodes that this instance has added."""
    wanted: int | None
    steps: int
    wanted_steps: int | None
    bytes: int
    """What this instance has written."""
    seconds: float
    """Since the beginning, the start of the simulators included."""
    sampling_seconds: float
    """Since the first rows came in; rates are of these."""
    mean_return: float | None
    env_faults: int = 0
    worker_restarts: int = 0

    @property
    def share(self) -> float:
        """What is done of what is to be done, 0..1."""
        if self.wanted_steps is not None:
            return min(1.0, self.steps / self.wanted_steps)
        return min(1.0, self.episodes / self.wanted) if self.wanted else 1.0

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.sampling_seconds if self.sampling_seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        return self.sampling_seconds * (1 / self.share - 1) if self.share > 0 else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes,
            "episodes_wanted": self.wanted,
            "steps": self.steps,
            "steps_wanted": self.wanted_steps,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "steps_per_s": round(self.steps_per_s, 1),
            "mean_return": self.mean_return,
            "env_faults": self.env_faults,
            "worker_restarts": self.worker_restarts,
        }


@dataclass(frozen=True)
class Collected:
    """What ``rollmill collect`` has done."""

    state: Literal["finished", "interrupted"]
    reason: str
    complete: bool
    """Whether everything that was asked for is there."""
    store: Path
    total_episodes: int
    """Whole episodes in the store now, of all writers (of several agents each counts)."""
    policy: str
    seed: int
    shard: str
    metrics: Metrics
    signal: int = 0

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0

    def to_dict(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name) for name in ("state", "reason", "complete", "total_episodes", "policy", "seed")
        }
        return {**own, "shard": self.shard or None, "store": str(self.store), **self.metrics.to_dict()}


Progress = Callable[[Metrics], None]


def collect(
    options: CollectOptions,
    files: tuple[Path, ...] = (),
    overrides: tuple[str, ...] = (),
    progress: Progress | None = None,
    given: LoadedPolicy | None = None,
) -> Collected:
    """Add episodes to the store ``options.out``. Raises RollmillError when it fails; what had ended is kept.

    ``given``: a policy that is loaded already plays, as it was loaded, instead of what ``options.policy`` names.
    """
    options.check(overrides, loaded=given is not None)
    policy = _load(options, files, overrides) if given is None else _as_told(given, options, files, overrides)
    _check_policy(policy)
    if options.max_steps:
        policy = replace(policy, env=replace(policy.require_env(), max_episode_steps=options.max_steps))
    with Interrupt() as interrupt, process_scope(inside=policy.sampling.mode == "serial") as environment:
        if options.save_info is not None:
            env = keeping_info(policy.require_env(), options.save_info, environment, policy.sampling.start_timeout)
            policy = replace(policy, env=env, probe=True)
        spec = _learn_spec(policy, environment)
        job = _prepare(policy, spec, options, environment)
        with contextlib.closing(job.contents):
            if job.reason_not_to_begin():
                return job.outcome(job.reason_not_to_begin(), job.metrics_at_start(), 0)
            acting = job.build()
            check_writable(options.out)
            with _Collection(job, acting, interrupt, progress or (lambda metrics: None)) as collection:
                collection.loop()
            return collection.outcome()


def _load(options: CollectOptions, files: tuple[Path, ...], overrides: tuple[str, ...]) -> LoadedPolicy:
    """Load the policy, its environment and its sampling; settings of the training's machine are left behind."""
    how = LoadOptions(
        files=files,
        overrides=overrides,
        machine=False,
        best=options.best,
        targets=() if options.target is None else (options.target,),
        deterministic=True if options.deterministic else None,
        hold=options.hold,
        trust_code=options.trust_code,
    )
    policy = load_each(options.policy, how, flag="--policy ")[0]
    if policy.env is None:
        require_env(files, overrides, "rollmill collect")
    return policy


def _as_told(
    policy: LoadedPolicy, options: CollectOptions, files: tuple[Path, ...], overrides: tuple[str, ...]
) -> LoadedPolicy:
    """Return a loaded policy with the environment and the sampling that are wanted here."""
    if options.target is not None and not policy.asked:
        raise ConfigError(f"target: {policy.name} cannot be asked for a return")
    config = load_config(TrainConfig, files, overrides, base={"env": to_dict(policy.env)} if policy.env else {})
    told = replace(
        policy,
        sampling=config.sampling,
        targets=policy.targets if options.target is None else (options.target,),
        deterministic=policy.deterministic or options.deterministic,
    )
    if policy.env is None:
        require_env(files, overrides, "rollmill collect")
    if config.env != policy.env:
        told = replace(told, env=config.env, probe=True)
    return told


def _check_policy(policy: LoadedPolicy) -> None:
    """Raise ConfigError for a policy or environment that cannot be collected from."""
    if policy.sampling.decorrelate_steps:
        raise ConfigError("sampling.decorrelate_steps: collected episodes are whole; leave it at 0")
    if policy.env is not None and tasks_of(policy.env) and not policy.env.task:
        names = ", ".join(task.name for task in tasks_of(policy.env))
        raise ConfigError(f"{policy.env.id} is a suite: collect one task at a time, with env.task=NAME (of {names})")
    if policy.env is not None and policy.env.vector:
        raise ConfigError(
            "env.vector: collected episodes have a seed each, a vector environment seeds them by the group; "
            "set env.vector=false"
        )
    policy.require_targets()


def store_name(policy: LoadedPolicy, deterministic: bool = False) -> str:
    """Return what a store calls the policy."""
    asked = f", asked for {max(policy.targets):g}" if policy.targets else ""
    variant = f", {policy.variant}" if policy.variant else ""
    return f"{policy.name}{variant}{asked}{' (deterministic)' if deterministic else ''}"


def _learn_spec(policy: LoadedPolicy, environment: Mapping[str, str]) -> EnvSpec:
    """Return the spec of the env. Raises ConfigError if a trained policy does not fit it."""
    if policy.spec is not None and not policy.probe:
        return policy.spec
    env = policy.require_env()
    serial = policy.sampling.mode == "serial"
    found = probe_here(env) if serial else Probe(env, environment).result(policy.sampling.start_timeout)
    policy.check(found)
    return found


# -- what there is to do -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A collection that could begin: what is there, what is missing, who plays it."""

    options: CollectOptions
    policy: LoadedPolicy
    series: EpisodeSeries
    schema: StoreSchema
    plan: SamplerPlan
    contents: StoreContents
    need: int | None
    """Env episodes to add; None: until there are ``step_limit`` steps."""
    step_limit: int | None
    present: frozenset[int]

    @property
    def budget(self) -> float:
        """The disk budget in bytes."""
        return self.options.budget_gb * GB if self.options.budget_gb is not None else float("inf")

    def build(self) -> Policy:
        """Build what acts for the lanes of the plan."""
        schedule, spec = self.plan.schedule, self.plan.spec
        assert schedule is not None, "collections are numbered"
        target = max(self.policy.require_targets(), default=0.0)
        seed = self.series.seeds.branch("actions").integer()
        return self.policy.build(spec, schedule, seed, [target] * (schedule.envs * spec.agents))

    @property
    def constants(self) -> Mapping[str, int]:
        """Values of the columns that tell how far the policy was trained."""
        return {"version": self.policy.version, "global_step": self.policy.frames}

    def describe(self, lane: int, episode: int) -> EpisodeInfo:
        """Return what is known of an episode before it is played."""
        env, agent = divmod(lane, self.series.agents)
        schedule = self.plan.schedule
        assert schedule is not None, "collections are numbered"
        return EpisodeInfo(
            env_id=self.plan.env.task,
            seed=schedule.env_seed(env, episode),
            policy=self.series.policy,
            worker=env // self.plan.settings.envs_per_worker,
            lane=lane,
            uid=self.series.uid(schedule.number(env, episode), agent),
            probability=1.0,
        )

    def reason_not_to_begin(self) -> str:
        if self.need == 0:
            return "everything is there"
        return self.budget_reason if self.contents.bytes >= self.budget else ""

    @property
    def budget_reason(self) -> str:
        return f"the disk budget of {self.options.budget_gb:g} GB is used up"

    def metrics_at_start(self) -> Metrics:
        return Metrics(0, self.need, 0, self.step_limit, 0, 0.0, 0.0, None)

    def outcome(self, reason: str, metrics: Metrics, signal: int) -> Collected:
        return Collected(
            state="interrupted" if signal else "finished",
            reason=reason,
            complete=metrics.share >= 1.0,
            store=self.options.out,
            total_episodes=len(self.contents.uids),
            policy=self.series.policy,
            seed=self.series.seed,
            shard=self.options.shard,
            metrics=metrics,
            signal=signal,
        )


def _prepare(policy: LoadedPolicy, spec: EnvSpec, options: CollectOptions, environment: Mapping[str, str]) -> _Job:
    env = policy.require_env()
    if (options.out / STORE_FILE).is_file():
        _settle(options.out)
    shard, shards = options.part
    seed = secrets.randbits(31) if options.seed is None else options.seed
    series = EpisodeSeries(
        seed, store_name(policy, options.deterministic), env.max_episode_steps, spec.agents, shard, shards
    )
    contents = StoreContents(options.out)
    present = frozenset(contents.all_uids.tolist())
    gaps, start = series.missing(present)
    done = series.share(start) - len(gaps)
    need, step_limit = _amount(options, series, done, len(contents.uids) // spec.agents)
    settings = _size(policy.sampling, spec, need)
    schedule = EpisodeSchedule(series.seeds, settings.workers * settings.envs_per_worker, gaps, start, shards)
    plan = SamplerPlan(
        settings=settings,
        env=env,
        spec=spec,
        seeds=series.seeds,
        segments_per_batch=settings.workers * settings.groups,
        environment=environment,
        schedule=schedule,
    )
    schema = StoreSchema.for_env(
        spec,
        **env.for_store,
        made={"command": shlex.join(command_line()), "policy": series.policy, "seed": seed},
    )
    return _Job(options, policy, series, schema, plan, contents, need, step_limit, present)


def _settle(path: Path) -> None:
    """Seal what dead writers have left; what cannot be told is only said."""
    done = recover(path)
    for name in done.sealed:
        log.info("sealed shard %s of a writer that has ended", name)
    for problem in done.problems:
        log.warning("%s: %s", path, problem)


def _amount(options: CollectOptions, series: EpisodeSeries, done: int, there: int) -> tuple[int | None, int | None]:
    """Return (episodes, steps) to add, one of them None.

    ``done``: how many of this series and shard there are; ``there``: how many in the whole store.
    """
    if options.steps is not None:
        return None, max(1, series.share(options.steps))
    if options.episodes is not None:
        return series.share(options.episodes), None
    assert options.until is not None, "checked before"
    if series.shards > 1:
        return max(0, series.share(options.until) - done), None
    return max(0, options.until - there), None


def _size(settings: SamplingSettings, spec: EnvSpec, need: int | None) -> SamplingSettings:
    """Choose the automatic numbers: one worker per core, and not many more lanes than there is work for."""
    serial = settings.mode == "serial"
    most = need if need is not None else 1 << 30
    workers = settings.workers or (1 if serial else max(1, min(default_workers(), most)))
    envs = settings.envs_per_worker
    if not envs:
        usual = SERIAL_ENVS if serial else IMAGE_ENVS if any(f.is_image for f in spec.observation) else ENVS
        limit = min(usual, max(1, most // (EPISODES_PER_ENV * workers)))
        wanted = settings.groups or (1 if serial else GROUPS)
        envs = max(wanted if settings.groups else 1, limit - limit % wanted)
    groups = settings.groups or (GROUPS if not serial and envs % GROUPS == 0 else 1)
    return replace(settings, mode="serial" if serial else "sync", workers=workers, envs_per_worker=envs, groups=groups)


# -- doing it ----------------------------------------------------------------------------------------


class _Collection:
    """A collection under way; leaving its context ends workers and threads, and seals the shards."""

    def __init__(self, job: _Job, policy: Policy, interrupt: Interrupt, progress: Progress) -> None:
        self._job, self._interrupt, self._progress = job, interrupt, progress
        self._writer = StoreWriter(job.options.out, job.schema)
        self._file = ProgressFile(self._writer)
        self._sampler = Sampler(job.plan, [policy])
        schedule = job.plan.schedule
        assert schedule is not None, "collections are numbered"
        self._envs, agents = schedule.envs, job.series.agents
        self._quota = EpisodeQuota(schedule.envs, job.need, agents)
        self._extractor = EpisodeExtractor(
            self._writer, self._quota, job.describe, job.constants, agents, job.present, job.step_limit
        )
        serial = job.plan.settings.mode == "serial"
        self._thread = None if serial else ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._writing: deque[Future[None]] = deque()
        self._foreign_bytes = job.contents.bytes
        self._begun = time.monotonic()
        self._first_rows: float | None = None
        self._reason = ""

    # -- the loop ------------------------------------------------------------------------------

    def loop(self) -> None:
        """Run rounds until everything is there, or something ends it earlier."""
        self._sampler.start()
        while not (reason := self._why_stop()):
            self._sampler.round()
            self._hand_over()
            self._look_around()
            self._progress(self.metrics())
        self._reason = reason
        self._finish_writing()
        self._progress(self.metrics())

    def _why_stop(self) -> str:
        if self._interrupt.signal is not None:
            return f"{self._interrupt.signal.name} received"
        if self._extractor.is_full:
            return f"{self._extractor.steps:,} steps"
        if self._used_bytes() >= self._job.budget or (self._quota.closed and self._quota.is_done):
            return self._job.budget_reason
        return f"{self._quota.complete:,} episodes" if self._quota.is_done else ""

    def _hand_over(self) -> None:
        """Give finished slots to the writing side; raises what has gone wrong there."""
        slots: list[int] = []
        while (more := self._sampler.take(1, timeout=0)) is not None:
            slots += more
        if slots:
            self._first_rows = self._first_rows or time.monotonic()
            groups = [int(self._sampler.inference.group_of_slot[slot]) for slot in slots]
            stats = self._sampler.pool.pop_stats()
            if self._thread is None:
                self._write(slots, groups, stats)
            else:
                self._writing.append(self._thread.submit(self._write, slots, groups, stats))
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()

    def _write(self, slots: list[int], groups: list[int], stats: Mapping[tuple[int, int], Stats]) -> None:
        for slot, group in zip(slots, groups, strict=True):
            self._extractor.take(self._sampler.arena.segment(slot), group, stats)
            self._sampler.release([slot])

    def _finish_writing(self) -> None:
        while self._writing:
            self._writing.popleft().result()

    # -- others, budget, metrics ---------------------------------------------------------------

    def _look_around(self) -> None:
        contents, quota, own = self._job.contents, self._quota, self._extractor.written
        if contents.look(self._writer.name):
            refuse_twins(own, contents.all_uids, self._job.options.out)
            self._foreign_bytes = contents.bytes - self._writer.bytes_written
            if self._job.options.until is not None and self._job.series.shards == 1:
                others = len(contents.uids) - len(own.intersection(contents.uids.tolist()))
                quota.lower(self._job.options.until - others // self._job.series.agents)
        # Every env may have one under way; twice the mean, as those are longer than all are on average.
        expected = 2 * self._envs * self._writer.bytes_written / max(1, quota.complete)
        if quota.complete and self._used_bytes() + expected >= self._job.budget:
            quota.closed = True
        self._file.write("running", self.metrics().to_dict())

    def _used_bytes(self) -> int:
        return self._foreign_bytes + self._writer.bytes_written

    def metrics(self) -> Metrics:
        extractor, report, now = self._extractor, self._sampler.pool.report, time.monotonic()
        return Metrics(
            episodes=self._quota.complete,
            wanted=self._quota.need,
            steps=extractor.steps,
            wanted_steps=self._job.step_limit,
            bytes=self._writer.bytes_written,
            seconds=now - self._begun,
            sampling_seconds=now - (self._first_rows or now),
            mean_return=extractor.returns / extractor.episodes if extractor.episodes else None,
            env_faults=report.env_faults,
            worker_restarts=report.worker_restarts,
        )

    # -- the end -------------------------------------------------------------------------------

    def __enter__(self) -> _Collection:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        with contextlib.ExitStack() as stack:
            state = "failed" if error is not None else "interrupted" if self._interrupt.signal else "finished"
            stack.callback(lambda: self._file.write(state, self.metrics().to_dict(), now=True))
            stack.callback(self._writer.close)
            stack.callback(self._leave_open)
            stack.callback(self._sampler.stop)
            if self._thread is not None:
                self._thread.shutdown(wait=True, cancel_futures=True)

    def _leave_open(self) -> None:
        """Leave out unfinished episodes; an interrupted collection by steps ends them as they are."""
        if self._job.step_limit is not None and self._interrupt.signal is not None:
            self._extractor.end_open()
        else:
            self._extractor.discard_open()

    def outcome(self) -> Collected:
        self._job.contents.refresh()
        refuse_twins(self._extractor.written, self._job.contents.all_uids, self._job.options.out)
        number = self._interrupt.signal
        return self._job.outcome(self._reason, self.metrics(), int(number) if number else 0)
