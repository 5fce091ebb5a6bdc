"""The role of an image encoder, and its file: architecture and weights together, so that a path is all one needs.

Words
-----
latent   the ``size`` numbers that stand for an image: a mean and a standard deviation each.
kind     which encoder it is; ``KINDS`` maps it to the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rollmill.core.checkpoints import restoring
from rollmill.core.errors import ConfigError
from rollmill.core.imports import import_object
from rollmill.core.shapes import MAPPING, Shape
from rollmill.models.saving import WEIGHTS_SHAPE, load_weights, weights_of
from rollmill.worldmodel.files import ENCODER

KINDS: dict[str, str] = {
    "vae": "rollmill.worldmodel.encoder.vae:VariationalEncoder",
    "autoencoder": "rollmill.worldmodel.encoder.autoencoder:NoisyAutoencoder",
}
STATE_SHAPE: Shape = {
    "kind": str,
    "image_shape": [int, int, int],
    "architecture": {str: (float, [int])},
    "metadata": MAPPING,
    "weights": WEIGHTS_SHAPE,
}

Metrics = dict[str, Tensor]


class ImageEncoder(nn.Module):
    """Images to latents and back. Images are uint8 ``[n, H, W, C]`` everywhere outside.

    A new kind derives from this, sets ``kind``, answers the four methods below and joins ``KINDS``.
    """

    kind: ClassVar[str]
    divisible: ClassVar[bool] = True
    """Whether threads may each train with a part of the batch: nothing but gradients comes from it."""

    def __init__(self, image_shape: tuple[int, int, int], size: int) -> None:
        super().__init__()
        self.image_shape = image_shape
        """``(height, width, channels)`` of an image."""
        self.size = size
        """Numbers of a latent."""
        self.metadata: dict[str, Any] = {}
        """What ``save_encoder`` was told: where it comes from, how far it was trained."""

    def architecture(self) -> dict[str, Any]:
        """Keyword arguments that build this network again; plain JSON values."""
        raise NotImplementedError

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``(mean, std)`` of uint8 images ``[n, H, W, C]``: float32 ``[n, size]`` each."""
        raise NotImplementedError

    def decode(self, latents: Tensor) -> Tensor:
        """Return the images uint8 ``[n, H, W, C]`` of latents ``[n, size]``."""
        raise NotImplementedError

    def loss(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Metrics]:
        """What training makes smaller (a mean over the batch), and metrics of it by name.

        ``generator`` is the only source of noise: same weights, images and generator state, same loss.
        """
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def build_encoder(kind: str, image_shape: tuple[int, int, int], **arguments: Any) -> ImageEncoder:
    """Return a new encoder of a kind; ``arguments`` as of its class."""
    if kind not in KINDS:
        raise ConfigError(f"unknown encoder {kind!r} (known: {', '.join(KINDS)})")
    encoder = import_object(KINDS[kind], "encoder")(image_shape, **arguments)
    assert isinstance(encoder, ImageEncoder)
    return encoder


def save_encoder(path: Path, encoder: ImageEncoder, metadata: Mapping[str, Any]) -> None:
    """Write the encoder atomically. ``metadata``: plain JSON values, kept in ``encoder.metadata`` when it is loaded."""
    content = {
        "kind": encoder.kind,
        "image_shape": list(encoder.image_shape),
        "architecture": encoder.architecture(),
        "metadata": dict(metadata),
        "weights": weights_of(encoder),
    }
    ENCODER.save(path, content)


def load_encoder(path: Path | str, device: torch.device | str = "cpu") -> ImageEncoder:
    """The encoder in a file, ready to encode (no gradients). A folder stands for the ``encoder.bin`` in it."""
    file, tree = ENCODER.load(path, STATE_SHAPE)
    with restoring(file):
        height, width, channels = tree["image_shape"]
        encoder = build_encoder(tree["kind"], (height, width, channels), **tree["architecture"])
        load_weights(encoder, tree["weights"])
    encoder.metadata = tree["metadata"]
    return encoder.to(device).eval().requires_grad_(False)
