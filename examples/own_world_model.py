"""Parts of a world model of one's own: an encoder, the memory of a dynamics model, a controller.

    rollmill world vae data/car --out runs/own/vae encoder.custom=examples/own_world_model.py:Flat encoder.size=16
    rollmill world encode data/car runs/own/vae --out data/own encoder.custom=examples/own_world_model.py:Flat
    rollmill world dynamics data/own --out runs/own/dynamics custom=examples/own_world_model.py:Gated size=64
    rollmill world controller runs/own/vae --dynamics runs/own/dynamics --out runs/own/controller --trust-code \\
        controller.custom=examples/own_world_model.py:TwoLayers controller.custom_args.width=8
    rollmill eval runs/own/controller --trust-code
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rollmill.worldmodel.dynamics.model import Core, LaneMemory
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.encoder.file import ImageEncoder, Metrics


class Flat(ImageEncoder):
    """An autoencoder without convolutions; every latent number bears the same noise."""

    def __init__(self, image_shape: tuple[int, int, int], size: int, width: int = 64, noise: float = 0.1) -> None:
        super().__init__(image_shape, size)
        pixels = math.prod(image_shape)
        self.noise = noise
        self.inward = nn.Sequential(nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, size), nn.Tanh())
        self.outward = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, pixels), nn.Sigmoid())

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean: Tensor = self.inward(images.flatten(1).float() / 255)
        return mean, torch.full_like(mean, self.noise)

    def decode(self, latents: Tensor) -> Tensor:
        painted: Tensor = self.outward(latents)
        return (painted * 255).round().to(torch.uint8).reshape(-1, *self.image_shape)

    def loss(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Metrics]:
        mean, std = self.encode(images)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        painted = self.outward(mean + std * noise)
        error = (painted - images.flatten(1).float() / 255).square().sum(1).mean()
        return error, {"reconstruction": error.detach()}


class Gated(Core):
    """One layer of GRU: all it keeps of a lane is h."""

    def __init__(self, inputs: int, settings: DynamicsSettings) -> None:
        super().__init__(inputs, settings)
        self.gru = nn.GRU(inputs, settings.size, batch_first=True)

    def forward(self, x: Tensor, step: Tensor, mask: Tensor) -> Tensor:
        after: Tensor = self.gru(x)[0]
        return after

    def read(self, x: Tensor, memory: LaneMemory, lanes: Tensor) -> Tensor:
        after: Tensor = self.gru(x[:, None], memory.h[lanes][None].contiguous())[0]
        return after[:, 0]


class TwoLayers(nn.Module):
    """Features to outputs through a layer of ``width`` units; its parameters are what CMA-ES searches."""

    def __init__(self, features: int, outputs: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.layers(features)
        return out
