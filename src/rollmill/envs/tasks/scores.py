"""Normalised scores: 0 for random actions, 100 for the reference; a suite's is their mean, each capped at 100."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.suite import Task, tasks_of

CAP = 100.0
"""Per task, so that one game that is played far better than by people does not stand for ten that are not."""
SUITE_SCORE, RETURN = "suite/score", "episode/return"
"""Metrics of a training."""


def task_score(task: Task, mean_return: float) -> float | None:
    """Return the score of a mean return; None where the task has no returns to count from."""
    if task.random is None or task.reference is None:
        return None
    return (mean_return - task.random) / (task.reference - task.random) * 100.0


def suite_score(tasks: Sequence[Task], mean_returns: Mapping[str, float]) -> float | None:
    """Return the mean of all tasks' capped scores (``mean_returns`` by name); None while one of them lacks its own."""
    found = [task_score(task, mean_returns[task.name]) for task in tasks if task.name in mean_returns]
    known = [value for value in found if value is not None]
    return sum(min(CAP, value) for value in known) / len(tasks) if tasks and len(known) == len(tasks) else None


def usual_metric(settings: EnvSettings) -> str:
    """Return the metric that tells how good weights are: of a suite its score, if all tasks have one and are played.
    The mean return follows the task with the largest rewards."""
    tasks = () if settings.task else tasks_of(settings)
    scored = tasks and all(task.random is not None and task.reference is not None for task in tasks)
    return SUITE_SCORE if scored else RETURN
