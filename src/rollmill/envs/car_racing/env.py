"""Plays CarRacing thirty times as fast as Gymnasium does: its physics, tracks and rewards, drawn another way.

The stock environment spends 98 % of a step on drawing. Here ``car_racing_gym`` runs the stock class, with the car's
arithmetic in plain floats (``car_racing_physics``), and draws only the observation (``car_racing_draw``), at the asked
size, into the caller's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn

NO_INFO: Mapping[str, Any] = {}
LOW, HIGH = (-1.0, 0.0, 0.0), (1.0, 1.0, 1.0)
"""Of steering, gas and brake."""
CHOICES = 5


class CarRacingEnv:
    """One car on one track.

    Observation ``obs``: uint8 ``[size, size, 3]``, RGB. Actions: steering (-1 to 1), gas and brake (0 to 1); or,
    discrete: idle, right, left, gas, brake.

    For the same seed and actions, tracks, rewards and ends are to the bit those of ``gymnasium.make("CarRacing-v3")``;
    images differ by the rounding of edges (mean 0.2 of 255 levels). A seed and the actions fix an episode completely,
    whatever was played before.

    Ends: a lap (``lap_complete_percent`` of the tiles, and the first one again) and leaving the field terminate,
    ``max_frames`` truncates.
    """

    level_free = frozenset({"size", "frame_skip", "continuous", "max_frames", "lap_complete_percent"})
    level_packages = ("gymnasium",)

    def __init__(
        self,
        *,
        size: int = 96,
        frame_skip: int = 1,
        continuous: bool = True,
        max_frames: int = 1000,
        lap_complete_percent: float = 0.95,
        domain_randomize: bool = False,
    ) -> None:
        """Build it.

        Args:
            size: Rows and columns of the image, a multiple of 8.
            frame_skip: Frames per step, with the same action; only the last is drawn.
            continuous: Steering, gas and brake, or else five discrete actions.
            max_frames: Truncate after so many frames; 0 for never.
            lap_complete_percent: Share of the tiles that make a lap, 0 to 1.
            domain_randomize: Other colours in every episode.
        """
        if frame_skip < 1:
            raise ConfigError(f"frame_skip must be at least 1, got {frame_skip}")
        if max_frames < 0:
            raise ConfigError(f"max_frames must be at least 0, got {max_frames}")
        if not 0 < lap_complete_percent <= 1:
            raise ConfigError(f"lap_complete_percent must be above 0 and at most 1, got {lap_complete_percent}")
        self._game = _import_game()(
            size=size,
            lap_complete_percent=lap_complete_percent,
            domain_randomize=domain_randomize,
            continuous=continuous,
        )
        self._game.draws = False
        action = ActionSpec("continuous", shape=(3,), low=LOW, high=HIGH)
        self.spec = EnvSpec(
            name="car_racing",
            observation=(Field("obs", "uint8", (size, size, 3)),),
            action=action if continuous else ActionSpec("discrete", nvec=(CHOICES,), start=(0,)),
            frames_per_step=frame_skip,
        )
        self._continuous = continuous
        self._frame_skip = frame_skip
        self._max_frames = max_frames
        self._frames = 0
        self._running = False

    def reset(self, seed: int, obs: Obs) -> None:
        self._begin(seed, obs, {})

    def save_level(self) -> bytes:
        level: bytes = self._game.save_level()
        return level

    def load_level(self, level: bytes, seed: int, obs: Obs) -> None:
        self._begin(seed, obs, {"level": level})

    def _begin(self, seed: int, obs: Obs, options: Mapping[str, Any]) -> None:
        self._game.reset(seed=seed, options=options)
        self._frames = 0
        self._running = True
        self._write(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if not self._running:
            raise EnvError("step() without a running episode: call reset() first")
        order = self._order(action)
        total = 0.0
        for _ in range(self._frame_skip):
            _, reward, terminated, _, _ = self._game.step(order)
            total += reward
            self._frames += 1
            truncated = self._frames == self._max_frames
            if terminated or truncated:
                break
        self._write(obs)
        if not (terminated or truncated):
            return total, False, False, NO_INFO
        self._running = False
        return total, terminated, truncated, self._statistics()

    def render(self) -> Array | None:
        """Return Gymnasium's own image, 400 x 600, with skid marks; None before ``reset``. It takes as long as in the
        stock environment."""
        if self._game.car is None:
            return None
        image: Array = self._game.image()
        return image

    def close(self) -> None:
        self._game.close()
        self._running = False

    def _order(self, action: Array) -> Any:
        if self._continuous:
            return action[0]  # for the car, all beyond the bounds is as good as the bounds
        choice = action.item()
        if not 0 <= choice < CHOICES:
            raise EnvError(f"action {choice} is not one of 0 to {CHOICES - 1}")
        return choice

    def _statistics(self) -> Mapping[str, Any]:
        game = self._game
        return {"episode_stats": {"tiles": game.tile_visited_count / len(game.track)}}

    def _write(self, obs: Obs) -> None:
        view = obs["obs"][0]
        wanted = self.spec.observation[0]
        if view.shape != wanted.shape or view.dtype != np.uint8 or not view.flags.c_contiguous:
            raise EnvError(f"obs is {view.dtype} {view.shape}, expected contiguous {wanted.dtype} {wanted.shape}")
        self._game.draw(view)


def _import_game() -> Any:
    """Return the class that is driven; its module needs Box2D, pygame and OpenCV to be imported."""
    from gymnasium.error import DependencyNotInstalled

    try:
        from rollmill.envs.car_racing.gym import CarRacing
    except (ImportError, DependencyNotInstalled) as error:
        raise MissingExtraError(
            f'CarRacing needs Box2D, pygame and OpenCV ({error}): pip install "rollmill[box2d]"'
        ) from error
    return CarRacing
