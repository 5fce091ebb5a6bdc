"""ViZDoom scenarios, with ``DoomGame`` driven directly: one call into the engine per step.

Rewards and actions follow the conventions that published results use, so that figures compare.
Action 0 is idle, action ``i`` presses the scenario's ``i``-th button. Mean returns at frame skip 4, over
900 and 450 episodes (a mean over 30 episodes is 30 and 0.3 off, give or take):

============================  ==============  ==============  =======================================
scenario                      random actions  always forward  reward
============================  ==============  ==============  =======================================
``basic``                     -168            -               the scenario's own; best episode 95
``health_gathering_supreme``  4.4             4.7             0.01 a tic, 1 a medkit, nothing for death
============================  ==============  ==============  =======================================
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.core.text import nearest
from rollmill.envs.vizdoom_engine import Call, Engine


@dataclass(frozen=True)
class Scenario:
    """What we change in one of ViZDoom's scenarios; None keeps what its config file says."""

    cfg: str
    """Config file among ViZDoom's scenarios."""
    buttons: tuple[str, ...]
    """Names of ``vizdoom.Button``; each is one action (pressed alone), after idle."""
    living_reward: float | None = None
    """Per tic."""
    death_penalty: float | None = None
    medkit_reward: float = 0.0
    """For every step after which the player has more health than before."""
    reward_scale: float = 1.0
    """Applied last, to the sum of everything."""
    timeout: int | None = None
    """Tics after which the episode is truncated; 0 for never."""


SCENARIOS: dict[str, Scenario] = {
    "basic": Scenario("basic.cfg", ("MOVE_LEFT", "MOVE_RIGHT", "ATTACK")),
    # The config file gives 1 per tic and -100 for dying; published results do not count the death.
    "health_gathering_supreme": Scenario(
        "health_gathering_supreme.cfg",
        ("MOVE_FORWARD", "MOVE_BACKWARD", "TURN_RIGHT", "TURN_LEFT"),
        living_reward=0.01,
        death_penalty=0.0,
        medkit_reward=1.0,
    ),
}

FAULTS = (
    "ViZDoomUnexpectedExitException",
    "ViZDoomIsNotRunningException",
    "ViZDoomErrorException",
    "MessageQueueException",
    "SharedMemoryException",
)
"""ViZDoom's exceptions for an engine that is gone or broken; they have no common base."""

NO_INFO: Mapping[str, Any] = {}


