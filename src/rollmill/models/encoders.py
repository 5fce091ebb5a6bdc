"""Encodes observation fields as one feature vector per row.

Images (uint8, rank 3) go through a convnet each, everything else is flattened, joined and goes
through an MLP; where there are images, all features meet in the ``fc`` layers. Float fields are
scaled by running moments first (``ObservationNormaliser``), which the policy and the critic share.

``n`` below is the number of rows: lanes when acting, steps times lanes when learning.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Field
from rollmill.core.imports import import_object
from rollmill.models.moments import PixelMoments, RunningMoments
from rollmill.models.settings import BOARD_ENCODER, ENCODERS, ModelSettings

Observations = Mapping[str, Tensor]
"""Observation tensors by field name, each ``[n, *shape]`` in the dtype of its field."""

HIDDEN_GAIN = math.sqrt(2)
"""Gain of the orthogonal initial weights of hidden layers."""

CLIP = 10.0
"""Normalised observations stay within this many standard deviations."""

INPLACE = {"elu": functional.elu_, "relu": torch.relu_, "tanh": torch.tanh_}
"""Activations that overwrite their input; the layer before them does not need it for its gradient."""

Module = TypeVar("Module", bound=nn.Module)
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


LARGEST_BOARD = 32
"""Cells of a side of a board, and planes. What is larger was meant to be an image."""


class ObservationNormaliser(nn.Module):
    """Scales float fields, with ``images`` image fields too, by their running moments; passes the others on.

    Images become floats then. Networks of the user's own get them as they are stored.
    """

    def __init__(self, fields: Sequence[Field], images: bool = False) -> None:
        super().__init__()
        floats = [field for field in fields if field.is_float]
        self.names = tuple(field.name for field in floats)
        self.moments = _modules(RunningMoments(field.shape) for field in floats)
        image_fields = [field for field in fields if field.is_image and images]
        self.image_shapes = {field.name: field.shape for field in image_fields}
        self.pixels = _modules(PixelMoments() for _ in image_fields)

    def forward(self, obs: Observations) -> Observations:
        if not self.names and not self.image_shapes:
            return obs
        scaled = {
            name: moments.normalise(obs[name]).clamp_(-CLIP, CLIP) for name, moments in zip(self.names, self.moments)
        }
        images = {name: pixels.normalise(obs[name]) for name, pixels in zip(self.image_shapes, self.pixels)}
        return {**obs, **scaled, **images}

    def update(self, obs: Observations, valid: Tensor | None = None) -> None:
        """Take in observations ``[..., *shape]``; rows where ``valid`` ``[...]`` is False do not count."""
        for name, moments in zip(self.names, self.moments):
            moments.update(obs[name], valid)
        for (name, shape), pixels in zip(self.image_shapes.items(), self.pixels):
            pixels.update(obs[name].reshape(-1, *shape))


class CustomEncoder(nn.Module):
    """What an encoder of your own looks like; inheriting from this class is optional.

    The constructor is called with ``(spec: EnvSpec, settings: ModelSettings, **custom_args)`` and
    sets ``output_size``. Image fields arrive as they are stored: uint8, usually ``[n, H, W, C]``.
    """

    output_size: int

    def forward(self, obs: Observations) -> Tensor:
        """Return the features ``[n, output_size]`` of observations ``[n, *shape]``."""
        raise NotImplementedError


def build_encoder(fields: Sequence[Field], settings: ModelSettings) -> Encoder:
    """Build the encoder for these fields; raises ConfigError where they cannot be read as the settings say."""
    if not fields:
        raise ConfigError("the environment has no observation fields for a network to read")
    for field in fields:
        if len(field.shape) > 2 and not field.is_image and not _is_board(field):
            raise ConfigError(
                f"observation field {field.name!r} ({field.dtype}, shape {field.shape}) has no encoder: "
                f"images are uint8 of rank 3, boards other numbers of rank 3 (sides up to {LARGEST_BOARD}), vectors "
                "have rank 2 at most; convert it in the environment, or set model.custom to an encoder of your own"
            )
    if settings.encoder not in ("auto", "mlp") and not any(for_convnet(field, settings.encoder) for field in fields):
        names = ", ".join(f"{field.name} {field.dtype}{field.shape}" for field in fields)
        boards = ", and boards (other numbers of rank 3)" if settings.encoder == BOARD_ENCODER else ""
        raise ConfigError(
            f"model.encoder={settings.encoder} reads images (uint8, rank 3){boards}, and the environment has none: "
            f"{names}; use encoder=auto or encoder=mlp"
        )
    return Encoder(fields, settings)


def for_convnet(field: Field, encoder: str) -> bool:
    """Return whether a convnet reads a field: images do not need to be named, boards want the one made for them."""
    return encoder != "mlp" and (field.is_image or (encoder == BOARD_ENCODER and _is_board(field)))


def _is_board(field: Field) -> bool:
    """Return whether a field is a board: cells with a few planes of numbers, as games show them."""
    return field.dtype != "uint8" and len(field.shape) == 3 and max(field.shape) <= LARGEST_BOARD


class Encoder(nn.Module):
    """The built-in encoder: convnets for images, an MLP for the rest, ``fc`` over both."""

    def __init__(self, fields: Sequence[Field], settings: ModelSettings) -> None:
        super().__init__()
        images = [field for field in fields if for_convnet(field, settings.encoder)]
        vectors = [field for field in fields if field not in images]

        self.image_names = tuple(field.name for field in images)
        self.convnets = _modules(build_convnet(field, settings) for field in images)
        self.vector_inputs = tuple((field.name, math.prod(field.shape), field.is_image) for field in vectors)
        vector_size = sum(size for _, size, _ in self.vector_inputs)
        self.mlp = Mlp(vector_size, settings.mlp if vectors else (), settings.nonlinearity)
        joined = sum(net.output_size for net in self.convnets) + self.mlp.output_size
        self.fc = Mlp(joined, settings.fc if images else (), settings.nonlinearity)
        self.output_size = self.fc.output_size

    def forward(self, obs: Observations) -> Tensor:
        """Return the features ``[n, output_size]``."""
        features: Tensor
        if not self.image_names:  # the usual case for small, fast environments: nothing else to do
            features = self.mlp(self._vector(obs))
            return features
        parts = [net(obs[name]) for name, net in zip(self.image_names, self.convnets)]
        if self.vector_inputs:
            parts.append(self.mlp(self._vector(obs)))
        features = self.fc(_join(parts))
        return features

    def _vector(self, obs: Observations) -> Tensor:
        """Return all fields without a convnet as one float vector ``[n, D]``."""
        parts = []
        for name, size, is_image in self.vector_inputs:
            x = obs[name].float()
            if x.dim() != 2:
                x = x.reshape(x.shape[0], size)
            parts.append(x * (1 / 255) if is_image and obs[name].dtype == torch.uint8 else x)
        return _join(parts)


def _modules(modules: Iterable[Module]) -> Sequence[Module]:
    """Make a ModuleList that remembers the type of what it holds."""
    return cast("Sequence[Module]", nn.ModuleList(modules))


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class Convnet(nn.Module):
    """Reads one image or board, ``[n, H, W, C]`` or ``[n, C, H, W]``, into features ``[n, output_size]``.

    Images are uint8, which are divided by 255, or floats that ``ObservationNormaliser`` has scaled; the cells of boards
    are numbers that stay as they are, or floats that it has scaled.

    Slots hold images channels-last, and that is the layout CPU and GPU convolutions are fastest in,
    so the image is only viewed differently, never transposed in memory.
    """

    def __init__(self, body: nn.Module, field: Field) -> None:
        super().__init__()
        self.layout = image_layout(field)
        self.scale = 1 / 255 if field.is_image else 1.0
        self.dtype = getattr(torch, field.dtype)
        self.body = body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            self.output_size = self.forward(torch.zeros((1, *field.shape), dtype=self.dtype)).shape[1]

    def forward(self, image: Tensor) -> Tensor:
        x = image.permute(0, 3, 1, 2) if self.layout == "HWC" else image
        if image.is_floating_point():
            x = x.contiguous(memory_format=torch.channels_last)
        elif image.dtype == self.dtype:
            # Under autocast the first layer reads the small type anyway; 0 to 255 are exact in it.
            autocast = torch.is_autocast_enabled(x.device.type)
            dtype = torch.get_autocast_dtype(x.device.type) if autocast else torch.float32
            x = x.to(dtype, memory_format=torch.channels_last).mul_(self.scale)
        else:
            raise TypeError(f"images are uint8 from 0 to 255, or scaled floats, not {image.dtype}")
        y: Tensor = self.body(x)
        return y.permute(0, 2, 3, 1).flatten(1)  # a view: the activations are channels-last too


def build_convnet(field: Field, settings: ModelSettings) -> Convnet:
    """Build the convnet the settings name, for one image field."""
    channels = field.shape[2] if image_layout(field) == "HWC" else field.shape[0]
    name = "convnet_simple" if settings.encoder == "auto" else settings.encoder
    found = ENCODERS[name]
    if isinstance(found, str):
        return Convnet(import_object(found, "model.encoder")(channels, settings.nonlinearity), field)
    _check_image_size(field, name)
    layers: list[nn.Module] = []
    for width, kernel, stride in found:
        layers += [conv(channels, width, kernel, stride), activation(settings.nonlinearity)]
        channels = width
    return Convnet(nn.Sequential(*layers), field)


def image_layout(field: Field) -> Literal["HWC", "CHW"]:
    """Return which axis holds the channels: the last one, unless the first is smaller."""
    return "CHW" if field.shape[0] < field.shape[2] else "HWC"


def smallest_image(name: str) -> int:
    """Return the pixels that both sides of an image need at least for a convnet."""
    smallest, layers = 1, ENCODERS[name]
    for _, kernel, stride in reversed(() if isinstance(layers, str) else layers):
        smallest = (smallest - 1) * stride + kernel
    return smallest


def _check_image_size(field: Field, name: str) -> None:
    height, width = field.shape[:2] if image_layout(field) == "HWC" else field.shape[1:]
    side, smallest = min(height, width), smallest_image(name)
    if side < smallest:
        fitting = [other for other in ENCODERS if smallest_image(other) <= side]
        raise ConfigError(
            f"image field {field.name!r} is {height}x{width} (height x width), {name} needs at least "
            f"{smallest}x{smallest}; use model.encoder={', '.join(fitting)} or mlp"
        )


class Mlp(nn.Module):
    """Linear layers of these sizes, each followed by the activation; no sizes: the identity.

    Calls functions instead of modules: for a handful of rows, what ``nn.Sequential`` adds per layer
    costs as much as the layer itself.
    """

    def __init__(self, inputs: int, sizes: Sequence[int], nonlinearity: str) -> None:
        super().__init__()
        self.layers = _modules(
            initialise(nn.Linear(a, b), HIDDEN_GAIN) for a, b in itertools.pairwise((inputs, *sizes))
        )
        self.output_size = sizes[-1] if sizes else inputs
        self.activate = INPLACE[nonlinearity]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activate(functional.linear(x, layer.weight, layer.bias))
        return x


def activation(name: str, inplace: bool = True) -> nn.Module:
    """Return the activation module of that name; in place it saves a tensor (the layer before it needs none)."""
    if name == "elu":
        return nn.ELU(inplace=inplace)
    if name == "relu":
        return nn.ReLU(inplace=inplace)
    return nn.Tanh()


def conv(inputs: int, outputs: int, kernel: int, stride: int, padding: int = 0) -> nn.Module:
    """Return a convolution with the initial weights of a hidden layer."""
    return initialise(nn.Conv2d(inputs, outputs, kernel, stride, padding), HIDDEN_GAIN)


def initialise(layer: Layer, gain: float) -> Layer:
    """Set orthogonal weights of this gain, and zero bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
