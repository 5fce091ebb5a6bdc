"""A stop rule of your own: end the run when the mean return has not risen for a while.

python examples/observers/early_stop.py
rollmill train env=toy_target observers=[examples/observers/early_stop.py:Plateau] observers.args.Plateau.steps=50
"""

from __future__ import annotations

import sys

from rollmill.cli.main import main
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer


class Plateau(Observer):
    """Ends the run after ``steps`` training steps in which the mean return did not rise by ``margin``."""

    def __init__(self, steps: int = 20, margin: float = 0.1) -> None:
        if steps < 1:
            raise ValueError(f"steps={steps} must be at least 1")
        self._steps, self._margin = steps, margin
        self._best = float("-inf")
        self._best_at = 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        mean = run.mean_return  # of the last report.window episodes; None before the first has ended
        if mean is None:
            return
        if mean > self._best + self._margin:
            self._best, self._best_at = mean, iteration
        elif iteration - self._best_at >= self._steps:
            run.stop(f"no better than {self._best:.4g} for {self._steps} training steps")

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        return {"plateau/steps": float(run.iteration - self._best_at)}


SETTINGS = (
    "env=toy_target",
    f"observers=[{__file__}:Plateau]",
    "sampling.mode=sync",
    "sampling.workers=1",
    "sampling.rollout=16",
    "model.mlp=[32]",
    "learning.batch_size=512",
    "learning.minibatches=4",
    "learning.epochs=2",
    "learning.learning_rate=3e-3",
    "report.every_frames=1000",
    "stop.frames=200_000",
    "run.experiment=examples",
    "run.name=early_stop",
)


if __name__ == "__main__":
    sys.exit(main(["train", "--overwrite", *SETTINGS, *sys.argv[1:]]))
