"""ViZDoom scenarios, with ``DoomGame`` driven directly: one call into the engine per step.

Which scenarios there are and what is changed in them: ``vizdoom_scenarios``. How buttons become actions:
``vizdoom_actions``. The engine's process: ``vizdoom_engine``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.core.text import nearest
from rollmill.envs.vizdoom.actions import Controls, make_controls
from rollmill.envs.vizdoom.engine import Call, Engine
from rollmill.envs.vizdoom.scenarios import Scenario, find_scenario

FAULTS = (
    "ViZDoomUnexpectedExitException",
    "ViZDoomIsNotRunningException",
    "ViZDoomErrorException",
    "MessageQueueException",
    "SharedMemoryException",
)
"""ViZDoom's exceptions for an engine that is gone or broken; they have no common base."""

NO_INFO: Mapping[str, Any] = {}

BUFFERS = {"depth": 1, "labels": 1, "automap": 3}
"""Images besides the screen, and their channels."""
VARIABLES_FIELD = "game_variables"
SCREEN, WIDE_SCREEN = (160, 120), (256, 144)
EPISODES_PER_ENGINE = 2500
"""ViZDoom 1.3's engine does not give back some 290 bytes of every episode; after so many a fresh one takes over."""


class DoomEnv:
    """One ViZDoom game with one agent.

    Observation ``obs``: uint8 ``[height, width, 3]``, RGB, shrunk from the screen ``render_width`` x
    ``render_height`` by taking nearest pixels (10 us; linear 20 us, area 100 us, of a step of 170 us).
    ``depth``, ``labels`` (uint8 ``[height, width, 1]``) and ``automap`` (uint8 ``[height, width, 3]``) are there
    where ``buffers`` names them; ``game_variables`` float32 ``[n]`` where there are any.

    Ends: death or the goal terminates. The scenario's timeout truncates; it is counted here and not by the
    engine, which shows nothing of an ended episode: so the final observation of a truncated episode is the
    true one, and that of a terminated episode is the last one seen before its end.

    Seeds (below 2**32) fix an episode completely: the same seed and actions give the same frames and
    rewards, in any process and whatever was played before. The engine starts with the first ``reset``.

    Args:
        scenario: A name of ``SCENARIOS``, the path of a ``.cfg`` file, or the file name of one of ViZDoom's.
        frame_skip: Tics per step, with the same buttons.
        width: Of the images the agent sees.
        height: Of the images the agent sees.
        render_width: Of the screen; 0 for 160 x 120, or 256 x 144 with ``wide_aspect_ratio``.
        render_height: Of the screen.
        wide_aspect_ratio: Render 16:9, which shows more to the left and to the right.
        buttons: Names of ``vizdoom.Button``; empty for the scenario's.
        actions: How buttons become actions, see ``vizdoom_actions``; empty for the scenario's way.
        delta_steps: Values of a delta button in a choice.
        delta_max: Largest value of a delta button, per tic.
        game_variables: Names of ``vizdoom.GameVariable`` the agent sees, as they are.
        buffers: Of ``depth``, ``labels``, ``automap``.
        reward_scale: Factor of all rewards; None for the scenario's.
        timeout: Tics after which the episode is truncated, 0 for never; None for the scenario's.
        fps: Tics per second: 35 to watch in real time, 0 for as fast as it goes.
        visible: Show the engine's window.
    """

    def __init__(
        self,
        *,
        scenario: str = "basic",
        frame_skip: int = 4,
        width: int = 128,
        height: int = 72,
        render_width: int = 0,
        render_height: int = 0,
        wide_aspect_ratio: bool = False,
        buttons: Sequence[str] = (),
        actions: str | Sequence[Sequence[str]] = "",
        delta_steps: int = 21,
        delta_max: float = 12.5,
        game_variables: Sequence[str] = (),
        buffers: Sequence[str] = (),
        reward_scale: float | None = None,
        timeout: int | None = None,
        fps: float = 0.0,
        visible: bool = False,
    ) -> None:
        vizdoom, cv2 = _import_extras()
        _check_least(1, frame_skip=frame_skip, width=width, height=height)
        _check_least(0, timeout=timeout or 0, fps=fps)
        _check_names("buffers", buffers, BUFFERS)
        _check_names("game_variables", game_variables, vizdoom.GameVariable.__members__)
        screen = _screen_size(render_width, render_height, wide_aspect_ratio)
        resolution = _screen_resolution(vizdoom, *screen)
        short_name, rules, cfg = find_scenario(scenario, Path(vizdoom.scenarios_path))
        self._game = _configure(vizdoom, rules, cfg)
        _show(vizdoom, self._game, resolution, buffers, visible)
        controls = _set_controls(
            vizdoom, self._game, buttons or rules.buttons, actions or rules.actions, delta_steps, delta_max
        )
        self._game.set_available_game_variables([vizdoom.GameVariable.__members__[name] for name in game_variables])
        self.spec = EnvSpec(
            name=f"doom_{short_name}",
            observation=_fields((height, width), buffers, len(game_variables)),
            action=controls.spec,
            frames_per_step=frame_skip,
        )
        self.choice_names = controls.names
        self._engine: Engine | None = None
        self._episodes = 0
        self._call = Call()
        self._faults = tuple(getattr(vizdoom, name) for name in FAULTS)
        self._health = vizdoom.GameVariable.HEALTH
        self._statistics_of = {
            name: vizdoom.GameVariable.__members__[variable] for name, variable in rules.statistics.items()
        }
        self._presses = controls.presses
        self._tic_seconds = 1 / fps if fps else 0.0
        self._next_tic = 0.0
        self._act: Callable[[list[float], int], float] = self._act_in_time if fps else self._game.make_action
        self._medkit_reward = rules.medkit_reward
        self._reward_scale = rules.reward_scale if reward_scale is None else float(reward_scale)
        self._frame_skip = frame_skip
        self._size = (width, height)
        self._resize, self._nearest = cv2.resize, cv2.INTER_NEAREST
        cv2.setNumThreads(1)  # it would start a pool of threads, for images too small to share out
        # The engine's own timeout stays off, see the class's text; this many tics replace it.
        own = self._game.get_episode_timeout() if rules.timeout is None else rules.timeout
        self._timeout = (own if timeout is None else timeout) or sys.maxsize
        self._game.set_episode_timeout(0)
        self._tics_left = 0
        self._last_health = 0.0
        self._medkits = 0
        self._screen: Array | None = None
        self._buffers = tuple(buffers)
        self._has_variables = bool(game_variables)
        self._more = self._has_variables or bool(buffers)
        self._last_state: Any = None  # kept where there is more than the screen

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine; None before the first ``reset`` and after ``close``."""
        return self._engine.pid if self._engine else None

    def reset(self, seed: int, obs: Obs) -> None:
        if self._episodes >= EPISODES_PER_ENGINE:
            self.close()
        if self._engine is None:
            self._engine = Engine(self._game)
            self._call = self._engine.call
            self._episodes = 0
        self._episodes += 1
        game = self._game
        self._call.active = True
        try:
            game.set_seed(seed)
            game.new_episode()
            state = game.get_state()
            self._last_health = game.get_game_variable(self._health)
        except self._faults as error:
            raise self._describe("reset", error) from error
        finally:
            self._call.active = False
        self._tics_left = self._timeout
        self._medkits = 0
        self._next_tic = time.monotonic()
        self._write(state.screen_buffer, obs)
        if self._more:
            self._write_more(state, obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        game, tics = self._game, self._frame_skip
        if tics > self._tics_left:
            tics = self._tics_left
            if tics == 0:
                raise EnvError("step() without a running episode: call reset() first")
        presses = self._presses(action)
        self._call.active = True
        try:
            reward = self._act(presses, tics)
            state = game.get_state()
        except self._faults as error:
            raise self._describe("step", error) from error
        finally:
            self._call.active = False
        self._tics_left -= tics
        if state is None:
            return self._terminate(reward, obs)
        if self._medkit_reward:
            health = game.get_game_variable(self._health)
            if health > self._last_health:
                reward += self._medkit_reward
                self._medkits += 1
            self._last_health = health
        self._write(state.screen_buffer, obs)
        if self._more:
            self._write_more(state, obs)
        if self._tics_left == 0:
            return reward * self._reward_scale, False, True, self._statistics()
        return reward * self._reward_scale, False, False, NO_INFO

    def render(self) -> Array | None:
        """The last screen at the engine's own size, or None before the first ``reset``."""
        return self._screen

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self._tics_left = 0

    def _act_in_time(self, presses: list[float], tics: int) -> float:
        """Tic by tic at ``fps``, so that a window moves smoothly; rewards are those of one call."""
        reward = 0.0
        for _ in range(tics):
            self._next_tic = max(self._next_tic + self._tic_seconds, time.monotonic() - self._tic_seconds)
            time.sleep(max(0.0, self._next_tic - time.monotonic()))
            reward += self._game.make_action(presses, 1)
            if self._game.is_episode_finished():
                break
        return reward

    def _terminate(self, reward: float, obs: Obs) -> StepReturn:
        self._tics_left = 0
        assert self._screen is not None, "an episode shows its first screen before it can end"
        self._write(self._screen, obs)
        if self._more:
            self._write_more(self._last_state, obs)
        return reward * self._reward_scale, True, False, self._statistics()

    def _statistics(self) -> Mapping[str, Any]:
        metrics = {name: self._game.get_game_variable(variable) for name, variable in self._statistics_of.items()}
        if self._medkit_reward:
            metrics["medkits"] = float(self._medkits)
        return {"episode_stats": metrics} if metrics else NO_INFO

    def _write(self, screen: Array, obs: Obs) -> None:
        """Shrink ``screen`` straight into the caller's memory."""
        self._screen = screen
        view = obs["obs"][0]
        if self._resize(screen, self._size, view, 0, 0, self._nearest) is not view:
            # OpenCV quietly takes new memory when the given one does not fit.
            wanted = self.spec.observation[0]
            raise EnvError(f"obs is {view.dtype} {view.shape}, expected {wanted.dtype} {wanted.shape}")

    def _write_more(self, state: Any, obs: Obs) -> None:
        """The fields besides the screen; ``state`` is kept, because nothing can be seen of an ended episode."""
        self._last_state = state
        for name in self._buffers:
            image = getattr(state, f"{name}_buffer")
            view = obs[name][0]
            flat = view if image.ndim == 3 else view[:, :, 0]
            if self._resize(image, self._size, flat, 0, 0, self._nearest) is not flat:
                raise EnvError(f"{name} is {view.dtype} {view.shape}, expected {(*self._size[::-1], BUFFERS[name])}")
        if self._has_variables:
            obs[VARIABLES_FIELD][0] = state.game_variables

    def _describe(self, where: str, error: Exception) -> EnvError:
        return EnvError(f"the ViZDoom engine (pid {self.engine_pid}) failed in {where}(): {error}")


