"""ViZDoom scenarios, with ``DoomGame`` driven directly: one call into the engine per step.

Which scenarios there are and what is changed in them: ``scenarios``. How buttons become actions:
``actions``. The engine's process: ``engine``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.core.errors import EnvError
from rollmill.core.fields import Array, EnvSpec, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.vizdoom.engine import Call, Engine
from rollmill.envs.vizdoom.game import (
    FAULTS,
    Clock,
    View,
    check_least,
    configure,
    import_extras,
    screen_fields,
    set_controls,
    show,
)
from rollmill.envs.vizdoom.scenarios import find_scenario

NO_INFO: Mapping[str, Any] = {}

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
        actions: How buttons become actions, see ``actions``; empty for the scenario's way.
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
        vizdoom, _ = import_extras()
        check_least(1, frame_skip=frame_skip, width=width, height=height)
        check_least(0, timeout=timeout or 0, fps=fps)
        short_name, rules, cfg = find_scenario(scenario, Path(vizdoom.scenarios_path))
        self._game = configure(vizdoom, rules, cfg)
        screen = render_width, render_height, wide_aspect_ratio
        show(vizdoom, self._game, screen, buffers, game_variables, visible)
        controls = set_controls(
            vizdoom, self._game, buttons or rules.buttons, actions or rules.actions, delta_steps, delta_max
        )
        self.spec = EnvSpec(
            name=f"doom_{short_name}",
            observation=screen_fields((height, width), buffers, len(game_variables)),
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
        self._clock = Clock(fps)
        self._act: Callable[[list[float], int], float] = self._act_in_time if fps else self._game.make_action
        self._medkit_reward = rules.medkit_reward
        self._reward_scale = rules.reward_scale if reward_scale is None else float(reward_scale)
        self._frame_skip = frame_skip
        self._view = View((width, height), buffers, bool(game_variables))
        # The engine's own timeout stays off, see the class's text; this many tics replace it.
        own = self._game.get_episode_timeout() if rules.timeout is None else rules.timeout
        self._timeout = (own if timeout is None else timeout) or sys.maxsize
        self._game.set_episode_timeout(0)
        self._tics_left = 0
        self._last_health = 0.0
        self._medkits = 0

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine; None before the first ``reset`` and after ``close``."""
        return self._engine.pid if self._engine else None

    def reset(self, seed: int, obs: Obs) -> None:
        if self._episodes >= EPISODES_PER_ENGINE:
            self.close()
        if self._engine is None:
            self._engine = Engine(self._game).start()
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
        self._clock.begin()
        self._view.write(state, obs)

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
        self._view.write(state, obs)
        if self._tics_left == 0:
            return reward * self._reward_scale, False, True, self._statistics()
        return reward * self._reward_scale, False, False, NO_INFO

    def render(self) -> Array | None:
        """Return the last screen at the engine's own size, or None before the first ``reset``."""
        return self._view.screen

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self._tics_left = 0

    def _act_in_time(self, presses: list[float], tics: int) -> float:
        """Act tic by tic at ``fps``, so that a window moves smoothly; rewards are those of one call."""
        reward = 0.0
        for _ in range(tics):
            self._clock.wait()
            reward += self._game.make_action(presses, 1)
            if self._game.is_episode_finished():
                break
        return reward

    def _terminate(self, reward: float, obs: Obs) -> StepReturn:
        self._tics_left = 0
        self._view.write_again(obs)
        return reward * self._reward_scale, True, False, self._statistics()

    def _statistics(self) -> Mapping[str, Any]:
        metrics = {name: self._game.get_game_variable(variable) for name, variable in self._statistics_of.items()}
        if self._medkit_reward:
            metrics["medkits"] = float(self._medkits)
        return {"episode_stats": metrics} if metrics else NO_INFO

    def _describe(self, where: str, error: Exception) -> EnvError:
        return EnvError(f"the ViZDoom engine (pid {self.engine_pid}) failed in {where}(): {error}")
