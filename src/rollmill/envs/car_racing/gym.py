"""Gymnasium's CarRacing with another way of drawing the observation, and with the car's arithmetic written again.

Needs the extra ``box2d``. ``rollmill.envs.registration.register`` gives it an id for ``gymnasium.make``.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from gymnasium import spaces
from gymnasium.envs.box2d import car_dynamics, car_racing
from gymnasium.utils import EzPickle

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.envs.car_racing.draw import CarShapes, Painter
from rollmill.envs.car_racing.physics import Car, FrictionDetector
from rollmill.envs.levels.snapshot import decode, encode

LEAST_SIZE = 32
SHAPES = CarShapes(car_dynamics)


class CarRacing(car_racing.CarRacing):
    """CarRacing-v3 with observations uint8 RGB ``[size, size, 3]``, drawn without pygame.

    Tracks, physics, rewards and ends are those of the stock class, whose ``reset`` and ``step`` run unchanged (with the
    car and the contact listener of ``car_racing_physics``); so is ``render()``, which does use pygame.
    """

    def __init__(
        self,
        render_mode: str | None = None,
        size: int = 96,
        lap_complete_percent: float = 0.95,
        domain_randomize: bool = False,
        continuous: bool = True,
    ) -> None:
        """Build it.

        Args:
            render_mode: As in Gymnasium: None, ``human`` or ``rgb_array``.
            size: Rows and columns of the observation, a multiple of 8.
            lap_complete_percent: Share of the tiles that make a lap.
            domain_randomize: Other colours in every episode.
            continuous: Steering, gas and brake, or else five discrete actions.
        """
        if size < LEAST_SIZE or size % 8:
            raise ConfigError(f"size must be a multiple of 8 and at least {LEAST_SIZE}, got {size}")
        super().__init__(render_mode, False, lap_complete_percent, domain_randomize, continuous)
        EzPickle.__init__(self, render_mode, size, lap_complete_percent, domain_randomize, continuous)
        cv2.setNumThreads(1)  # it would start a pool of threads, for images too small to share out
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self._painter = Painter(cv2, size, SHAPES)
        self._shape = (size, size, 3)
        self._shown_score = 0.0
        self._level: bytes | None = None
        self.draws = True
        """False: ``reset`` and ``step`` return None as the observation; ask ``draw`` for it."""

    def draw(self, out: Array) -> None:
        """Write the observation of the last step into ``out``, contiguous uint8 ``[size, size, 3]``."""
        zoom = 0.1 * car_racing.SCALE * max(1 - self.t, 0) + car_racing.ZOOM * car_racing.SCALE * min(self.t, 1)
        self._painter.draw(self.car, zoom, self._shown_score, out)

    def image(self) -> Array:
        """Return the stock image for people, uint8 ``[400, 600, 3]``."""
        drawn: Array = super()._render("rgb_array")
        return drawn

    def step(self, action: Any) -> Any:
        if action is None:  # by ``reset``, which has just built the car
            self.car.__class__ = Car
        return super().step(action)

    def save_level(self) -> bytes:
        """Return the track that ``reset`` has made: course, tiles and their colours, random numbers after it."""
        tiles: Any = self.road
        rows = [tile.row for tile in tiles]
        quads, colors = (np.array([pair[k] for pair in self.road_poly], np.float64) for k in (0, 1))
        return encode((np.array(self.track, np.float64), quads, colors, np.array(rows), self.np_random))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset as the stock class does; ``options={"level": level}`` takes a track that ``save_level`` gave."""
        self._level = (options or {}).get("level")
        return super().reset(seed=seed, options=options)

    def _create_track(self) -> bool:
        if self._level is not None:
            self._rebuild_track(self._level)
        elif not super()._create_track():  # type: ignore[no-untyped-call]
            return False
        self._paint_track()
        return True

    def _rebuild_track(self, level: bytes) -> None:
        """Lay the tiles of a track that is known, where the stock class would search for its course first."""
        track, quads, colors, rows, self.np_random = decode(level)
        self.track = [tuple(point) for point in track.tolist()]
        # Rows of an array as colours: a tile that is touched changes its own, here and on the list.
        self.road_poly = [([tuple(corner) for corner in quad], color) for quad, color in zip(quads.tolist(), colors)]
        road = []
        for index, row in enumerate(rows.tolist()):
            quad, color = self.road_poly[row]
            self.fd_tile.shape.vertices = quad
            tile = self.world.CreateStaticBody(fixtures=self.fd_tile)
            tile.userData, tile.idx, tile.color = tile, index, color
            tile.road_visited, tile.road_friction = False, 1.0
            tile.fixtures[0].sensor = True
            road.append(tile)
        self.road: Any = road

    def _paint_track(self) -> None:
        rows = {id(color): index for index, (_, color) in enumerate(self.road_poly)}
        tiles: Any = self.road
        for tile in tiles:
            tile.row = rows[id(tile.color)]
            tile.touched = False
        quads = np.array([quad for quad, _ in self.road_poly], np.float64)
        colors = np.array([color for _, color in self.road_poly], np.float64)
        self._painter.ground.set_track(quads, colors, self.bg_color, self.grass_color)
        # In place of the stock listener, as ``reset`` has set it; the world itself does not keep it alive.
        listener = FrictionDetector(self, self.lap_complete_percent)  # type: ignore[no-untyped-call]
        self.world.contactListener = self.world.contactListener_bug_workaround = listener

    def recolored(self, tile: Any) -> None:
        """Recolour a tile that the car touches for the first time: it gets the plain colour of the road."""
        self._painter.ground.recolor(tile.row, self.road_color)

    def _render(self, mode: str) -> Any:
        if mode != "state_pixels":
            return super()._render(mode)
        self._shown_score = self.reward  # which the stock step changes after it has drawn
        if not self.draws:
            return None
        image = np.empty(self._shape, np.uint8)
        self.draw(image)
        return image
