"""The controller: few weights between what is seen (latent, memory) and what is done; many of them at once.

Words
-----
features  what a controller reads at step t: the latent z_t, then h_t (``dynamics.model``) or its first ``components``,
          then what was retrieved.
weights   all numbers of one controller in a row, ``[P]``; a population is ``[members, P]``.
agent     encoder, memory and a controller for every lane: images in, actions out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollmill.core.checkpoints import saved_settings
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, Array, EnvSpec
from rollmill.core.shapes import MAPPING, ArrayOf
from rollmill.worldmodel.actions import ActionMap
from rollmill.worldmodel.controller.nets import Layers, Net, build_own
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.dynamics.model import Dynamics, LaneMemory
from rollmill.worldmodel.dynamics.retrieval import RetrievalIndex
from rollmill.worldmodel.encoder.file import ImageEncoder
from rollmill.worldmodel.files import CONTROLLER

STATE_SHAPE = {
    "settings": MAPPING,
    "weights": ArrayOf("f", 1),
    "encoder": str,
    "dynamics": str,
    "env": MAPPING,
    "metadata": MAPPING,
}


def feature_count(settings: ControllerSettings, dynamics: Dynamics | None, latent: int) -> int:
    """Return the number of features that a controller with these settings reads."""
    memory = dynamics.memory_size if dynamics is not None and settings.inputs == "zh" else 0
    if memory and settings.components:
        memory = settings.components
    retrieved = latent + 1 if settings.retrieval.neighbours else 0
    return latent + memory + retrieved


def build_net(
    settings: ControllerSettings,
    dynamics: Dynamics | None,
    latent: int,
    action: ActionSpec,
    device: torch.device | str = "cpu",
) -> Net:
    """Build the network of controllers with these settings."""
    features, outputs = feature_count(settings, dynamics, latent), ActionMap(action, settings.squash).outputs
    if settings.custom is not None:
        return build_own(settings.custom, settings.custom_args, features, outputs, device)
    return Layers(features, settings.hidden, outputs)


def _axes(settings: ControllerSettings, dynamics: Dynamics | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean ``[H]`` and directions ``[H, components]`` of the memory."""
    count = settings.components
    if dynamics is None or dynamics.axes is None:
        raise ConfigError(f"components={count}: this dynamics model knows no axes of its memory; fit it again")
    if count > dynamics.memory_size:
        raise ConfigError(f"components={count} of a memory of {dynamics.memory_size} numbers")
    mean, directions = dynamics.axes.mean, dynamics.axes.directions[:, :count]
    return torch.from_numpy(mean.copy()).to(device), torch.from_numpy(directions.copy()).to(device)


class ControllerState:
    """Memory and a controller for every lane; latents in, actions out."""

    def __init__(
        self,
        settings: ControllerSettings,
        action: ActionSpec,
        latent: int,
        dynamics: Dynamics | None,
        lanes: int,
        device: torch.device,
        index: RetrievalIndex | None = None,
    ) -> None:
        if dynamics is not None and dynamics.latent_size != latent:
            raise ConfigError(f"the dynamics model reads latents of {dynamics.latent_size} numbers, not {latent}")
        self.net = build_net(settings, dynamics, latent, action, device)
        self.device = device
        self._map = ActionMap(action, settings.squash)
        self._reads_memory = settings.inputs == "zh"
        self._axes = _axes(settings, dynamics, device) if self._reads_memory and settings.components else None
        # Without a look at the memory there is no need to keep one.
        uses = (self._reads_memory or index is not None) and dynamics is not None and dynamics.memory_size > 0
        self.dynamics = dynamics if uses else None
        """The model whose memory it keeps; None where nobody looks at one."""
        self._memory = dynamics.begin(lanes) if dynamics is not None and uses else None
        self._index = index
        self._weights = torch.zeros(lanes, self.net.weights, device=device)

    def take(self, lanes: Tensor, weights: Tensor) -> None:
        """Begin an episode in lanes ``[n]``, under controllers ``[n, P]`` (or ``[P]``)."""
        self._weights[lanes] = weights.to(self._weights)
        if self._memory is not None and self.dynamics is not None:
            self.dynamics.forget(self._memory, lanes)

    def decide(self, lanes: Tensor, latents: Tensor) -> Tensor:
        """Return actions ``[n, ...]`` of lanes ``[n]`` that see ``[n, Z]``; the step goes into their memory."""
        return self.step(latents, self._weights[lanes], self._memory, lanes)

    def step(self, latents: Tensor, weights: Tensor, memory: LaneMemory | None, lanes: Tensor) -> Tensor:
        """Decide as ``decide`` does, but under controllers ``[n, P]`` and with a memory that the caller keeps."""
        parts = [latents]
        h = memory.h[lanes] if memory is not None else None
        if h is not None and self._reads_memory:
            parts.append(h if self._axes is None else (h - self._axes[0]) @ self._axes[1])
        if self._index is not None:
            parts.append(self._index.recall(latents, h))
        actions = self._map(self.net(torch.cat(parts, -1), weights))
        if self.dynamics is not None and memory is not None:
            self.dynamics.read(latents, actions, memory, lanes)
        return actions


