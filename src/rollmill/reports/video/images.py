"""Makes images larger and smaller and lays them side by side: RGB uint8 ``[height, width, 3]``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollmill.core.fields import Array
from rollmill.store.images import to_rgb

Colour = tuple[int, int, int]

MIN_WIDTH, MIN_HEIGHT = 320, 240
"""Pixels that an enlarged image has at least."""
MAX_SCALE = 64
GAP = 4
"""Pixels between two images."""
BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)


def enlarge(image: Array, scale: int = 0, fit: bool = False) -> Array:
    """Draw each pixel as a square of ``scale``; 0: until the image has ``MIN_WIDTH`` x ``MIN_HEIGHT``.

    With ``fit``, images that are still too narrow for a panel get dark margins.
    """
    height, width = image.shape[:2]
    factor = scale or min(MAX_SCALE, max(1, -(-MIN_HEIGHT // height), -(-MIN_WIDTH // width)))
    large = image.repeat(factor, axis=0).repeat(factor, axis=1)
    missing = MIN_WIDTH - large.shape[1] if fit else 0
    if missing > 0:
        large = np.pad(large, ((0, 0), (missing // 2, missing - missing // 2), (0, 0)))
    return large


def shrink(image: Array, side: int) -> Array:
    """Shrink an image until both sides are at most ``side``: means of squares of pixels."""
    factor = -(-max(image.shape[:2]) // side)
    if factor == 1:
        return image
    height, width = (max(1, n // factor) for n in image.shape[:2])
    cut = image[: height * factor, : width * factor]
    if cut.shape[0] < factor or cut.shape[1] < factor:  # a line: nothing to average over
        return image[::factor, ::factor]
    squares = cut.reshape(height, factor, width, factor, 3)
    return np.asarray(squares.mean(axis=(1, 3)).round().astype(np.uint8))


def framed(image: Array, colour: Colour, width: int = GAP) -> Array:
    """Return the image with a frame around it."""
    height, across = image.shape[:2]
    whole = _filled(height + 2 * width, across + 2 * width, colour)
    whole[width : width + height, width : width + across] = image
    return whole


def tiled(images: Sequence[Array], columns: int, gap: int = GAP, ground: Colour = BLACK) -> Array:
    """Lay images of any sizes side by side, each in the middle of a cell as large as the largest one."""
    height, width = (max(p.shape[axis] for p in images) for axis in (0, 1))
    rows = -(-len(images) // columns)
    whole = _filled(rows * (height + gap) - gap, columns * (width + gap) - gap, ground)
    for k, one in enumerate(images):
        top = (k // columns) * (height + gap) + (height - one.shape[0]) // 2
        left = (k % columns) * (width + gap) + (width - one.shape[1]) // 2
        whole[top : top + one.shape[0], left : left + one.shape[1]] = one
    return whole


def contact_sheet(rows: Sequence[Array], scale: int = 2) -> Array:
    """Lay out rows of images ``[n, height, width, channels]``, all of one size, on white; each pixel a square."""
    images = [image for row in rows for image in to_rgb(row)]
    return enlarge(framed(tiled(images, len(rows[0]), GAP // 2, WHITE), WHITE, GAP // 2), scale)


def _filled(height: int, width: int, colour: Colour) -> Array:
    whole = np.empty((height, width, 3), np.uint8)
    whole[:] = colour
    return whole
