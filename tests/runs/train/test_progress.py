"""``env.variables.progress``: how far the run is, told to every environment by the trainer itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import SERIAL, assert_same, saved_state, train_here

from rollmill.core.errors import RollmillError
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

TOLD = ("env=variable_env:Told", "env.variables.progress=1", "sampling.rollout=4", "learning.batch_size=16")


def told(journal: Path) -> dict[int, list[float]]:
    """What the episodes of each worker began with, in their order."""
    found: dict[int, list[float]] = {}
    for line in journal.read_text().splitlines():
        worker, progress = line.split()
        found.setdefault(int(worker), []).append(float(progress))
    return found


RANKS = (
    *("sampling.mode=sync", "learning.ranks=2", "learning.batch_size=32"),
    *("learning.device=cpu", "learning.threads=1"),
)


@pytest.mark.parametrize("words", [SERIAL, (), RANKS], ids=["serial", "async", "ranks"])
def test_every_environment_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    journal = tmp_path / "journal"
    train_here(tmp_path, *TOLD, *words, f"env.args.journal={journal}", "stop.batches=60")
    seen = told(journal)
    assert set(seen) == {0, 1} or not words, "in async mode, one worker may be kept waiting to the end"
    for values in seen.values():
        assert values == sorted(values)
        assert values[-1] > 0.5 or not words
    assert 0.5 < max(values[-1] for values in seen.values()) <= 1.0
    assert min(min(values) for values in seen.values()) == 0.0


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    class Stop(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            if iteration == 20:
                run.stop("for now")

    journal = tmp_path / "journal"
    words = (*TOLD, *SERIAL, "stop.batches=40", f"env.args.journal={journal}")
    _, whole = train_here(tmp_path / "whole", *words)
    journal.unlink()
    train_here(tmp_path / "parts", *words, observers=[Stop()])
    assert max(told(journal)[0]) <= 0.5
    _, parts = train_here(tmp_path / "parts", *words, mode="resume")
    assert max(told(journal)[0]) > 0.9
    assert_same(saved_state(whole)["learners"], saved_state(parts)["learners"])


class Placed(Observer):
    """How many treasures the hunts of each batch began with."""

    def __init__(self) -> None:
        self.seen: list[set[int]] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        counts = {int(n) for part in run.trajectories() for n in part.obs["vector"][..., 2:15].sum(-1).ravel()}
        self.seen.append(counts)


HUNT = (
    *("env=treasure_hunt", "env.max_episode_steps=4", "env.args.treasure_num=[0,13]", "sampling.rollout=8"),
    *("model.encoder=mlp", "learning.batch_size=32", "stop.batches=24"),
)


@pytest.mark.parametrize("vector", ["true", "false"])
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_curriculum_moves_with_the_run(tmp_path: Path, mode: str, vector: str) -> None:
    placed = Placed()
    words = (*HUNT, f"sampling.mode={mode}", f"env.vector={vector}", "env.variables.progress=1")
    train_here(tmp_path, *words, observers=[placed])
    assert placed.seen[0] == {0}
    assert 13 in placed.seen[-1]
    assert np.mean([13 in seen for seen in placed.seen[:8]]) == 0


@pytest.mark.parametrize("words", [("env.vector=true",), (), ("env.args.treasure_num=3", "env.args.random_start=0.5")])
def test_a_curriculum_that_nothing_moves_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(RollmillError, match=r"goes by the progress of the run: set env.variables.progress=1"):
        train_here(tmp_path, *HUNT, *words)
