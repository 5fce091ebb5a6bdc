"""Scores by their definition, and DMLab-30's against the formula that its results are published with."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.named import DMLAB30
from rollmill.envs.tasks.scores import suite_score, task_score
from rollmill.envs.tasks.suite import Task, tasks_of


def test_a_score_counts_from_random_to_reference() -> None:
    task = Task("t", "toy_target", random=2.0, reference=12.0)
    assert [task_score(task, value) for value in (2.0, 7.0, 12.0, 22.0)] == [0.0, 50.0, 100.0, 200.0]
    assert task_score(Task("t", "toy_target"), 3.0) is None


def test_a_suite_caps_each_task_and_waits_for_all() -> None:
    tasks = [Task("a", "x", random=0.0, reference=10.0), Task("b", "y", random=0.0, reference=10.0)]
    assert suite_score(tasks, {"a": 50.0, "b": 2.0}) == pytest.approx((100 + 20) / 2)
    assert suite_score(tasks, {"a": 50.0}) is None
    assert suite_score([*tasks, Task("c", "z")], {"a": 1.0, "b": 1.0, "c": 1.0}) is None
    assert suite_score([], {}) is None


@pytest.mark.parametrize("suite", ["dmlab30", "dmlab30_test"])
def test_dmlab30_is_scored_as_published(suite: str) -> None:
    """Per level (mean - random) / (human - random) in percent, capped after the mean over episodes, then the mean."""
    rng = np.random.default_rng(3)
    tasks = tasks_of(EnvSettings(id=suite))
    returns = {task.name: rng.normal(20, 40, size=5) for task in tasks}
    wanted = []
    for task, (random, human) in zip(tasks, DMLAB30.values(), strict=True):
        wanted.append(min((np.mean(returns[task.name]) - random) / (human - random) * 100, 100.0))
    found = suite_score(tasks, {name: float(np.mean(values)) for name, values in returns.items()})
    assert found == pytest.approx(np.mean(wanted), abs=1e-9)
    assert any(value == 100.0 for value in wanted)