class ControllerAgent:
    """Acts on images: an encoder, and a controller with its memory behind it."""

    def __init__(self, encoder: ImageEncoder, state: ControllerState) -> None:
        self._encoder, self.state = encoder, state

    def take(self, lanes: Array, weights: Tensor) -> None:
        self.state.take(torch.from_numpy(lanes).to(self.state.device), weights)

    @torch.inference_mode()
    def decide(self, lanes: Array, images: Array) -> Array:
        """Return actions ``[n, ...]`` of lanes ``[n]`` that see uint8 ``[n, H, W, C]``."""
        device = self.state.device
        latents, _ = self._encoder.encode(torch.from_numpy(images).to(device))
        actions: Array = self.state.decide(torch.from_numpy(lanes).to(device), latents).cpu().numpy()
        return actions


def image_field(spec: EnvSpec, encoder: ImageEncoder) -> str:
    """Return the observation that the encoder reads; raises ConfigError where there is none, or several."""
    if spec.agents > 1 or spec.masked:
        raise ConfigError(f"{spec.name}: controllers play environments with one agent and without action masks")
    fitting = [f.name for f in spec.observation if f.is_image and f.shape == tuple(encoder.image_shape)]
    if len(fitting) == 1:
        return fitting[0]
    shown = ", ".join(f"{f.name} {f.dtype} {f.shape}" for f in spec.observation)
    raise ConfigError(
        f"{spec.name}: the encoder reads one image of {tuple(encoder.image_shape)}, the environment shows {shown}"
        f"{'; set env.args.size (or width and height)' if not fitting else ''}"
    )


# -- the file ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedController:
    """What a controller file holds; paths are where encoder and dynamics model were when it was made."""

    settings: ControllerSettings
    weights: Array
    encoder: str
    dynamics: str
    env: dict[str, Any]
    metadata: dict[str, Any]


def save_controller(path: Path, saved: SavedController) -> None:
    """Write a controller atomically."""
    content = {
        "settings": to_dict(saved.settings),
        "weights": np.asarray(saved.weights, np.float32),
        "encoder": saved.encoder,
        "dynamics": saved.dynamics,
        "env": dict(saved.env),
        "metadata": dict(saved.metadata),
    }
    CONTROLLER.save(path, content)


def load_controller(path: Path | str) -> SavedController:
    """Load the controller in a file; a folder stands for the ``controller.bin`` in it."""
    file, tree = CONTROLLER.load(path, STATE_SHAPE)
    return SavedController(
        settings=saved_settings(ControllerSettings, tree["settings"], file),
        weights=tree["weights"],
        encoder=tree["encoder"],
        dynamics=tree["dynamics"],
        env=tree["env"],
        metadata=tree["metadata"],
    )


def start_weights(path: Path, net: Net) -> Array:
    """Load a saved controller's weights to begin a search at; raises ConfigError where they have another shape."""
    weights: Array = load_controller(path).weights
    if weights.shape != (net.weights,):
        raise ConfigError(
            f"start={path}: it has {len(weights)} weights, controllers of these settings have {net.weights}"
        )
    return weights
