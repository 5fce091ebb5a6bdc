"""CarRacing's observation, drawn straight at the asked size: ground, car, and the bar with the indicators.

The stock environment draws a window of 1000 x 800 with pygame and shrinks it by averaging. Here every part is made as
the average over a pixel from the start, with OpenCV and numpy; pygame only renders the digits of the score, once each
text. Constants of shape and colour are those of Gymnasium's CarRacing-v3.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

from rollmill.core.fields import Array
from rollmill.envs.car_racing_ground import CAR_X, CAR_Y, FRACTION_BITS, SHRINK_LOSS, WINDOW_H, WINDOW_W, Ground, seen

CAR_FINENESS = 6
"""The pixels around the car are drawn this much finer, and averaged: a bit more than a stock pixel each."""
CAR_REACH = (1.7, 2.8)
"""Nothing of the car is farther from its centre, sideways and along, in metres."""
HULL_COLOR, TYRE_COLOR, RIM_COLOR = (202, 0, 0), (0, 0, 0), (75, 75, 75)
"""As seen, see ``SHRINK_LOSS``."""
RIM_ARC = 1.2
"""Radians of the wheel's turn that its bright part spans."""

BAR_H = WINDOW_H // 8
"""Height of the black bar at the bottom, in stock pixels."""
CELL_W, CELL_H = WINDOW_W // 40, WINDOW_H // 40
"""The grid the indicators are placed on, in stock pixels."""
SCORE_W = WINDOW_W // 8
SCORE_CENTRE = (60, BAR_H - 50)
SCORE_FONT = 42
UPRIGHT = ((5, 0.02, (255, 255, 255)), *((7 + i, 0.01, (0 if i < 2 else 51, 0, 255)) for i in range(4)))
"""Indicators that grow upwards, as (column of the grid, cells per unit, colour): speed, and the turn of each wheel."""
LEVEL = ((20, -10.0, 1), (30, -0.8, 0))
"""Indicators that grow sideways, as (column of the grid, cells per unit, channel): steering angle, turn of the car."""
TOO_SMALL = 1e-4
"""Indicators of less than this are not drawn."""


class Painter:
    """Draws what one environment shows, uint8 RGB ``[size, size, 3]``; ``size`` is a multiple of 8."""

    def __init__(self, cv2: Any, size: int, shapes: CarShapes) -> None:
        self._cv2 = cv2
        self.ground = Ground(cv2, size)
        self._car = CarDrawing(cv2, size, shapes)
        self._bar = Bar(size)
        self._above = size - size // 8
        self._scene = np.zeros((self._above, size, 4), np.uint8)  # four channels: see Ground

    def draw(self, car: Any, zoom: float, score: float, out: Array) -> None:
        """Draw a Gymnasium ``Car`` on the ground set by ``ground.set_track``."""
        hull = car.hull
        position, angle = hull.position, hull.angle
        place = complex(position.x, position.y)
        self.ground.paint_view(place, angle, zoom, self._scene)
        self._car.draw(car.wheels, place, angle, zoom, self._scene)
        self._cv2.cvtColor(self._scene, self._cv2.COLOR_RGBA2RGB, out[: self._above])
        self._bar.draw(car, score, out[self._above :])


class CarShapes:
    """The polygons of the car in metres, as complex numbers seen from the centre of hull or wheel."""

    def __init__(self, dynamics: Any) -> None:
        """``dynamics`` is the module ``gymnasium.envs.box2d.car_dynamics``."""
        hull = (dynamics.HULL_POLY1, dynamics.HULL_POLY2, dynamics.HULL_POLY3, dynamics.HULL_POLY4)
        self.hull = [np.array([complex(*corner) for corner in polygon]) * dynamics.SIZE for polygon in hull]
        self.wheel_half_width = dynamics.WHEEL_W * dynamics.SIZE
        self.wheel_radius = dynamics.WHEEL_R * dynamics.SIZE


