"""Draws CarRacing's observation straight at the asked size: ground, car, and the bar with the indicators.

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
from rollmill.envs.car_racing.ground import (
    CAR_X,
    CAR_Y,
    FRACTION_BITS,
    FRACTIONS,
    FULL_ZOOM,
    SHRINK_LOSS,
    WINDOW_H,
    WINDOW_W,
    Ground,
    seen,
)

CAR_FINENESS = 6
"""The pixels around the car are drawn this much finer, and averaged: a bit more than a stock pixel each."""
CAR_REACH = (1.7, 2.8)
"""Nothing of the car is farther from its centre, sideways and along, in metres."""
HULL_COLOR, TYRE_COLOR, RIM_COLOR = (202, 0, 0), (0, 0, 0), (75, 75, 75)
"""As seen, see ``SHRINK_LOSS``."""
ANGLES, PHASES = 25, 48
"""Steps per radian that a wheel's steering angle is rounded to, and steps per turn for its phase. At 96 x 96 no edge
moves by a tenth of a pixel."""
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
        self._cv2.cvtColor(self._scene, self._cv2.COLOR_RGBA2RGB, out[: self._above])
        self._car.draw(car.wheels, zoom, out)
        self._bar.draw(car, score, out[self._above :])


class CarShapes:
    """The polygons of the car in metres, as complex numbers seen from the centre of hull or wheel."""

    def __init__(self, dynamics: Any) -> None:
        """Read the car's shapes from ``dynamics``, the module ``gymnasium.envs.box2d.car_dynamics``."""
        hull = (dynamics.HULL_POLY1, dynamics.HULL_POLY2, dynamics.HULL_POLY3, dynamics.HULL_POLY4)
        self.hull = [[complex(*corner) * dynamics.SIZE for corner in polygon] for polygon in hull]
        self.wheel_half_width = dynamics.WHEEL_W * dynamics.SIZE
        self.wheel_radius = dynamics.WHEEL_R * dynamics.SIZE
        self.wheels = [complex(*place) * dynamics.SIZE for place in dynamics.WHEELPOS]


class CarDrawing:
    """The car. It stands upright at the same place of every image; only its wheels move."""

    def __init__(self, cv2: Any, size: int, shapes: CarShapes) -> None:
        self._cv2 = cv2
        self._size = size
        self._shapes = shapes
        self._set_zoom(FULL_ZOOM)

    def _set_zoom(self, zoom: float) -> None:
        self._zoom = zoom
        self._looks = car_looks(self._cv2, self._size, self._shapes, zoom)
        self._look = np.zeros((2, *self._looks.shape), np.float32)  # of the whole car
        self._quarters = [self._look[:, rows, columns] for rows, columns in self._looks.quarters]
        self._shown: list[tuple[int, int] | None] = [None] * len(self._quarters)
        self._mixed = np.zeros(self._looks.shape, np.float32)

    def draw(self, wheels: Any, zoom: float, out: Array) -> None:
        """Draw into the pixels of ``out``, ``[rows, columns, 3]``, around the car."""
        if zoom != self._zoom:
            self._set_zoom(zoom)
        for index, wheel in enumerate(wheels):
            angle = round(wheel.joint.angle * ANGLES)
            phase = int(wheel.phase * (PHASES / math.tau) % PHASES)
            if (angle, phase) != self._shown[index]:
                self._shown[index] = angle, phase
                self._quarters[index][:] = quarter_look(self._looks, index, angle, phase)
        pixels = out[self._looks.box]
        color, share = self._look
        mixed = np.multiply(pixels, share, out=self._mixed)
        mixed += color
        pixels[:] = mixed


