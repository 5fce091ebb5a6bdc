"""The role of an image encoder, and its file: architecture and weights together, so that a path is all one needs.

Words
-----
latent   the ``size`` numbers that stand for an image: a mean and a standard deviation each.
kind     which encoder it is: a name in ``KINDS``, or ``module:Class`` for one of the user's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rollmill.core.checkpoints import restoring
from rollmill.core.errors import ConfigError
from rollmill.core.imports import check_arguments, import_object
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.models.saving import WEIGHTS_SHAPE, load_weights, weights_of
from rollmill.worldmodel.files import ENCODER
from rollmill.worldmodel.own import NOBODY, Trust

KINDS: dict[str, str] = {
    "vae": "rollmill.worldmodel.encoder.vae:VariationalEncoder",
    "autoencoder": "rollmill.worldmodel.encoder.autoencoder:NoisyAutoencoder",
}
STATE_SHAPE: Shape = {
    "kind": str,
    "image_shape": [int, int, int],
    "architecture": MAPPING,
    "metadata": MAPPING,
    "weights": WEIGHTS_SHAPE,
}

ARGUMENTS_SHAPE: Shape = {str: (float, [int])}
"""The architecture of the kinds that come with rollmill."""

Metrics = dict[str, Tensor]


class ImageEncoder(nn.Module):
    """Images to latents and back. Images are uint8 ``[n, H, W, C]`` everywhere outside.

    One of your own derives from this and answers the three methods below; ``encoder.custom`` names it. It is called
    with ``(image_shape, size, **custom_args)``.
    """

    divisible: ClassVar[bool] = True
    """Whether threads may each train with a part of the batch: nothing but gradients comes from it."""

    def __init__(self, image_shape: tuple[int, int, int], size: int) -> None:
        super().__init__()
        self.image_shape = image_shape
        """``(height, width, channels)`` of an image."""
        self.size = size
        """Numbers of a latent."""
        self.kind = ""
        self.architecture: dict[str, Any] = {}
        """Keyword arguments that build this network again, as plain JSON; ``build_encoder`` sets them and the kind."""
        self.metadata: dict[str, Any] = {}
        """What ``save_encoder`` was told: where it comes from, how far it was trained."""

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(mean, std)`` of uint8 images ``[n, H, W, C]``: float32 ``[n, size]`` each."""
        raise NotImplementedError

    def decode(self, latents: Tensor) -> Tensor:
        """Return the images uint8 ``[n, H, W, C]`` of latents ``[n, size]``."""
        raise NotImplementedError

    def loss(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Metrics]:
        """Return what training makes smaller (a mean over the batch), and metrics of it by name.

        ``generator`` is the only source of noise: same weights, images and generator state, same loss.
        """
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def build_encoder(kind: str, image_shape: tuple[int, int, int], **arguments: Any) -> ImageEncoder:
    """Return a new encoder of a kind; ``arguments`` as of its class, ``size`` among them."""
    if kind not in KINDS and ":" not in kind:
        raise ConfigError(f"unknown encoder {kind!r} (known: {', '.join(KINDS)}, or module:Class)")
    label = f"encoder.custom={kind}"
    found = import_object(KINDS.get(kind, kind), "encoder.custom", _is_encoder)
    check_arguments(found, label, {"image_shape": image_shape}, arguments)
    encoder: ImageEncoder = found(image_shape, **arguments)
    encoder.kind, encoder.architecture = kind, _plain(arguments)
    if kind not in KINDS:
        _try(encoder, label)
    return encoder


def _is_encoder(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, ImageEncoder)


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in arguments.items()}


@torch.no_grad()
def _try(encoder: ImageEncoder, label: str) -> None:
    """Raise ConfigError unless latents and images of two black images have the right shapes."""
    images = torch.zeros(2, *encoder.image_shape, dtype=torch.uint8)
    training = encoder.training
    encoder.eval()
    mean, std = encoder.encode(images)
    made = encoder.decode(mean)
    encoder.train(training)
    wanted = (2, encoder.size)
    if tuple(mean.shape) != wanted or tuple(std.shape) != wanted:
        raise ConfigError(f"{label}: encode gives {tuple(mean.shape)} and {tuple(std.shape)}, expected {wanted} twice")
    if made.shape != images.shape or made.dtype != images.dtype:
        raise ConfigError(
            f"{label}: decode gives {made.dtype} {tuple(made.shape)}, expected uint8 {tuple(images.shape)}"
        )


def save_encoder(path: Path, encoder: ImageEncoder, metadata: Mapping[str, Any]) -> None:
    """Write the encoder atomically. ``metadata``: plain JSON values, kept in ``encoder.metadata`` when it is loaded."""
    content = {
        "kind": encoder.kind,
        "image_shape": list(encoder.image_shape),
        "architecture": encoder.architecture,
        "metadata": dict(metadata),
        "weights": weights_of(encoder),
    }
    ENCODER.save(path, content)


def load_encoder(path: Path | str, device: torch.device | str = "cpu", trust: Trust = NOBODY) -> ImageEncoder:
    """Load the encoder in a file, ready to encode (no gradients). A folder stands for the ``encoder.bin`` in it.

    Raises UntrustedCodeError where it is of a class of somebody's own that ``trust`` does not name.
    """
    file, tree = ENCODER.load(path, STATE_SHAPE)
    kind, arguments = tree["kind"], tree["architecture"]
    own = trust.settle("encoder", kind if ":" in kind else None, arguments, file)
    height, width, channels = tree["image_shape"]
    if own.custom is not None:
        encoder = build_encoder(own.custom, (height, width, channels), **own.custom_args)
    else:
        with restoring(file, "architecture"):
            check_shape(arguments, ARGUMENTS_SHAPE)
            encoder = build_encoder(kind, (height, width, channels), **arguments)
    with restoring(file):
        load_weights(encoder, tree["weights"])
    encoder.metadata = tree["metadata"]
    return encoder.to(device).eval().requires_grad_(False)