class CarDrawing:
    """The car. It stands upright at the same place of every picture; only its wheels move."""

    def __init__(self, cv2: Any, size: int, shapes: CarShapes) -> None:
        self._cv2 = cv2
        self._size = size
        self._shapes = shapes
        self._zoom = 0.0
        self._scale = self._offset = np.zeros(2)
        self._box = (slice(0, 0), slice(0, 0))
        self._coarse_size = self._fine_size = (0, 0)
        self._fine = self._hull = self._hull_mask = np.zeros((0, 0, 4), np.uint8)

    def draw(self, wheels: Any, car: complex, angle: float, zoom: float, out: Array) -> None:
        """Draw into the pixels of ``out``, ``[rows, columns, 4]``, around the car."""
        if zoom != self._zoom:
            self._place(zoom)
        cv2, pixels, fine = self._cv2, out[self._box], self._fine
        cv2.resize(pixels, self._fine_size, fine, 0, 0, cv2.INTER_NEAREST)
        tyres, rims = self._wheel_polygons(wheels, car, angle)
        cv2.fillPoly(fine, tyres, TYRE_COLOR, cv2.LINE_8, FRACTION_BITS)
        if len(rims):
            cv2.fillPoly(fine, rims, RIM_COLOR, cv2.LINE_8, FRACTION_BITS)
        cv2.copyTo(self._hull, self._hull_mask, fine)
        pixels[:] = cv2.resize(fine, self._coarse_size, None, 0, 0, cv2.INTER_AREA)

    def _place(self, zoom: float) -> None:
        """Where the car and its surroundings are in the picture, at this zoom."""
        self._zoom = zoom
        pixels = np.array([self._size / WINDOW_W, self._size / WINDOW_H])
        centre = np.array([CAR_X, WINDOW_H - CAR_Y]) * pixels
        reach = np.array(CAR_REACH) * zoom * pixels
        low, high = np.floor(centre - reach).astype(int), np.ceil(centre + reach).astype(int)
        (left, top), (right, bottom) = low.tolist(), high.tolist()
        self._box = (slice(top, bottom), slice(left, right))
        self._coarse_size = (right - left, bottom - top)
        self._fine_size = width, height = (right - left) * CAR_FINENESS, (bottom - top) * CAR_FINENESS
        unit = CAR_FINENESS * (1 << FRACTION_BITS)
        self._scale = np.array([1, -1]) * zoom * pixels * unit
        self._offset = (centre - low) * unit - 0.5 * (1 << FRACTION_BITS)
        self._fine = np.zeros((height, width, 4), np.uint8)
        self._hull = np.zeros((height, width, 4), np.uint8)
        self._hull[..., :3] = HULL_COLOR
        self._hull_mask = np.zeros((height, width), np.uint8)
        for polygon in self._shapes.hull:
            self._cv2.fillConvexPoly(self._hull_mask, self._corners(polygon), 255, self._cv2.LINE_8, FRACTION_BITS)

    def _corners(self, points: Array) -> Array:
        """Complex metres seen from the car ``[n]`` as corners in fine pixels, int32 ``[n, 2]``."""
        flat = points.view(np.float64).reshape(-1, 2)
        return (flat * self._scale + self._offset).astype(np.int32)

    def _wheel_polygons(self, wheels: Any, car: complex, angle: float) -> tuple[Array, Array]:
        """Tyres, and bright parts that are seen: ``[n, 4, 2]`` each."""
        upright = complex(math.cos(angle), -math.sin(angle))
        width, radius = self._shapes.wheel_half_width, self._shapes.wheel_radius
        tyres: list[complex] = []
        rims: list[complex] = []
        for wheel in wheels:
            place = wheel.position
            centre = (complex(place.x, place.y) - car) * upright
            turn = wheel.angle - angle
            across = complex(math.cos(turn), math.sin(turn))
            along = across * 1j * radius
            across *= width
            left, right = centre - across, centre + across
            tyres += (left + along, right + along, right - along, left - along)
            span = _rim_span(float(wheel.phase))
            if span:
                begin, end = along * span[0], along * span[1]
                rims += (left + begin, right + begin, right + end, left + end)
        corners = self._corners(np.array(tyres + rims)).reshape(-1, 4, 2)
        return corners[: len(wheels)], corners[len(wheels) :]


def _rim_span(phase: float) -> tuple[float, float] | None:
    """From where to where (-1 to 1 along the wheel) its bright part is seen from above; None when it is below."""
    sine, cosine = math.sin(phase), math.cos(phase)
    far_sine, far_cosine = math.sin(phase + RIM_ARC), math.cos(phase + RIM_ARC)
    if sine > 0 and far_sine > 0:
        return None
    begin = math.copysign(1.0, cosine) if sine > 0 else cosine
    end = math.copysign(1.0, far_cosine) if far_sine > 0 else far_cosine
    return begin, end


