"""A learner of your own: advantage actor-critic (A2C) in thirty lines; everything around it is rollmill's.

    python examples/own_learner.py
    python examples/own_learner.py env=toy_target learning.custom_args.entropy=0.02

From the command line: ``rollmill train env=CartPole-v1 learning.custom=examples/own_learner.py:A2C``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rollmill import CustomLearner
from rollmill.cli.main import main
from rollmill.learning.batch import Batch
from rollmill.learning.custom import LearnerParts
from rollmill.learning.targets import gae


class A2C(CustomLearner):
    """One step of the optimizer for each batch: actions that turned out better than expected become likelier."""

    def __init__(self, parts: LearnerParts, entropy: float = 0.01) -> None:
        super().__init__(parts)
        self.entropy = entropy

    def learn(self, batch: Batch, progress: float) -> Mapping[str, float]:
        now = self.evaluate(batch)
        advantage, target = gae(
            batch.reward, now.value.detach(), batch.terminated, batch.valid, self.settings.gamma, 1.0
        )
        policy = -(advantage * now.log_prob)[batch.valid].mean()
        value = (target - now.value[:-1])[batch.valid].square().mean()
        entropy = now.entropy[batch.valid].mean()
        loss = policy + self.settings.value_coefficient * value - self.entropy * entropy
        return {
            "loss": loss.item(),
            "value_loss": value.item(),
            "entropy": entropy.item(),
            "grad_norm": self.step(loss),
        }


SETTINGS = (
    "env=CartPole-v1",
    f"learning.custom={__file__}:A2C",
    "sampling.mode=sync",  # A2C learns from what the newest weights did
    "sampling.workers=1",
    "sampling.rollout=16",
    "learning.batch_size=256",
    "learning.learning_rate=3e-3",
    "stop.frames=100_000",
    "run.experiment=examples",
    "run.name=own_learner",
)


if __name__ == "__main__":
    sys.exit(main(["train", "--overwrite", *SETTINGS, *sys.argv[1:]]))
