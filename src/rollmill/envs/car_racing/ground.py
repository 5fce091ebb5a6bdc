"""The ground of CarRacing (field, grass, road, kerbs) as the camera sees it, without drawing it anew each step.

The ground near the camera is painted once into a square patch that stands still in the world; a step then only looks
up its pixels in the patch, turned and scaled (one affine warp). The patch is painted again when the camera leaves it,
every 30 steps or so, and when the zoom has grown in the first second of an episode.

Three coordinate systems: *world* in metres, *stock* pixels of the 1000 x 800 window that Gymnasium draws (y upwards,
before its flip), and *texels* of the patch. Stock pixels are not square in the observation: 1000 columns and 800 rows
become ``size`` each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollmill.core.fields import Array

WINDOW_W, WINDOW_H = 1000, 800
CAR_X, CAR_Y = WINDOW_W / 2, WINDOW_H / 4
"""Where the car stands in the window, in stock pixels."""
VIEW_CENTRE = complex(WINDOW_W / 2 - CAR_X, WINDOW_H / 2 - CAR_Y)
VIEW_RADIUS = math.hypot(WINDOW_W, WINDOW_H) / 2
"""The middle of the window as seen from the car, and the distance of its corners, in stock pixels."""
PLAYFIELD = 2000 / 6
"""Half the side of the green field, in metres; beyond it the image is black."""
GRASS = PLAYFIELD / 20
"""Side of a square of lighter grass; every second one along both axes has it."""
FULL_ZOOM = 2.7 * 6
"""Stock pixels per metre once the first second is over."""

TEXELS_PER_PIXEL = 1.4
"""Texels per pixel of the observation. The stock image is the average over each pixel; averaging into a texel and
interpolating between texels blurs as much at 1.7 of them. With 1.4 all is smaller, a step takes a tenth less, and the
image is a hundredth of a level farther from the stock one."""
FINENESS = 2
"""The patch is painted this much finer, and averaged, for smooth edges."""
PATCH = 3.2
"""Side of the patch in observation sizes. The view's diagonal takes 2 of them, the rest is room to move."""
ROOM_AHEAD = 0.8
"""The part of that room that lies ahead of the car when the patch is painted."""
ZOOM_AHEAD, ZOOM_BEHIND = 1.2, 0.86
"""While the zoom grows: a patch is painted for this many times the zoom, and used until it is this part of the zoom."""
FRACTION_BITS = 4
"""Binary places of the polygon corners handed to OpenCV."""
FRACTIONS = 1 << FRACTION_BITS
SHRINK_LOSS = 2
"""pygame's ``smoothscale`` rounds every colour down by two levels: what is painted 102 is seen as 100."""


def seen(color: Array) -> Array:
    """Return a colour ``[..., 3]`` as the observation shows it, int64."""
    return np.maximum(np.asarray(color).astype(np.int64) - SHRINK_LOSS, 0)