class Bar:
    """The black bar with score and indicators.

    Indicators are rectangles, so what part of each pixel one covers is a product of rows and columns; all together
    are one small matrix product.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        covered = _covered(WINDOW_W, size)
        self._heights = _upright_heights(size // 8)
        count = len(UPRIGHT)
        self._down = np.zeros((count + len(LEVEL), size // 8), np.float32)
        self._across = np.zeros((count + len(LEVEL), size, 3), np.float32)
        for index, (place, _, color) in enumerate(UPRIGHT):
            columns = covered[(place + 1) * CELL_W] - covered[place * CELL_W]
            self._across[index] = columns[:, None] * seen(np.array(color))
        self._levels = [_level_columns(place * CELL_W, size) for place, _, _ in LEVEL]
        rows = _covered(BAR_H, size // 8)
        self._down[count:] = rows[BAR_H - 2 * CELL_H + 1] - rows[BAR_H - 4 * CELL_H]
        self._flat = self._across.reshape(len(self._across), -1)
        self._product = np.zeros((size // 8, size * 3), np.float32)

    def draw(self, car: Any, score: float, out: Array) -> None:
        """Draw the bar into ``out``, ``[size / 8, size, 3]``."""
        hull, wheels = car.hull, car.wheels
        velocity = hull.linearVelocity
        speed = math.hypot(velocity.x, velocity.y)
        values = (speed, *[float(wheel.omega) for wheel in wheels])
        tips = [_upright_row(value * cells) for value, (_, cells, _) in zip(values, UPRIGHT)]
        self._down[: len(UPRIGHT)] = self._heights[tips]
        for index, value in enumerate((wheels[0].joint.angle, hull.angularVelocity)):
            self._set_level(index, value)
        product = np.matmul(self._down.T, self._flat, out=self._product)
        out[:] = product.reshape(out.shape)
        digits = score_picture(f"{score:04.0f}", self._size)
        out[:, : digits.shape[1]] = digits

    def _set_level(self, index: int, value: float) -> None:
        place, cells, channel = LEVEL[index]
        tip = WINDOW_W  # the entry for what is not drawn
        if abs(value) > TOO_SMALL:
            tip = min(max(int(CELL_W * (place + cells * value)), 0), WINDOW_W - 1)
        self._across[len(UPRIGHT) + index, :, channel] = self._levels[index][tip]


@cache
def _level_columns(base: int, size: int) -> Array:
    """Colour of each of ``size`` pixels that an indicator covers from ``base`` to the stock pixel its tip is in.

    float32 ``[1000 + 1, size]``; the last entry is for indicators that are not drawn.
    """
    covered = _covered(WINDOW_W, size) * (255 - SHRINK_LOSS)
    drawn = [covered[max(base, tip) + 1] - covered[min(base, tip)] for tip in range(WINDOW_W)]
    return np.array([*drawn, np.zeros(size)], np.float32)


def _upright_row(cells: float) -> int:
    """The row of ``_upright_heights`` for an indicator so many cells of the grid high."""
    if abs(cells) < TOO_SMALL / 100:  # a hundredth of a cell per unit, or two
        return BAR_H
    return min(max(int(BAR_H - CELL_H - CELL_H * cells), 0), BAR_H - 1)


def _upright_heights(rows: int) -> Array:
    """What part of each of ``rows`` pixels an upright indicator covers, by the stock pixel its tip is in.

    The last entry is for indicators that are not drawn.
    """
    covered = _covered(BAR_H, rows)
    base = BAR_H - CELL_H
    drawn = [covered[max(base, tip) + 1] - covered[min(base, tip)] for tip in range(BAR_H)]
    return np.array([*drawn, np.zeros(rows)], np.float32)


def _covered(stock: int, size: int) -> Array:
    """What part of each of ``size`` pixels the first n of ``stock`` pixels cover: float32 ``[stock + 1, size]``."""
    edge = np.arange(stock + 1)[:, None] * (size / stock)
    covered: Array = np.clip(edge - np.arange(size), 0, 1).astype(np.float32)
    return covered


@lru_cache(maxsize=4096)
def score_picture(text: str, size: int) -> Array:
    """The score as it stands at the left of the bar: uint8 ``[size / 8, size / 8, 1]``."""
    import pygame

    window = pygame.Surface((SCORE_W, BAR_H))
    digits = _score_font().render(text, True, (255, 255, 255), (0, 0, 0))
    place = digits.get_rect()
    place.center = SCORE_CENTRE
    window.blit(digits, place)
    gray = pygame.surfarray.array_red(window).astype(np.float32)  # [x, y]
    columns, rows = _shrinking(SCORE_W, size // 8), _shrinking(BAR_H, size // 8)
    return seen(rows.T @ gray.T @ columns).astype(np.uint8)[..., None]


def _score_font() -> Any:
    """A new one for each text: texts are kept, and a kept font is dead once any other program part quits pygame."""
    import pygame

    pygame.font.init()
    return pygame.font.Font(pygame.font.get_default_font(), SCORE_FONT)


@cache
def _shrinking(stock: int, size: int) -> Array:
    """Share of each of ``stock`` pixels in each of ``size`` averages: float32 ``[stock, size]``."""
    return np.diff(_covered(stock, size), axis=0)
