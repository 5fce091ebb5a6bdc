"""Tasks of a suite: which there are, what each is built from, and which environment of a run plays which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from rollmill.core.errors import ConfigError
from rollmill.core.text import nearest
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.named import SUITES

if TYPE_CHECKING:
    from rollmill.envs.make import EnvInstance


@dataclass(frozen=True)
class Task:
    """One task of a suite."""

    name: str
    id: str
    args: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int = 0
    random: float | None = None
    """Mean return of random actions: score 0."""
    reference: float | None = None
    """Mean return of a person, an expert or published agents: score 100."""

    def settings(self, suite: EnvSettings) -> EnvSettings:
        """Return what this task's environments are built from."""
        steps = self.max_episode_steps or suite.max_episode_steps
        args = {**suite.args, **self.args}
        return replace(suite, id=self.id, args=args, max_episode_steps=steps, tasks=(), task="")


def tasks_of(settings: EnvSettings) -> tuple[Task, ...]:
    """Return all tasks that the settings name, in order; none for a single env. Raises ConfigError on nonsense."""
    entries = settings.tasks or ((settings.id,) if settings.id in SUITES else ())
    tasks = tuple(task for entry in entries for task in _tasks(entry))
    names = [task.name for task in tasks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"env.tasks: {twice} stands there twice; give each a name of its own (name: ...)")
    if settings.task and settings.task not in names:
        known = (
            f"; {nearest(settings.task, names)} (known: {', '.join(names)})" if names else ", and env.tasks is empty"
        )
        raise ConfigError(f"env.task={settings.task}: no such task{known}")
    return tasks


def task_number(settings: EnvSettings, instance: EnvInstance) -> int:
    """Return which of the tasks one environment of a run plays."""
    tasks = tasks_of(settings)
    if settings.task:
        return [task.name for task in tasks].index(settings.task)
    return (instance.worker if settings.task_spread == "worker" else instance.index) % len(tasks)


def task_name(settings: EnvSettings, instance: EnvInstance) -> str:
    """Return the name of the task that an environment plays; empty if the settings name a single environment."""
    tasks = tasks_of(settings)
    return tasks[task_number(settings, instance)].name if tasks else ""


def _tasks(entry: str | Mapping[str, Any]) -> list[Task]:
    if isinstance(entry, str):
        suite = SUITES.get(entry)
        return [Task(**task) for task in suite.tasks] if suite is not None else [Task(entry, entry)]
    known = [item.name for item in fields(Task)]
    for key in entry:
        if key not in known:
            raise ConfigError(f"env.tasks: a task has no {key!r} {nearest(key, known)} (known: {', '.join(known)})")
    if not entry.get("id"):
        raise ConfigError(f"env.tasks: {dict(entry)} names no environment (id: ...)")
    task = Task(**{"name": str(entry["id"]), **entry})
    if task.random is not None and task.random == task.reference:
        raise ConfigError(
            f"env.tasks: {task.name}: random and reference are both {task.random:g}: no score between them"
        )
    return [task]
