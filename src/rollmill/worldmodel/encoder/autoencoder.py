"""A plain autoencoder whose latents bear noise: the alternative to the variational one, with one term less to weigh."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollmill.worldmodel.encoder.conv_stack import Painter, Reader, squared_error, to_bytes
from rollmill.worldmodel.encoder.file import ImageEncoder, Metrics


class NoisyAutoencoder(ImageEncoder):
    """Latent numbers have mean 0 and variance 1 over the data; noise of fixed size is added before decoding.

    Without the fixed scale the network would outgrow the noise. With it, neighbouring latents must mean similar
    images, which is what a dynamics model needs. ``noise``: the standard deviation, of every number and image.
    """

    divisible = False  # the scale is measured over the whole batch

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        size: int = 32,
        channels: Sequence[int] = (32, 64, 128, 256),
        noise: float = 0.2,
    ) -> None:
        super().__init__(image_shape, size)
        self.channels, self.noise = tuple(channels), noise
        self.reader = Reader(image_shape, self.channels)
        self.latent = nn.Linear(self.reader.features, size)
        self.scale = nn.BatchNorm1d(size, momentum=0.02, affine=False)
        self.painter = Painter(image_shape, self.channels, size)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean: Tensor = self.scale(self.latent(self.reader(images)).float())
        return mean, torch.full_like(mean, self.noise)

    def decode(self, latents: Tensor) -> Tensor:
        return to_bytes(self.painter(latents))

    def loss(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Metrics]:
        mean, std = self.encode(images)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        reconstruction = squared_error(self.painter(mean + std * noise), images)
        return reconstruction, {"reconstruction": reconstruction.detach()}
