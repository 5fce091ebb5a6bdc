"""The configuration of the stages that act or dream: the search for a controller, and videos of dreams."""

from __future__ import annotations

from dataclasses import field

from rollmill.core.config.schema import settings
from rollmill.envs.settings import EnvSettings
from rollmill.worldmodel.controller.settings import ControllerSettings, DreamSettings


@settings
class ControllerConfig:
    """Everything ``rollmill world controller`` and ``rollmill world dream`` can be told."""

    env: EnvSettings | None = None
    """Where controllers play; unset: the environment that the dynamics model was fitted to."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)

    dream: DreamSettings = field(default_factory=DreamSettings)
    """Of ``rollmill world dream`` alone."""


@settings
class DreamVideo:
    """Which dreams are shown, and how."""

    episodes: int = 4
    """Episodes, one below the other."""

    steps: int = 200
    """Steps of the video."""

    shown: int = 20
    """Real steps that the model is shown first; half of an episode at most."""

    temperature: float = 1.0
    """Of the dreams; see DreamSettings."""

    fps: float = 20.0
    """Steps per second of the video."""

    scale: int = 3
    """Each pixel becomes a square of this many."""

    seed: int = 0
    """Which episodes, and which dreams."""

    def __post_init__(self) -> None:
        if min(self.episodes, self.steps, self.shown, self.scale) < 1 or self.shown >= self.steps:
            raise ValueError("episodes, steps, shown and scale must be at least 1, and shown below steps")
        if self.temperature < 0 or self.seed < 0:
            raise ValueError("temperature and seed must not be negative")
