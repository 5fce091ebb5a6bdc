"""The residual convnet of IMPALA (Espeholt et al., 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from rollmill.models.encoders import activation, conv

CHANNELS = (16, 32, 32)


def impala(channels: int, nonlinearity: str) -> nn.Module:
    """Build three stages, each a convolution, a pooling and two residual blocks."""
    layers: list[nn.Module] = []
    for width in CHANNELS:
        layers += [
            conv(channels, width, 3, 1, padding=1),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
            ResidualBlock(width, nonlinearity),
            ResidualBlock(width, nonlinearity),
        ]
        channels = width
    return nn.Sequential(*layers, activation(nonlinearity))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added."""

    def __init__(self, channels: int, nonlinearity: str) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            activation(nonlinearity, inplace=False),  # the input is needed again for the sum
            conv(channels, channels, 3, 1, padding=1),
            activation(nonlinearity),
            conv(channels, channels, 3, 1, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return x + branch