class CarLooks:
    """What the quarters of the car look like at one zoom.

    The lines through the middle of the car run between pixels, and each quarter holds one wheel. What it shows depends
    on the angle and the phase of this wheel alone; with both rounded there are so few looks that they are kept.

    A look is float32 ``[2, rows, columns, 3]``: the colour that the car adds to each pixel, and the share of the ground
    that is still seen there.
    """

    def __init__(self, cv2: Any, size: int, shapes: CarShapes, zoom: float) -> None:
        self._cv2 = cv2
        self._shapes = shapes
        pixels = np.array([size / WINDOW_W, size / WINDOW_H])
        x, y = round(CAR_X * size / WINDOW_W), round((WINDOW_H - CAR_Y) * size / WINDOW_H)
        right, down = np.ceil(np.array(CAR_REACH) * zoom * pixels).astype(int).tolist()
        self.box = (slice(y - down, y + down), slice(x - right, x + right))
        """Of the car in the image."""
        self.shape = (2 * down, 2 * right, 3)
        halves, sides = (slice(0, down), slice(down, None)), (slice(0, right), slice(right, None))
        self.quarters = [(rows, columns) for rows in halves for columns in sides]
        """Of the box, in the order of the wheels."""
        unit = CAR_FINENESS * FRACTIONS
        self._scale = np.array([1, -1]) * zoom * pixels * unit
        self._offset = np.array([right, down]) * unit - 0.5 * FRACTIONS
        self._hull = [self._corners(polygon) for polygon in shapes.hull]

    def draw(self, wheel: int, angle: float, phase: float) -> Array:
        """Return the look of the quarter with this wheel."""
        across = complex(math.cos(angle), math.sin(angle))
        along = across * 1j * self._shapes.wheel_radius
        across *= self._shapes.wheel_half_width
        left, right = self._shapes.wheels[wheel] - across, self._shapes.wheels[wheel] + across
        height, width, _ = self.shape
        canvas = np.zeros((height * CAR_FINENESS, width * CAR_FINENESS, 4), np.float32)
        self._fill(canvas, self._corners([left + along, right + along, right - along, left - along]), TYRE_COLOR)
        span = _rim_span(phase)
        if span:
            begin, end = along * span[0], along * span[1]
            self._fill(canvas, self._corners([left + begin, right + begin, right + end, left + end]), RIM_COLOR)
        for corners in self._hull:
            self._fill(canvas, corners, HULL_COLOR)
        mean = self._cv2.resize(canvas, (width, height), None, 0, 0, self._cv2.INTER_AREA)[self.quarters[wheel]]
        # Half a level more, because pixels are cut off to whole levels.
        return np.stack([mean[..., :3] + 0.5, np.repeat(1 - mean[..., 3:], 3, axis=2)])

    def _corners(self, polygon: list[complex]) -> Array:
        """Convert metres seen from the car ``[n]`` to corners in fractions of fine pixels, int32 ``[n, 2]``."""
        flat = np.array(polygon).view(np.float64).reshape(-1, 2)
        corners: Array = (flat * self._scale + self._offset).astype(np.int32)
        return corners

    def _fill(self, canvas: Array, corners: Array, color: tuple[int, int, int]) -> None:
        """Fill a polygon of a canvas whose fourth channel says what the car covers."""
        self._cv2.fillConvexPoly(canvas, corners, (*color, 1), self._cv2.LINE_8, FRACTION_BITS)


@lru_cache(maxsize=256)
def car_looks(cv2: Any, size: int, shapes: CarShapes, zoom: float) -> CarLooks:
    """Return looks that the environments of a process share; every episode has the same 50 zooms."""
    return CarLooks(cv2, size, shapes, zoom)


@lru_cache(maxsize=4096)
def quarter_look(looks: CarLooks, wheel: int, angle: int, phase: int) -> Array:
    """Return one look, by rounded angle and phase. There are 2,300 at the full zoom, of 0.7 kB each at 96 x 96."""
    return looks.draw(wheel, angle / ANGLES, (phase + 0.5) * (math.tau / PHASES))


def _rim_span(phase: float) -> tuple[float, float] | None:
    """Return from where to where (-1 to 1 along the wheel) its bright part is seen from above; None if it is below."""
    sine, cosine = math.sin(phase), math.cos(phase)
    far_sine, far_cosine = math.sin(phase + RIM_ARC), math.cos(phase + RIM_ARC)
    if sine > 0 and far_sine > 0:
        return None
    begin = math.copysign(1.0, cosine) if sine > 0 else cosine
    end = math.copysign(1.0, far_cosine) if far_sine > 0 else far_cosine
    return begin, end


