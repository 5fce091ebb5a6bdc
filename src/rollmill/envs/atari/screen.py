"""Makes what an Atari agent sees: the brighter of two frames, in gray, shrunk; worked out only where it changed.

Between two steps most rows of an Atari screen stay as they are (two thirds in Pong). Conversion and
shrinking work on blocks of rows that map onto whole rows of the image (5 onto 2 for 210 onto 84), so the
result is to the bit what the whole screen would give, at less than half the cost.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rollmill.core.fields import Array

WORD = np.uint64
"""Screens are compared eight pixels at a time; their 160 columns are a multiple of it."""


class Palette:
    """Gray values of colour numbers. ALE has no table of them, so they are learnt as colours appear.

    Unknown colours are painted in a gray that no known colour has, which shows when one turns up.
    """

    def __init__(self, ale: Any, cv2: Any) -> None:
        self._ale = ale
        self._lookup = cv2.LUT
        self._table = np.zeros(256, np.uint8)
        self._known = np.zeros(256, bool)
        self._marker = 0
        self.learn()

    def learn(self) -> None:
        """Take in the colours of the screen as it is now."""
        colours, grays = self._ale.getScreen(), self._ale.getScreenGrayscale()
        self._table[colours] = grays
        self._known[colours] = True
        unused = np.setdiff1d(np.arange(256), self._table[self._known])
        # All 256 grays in use means that all 256 colours are known: then there is nothing to mark.
        self._marker = int(unused[0]) if unused.size else -1
        self._table[~self._known] = max(self._marker, 0)

    def paint(self, colours: Array, grays: Array) -> None:
        """Write the gray values of rows of colours into rows of the same shape."""
        self._lookup(colours, self._table, grays)

    def unknown_in(self, grays: bytearray, first: int, end: int) -> bool:
        """Return whether an unknown colour was painted between these bytes."""
        return self._marker >= 0 and grays.find(self._marker, first, end) >= 0


class Frame:
    """One gray frame, repainted where the screen has changed since it was last taken.

    What has to be searched lies in bytearrays: their ``find`` is many times faster than numpy's ``any``.
    """

    def __init__(self, ale: Any, palette: Palette, block: int) -> None:
        rows, columns = ale.getScreenDims()
        self._ale, self._palette = ale, palette
        self._block, self._block_bytes = block, block * columns
        self._buffer = bytearray(rows * columns)
        self.gray = np.frombuffer(self._buffer, np.uint8).reshape(rows, columns)
        ale.getScreenGrayscale(self.gray)
        self._before, self._now = ale.getScreen(), np.empty_like(self.gray)
        self._differs = bytearray(rows * columns // WORD().nbytes)
        self._differs_array = np.frombuffer(self._differs, bool)
        self._block_words = self._block_bytes // WORD().nbytes

    def take(self) -> tuple[int, int]:
        """Take over the emulator's screen; returns the range of blocks that changed."""
        colours, old = self._now, self._before
        self._ale.getScreen(colours)
        self._now, self._before = old, colours
        np.not_equal(colours.view(WORD).ravel(), old.view(WORD).ravel(), out=self._differs_array)
        word = self._differs.find(1)
        if word < 0:
            return 0, 0
        first, end = word // self._block_words, self._differs.rfind(1) // self._block_words + 1
        rows = slice(first * self._block, end * self._block)
        self._palette.paint(colours[rows], self.gray[rows])
        if self._palette.unknown_in(self._buffer, first * self._block_bytes, end * self._block_bytes):
            self._palette.learn()
            self._palette.paint(colours[rows], self.gray[rows])
        return first, end


class Screen:
    """The image uint8 ``[height, width]`` of the newest two frames of one emulator."""

    def __init__(self, ale: Any, cv2: Any, width: int, height: int) -> None:
        rows, columns = ale.getScreenDims()
        blocks = count_blocks((rows, columns), (height, width))
        self._resize, self._area = cv2.resize, cv2.INTER_AREA
        self._width = width
        self._block, self._small_block = rows // blocks, height // blocks
        palette = Palette(ale, cv2)
        self._earlier, self._last = Frame(ale, palette, self._block), Frame(ale, palette, self._block)
        self._pooled = np.empty((rows, columns), np.uint8)
        self._image = np.empty((height, width), np.uint8)
        self._first, self._end = 0, blocks  # what is out of date

    def take_earlier(self) -> None:
        """Take the screen as it is now for the frame before the last one."""
        self._widen(*self._earlier.take())

    def take_last(self) -> None:
        """Take the screen as it is now for the last frame."""
        self._widen(*self._last.take())

    def take_alone(self) -> None:
        """Take the screen as it is now for both frames: nothing is mixed into it."""
        self.take_earlier()
        self.take_last()

    def image(self) -> Array:
        """Return the brighter of both frames, pixel by pixel, shrunk; valid until the next call."""
        if self._first < self._end:
            rows = slice(self._first * self._block, self._end * self._block)
            pooled = np.maximum(self._earlier.gray[rows], self._last.gray[rows], out=self._pooled[rows])
            part = self._image[self._first * self._small_block : self._end * self._small_block]
            self._resize(pooled, (self._width, len(part)), part, 0, 0, self._area)
            self._first = self._end = 0
        return self._image

    def _widen(self, first: int, end: int) -> None:
        if first == end:
            return
        if self._first == self._end:
            self._first, self._end = first, end
        else:
            self._first, self._end = min(self._first, first), max(self._end, end)


def count_blocks(screen: tuple[int, int], image: tuple[int, int]) -> int:
    """Count the blocks of rows into which a screen (rows, columns) can be cut that shrink independently.

    OpenCV places the rows of the image at multiples of rows / height. Only where floating point holds
    that ratio exactly does a block get the same weights as it does within the whole; and only images that
    are smaller both ways are averaged, others are interpolated across the cut. Otherwise there is one block.
    """
    (rows, columns), (height, width) = screen, image
    blocks = math.gcd(rows, height)
    denominator = height // blocks
    exact = denominator & (denominator - 1) == 0
    return blocks if exact and height <= rows and width <= columns else 1
