"""An encoder of your own: rollmill adds the memory, the policy head and the value head behind it.

    python examples/own_model.py
    python examples/own_model.py model.custom_args.cells=3 model.memory=gru

From the command line: ``rollmill train env=toy_image model.custom=examples/own_model.py:Patches``.
"""

from __future__ import annotations

import sys

from torch import Tensor, nn

from rollmill.cli.main import main
from rollmill.core.fields import EnvSpec
from rollmill.models.encoders import CustomEncoder, Observations
from rollmill.models.settings import ModelSettings


class Patches(CustomEncoder):
    """Reads an image as ``cells`` x ``cells`` mean colours, then through one layer of ``width`` units."""

    def __init__(self, spec: EnvSpec, settings: ModelSettings, cells: int = 2, width: int = 32) -> None:
        super().__init__()
        image = next(field for field in spec.inputs if field.is_image)
        self.name = image.name
        channels = image.shape[2]  # images arrive as they are stored: uint8 [n, H, W, C]
        self.pool = nn.AdaptiveAvgPool2d(cells)
        self.layer = nn.Sequential(nn.Flatten(), nn.Linear(channels * cells**2, width), nn.Tanh())
        self.output_size = width

    def forward(self, obs: Observations) -> Tensor:
        """Features ``[n, width]`` of images ``[n, H, W, C]``."""
        image = obs[self.name].permute(0, 3, 1, 2).float() / 255
        features: Tensor = self.layer(self.pool(image))
        return features


SETTINGS = (
    "env=toy_image",
    f"model.custom={__file__}:Patches",
    "sampling.mode=sync",
    "sampling.workers=1",
    "sampling.rollout=16",
    "learning.batch_size=512",
    "learning.minibatches=4",
    "learning.epochs=2",
    "learning.learning_rate=3e-3",
    "stop.frames=20_000",
    "run.experiment=examples",
    "run.name=own_model",
)


if __name__ == "__main__":
    sys.exit(main(["train", "--overwrite", *SETTINGS, *sys.argv[1:]]))
