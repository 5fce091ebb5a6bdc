"""Environments that show themselves: which arguments make one render, how large, and how fast it really goes.

Images come from ``render()`` only. What an agent sees (stacked, shrunk, depth) is not what happens there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import Array
from rollmill.core.protocols import Env
from rollmill.envs.make import check_env_settings, make_env
from rollmill.envs.settings import EnvSettings

SIMULATOR_FPS = {
    "rollmill.envs.vizdoom.env": 35.0,
    "rollmill.envs.vizdoom.match": 35.0,
    "rollmill.envs.atari.env": 60.0,
    "rollmill.envs.car_racing.env": 50.0,
}
"""Frames per second at which a simulator runs for people, by the module of the environment."""
USUAL_FPS = 30.0
"""Images per second where nothing is known."""
WIDE = (640, 360)
LARGE: Mapping[tuple[int, int], tuple[int, int]] = {(4, 3): (640, 480), (16, 9): WIDE, (16, 10): (640, 400)}
"""Size of large images of simulators that render at any of several sizes (ViZDoom), by aspect ratio."""


def with_images(settings: EnvSettings, large: bool = True) -> EnvSettings:
    """Tell the same environment to render RGB images; ``large``: at a size for people where that can be chosen.

    Only for replaying and showing: the size may change what the agent itself sees.
    """
    if settings.vector:
        raise ConfigError(
            f"env.vector: {settings.id} is stepped by the group and shows no single environment; set env.vector=false"
        )
    if _accepts(settings, "render_mode"):  # Gymnasium's makers take anything, and this one every environment knows
        settings = with_args(settings, render_mode="rgb_array")
    if large and takes(settings, "render_width") and takes(settings, "render_height"):
        width, height = _larger(settings.args)
        settings = with_args(settings, render_width=width, render_height=height)
        if settings.args.get("wide_aspect_ratio"):  # which the size says already
            settings = with_args(settings, wide_aspect_ratio=False)
    return settings


def takes(settings: EnvSettings, name: str) -> bool:
    """Return whether the environment's constructor has an argument of this very name."""
    return _accepts(settings, name) and not _accepts(settings, "no argument has this name")


def _accepts(settings: EnvSettings, name: str) -> bool:
    try:
        check_env_settings(with_args(settings, **{name: None}))
    except ConfigError:
        return False
    return True


def with_args(settings: EnvSettings, **args: Any) -> EnvSettings:
    return replace(settings, args={**settings.args, **args})


def _larger(args: Mapping[str, Any]) -> tuple[int, int]:
    """Return the large size of the same shape; what is larger already, or of another shape, stays."""
    width, height = int(args.get("render_width", 0)), int(args.get("render_height", 0))
    if not width or not height:
        return WIDE if args.get("wide_aspect_ratio") else LARGE[4, 3]
    for (across, down), size in LARGE.items():
        if width * down == height * across and width < size[0]:
            return size
    return width, height


def without_display() -> None:
    """Tell libraries that draw to do so in memory, where there is no display and nobody has said otherwise."""
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")


def has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def make_shown(settings: EnvSettings) -> Env:
    """Make an environment for ``image``; ``settings`` come from ``with_images``."""
    try:
        return make_env(settings)
    except (TypeError, ConfigError) as error:
        raise ConfigError(
            f"{settings.id} cannot be told to render ({error}); it cannot be shown in a video or watched"
        ) from error


def image(env: Env) -> Array:
    """Return what ``env`` shows now: RGB uint8 ``[height, width, 3]``, a copy."""
    try:
        shown = env.render()
    except Exception as error:
        # Whatever drivers and windows have to say; most often there is no display.
        raise EnvError(f"{env.spec.name}: render() failed: {type(error).__name__}: {error}") from error
    if shown is None:
        raise ConfigError(f"{env.spec.name} renders no RGB images; it cannot be shown in a video or watched")
    if shown.ndim != 3 or shown.shape[2] != 3 or shown.dtype != np.uint8 or 0 in shown.shape:
        raise EnvError(
            f"{env.spec.name}: render() gave {shown.dtype} of shape {shown.shape}, expected uint8 (height, width, 3)"
        )
    return np.array(shown)


def images_per_second(env: Env) -> float:
    """Return decisions per second at the simulator's own speed: a video at this rate runs neither fast nor slow."""
    frames = SIMULATOR_FPS.get(type(env).__module__)
    if frames is None:
        known = [getattr(getattr(env, name, None), "metadata", None) or {} for name in ("env", "_env")]
        frames = float(next((m["render_fps"] for m in known if m.get("render_fps")), USUAL_FPS))
    return frames / env.spec.frames_per_step
