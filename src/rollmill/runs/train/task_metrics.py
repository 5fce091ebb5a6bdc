"""Metrics of a training task by task, and the score of the whole suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollmill.core.shapes import Shape
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.scores import suite_score, task_score
from rollmill.envs.tasks.suite import tasks_of
from rollmill.monitor.metrics import WINDOW_SHAPE, MetricWindow
from rollmill.sampling.sampler import EpisodeEnd

TASKS_SHAPE: Shape = {"window?": WINDOW_SHAPE, "steps?": {str: int}, "episodes?": {str: int}}
"""The shape of ``TaskMetrics.state``."""


class TaskMetrics:
    """Takes in ended episodes; has nothing to say where the environment is no suite."""

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
        """``task/<name>/...`` and, once every task has ended an episode, ``suite/score``."""
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
        return found if whole is None else {**found, "suite/score": whole}

    def state(self) -> dict[str, Any]:
        if not self._tasks:
            return {}
        return {"window": self._window.state(), "steps": dict(self._steps), "episodes": dict(self._episodes)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._window.load_state(state.get("window", {}))
        for counts, saved in ((self._steps, state.get("steps", {})), (self._episodes, state.get("episodes", {}))):
            counts.update({name: int(value) for name, value in saved.items() if name in counts})
