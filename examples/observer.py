"""A metric and a stop rule of your own, hooked into a run without touching it.

    python examples/observer.py
    python examples/observer.py learning.learning_rate=1e-3

The observer looks at the very arrays the learner has learnt from, and its figures stand in every row of
``metrics.jsonl`` and in TensorBoard beside the built-in ones.
"""

from __future__ import annotations

import sys

import numpy as np

from rollmill.core.config import load_config
from rollmill.runs.observers import Observer
from rollmill.runs.online import OnlineRun
from rollmill.runs.settings import TrainConfig
from rollmill.runs.train import Request, train


class HitRate(Observer):
    """In ``toy_target`` every reward is a hit (1) or a miss (0): the share of hits, and an end when it is high."""

    def __init__(self, enough: float) -> None:
        self.enough = enough
        self._hits = 0.0
        self._rows = 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        # Arrays are [T + 1, B]; the last row only bootstraps, and rows that are not valid had no outcome.
        batch = run.segments
        rewards = batch["reward"][:-1][batch["valid"][:-1]]
        self._hits += float(np.sum(rewards))
        self._rows += rewards.size
        if np.mean(rewards) >= self.enough:
            run.stop(f"{np.mean(rewards):.0%} of the last batch were hits (batch {iteration})")

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        rate = self._hits / max(1, self._rows)
        self._hits, self._rows = 0.0, 0
        return {"toy/hit_rate": rate}


SETTINGS = (
    "env=toy_target",
    "sampling.mode=sync",
    "sampling.workers=1",
    "sampling.rollout=16",
    "model.mlp=[32]",
    "learning.batch_size=512",
    "learning.minibatches=4",
    "learning.epochs=2",
    "learning.learning_rate=3e-3",
    "report.every_frames=1000",
    "stop.frames=100_000",
    "run.experiment=examples",
    "run.name=observer",
)


def main(overrides: list[str]) -> None:
    config = load_config(TrainConfig, [], [*SETTINGS, *overrides])
    outcome = train(config, Request(mode="overwrite", console="plain"), observers=[HitRate(enough=0.9)])
    print(f"{outcome.state} after {outcome.frames} frames: {outcome.reason}, {outcome.folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
