"""Turns what happens in a run into rows of metrics, and hands them to the sinks.

A row is due every ``report_frames`` frames: by the run's own clock, so that a deterministic run writes
the same rows again. Only names under ``time/`` depend on the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console as RichConsole

from rollmill.core.errors import RunFolderError
from rollmill.core.protocols import Sink
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.console import RECORDING_ROWS, ROWS, ConsoleSink, stdout_is_terminal
from rollmill.monitor.jsonl import JsonlSink
from rollmill.monitor.metrics import EpisodeStats, MetricWindow, Progress, Rate
from rollmill.monitor.tensorboard import TensorBoardSink
from rollmill.runs.recorder import figures
from rollmill.runs.settings import TrainConfig

if TYPE_CHECKING:
    from rollmill.runs.online import OnlineRun

log = logging.getLogger("rollmill")

Console = Literal["auto", "plain", "off"]


def live_panel(console: Console) -> bool:
    """Whether the console shows a live panel (then the log must not go there too)."""
    return console == "auto" and stdout_is_terminal()


class Reporter:
    """Collects figures between rows; owns the sinks."""

    def __init__(self, config: TrainConfig, folder: RunFolder, console: Console) -> None:
        self.episodes = EpisodeStats(config.report.window)
        self.checkpoint_failures = 0
        self._extras = MetricWindow(config.report.window)  # the envs' own statistics
        self._config, self._folder, self._console_mode = config, folder, console
        self._workers = MetricWindow(config.report.window)  # returns, by worker
        self._rate = Rate()
        self._sums: dict[str, list[float]] = {}  # name -> [sum, count] since the last row
        self._next_row = config.report_frames
        self._sinks: list[Sink] = []
        self._console: ConsoleSink | None = None
        self._failed: set[str] = set()

    def open(self, frames: int, seconds: float) -> None:
        """Open the sinks of a run that stands at ``frames`` after ``seconds`` of training."""
        folder, config = self._folder, self._config
        resumed = frames if folder.metrics.exists() else None
        self._sinks.append(JsonlSink(folder.metrics, resumed))
        if config.report.tensorboard:
            self._sinks.append(TensorBoardSink(folder.tensorboard, resumed))
        if self._console_mode != "off":
            progress = Progress(config.stop.frames, config.stop.seconds, seconds)
            title = f"{config.env.id}: {folder.path}"
            screen = None if live_panel(self._console_mode) else RichConsole(force_terminal=False)
            rows = ROWS + RECORDING_ROWS if config.recording.on else ROWS
            every = config.report.console_seconds
            self._console = ConsoleSink(title, progress, folder.path, every, rows, console=screen)
            self._sinks.append(self._console)
        self._rate.update(frames)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last episodes; None before the first has ended."""
        return self.episodes.mean_return

    @property
    def window_full(self) -> bool:
        """Whether as many episodes have ended as a mean return is taken over."""
        return self.episodes.count >= self._config.report.window

    def add_learning(self, policy_id: int, metrics: Mapping[str, float]) -> None:
        """Figures of one training step; rows hold their means."""
        prefix = "learn/" if policy_id == 0 else f"policy{policy_id}/learn/"
        for name, value in metrics.items():
            entry = self._sums.setdefault(prefix + name, [0.0, 0.0])
            entry[0] += value
            entry[1] += 1

    def step(self, run: OnlineRun) -> None:
        """Called after every training step: count episodes, and write a row when one is due."""
        ended, plan = run.parts.sampler.episodes, run.parts.sampler.plan
        lanes = plan.lanes_per_group * plan.settings.groups
        while ended:
            episode = ended.popleft()
            self.episodes.add([episode.episode_return], [episode.length])
            self._workers.add({f"worker{episode.lane // lanes}/return": episode.episode_return})
        extras = run.parts.sampler.crew.report.episode_stats
        while extras:
            _, _, stats = extras.popleft()
            self._extras.add({f"episode/{name}": value for name, value in stats.items()})
        self._rate.update(run.frames)
        if run.frames >= self._next_row:
            every = self._config.report_frames
            self._next_row = run.frames // every * every + every
            self.write_row(run)
        elif self._console is not None:
            self._console.refresh()

    def write_row(self, run: OnlineRun) -> None:
        counts = run.counts()
        metrics = {
            **self._extras.means(),
            **self._workers.means(),
            **self.episodes.metrics(),
            **{name: total / count for name, (total, count) in self._sums.items()},
            "sample/steps": counts["steps"],
            "sample/dropped_segments": run.dropped_segments,
            "sample/lost_segments": counts["lost_segments"],
            "sample/env_faults": counts["env_faults"],
            "sample/worker_restarts": counts["worker_restarts"],
            "learn/batches": run.iteration,
            "run/checkpoint_failures": self.checkpoint_failures,
            "time/frames_per_s": self._rate.per_second(),
            "time/seconds": run.seconds,
        }
        if run.recorder is not None:
            metrics |= figures(run.recorder)
        for observer in run.observers:
            metrics |= observer.extra_summaries(run)
        self._sums.clear()
        for sink in self._sinks:
            self._write(sink, run.frames, metrics)

    def _write(self, sink: Sink, frames: int, metrics: Mapping[str, float]) -> None:
        """A sink that cannot write (disk full) is complained about once; training goes on."""
        name = type(sink).__name__
        try:
            sink.write(frames, metrics)
            self._failed.discard(name)
        except RunFolderError as error:
            if name not in self._failed:
                log.error("metrics are being lost, training goes on: %s", error)
            self._failed.add(name)

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except RunFolderError as error:
                log.error("the last metrics could not be written: %s", error)
        self._sinks.clear()

    def state(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes.state(),
            "extras": self._extras.state(),
            "workers": self._workers.state(),
            "checkpoint_failures": self.checkpoint_failures,
            "next_row": self._next_row,
            "sums": {name: list(entry) for name, entry in self._sums.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.episodes.load_state(state["episodes"])
        self._extras.load_state(state["extras"])
        self._workers.load_state(state.get("workers", {}))
        self.checkpoint_failures = state["checkpoint_failures"]
        self._next_row = state["next_row"]
        self._sums = {name: list(entry) for name, entry in state["sums"].items()}
