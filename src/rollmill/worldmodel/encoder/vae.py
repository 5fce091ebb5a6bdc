"""A convolutional variational autoencoder (Kingma and Welling 2014; its use here: Ha and Schmidhuber 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollmill.worldmodel.encoder.conv_stack import Painter, Reader, squared_error, to_bytes
from rollmill.worldmodel.encoder.file import ImageEncoder, Metrics

MAX_LOG_STD = 4.0
"""Bounds of the logarithm of a standard deviation: e^-4 .. e^4. Beyond them lies nothing but trouble."""
ACTIVE_NATS = 0.05
"""A latent number that carries less says nothing about the image."""


class VariationalEncoder(ImageEncoder):
    """Every latent number is a normal distribution; what it tells about the image costs nats.

    ``kl_tolerance``: nats per latent number that are free (0: none). ``beta``: what those above cost.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        size: int = 32,
        channels: Sequence[int] = (32, 64, 128, 256),
        kl_tolerance: float = 0.5,
        beta: float = 1.0,
    ) -> None:
        super().__init__(image_shape, size)
        self.channels, self.kl_tolerance, self.beta = tuple(channels), kl_tolerance, beta
        self.reader = Reader(image_shape, self.channels)
        self.moments = nn.Linear(self.reader.features, 2 * size)
        self.painter = Painter(image_shape, self.channels, size)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._moments(images)
        return mean, log_std.exp()

    def decode(self, latents: Tensor) -> Tensor:
        return to_bytes(self.painter(latents))

    def loss(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Metrics]:
        mean, log_std = self._moments(images)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        painted = self.painter(mean + log_std.exp() * noise)
        reconstruction = squared_error(painted, images)
        nats = kl_from_standard_normal(mean, log_std)
        kl = nats.sum(dim=1).mean()
        # The tolerance is for the whole latent: which numbers use the free nats is left to the network.
        cost = torch.clamp(kl, min=self.kl_tolerance * self.size)
        metrics = {
            "reconstruction": reconstruction.detach(),
            "kl": kl.detach(),
            "active": (nats.detach().mean(dim=0) > ACTIVE_NATS).sum().float(),
        }
        return reconstruction + self.beta * cost, metrics

    def _moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.moments(self.reader(images)).float().chunk(2, dim=1)
        return mean, log_std.clamp(-MAX_LOG_STD, MAX_LOG_STD)


def kl_from_standard_normal(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the nats by which normal distributions differ from the standard one, number by number; same shape."""
    return 0.5 * (mean.square() + (2 * log_std).exp() - 1.0) - log_std
