"""What the ViZDoom environments share: a ``DoomGame`` set up as asked for, and how its screens become observations."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import Array, Field, Obs
from rollmill.core.text import nearest
from rollmill.envs.vizdoom.actions import Controls, make_controls
from rollmill.envs.vizdoom.scenarios import Scenario

FAULTS = (
    "ViZDoomUnexpectedExitException",
    "ViZDoomIsNotRunningException",
    "ViZDoomErrorException",
    "MessageQueueException",
    "SharedMemoryException",
)
"""ViZDoom's exceptions for an engine that is gone or broken; they have no common base."""

BUFFERS = {"depth": 1, "labels": 1, "automap": 3}
"""Images besides the screen, and their channels."""
VARIABLES_FIELD = "game_variables"
SCREEN, WIDE_SCREEN = (160, 120), (256, 144)


class View:
    """Writes what one player sees into a lane's rows."""

    def __init__(self, size: tuple[int, int], buffers: Sequence[str], has_variables: bool) -> None:
        """Prepare to shrink images to ``size``, their width and height."""
        import cv2

        self._size, self._buffers, self._has_variables = size, tuple(buffers), has_variables
        self._resize, self._nearest = cv2.resize, cv2.INTER_NEAREST
        cv2.setNumThreads(1)  # it would start a pool of threads, for images too small to share out
        self._state: Any = None

    @property
    def screen(self) -> Array | None:
        """The last screen at the engine's own size, or None before there was one."""
        return None if self._state is None else self._state.screen_buffer

    def write(self, state: Any, obs: Obs, lane: int = 0) -> None:
        """Shrink the images of ``state`` straight into the caller's memory."""
        self._state = state
        self._shrink(state.screen_buffer, obs["obs"][lane], "obs")
        for name in self._buffers:
            self._shrink(getattr(state, f"{name}_buffer"), obs[name][lane], name)
        if self._has_variables:
            obs[VARIABLES_FIELD][lane] = state.game_variables

    def write_again(self, obs: Obs, lane: int = 0) -> None:
        """Write what was seen last: nothing can be seen of an ended episode."""
        self.write(self._state, obs, lane)

    def _shrink(self, image: Array, row: Array, name: str) -> None:
        view = row if image.ndim == 3 else row[:, :, 0]
        if self._resize(image, self._size, view, 0, 0, self._nearest) is not view:
            # OpenCV quietly takes new memory when the given one does not fit.
            expected = (*self._size[::-1], 1 if image.ndim == 2 else image.shape[2])
            raise EnvError(f"{name} is {row.dtype} {row.shape}, expected uint8 {expected}")


def import_extras() -> tuple[Any, Any]:
    try:
        import cv2
        import vizdoom
    except ImportError as error:
        raise MissingExtraError(
            f'ViZDoom environments need vizdoom and OpenCV ({error}): pip install "rollmill[vizdoom]"'
        ) from error
    return vizdoom, cv2


class Clock:
    """Keeps a game to its speed, for somebody who watches; ``fps`` 0: as fast as it goes."""

    def __init__(self, fps: float) -> None:
        self._seconds = 1 / fps if fps else 0.0
        self._next = 0.0

    def begin(self) -> None:
        self._next = time.monotonic()

    def wait(self) -> None:
        """Wait until the next tic is due; one that was late is not caught up with."""
        if self._seconds:
            self._next = max(self._next + self._seconds, time.monotonic() - self._seconds)
            time.sleep(max(0.0, self._next - time.monotonic()))


def screen_fields(size: tuple[int, int], buffers: Sequence[str], variables: int) -> tuple[Field, ...]:
    fields = [Field("obs", "uint8", (*size, 3))]
    fields += [Field(name, "uint8", (*size, BUFFERS[name])) for name in buffers]
    if variables:
        fields.append(Field(VARIABLES_FIELD, "float32", (variables,)))
    return tuple(fields)


