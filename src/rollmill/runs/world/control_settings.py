"""The configuration of the stages that act: the search for a controller, in an environment or in a dream of it."""

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