class DoomEnv:
    """One ViZDoom game with one agent.

    Observation ``obs``: uint8 ``[height, width, 3]``, RGB, shrunk from the screen ``render_width`` x
    ``render_height`` by taking nearest pixels (10 us; linear 20 us, area 100 us, of a step of 170 us).

    Ends: death or the goal terminates. The scenario's timeout truncates; it is counted here and not by the
    engine, which shows nothing of an ended episode: so the final observation of a truncated episode is the
    true one, and that of a terminated episode is the last screen seen before its end.

    Seeds (below 2**32) fix an episode completely: the same seed and actions give the same frames and
    rewards, in any process and whatever was played before. The engine starts with the first ``reset``.
    """

    def __init__(
        self,
        *,
        scenario: str = "basic",
        frame_skip: int = 4,
        width: int = 128,
        height: int = 72,
        render_width: int = 160,
        render_height: int = 120,
    ) -> None:
        vizdoom, cv2 = _import_extras()
        if scenario not in SCENARIOS:
            known = ", ".join(SCENARIOS)
            raise ConfigError(f"no ViZDoom scenario {scenario!r} {nearest(scenario, SCENARIOS)} (known: {known})")
        for name, value in (("frame_skip", frame_skip), ("width", width), ("height", height)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        rules = SCENARIOS[scenario]
        self.spec = EnvSpec(
            name=f"doom_{scenario}",
            observation=(Field("obs", "uint8", (height, width, 3)),),
            action=ActionSpec("discrete", nvec=(1 + len(rules.buttons),), start=(0,)),
            frames_per_step=frame_skip,
        )
        self._game = _configure(vizdoom, rules, _screen_resolution(vizdoom, render_width, render_height))
        self._engine: Engine | None = None
        self._call = Call()
        self._faults = tuple(getattr(vizdoom, name) for name in FAULTS)
        self._health = vizdoom.GameVariable.HEALTH
        self._presses = _button_presses(len(rules.buttons))
        self._rules = rules
        self._frame_skip = frame_skip
        self._size = (width, height)
        self._resize, self._nearest = cv2.resize, cv2.INTER_NEAREST
        cv2.setNumThreads(1)  # it would start a pool of threads, for pictures too small to share out
        # The engine's own timeout stays off, see the class's text; this many tics replace it.
        timeout = self._game.get_episode_timeout() if rules.timeout is None else rules.timeout
        self._game.set_episode_timeout(0)
        self._timeout = timeout or sys.maxsize
        self._tics_left = 0
        self._last_health = 0.0
        self._medkits = 0
        self._screen: Array | None = None

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine; None before the first ``reset`` and after ``close``."""
        return self._engine.pid if self._engine else None

    def reset(self, seed: int, obs: Obs) -> None:
        if self._engine is None:
            self._engine = Engine(self._game)
            self._call = self._engine.call
        game = self._game
        self._call.active = True
        try:
            game.set_seed(seed)
            game.new_episode()
            screen = game.get_state().screen_buffer
            self._last_health = game.get_game_variable(self._health)
        except self._faults as error:
            raise self._describe("reset", error) from error
        finally:
            self._call.active = False
        self._tics_left = self._timeout
        self._medkits = 0
        self._write(screen, obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        game, tics = self._game, self._frame_skip
        if tics > self._tics_left:
            tics = self._tics_left
            if tics == 0:
                raise EnvError("step() without a running episode: call reset() first")
        self._call.active = True
        try:
            reward = game.make_action(self._presses[action.item()], tics)
            state = game.get_state()
        except self._faults as error:
            raise self._describe("step", error) from error
        except KeyError:
            raise EnvError(f"action {action.item()} is not one of 0 to {len(self._presses) - 1}") from None
        finally:
            self._call.active = False
        rules = self._rules
        self._tics_left -= tics
        if state is None:
            return self._terminate(reward, obs)
        if rules.medkit_reward:
            health = game.get_game_variable(self._health)
            if health > self._last_health:
                reward += rules.medkit_reward
                self._medkits += 1
            self._last_health = health
        self._write(state.screen_buffer, obs)
        if self._tics_left == 0:
            return reward * rules.reward_scale, False, True, self._statistics()
        return reward * rules.reward_scale, False, False, NO_INFO

    def render(self) -> Array | None:
        """The last screen at the engine's own size, or None before the first ``reset``."""
        return self._screen

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self._tics_left = 0

    def _terminate(self, reward: float, obs: Obs) -> StepReturn:
        self._tics_left = 0
        assert self._screen is not None, "an episode shows its first screen before it can end"
        self._write(self._screen, obs)
        return reward * self._rules.reward_scale, True, False, self._statistics()

    def _statistics(self) -> Mapping[str, Any]:
        if not self._rules.medkit_reward:
            return NO_INFO
        return {"episode_stats": {"medkits": float(self._medkits)}}

    def _write(self, screen: Array, obs: Obs) -> None:
        """Shrink ``screen`` straight into the caller's memory."""
        self._screen = screen
        view = obs["obs"][0]
        if self._resize(screen, self._size, view, 0, 0, self._nearest) is not view:
            # OpenCV quietly takes new memory when the given one does not fit.
            wanted = self.spec.observation[0]
            raise EnvError(f"obs is {view.dtype} {view.shape}, expected {wanted.dtype} {wanted.shape}")

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


def _screen_resolution(vizdoom: Any, width: int, height: int) -> Any:
    known = vizdoom.ScreenResolution.__members__
    name = f"RES_{width}X{height}"
    if name not in known:
        sizes = ", ".join(n.removeprefix("RES_").lower() for n in known)
        raise ConfigError(f"ViZDoom cannot render {width}x{height} (render_width, render_height); it can: {sizes}")
    return known[name]


def _button_presses(buttons: int) -> dict[int, list[float]]:
    """What ``make_action`` takes for each action: nothing pressed, or one button."""
    presses = {0: [0.0] * buttons}
    for pressed in range(buttons):
        presses[1 + pressed] = [float(button == pressed) for button in range(buttons)]
    return presses


def _configure(vizdoom: Any, rules: Scenario, resolution: Any) -> Any:
    game = vizdoom.DoomGame()
    game.load_config(str(Path(vizdoom.scenarios_path) / rules.cfg))
    # Otherwise a doom2.wad in the current folder or beside ViZDoom would change the pictures.
    game.set_doom_game_path(str(Path(vizdoom.__file__).parent / "freedoom2.wad"))
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_screen_resolution(resolution)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_available_buttons([getattr(vizdoom.Button, name) for name in rules.buttons])
    game.set_available_game_variables([])  # each would be copied into every state
    if rules.living_reward is not None:
        game.set_living_reward(rules.living_reward)
    if rules.death_penalty is not None:
        game.set_death_penalty(rules.death_penalty)
    return game