def check_least(least: int, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def check_names(key: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    if isinstance(names, str):
        raise ConfigError(f"{key}={names!r}: a list of names is expected, as in [{names}]")
    for name in names:
        if name not in known:
            some = ", ".join(list(known)[:12]) + (", ..." if len(known) > 12 else "")
            hint = nearest(name, known)
            raise ConfigError(f"{key}: there is no {name!r}{f'; {hint}' if hint else ''} (known: {some})")
    if len(set(names)) < len(names):
        raise ConfigError(f"{key}: a name stands twice in {', '.join(names)}")


def _screen_size(width: int, height: int, wide: bool) -> tuple[int, int]:
    if bool(width) != bool(height):
        raise ConfigError(f"render_width={width} and render_height={height}: give both, or neither")
    if wide and width:
        raise ConfigError("wide_aspect_ratio and render_width x render_height contradict each other: give one of them")
    if width:
        return width, height
    return WIDE_SCREEN if wide else SCREEN


def _screen_resolution(vizdoom: Any, width: int, height: int) -> Any:
    known = vizdoom.ScreenResolution.__members__
    name = f"RES_{width}X{height}"
    if name not in known:
        sizes = ", ".join(n.removeprefix("RES_").lower() for n in known)
        raise ConfigError(f"ViZDoom cannot render {width}x{height} (render_width, render_height); it can: {sizes}")
    return known[name]


def new_game(vizdoom: Any) -> Any:
    """Return a game that waits for every action, without sound."""
    game = vizdoom.DoomGame()
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_sound_enabled(False)
    # Otherwise a doom2.wad in the current folder or beside ViZDoom would change the images.
    game.set_doom_game_path(str(Path(vizdoom.__file__).parent / "freedoom2.wad"))
    return game


def configure(vizdoom: Any, rules: Scenario, cfg: Path) -> Any:
    game = new_game(vizdoom)
    if not game.load_config(str(cfg)):
        raise ConfigError(f"ViZDoom does not understand all of {cfg}; its warnings above name the lines")
    _check_files(game, cfg)
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_sound_enabled(False)
    if rules.living_reward is not None:
        game.set_living_reward(rules.living_reward)
    if rules.death_penalty is not None:
        game.set_death_penalty(rules.death_penalty)
    return game


def _check_files(game: Any, cfg: Path) -> None:
    """Check that an engine finds its files: one that does not ends while it starts."""
    for key in ("doom_scenario_path", "doom_game_path"):
        path = getattr(game, f"get_{key}")()
        if not path or Path(path).is_file():
            continue
        # ViZDoom puts the folder of the config file before absolute paths, too.
        absolute = Path("/", path.removeprefix(str(cfg.parent)).lstrip("/"))
        if not absolute.is_file():
            raise ConfigError(f"{cfg}: {key} is {path}, and there is no such file")
        getattr(game, f"set_{key}")(str(absolute))


def show(
    vizdoom: Any,
    game: Any,
    screen: tuple[int, int, bool],
    buffers: Sequence[str],
    variables: Sequence[str],
    visible: bool,
) -> None:
    """Set what the agent is shown; ``screen``: width and height as asked for (0: the usual), and whether it is wide."""
    check_names("buffers", buffers, BUFFERS)
    known = vizdoom.GameVariable.__members__
    check_names("game_variables", variables, known)
    game.set_screen_resolution(_screen_resolution(vizdoom, *_screen_size(*screen)))
    game.set_available_game_variables([known[name] for name in variables])
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_depth_buffer_enabled("depth" in buffers)
    game.set_labels_buffer_enabled("labels" in buffers)
    game.set_automap_buffer_enabled("automap" in buffers)
    game.set_automap_mode(vizdoom.AutomapMode.OBJECTS_WITH_SIZE)
    has_display = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if visible and not has_display:
        raise ConfigError("visible: there is no display to show a window on (DISPLAY is not set)")
    game.set_window_visible(visible)


def set_controls(
    vizdoom: Any,
    game: Any,
    names: Sequence[str],
    actions: str | Sequence[Sequence[str]],
    delta_steps: int,
    delta_max: float,
) -> Controls:
    known = vizdoom.Button.__members__
    names = names or [button.name for button in game.get_available_buttons()]
    check_names("buttons", names, known)
    if not names:
        raise ConfigError("buttons: the config file names no available_buttons; give some with buttons=[...]")
    game.set_available_buttons([known[name] for name in names])
    return make_controls(names, actions, delta_steps, delta_max)