class Ground:
    """The ground of one track.

    ``paint_view`` writes what the camera sees. All images here have a fourth, unused channel: OpenCV warps those
    more than twice as fast as images with three.
    """

    def __init__(self, cv2: Any, size: int) -> None:
        self._cv2 = cv2
        self._warp_flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        self._size = size
        self._side = round(PATCH * size)
        fine = self._side * FINENESS
        self._fine = np.zeros((fine, fine, 4), np.uint8)
        self._patch = np.zeros((self._side, self._side, 4), np.uint8)
        self._quads = np.zeros((0, 4, 2))
        self._corners = np.zeros((0, 4, 2), np.int32)
        self._boxes = np.zeros((0, 2, 2), np.int64)
        self._colors: list[list[int]] = []
        self._changed: list[int] = []
        self._field = np.zeros((3, 3, 4), np.uint8)  # colours by the two kinds of a place, see ``_kinds``
        self._corner = (0, 0)  # of the patch, in texels from the world's origin
        self._centre = 0j
        self._scale = 0.0  # texels per metre
        self._zoom = 0.0  # that the patch was painted for; 0: none yet

    def set_track(self, quads: Array, colors: Array, field: Array, grass: Array) -> None:
        """Take over a new track.

        Args:
            quads: ``[n, 4, 2]`` metres, painted in this order.
            colors: ``[n, 3]``.
            field: Colour of the field.
            grass: Colour of the lighter squares.
        """
        self._quads = quads
        self._colors = seen(colors).tolist()
        self._changed = []
        self._field[1:, 1:, :3] = seen(field)
        self._field[2, 2, :3] = seen(grass)
        self._zoom = self._scale = 0.0

    def recolor(self, quad: int, color: Array) -> None:
        """Change the colour of one quad."""
        shown = seen(color).tolist()
        if shown != self._colors[quad]:
            self._colors[quad] = shown
            self._changed.append(quad)

    def paint_view(self, car: complex, angle: float, zoom: float, out: Array) -> None:
        """Write the view of a car heading ``angle`` (radians from the y axis) into ``out``.

        ``out`` is ``[rows, size, 4]`` and gets the topmost rows.
        """
        turn = complex(math.cos(angle), math.sin(angle)) / zoom
        centre = car + turn * VIEW_CENTRE
        if not self._covers(centre, zoom):
            self._paint_patch(centre, turn * 1j * zoom, zoom)
        elif self._changed:
            self._paint_changed()
        self._warp(car, turn, out)

    def _covers(self, centre: complex, zoom: float) -> bool:
        if not zoom * ZOOM_BEHIND <= self._zoom <= zoom * ZOOM_AHEAD:
            return False
        away = centre - self._centre
        reach = (max(abs(away.real), abs(away.imag)) + VIEW_RADIUS / zoom) * self._scale
        return reach <= self._side / 2 - 1  # a texel of room for the interpolation

    def _warp(self, car: complex, turn: complex, out: Array) -> None:
        """Look up each pixel's centre: pixel -> stock pixel seen from the car -> metres -> texel."""
        turn *= self._scale
        column, row = turn * (WINDOW_W / self._size), turn * (-1j * WINDOW_H / self._size)
        first = turn * complex(-CAR_X, WINDOW_H - CAR_Y) + car * self._scale + (column + row) / 2
        # OpenCV counts from the centre of the first texel.
        x, y = first.real - self._corner[0] - 0.5, first.imag - self._corner[1] - 0.5
        matrix = np.array([[column.real, row.real, x], [column.imag, row.imag, y]])
        rows, columns = out.shape[:2]
        self._cv2.warpAffine(self._patch, matrix, (columns, rows), out, self._warp_flags)

    # -- painting the patch ----------------------------------------------------------------------

    def _paint_patch(self, centre: complex, heading: complex, zoom: float) -> None:
        """Paint a patch that covers the view around ``centre`` and has most of its room where the car is heading."""
        self._zoom = min(zoom * ZOOM_AHEAD, FULL_ZOOM)
        pixels_per_metre = self._zoom * self._size / math.sqrt(WINDOW_W * WINDOW_H)
        self._set_scale(pixels_per_metre * TEXELS_PER_PIXEL)
        half = self._side / self._scale / 2
        room = half - VIEW_RADIUS / zoom - 1 / self._scale
        corner = (centre + heading * room * ROOM_AHEAD - complex(half, half)) * self._scale
        # On a grid of whole texels: where the patch happens to be does not show in the image.
        self._corner = round(corner.real), round(corner.imag)
        self._centre = complex(*self._corner) / self._scale + complex(half, half)
        self._paint_field()
        low, high = self._boxes[:, 0] - self._corner, self._boxes[:, 1] - self._corner
        near = (low < self._side).all(axis=1) & (high > 0).all(axis=1)
        which = np.flatnonzero(near)
        self._paint_quads(which.tolist(), self._corners[which])
        self._changed = []
        self._cv2.resize(self._fine, (self._side, self._side), self._patch, 0, 0, self._cv2.INTER_AREA)

    def _paint_field(self) -> None:
        """Paint the field: every row of texels is one of three, outside of it, plain, or with squares of grass."""
        across, along = (self._kinds(texel) for texel in self._corner)
        rows = np.take(self._field, across, axis=1)
        np.take(rows, along, axis=0, out=self._fine, mode="clip")  # straight into ``out``; "raise" would buffer

    def _kinds(self, first: int) -> Array:
        """Return the kinds of places along one axis: 0 outside of the field, 1 between squares of grass, 2 in one."""
        metres = (first + (np.arange(len(self._fine)) + 0.5) / FINENESS) / self._scale
        kinds: Array = 2 - np.floor(metres / GRASS).astype(np.int64) % 2
        kinds[np.abs(metres) > PLAYFIELD] = 0
        return kinds

    def _set_scale(self, scale: float) -> None:
        """Work out where the quads are at this scale, from the world's origin: corners in fractions of fine texels, and
        the lower and upper ends of their boxes in whole texels."""
        if scale == self._scale:
            return
        self._scale = scale
        texels = self._quads * scale
        self._corners = np.rint((texels * FINENESS - 0.5) * FRACTIONS).astype(np.int32)
        # A texel more on each side: edges are painted up to half a texel too wide.
        boxes = np.stack([texels.min(axis=1) - 1, texels.max(axis=1) + 2], axis=1)
        self._boxes = np.floor(boxes).astype(np.int64)

    def _paint_quads(self, which: Sequence[int], corners: Array) -> None:
        fill, canvas, line = self._cv2.fillConvexPoly, self._fine, self._cv2.LINE_8
        corners = corners - np.array(self._corner, np.int32) * (FINENESS * FRACTIONS)
        for index, quad in zip(which, corners):
            fill(canvas, quad, self._colors[index], line, FRACTION_BITS)

    def _paint_changed(self) -> None:
        """Paint the tiles that changed colour, and what comes after each and may lie over it: kerb and next tile."""
        x, y = self._corner
        for index in sorted(self._changed):
            after = range(index, min(index + 3, len(self._quads)))
            self._paint_quads(after, self._corners[index : after.stop])
            (left, bottom), (right, top) = self._boxes[index].tolist()
            x0, x1 = max(left - x, 0), min(right - x, self._side)
            y0, y1 = max(bottom - y, 0), min(top - y, self._side)
            if x0 < x1 and y0 < y1:
                fine = self._fine[y0 * FINENESS : y1 * FINENESS, x0 * FINENESS : x1 * FINENESS]
                self._patch[y0:y1, x0:x1] = self._cv2.resize(fine, (x1 - x0, y1 - y0), None, 0, 0, self._cv2.INTER_AREA)
        self._changed = []
