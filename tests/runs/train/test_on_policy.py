"""Sync mode is on-policy: every row that is learnt from was decided by the weights that learn from it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from running import rows_of, train_here

from rollmill.core.errors import ConfigError
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.sampling.pool import ProcessPool

WORDS = ("sampling.mode=sync", "report.every_frames=1", "learning.learning_rate=0.05", "stop.batches=12")
"""Large steps: a decision of older weights would be far from what the new ones say."""


class Versions(Observer):
    """What the learner saw: by how many updates the rows were behind, and how many segments each group gave."""

    def __init__(self) -> None:
        self.lags: set[int] = set()
        self.groups: list[list[int]] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        versions = run.segments["version"][:-1]
        self.lags |= set((iteration - 1 - versions).ravel().tolist())
        self.groups.append(sorted(t.worker for t in run.trajectories()))


@pytest.mark.parametrize(
    "words",
    [
        ("env=toy_target",),
        ("env=toy_memory", "model.memory=gru"),
        ("env=toy_memory", "model.memory=lstm", "learning.recurrence=4"),
        ("env=toy_agents", "learning.batch_size=128"),
        ("env=toy_agents", "env.policies=[0,1]", "learning.batch_size=128"),
        ("env=toy_target", "learning.batch_size=192"),
        ("env=CartPole-v1", "env.vector=true"),
    ],
    ids=["mlp", "gru", "lstm", "agents", "policies", "three rounds a batch", "vector"],
)
def test_rows_are_decided_by_the_weights_that_learn_from_them(tmp_path: Path, words: tuple[str, ...]) -> None:
    versions = Versions()
    _, folder = train_here(tmp_path, *WORDS, *words, observers=[versions])
    assert versions.lags == {0}
    assert len({tuple(workers) for workers in versions.groups}) == 1, "every batch holds as much of every worker"
    rows = rows_of(folder)
    assert rows[-1]["learn/policy_lag"] == rows[-1]["learn/policy_lag_max"] == 0
    # One epoch of one minibatch: the probabilities that were stored are those of the network before the step.
    assert max(row["learn/ratio_deviation"] for row in rows) < 1e-4
    assert np.ptp([row["learn/entropy"] for row in rows]) > 1e-3, "and the network does change"


def test_a_worker_that_dies_is_waited_for(tmp_path: Path) -> None:
    class Kill(Versions):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            super().on_training_step(run, iteration)
            pool = run.parts.sampler.pool
            assert isinstance(pool, ProcessPool)
            if iteration in (3, 7):
                os.kill(pool.pids()[iteration % 2], signal.SIGKILL)

    versions = Kill()
    outcome, folder = train_here(tmp_path, "env=toy_target", *WORDS, observers=[versions])
    assert outcome.reason == "reached stop.batches=12"
    assert versions.lags == {0}
    assert rows_of(folder)[-1]["sample/worker_restarts"] == 2


def test_async_mode_does_lag(tmp_path: Path) -> None:
    """So that the test above can fail."""
    versions = Versions()
    train_here(tmp_path, "env=toy_target", *WORDS[1:], "sampling.mode=async", observers=[versions])
    assert max(versions.lags) > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("learning.batch_size=32",), "learning.batch_size=64, or 4 environments in all"),
        (("learning.batch_size=96",), "64 rows at a time"),
        (("sampling.workers=16",), "512 rows at a time (16 workers x 4 envs x 8 steps)"),
    ],
)
def test_what_cannot_be_on_policy_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        train_here(tmp_path, "env=toy_target", *WORDS, *words)
    assert said in str(error.value)
    assert not list(tmp_path.iterdir())