def _import_extras() -> tuple[Any, Any]:
    try:
        import cv2
        import vizdoom
    except ImportError as error:
        raise MissingExtraError(
            f'ViZDoom environments need vizdoom and OpenCV ({error}): pip install "rollmill[vizdoom]"'
        ) from error
    return vizdoom, cv2


def _fields(size: tuple[int, int], buffers: Sequence[str], variables: int) -> tuple[Field, ...]:
    fields = [Field("obs", "uint8", (*size, 3))]
    fields += [Field(name, "uint8", (*size, BUFFERS[name])) for name in buffers]
    if variables:
        fields.append(Field(VARIABLES_FIELD, "float32", (variables,)))
    return tuple(fields)


def _check_least(least: int, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def _check_names(key: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
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


def _configure(vizdoom: Any, rules: Scenario, cfg: Path) -> Any:
    game = vizdoom.DoomGame()
    if not game.load_config(str(cfg)):
        raise ConfigError(f"ViZDoom does not understand all of {cfg}; its warnings above name the lines")
    _check_files(game, cfg)
    if not game.get_doom_game_path():
        # Otherwise a doom2.wad in the current folder or beside ViZDoom would change the images.
        game.set_doom_game_path(str(Path(vizdoom.__file__).parent / "freedoom2.wad"))
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_sound_enabled(False)
    if rules.living_reward is not None:
        game.set_living_reward(rules.living_reward)
    if rules.death_penalty is not None:
        game.set_death_penalty(rules.death_penalty)
    return game


def _check_files(game: Any, cfg: Path) -> None:
    """An engine that does not find its files ends while it starts."""
    for key in ("doom_scenario_path", "doom_game_path"):
        path = getattr(game, f"get_{key}")()
        if not path or Path(path).is_file():
            continue
        # ViZDoom puts the folder of the config file before absolute paths, too.
        absolute = Path("/", path.removeprefix(str(cfg.parent)).lstrip("/"))
        if not absolute.is_file():
            raise ConfigError(f"{cfg}: {key} is {path}, and there is no such file")
        getattr(game, f"set_{key}")(str(absolute))


def _show(vizdoom: Any, game: Any, resolution: Any, buffers: Sequence[str], visible: bool) -> None:
    game.set_screen_resolution(resolution)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_depth_buffer_enabled("depth" in buffers)
    game.set_labels_buffer_enabled("labels" in buffers)
    game.set_automap_buffer_enabled("automap" in buffers)
    game.set_automap_mode(vizdoom.AutomapMode.OBJECTS_WITH_SIZE)
    has_display = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if visible and not has_display:
        raise ConfigError("visible: there is no display to show a window on (DISPLAY is not set)")
    game.set_window_visible(visible)


def _set_controls(
    vizdoom: Any,
    game: Any,
    names: Sequence[str],
    actions: str | Sequence[Sequence[str]],
    delta_steps: int,
    delta_max: float,
) -> Controls:
    known = vizdoom.Button.__members__
    names = names or [button.name for button in game.get_available_buttons()]
    _check_names("buttons", names, known)
    if not names:
        raise ConfigError("buttons: the config file names no available_buttons; give some with buttons=[...]")
    game.set_available_buttons([known[name] for name in names])
    return make_controls(names, actions, delta_steps, delta_max)