class Bar:
    """The black bar with score and indicators.

    Indicators are rectangles, so what part of each pixel one covers is a product of rows and columns. The bar is kept
    from step to step, and only indicators whose tip has come to another stock pixel are drawn again.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._image = np.zeros((size // 8, size, 3), np.uint8)
        self._text = ""
        self._tips = [-1] * len(UPRIGHT)
        self._level_tips = [-1] * len(LEVEL)
        self._heights = _upright_heights(size // 8)
        self._levels = [_level_columns(place * CELL_W, size) for place, _, _ in LEVEL]

        covered = _covered(WINDOW_W, size)
        columns = [covered[(place + 1) * CELL_W] - covered[place * CELL_W] for place, _, _ in UPRIGHT]
        colors = [seen(np.array(color)) for _, _, color in UPRIGHT]
        across = np.array([one[:, None] * color for one, color in zip(columns, colors)], np.float32)
        used = np.flatnonzero(across.any(axis=(0, 2)))
        first, self._end = int(used[0]), int(used[-1]) + 1
        self._across = across[:, first : self._end].reshape(len(UPRIGHT), -1)
        self._upright = self._image[:, first : self._end]

        rows = _covered(BAR_H, size // 8)
        self._down = (rows[BAR_H - 2 * CELL_H + 1] - rows[BAR_H - 4 * CELL_H])[:, None]

    def draw(self, car: Any, score: float, out: Array) -> None:
        """Draw the bar into ``out``, ``[size / 8, size, 3]``."""
        hull, wheels = car.hull, car.wheels
        velocity = hull.linearVelocity
        speed = math.hypot(velocity.x, velocity.y)
        self._draw_upright((speed, *[wheel.omega for wheel in wheels]))
        self._draw_level(0, wheels[0].joint.angle)
        self._draw_level(1, hull.angularVelocity)
        text = f"{score:04.0f}"
        if text != self._text:
            self._text = text
            self._image[:, : self._size // 8] = score_image(text, self._size)
        out[:] = self._image

    def _draw_upright(self, values: tuple[float, ...]) -> None:
        tips = [_upright_row(value * cells) for value, (_, cells, _) in zip(values, UPRIGHT)]
        if tips != self._tips:
            self._tips = tips
            self._upright[:] = (self._heights[:, tips] @ self._across).reshape(self._upright.shape)

    def _draw_level(self, index: int, value: float) -> None:
        place, cells, channel = LEVEL[index]
        tip = WINDOW_W  # the entry for what is not drawn
        if abs(value) > TOO_SMALL:
            tip = min(max(int(CELL_W * (place + cells * value)), 0), WINDOW_W - 1)
        if tip != self._level_tips[index]:
            self._level_tips[index] = tip
            self._image[:, self._end :, channel] = self._down * self._levels[index][tip, self._end :]


@cache
def _level_columns(base: int, size: int) -> Array:
    """Return the colour of each of ``size`` pixels that an indicator covers from ``base`` to its tip's pixel.

    float32 ``[1000 + 1, size]``; the last entry is for indicators that are not drawn.
    """
    covered = _covered(WINDOW_W, size) * (255 - SHRINK_LOSS)
    drawn = [covered[max(base, tip) + 1] - covered[min(base, tip)] for tip in range(WINDOW_W)]
    return np.array([*drawn, np.zeros(size)], np.float32)


def _upright_row(cells: float) -> int:
    """Return the column of ``_upright_heights`` for an indicator so many cells of the grid high."""
    if abs(cells) < TOO_SMALL / 100:  # a hundredth of a cell per unit, or two
        return BAR_H
    return min(max(int(BAR_H - CELL_H - CELL_H * cells), 0), BAR_H - 1)


def _upright_heights(rows: int) -> Array:
    """Return what part of each of ``rows`` pixels an upright indicator covers, by the stock pixel of its tip.

    float32 ``[rows, 100 + 1]``; the last entry is for indicators that are not drawn.
    """
    covered = _covered(BAR_H, rows)
    base = BAR_H - CELL_H
    drawn = [covered[max(base, tip) + 1] - covered[min(base, tip)] for tip in range(BAR_H)]
    return np.array([*drawn, np.zeros(rows)], np.float32).T


def _covered(stock: int, size: int) -> Array:
    """Return what part of each of ``size`` pixels the first n of ``stock`` cover: float32 ``[stock + 1, size]``."""
    edge = np.arange(stock + 1)[:, None] * (size / stock)
    covered: Array = np.clip(edge - np.arange(size), 0, 1).astype(np.float32)
    return covered


@lru_cache(maxsize=4096)
def score_image(text: str, size: int) -> Array:
    """Draw the score as it stands at the left of the bar: uint8 ``[size / 8, size / 8, 1]``."""
    import pygame

    window = pygame.Surface((SCORE_W, BAR_H))
    digits = _digits(text)
    place = digits.get_rect()
    place.center = SCORE_CENTRE
    window.blit(digits, place)
    gray = pygame.surfarray.pixels_red(window).astype(np.float32)  # [x, y]
    columns, rows = _shrinking(SCORE_W, size // 8), _shrinking(BAR_H, size // 8)
    return seen(rows.T @ gray.T @ columns).astype(np.uint8)[..., None]


def _digits(text: str) -> Any:
    import pygame

    try:
        return _score_font().render(text, True, (255, 255, 255), (0, 0, 0))
    except pygame.error:  # another part of the program has quit pygame, and the font died of it
        _score_font.cache_clear()
        return _score_font().render(text, True, (255, 255, 255), (0, 0, 0))


@cache
def _score_font() -> Any:
    """Return the font, which is kept because a new one takes a millisecond for its first text."""
    import pygame

    pygame.font.init()
    return pygame.font.Font(pygame.font.get_default_font(), SCORE_FONT)


@cache
def _shrinking(stock: int, size: int) -> Array:
    """Return the share of each of ``stock`` pixels in each of ``size`` averages: float32 ``[stock, size]``."""
    return np.diff(_covered(stock, size), axis=0)
