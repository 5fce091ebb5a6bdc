"""Turns what happens in a training into rows of metrics.

A row is due every ``report_frames`` frames: by the run's own clock, so that a deterministic run writes
the same rows again. Only names under ``time/`` depend on the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollmill.core.config.plain import changed_settings, to_dict
from rollmill.core.shapes import Shape, check_shape
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.scores import SUITE_SCORE, suite_score, task_score
from rollmill.envs.tasks.suite import tasks_of
from rollmill.monitor.console import RECORDING_ROWS, ROWS, USAGE_ROWS, Row, count_text, number_text
from rollmill.monitor.metrics import EPISODES_SHAPE, WINDOW_SHAPE, EpisodeStats, MetricWindow, Progress
from rollmill.monitor.reporter import Display
from rollmill.monitor.usage import Usage
from rollmill.monitor.wandb import TrackedRun
from rollmill.recording.played_log import PlayedLog
from rollmill.recording.recorder import recorder_metrics
from rollmill.runs.lifecycle import Life
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.observers import ask_summaries
from rollmill.sampling.pool import ProcessPool
from rollmill.sampling.sampler import EpisodeEnd

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun
    from rollmill.runs.train.population.member import Member
    from rollmill.runs.train.population.members import Members

TASKS_SHAPE: Shape = {"window?": WINDOW_SHAPE, "steps?": {str: int}, "episodes?": {str: int}}
"""The shape of ``TaskMetrics.state``."""

STATE_SHAPE: Shape = {
    "episodes": EPISODES_SHAPE,
    "policies?": [EPISODES_SHAPE],
    "extras": WINDOW_SHAPE,
    "workers?": WINDOW_SHAPE,
    "tasks?": TASKS_SHAPE,
    "checkpoint_failures": int,
    "next_row": int,
    "sums": {str: [float, float]},
}

log = logging.getLogger("rollmill")


def panel_rows(config: TrainConfig) -> tuple[Row, ...]:
    """Return what the panel of a run shows: the usual rows, and limits beside metrics that have one."""
    rate, limit = config.report.sim_rate, config.learning.max_grad_norm
    rows = list(ROWS)
    if rate:
        rows[0] = Row("frames/s", "frames_per_s", lambda v: f"{count_text(v)} ({v / rate:.0%} of bare simulation)")
    against = f" (max {limit:g})" if limit else ""
    rows += [
        Row("value loss", "value_loss", in_line=False),
        Row("grad norm", "grad_norm", lambda v: number_text(v) + against, in_line=False),
        Row("clipped", "clip_fraction", lambda v: f"{v:.1%}", in_line=False),
        *USAGE_ROWS,
    ]
    return (*rows, *RECORDING_ROWS) if config.recording.on else tuple(rows)


class Phases:
    """Shares of the time since the last row that went into each phase of each process."""

    def __init__(self) -> None:
        self._at = 0.0
        self._before: dict[str, float] = {}

    def shares(self, seconds: float, phases: Mapping[str, float]) -> dict[str, float]:
        """Return ``time/worker_env`` and so on, 0 to 1; ``seconds`` of training and of each phase so far."""
        passed = seconds - self._at
        found = {
            f"time/{name.replace(' ', '_')}": (total - self._before.get(name, 0.0)) / passed if passed > 0 else 0.0
            for name, total in phases.items()
        }
        self._at, self._before = seconds, dict(phases)
        return found


class TrainMetrics:
    """Collects metrics between rows, and makes the rows."""

    def __init__(self, config: TrainConfig, life: Life) -> None:
        self.episodes = EpisodeStats(config.report.window)
        several = config.policy_count if config.policy_count > 1 else 0
        self.policies = [EpisodeStats(config.report.window) for _ in range(several)]
        """The episodes of every policy, where there are several."""
        self.checkpoint_failures = 0
        self.last_row: Mapping[str, float] = {}
        self._doubted = False
        """The metrics that were written last, in this session."""
        self._extras = MetricWindow(config.report.window)  # the envs' own statistics
        self._config, self._folder, self._reporter, self._console = config, life.folder, life.reporter, life.console
        self._workers = MetricWindow(config.report.window)  # returns, by worker
        self._tasks = TaskMetrics(config.env, config.report.window)
        self._progress = Progress(config.stop.frames, config.stop.seconds, max_batches=config.stop.batches)
        self._usage = Usage()
        self._phases = Phases()
        self._began_at = 0.0
        self._sums: dict[str, list[float]] = {}  # name -> [sum, count] since the last row
        self._next_row = config.report_frames
        self._played: PlayedLog | None = None
        self._members: Members | Member | None = None

    def open(self, frames: int, seconds: float) -> None:
        """Open the sinks of a run that stands at ``frames`` after ``seconds`` of training."""
        folder, config = self._folder, self._config
        self._began_at = seconds
        stop = config.stop
        self._progress = Progress(stop.frames, stop.seconds, seconds, max_batches=stop.batches)
        if config.recording.on:
            self._played = PlayedLog(folder.data)
        title, every = f"{config.env.id}: {folder.path}", config.report.console_seconds
        self._reporter.open(
            frames,
            Display(self._console, title, panel_rows(config), self._progress, every),
            tensorboard=config.report.tensorboard,
            wandb=config.wandb,
            trackio=config.trackio,
            about=TrackedRun(folder.path.name, config.env.id, to_dict(config)),
            changed=changed_settings(config),
            compared_by=("episode/return",),
        )
        self._usage.begin()

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last episodes (of a population: of its best member's); None before the first has ended."""
        return self._judged.mean_return

    @property
    def window_full(self) -> bool:
        """Whether as many episodes have ended as a mean return is taken over."""
        return self._judged.known >= self._config.report.window

    @property
    def _judged(self) -> EpisodeStats:
        return self.policies[self._members.best] if self._members is not None and self.policies else self.episodes

    def follow(self, members: Members | Member) -> None:
        """Follow the members of a population, which is judged by its best one, or the one member that this run is."""
        self._members = members

    def restart(self, policy_id: int) -> None:
        """Forget the returns of a policy that has other weights now: its metrics speak of those alone."""
        (self.policies or [self.episodes])[policy_id].restart()

    def add_learning(self, policy_id: int, metrics: Mapping[str, float]) -> None:
        """Add metrics of one training step; rows hold their means."""
        prefix = "learn/" if policy_id == 0 else f"policy{policy_id}/learn/"
        for name, value in metrics.items():
            entry = self._sums.setdefault(prefix + name, [0.0, 0.0])
            entry[0] += value
            entry[1] += 1

    def step(self, run: OnlineRun) -> None:
        """Count episodes after a training step, and write a row when one is due."""
        self._count_episodes(run)
        self._reporter.count(run.frames)
        if run.frames >= self._next_row:
            self.write_row(run)
        else:
            self._reporter.tick(run.frames)

    def _count_episodes(self, run: OnlineRun) -> None:
        """Take in the episodes that have ended since the last call."""
        ended, plan = run.parts.sampler.episodes, run.parts.sampler.plan
        lanes = plan.lanes_per_group * plan.settings.groups
        new: list[EpisodeEnd] = []
        while ended:
            episode = ended.popleft()
            new.append(episode)
            if episode.policy_id >= self._config.policy_count:
                continue  # an opponent's, who does not learn
            self.episodes.add([episode.episode_return], [episode.length])
            if self.policies:
                self.policies[episode.policy_id].add([episode.episode_return], [episode.length])
            self._workers.add({f"worker{episode.lane // lanes}/return": episode.episode_return})
            self._tasks.add(episode)
        if self._played is not None:
            self._played.add(new)
        if self._members is not None:
            self._members.ratings.add(new)
        if run.selfplay is not None:
            run.selfplay.add(new)
        extras = run.parts.sampler.pool.report.episode_stats
        while extras:
            lane, number, stats = extras.popleft()
            self._extras.add({f"episode/{name}": value for name, value in stats.items()})
            if self._members is not None:
                self._members.ratings.add_statistics(lane, number, stats)
            if run.selfplay is not None:
                run.selfplay.add_statistics(lane, number, stats)

    def write_row(self, run: OnlineRun) -> None:
        frames = run.frames  # read once: in async mode the sampler goes on counting
        every = self._config.report_frames
        self._next_row = frames // every * every + every
        counts = run.counts()
        metrics = {
            **self._extras.means(),
            **self._workers.means(),
            **self._judged.metrics(),
            "episode/count": float(self.episodes.count),
            **self._by_policy(),
            **self._tasks.metrics(run.spec.frames_per_step),
            **{name: total / count for name, (total, count) in self._sums.items()},
            "sample/steps": counts["steps"],
            "sample/dropped_segments": run.dropped_segments,
            "sample/lost_segments": counts["lost_segments"],
            "sample/env_faults": counts["env_faults"],
            "sample/worker_restarts": counts["worker_restarts"],
            "learn/batches": run.iteration,
            **({"learn/ranks": run.parts.ranks.count} if self._config.learning.ranks > 1 else {}),
            "run/checkpoint_failures": self.checkpoint_failures,
            "time/frames_per_s": self._reporter.per_second,
            "time/seconds": run.seconds,
            **self._time_left(frames, run.iteration),
            **self._phases.shares(run.seconds - self._began_at, run.phase_seconds()),
            **_replay_counts(run),
            **self._usage.metrics(_worker_pids(run)),
            **_gpu_memory(),
        }
        if self._members is not None:
            metrics |= self._members.metrics()
        if run.selfplay is not None:
            metrics |= run.selfplay.metrics()
        if run.recorder is not None:
            metrics |= recorder_metrics(run.recorder)
        if run.cluster is not None:
            metrics |= run.cluster.metrics()
        for observer in run.observers:
            metrics |= ask_summaries(observer, run, metrics)
        self._sums.clear()
        self.last_row = metrics
        if not self._doubted and (doubt := run.config.checkpoints.doubt(metrics)):
            self._doubted = True
            log.warning("%s", doubt)
        self._reporter.write(frames, metrics)

    def _by_policy(self) -> dict[str, float]:
        """Return the mean returns and lengths of every policy, where there are several."""
        return {
            f"policy{k}/{name}": value for k, own in enumerate(self.policies) for name, value in own.metrics().items()
        }

    def finish(self, run: OnlineRun) -> None:
        """Show the last metrics on the console: rows of metrics go by frames and end a little earlier."""
        fresh = {**self._judged.metrics(), "learn/batches": run.iteration, "time/seconds": run.seconds}
        if run.recorder is not None:
            fresh |= recorder_metrics(run.recorder)
        self._reporter.end(run.frames, fresh)

    def _time_left(self, frames: int, batches: int) -> dict[str, float]:
        left = self._progress.seconds_left(frames, self._reporter.per_second, batches)
        return {} if left is None else {"time/seconds_left": left}

    def close_episodes(self, run: OnlineRun) -> None:
        """Take in the last episodes: no more will end."""
        self._count_episodes(run)
        if self._played is not None:
            self._played.save()

    def state(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes.state(),
            "policies": [own.state() for own in self.policies],
            "extras": self._extras.state(),
            "workers": self._workers.state(),
            "tasks": self._tasks.state(),
            "checkpoint_failures": self.checkpoint_failures,
            "next_row": self._next_row,
            "sums": {name: list(entry) for name, entry in self._sums.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, STATE_SHAPE)
        self.episodes.load_state(state["episodes"])
        for own, saved in zip(self.policies, state.get("policies", [])):
            own.load_state(saved)
        self._extras.load_state(state["extras"])
        self._workers.load_state(state.get("workers", {}))
        self._tasks.load_state(state.get("tasks", {}))
        self.checkpoint_failures = state["checkpoint_failures"]
        self._next_row = state["next_row"]
        self._sums = {name: list(entry) for name, entry in state["sums"].items()}


def _replay_counts(run: OnlineRun) -> dict[str, float]:
    """Return metrics of the learners' replay buffers, where they have one."""
    found: dict[str, float] = {}
    for learner in run.parts.learners:
        prefix = "replay/" if learner.policy_id == 0 else f"policy{learner.policy_id}/replay/"
        found |= {prefix + name: value for name, value in learner.counts().items()}
    return found


def _worker_pids(run: OnlineRun) -> list[int]:
    """Return the processes of the workers; in serial mode there are none."""
    pool = run.parts.sampler.pool
    return pool.pids() if isinstance(pool, ProcessPool) else []


def _gpu_memory() -> dict[str, float]:
    """Return the most that torch has held of the GPU, if this run uses one."""
    import torch

    held = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {"usage/gpu_memory_mb": held / 1e6} if held else {}


class TaskMetrics:
    """Metrics task by task, and the score of the whole suite; nothing where the environment is none."""

    def __init__(self, env: EnvSettings, window: int) -> None:
        self._tasks = tasks_of(env)
        self._window = MetricWindow(window)  # returns and lengths, by task
        self._steps = {task.name: 0 for task in self._tasks}
        self._episodes = dict(self._steps)

    def add(self, episode: EpisodeEnd) -> None:
        if not self._tasks:
            return
        name = self._tasks[episode.task].name
        self._window.add({f"{name}/return": episode.episode_return, f"{name}/length": episode.length})
        self._steps[name] += episode.length
        self._episodes[name] += 1

    def metrics(self, frames_per_step: int) -> dict[str, float]:
        """Return ``task/<name>/...`` and, once every task has ended an episode, ``suite/score``."""
        means = self._window.means()
        found = {f"task/{name}": value for name, value in means.items()}
        for task in self._tasks:
            found[f"task/{task.name}/frames"] = float(self._steps[task.name] * frames_per_step)
            found[f"task/{task.name}/episodes"] = float(self._episodes[task.name])
            mean = means.get(f"{task.name}/return")
            value = None if mean is None else task_score(task, mean)
            if value is not None:
                found[f"task/{task.name}/score"] = value
        returns = {t.name: means[f"{t.name}/return"] for t in self._tasks if f"{t.name}/return" in means}
        whole = suite_score(self._tasks, returns)
        return found if whole is None else {**found, SUITE_SCORE: whole}

    def state(self) -> dict[str, Any]:
        if not self._tasks:
            return {}
        return {"window": self._window.state(), "steps": dict(self._steps), "episodes": dict(self._episodes)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._window.load_state(state.get("window", {}))
        for counts, saved in ((self._steps, state.get("steps", {})), (self._episodes, state.get("episodes", {}))):
            counts.update({name: int(value) for name, value in saved.items() if name in counts})
