"""A metric of your own, from the very arrays the learner has learnt from.

    python examples/observers/custom_metric.py
    rollmill train env=toy_target observers=[examples/observers/custom_metric.py:HitRate]

Its metrics stand in every row of ``metrics.jsonl``, in TensorBoard and in the run's report beside the built-in ones.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from rollmill.cli.main import main
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer


class HitRate(Observer):
    """In ``toy_target`` every reward is a hit (1) or a miss (0): the share of hits since the last row, by worker."""

    def __init__(self) -> None:
        self._hits: dict[int, float] = defaultdict(float)
        self._rows: dict[int, int] = defaultdict(int)

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        for part in run.trajectories():
            # [T, L] each; rows that are not valid had no outcome.
            self._hits[part.worker] += float(part.rewards[part.valid].sum())
            self._rows[part.worker] += int(part.valid.sum())

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        rates = {f"hit_rate/worker{w}": self._hits[w] / rows for w, rows in sorted(self._rows.items()) if rows}
        rates["hit_rate/all"] = sum(self._hits.values()) / max(1, sum(self._rows.values()))
        self._hits.clear()
        self._rows.clear()
        return rates


SETTINGS = (
    "env=toy_target",
    f"observers=[{__file__}:HitRate]",
    "sampling.mode=sync",
    "sampling.workers=2",
    "sampling.envs_per_worker=8",
    "sampling.rollout=16",
    "model.mlp=[32]",
    "learning.batch_size=512",
    "learning.minibatches=4",
    "learning.epochs=2",
    "learning.learning_rate=3e-3",
    "report.every_frames=1000",
    "stop.frames=8_000",
    "run.experiment=examples",
    "run.name=custom_metric",
)


if __name__ == "__main__":
    sys.exit(main(["train", "--overwrite", *SETTINGS, *sys.argv[1:]]))
