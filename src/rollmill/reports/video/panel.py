"""Text in images, with nothing but numpy: letters of 5 x 7 pixels, a line below an image, and the panel below a
video: step, action, reward and return of one stored episode, redrawn for every image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from rollmill.core.fields import ActionSpec, Array
from rollmill.reports.video.images import Colour
from rollmill.store.reader import Store

BACK: Colour = (16, 20, 26)
INK: Colour = (232, 236, 242)
MUTED: Colour = (132, 144, 160)
DIM: Colour = (52, 60, 72)
ACCENT: Colour = (110, 168, 254)
GOOD: Colour = (94, 203, 148)
BAD: Colour = (255, 138, 128)

WIDTH, HEIGHT = 5, 7
"""Of a letter. All letters are capital ones."""
ADVANCE = WIDTH + 1
CURVE = 36
"""Pixels that the curve of the return is high."""
MAX_BOXES = 64
MAX_BARS = 16


def captioned(image: Array, left: str, right: str, ink: Colour = INK) -> Array:
    """Return the image with a line below it, as large as it fits; ``ink``: colour of the text on the left."""
    width = image.shape[1]
    scale = max(1, min(3, (width - 16) // max(1, text_width(f"{left}   {right}"))))
    strip = np.empty(((HEIGHT + 6) * scale, width, 3), np.uint8)
    strip[:] = BACK
    draw_text(strip, 4 * scale, 3 * scale, left, ink, scale)
    draw_text(strip, width - 4 * scale - text_width(right, scale), 3 * scale, right, INK, scale)
    return np.concatenate([image, strip])


class Panel:
    """Draws the panel of episode ``i`` of a store, ``width`` pixels wide. Its actions and rewards are in memory."""

    def __init__(self, store: Store, i: int, width: int) -> None:
        self._end = store.end_record(i)
        self._spec = store.schema.env.action
        rows = store.read(i, 0, self._end.length, ["action", "reward"])
        self._actions = rows["action"].reshape(self._end.length, -1)
        self._rewards = rows["reward"].astype(np.float64)
        self._returns = np.cumsum(self._rewards)
        self.width = width
        self._scale = max(1 if width < 300 else 2, width // 200)
        self._line = (HEIGHT + 5) * self._scale
        self._pad = 4 * self._scale
        self.height = 2 * self._pad + 3 * self._line + CURVE
        self.height += self.height % 2
        self._ground = self._draw_ground()

    def draw(self, row: int) -> Array:
        """Draw the panel ``[height, width, 3]`` for image ``row``; row ``length`` is the final observation."""
        panel = self._ground.copy()
        last = row >= self._end.length
        step, total = self._end.first_step + row, self._end.first_step + self._end.length
        so_far = self._returns[min(row, self._end.length - 1)]
        self._pair(panel, 0, f"STEP {step}/{total}", INK, f"RETURN {_number(so_far)}", INK)
        if last:
            self._pair(panel, 1, _how_it_ended(self._end.terminated, self._end.truncated), ACCENT, "", INK)
        else:
            reward = self._rewards[row]
            colour = GOOD if reward > 0 else BAD if reward < 0 else MUTED
            self._pair(panel, 1, self._action_text(row), INK, f"REWARD {_number(reward)}", colour)
            self._action_graph(panel, self._actions[row])
        self._cursor(panel, row)
        return panel

    def _pair(self, panel: Array, line: int, left: str, ink: Colour, right: str, right_ink: Colour) -> None:
        """Write a text at each side; the left one loses words where the right one begins."""
        y = self._pad + line * self._line
        start = self.width - self._pad - text_width(right, self._scale)
        room = start - 2 * self._pad if right else self.width - 2 * self._pad
        draw_text(panel, self._pad, y, _fitting(left, room, self._scale), ink, self._scale)
        draw_text(panel, start, y, right, right_ink, self._scale)

    # ---------------------------------------------------------------------------------------- action

    def _action_text(self, row: int) -> str:
        action = self._actions[row]
        if action.dtype.kind == "f":
            return "ACTION " + " ".join(f"{value:+.2f}" for value in action)
        start = self._spec.start if len(self._spec.start) == len(action) else (0,) * len(action)
        return "ACTION " + " ".join(str(int(value) + first) for value, first in zip(action, start))

    def _action_graph(self, panel: Array, action: Array) -> None:
        y, height = self._pad + 2 * self._line, HEIGHT * self._scale
        if action.dtype.kind == "f":
            self._bars(panel, y, height, action)
        elif len(self._spec.nvec) == len(action) and sum(self._spec.nvec) <= MAX_BOXES:
            self._boxes(panel, y, height, action, self._spec.nvec)

    def _boxes(self, panel: Array, y: int, height: int, action: Array, nvec: Sequence[int]) -> None:
        """Draw a box per choice, the one taken filled; components stand apart."""
        gap = max(1, self._scale)
        free = self.width - 2 * self._pad - 3 * gap * (len(nvec) - 1)
        width = min(3 * height, free // max(1, sum(nvec)) - gap)
        if width < 2:
            return
        x = self._pad
        for choice, count in zip(action, nvec):
            for k in range(count):
                panel[y : y + height, x : x + width] = ACCENT if k == choice else DIM
                x += width + gap
            x += 3 * gap

    def _bars(self, panel: Array, y: int, height: int, action: Array) -> None:
        """Draw a field per component with a bar from 0 to the value; a NaN, which has no place, fills it in red."""
        shown = action[:MAX_BARS].astype(np.float64)
        gap = 2 * self._scale
        width = (self.width - 2 * self._pad - gap * (len(shown) - 1)) // max(1, len(shown))
        width = min(width, 40 * self._scale)
        if width < 4:
            return
        for k, value in enumerate(shown):
            low, high = _bounds(self._spec, k, len(action))
            x = self._pad + k * (width + gap)
            field = panel[y : y + height, x : x + width]
            if np.isnan(value):
                field[:] = BAD
                continue
            field[:] = DIM
            zero, place = (x + int((np.clip(v, low, high) - low) / (high - low) * (width - 1)) for v in (0.0, value))
            panel[y : y + height, min(zero, place) : max(zero, place) + 1] = ACCENT
            panel[y : y + height, zero] = MUTED

    # ---------------------------------------------------------------------------------------- the return so far

    def _draw_ground(self) -> Array:
        """Draw what is the same on every image: the curve of the return over the whole episode."""
        ground = np.empty((self.height, self.width, 3), np.uint8)
        ground[:] = BACK
        top = self.height - CURVE - self._pad // 2
        values = np.concatenate([[0.0], np.nan_to_num(self._returns, posinf=0.0, neginf=0.0)])
        low, high = float(values.min()), float(values.max())
        columns = np.linspace(0, len(values) - 1, self.width - 2 * self._pad).round().astype(np.int64)
        span = high - low if high > low else 1.0
        heights = ((values[columns] - low) / span * (CURVE - 3)).round().astype(np.int64)
        self._curve = (self._pad + np.arange(len(columns)), top + CURVE - 2 - heights, columns)
        for x, y, _ in zip(*self._curve):
            ground[y:, x][: top + CURVE - y] = DIM
            ground[y, x] = MUTED
        return ground

    def _cursor(self, panel: Array, row: int) -> None:
        x, y, columns = self._curve
        seen = columns <= row + 1 if row < self._end.length else np.ones(len(columns), np.bool_)
        for thick in range(max(1, self._scale // 2) + 1):
            panel[np.minimum(y[seen] + thick, self.height - 1), x[seen]] = ACCENT
        if seen.any():
            at = x[seen][-1]
            panel[y.min() : self.height - self._pad // 2, at : at + max(1, self._scale // 2)] = INK


def _bounds(spec: ActionSpec, k: int, size: int) -> tuple[float, float]:
    """Return the range that a component is drawn in: that of the space, -1 .. 1 where it has no bounds."""
    if len(spec.low) == size and len(spec.high) == size:
        low, high = float(spec.low[k]), float(spec.high[k])
        if np.isfinite(low) and np.isfinite(high) and low < high:
            return low, high
    return -1.0, 1.0


def _fitting(text: str, room: int, scale: int) -> str:
    """Return as many words of the text as there is room for; half a number would be a wrong one."""
    words = text.split(" ")
    while len(words) > 1 and text_width(text, scale) > room:
        words.pop()
        text = " ".join(words) + " .."
    return text


def _number(value: float) -> str:
    return f"{value:+.4g}" if abs(value) < 1e4 else f"{value:+.3e}"


def _how_it_ended(terminated: bool, truncated: bool) -> str:
    if terminated:
        return "END: TERMINATED"
    return "END: TRUNCATED" if truncated else "END OF THE RECORDING"


# ---------------------------------------------------------------------------------------- letters

# Eight letters side by side, one column of space between them; the line above the image names them.
_DRAWN = """
A     B     C     D     E     F     G     H
.###. ####. .###. ####. ##### ##### .###. #...#
#...# #...# #...# #...# #.... #.... #...# #...#
#...# #...# #.... #...# #.... #.... #.... #...#
##### ####. #.... #...# ####. ####. #.### #####
#...# #...# #.... #...# #.... #.... #...# #...#
#...# #...# #...# #...# #.... #.... #...# #...#
#...# ####. .###. ####. ##### #.... .###. #...#
I     J     K     L     M     N     O     P
.###. ..### #...# #.... #...# #...# .###. ####.
..#.. ...#. #..#. #.... ##.## ##..# #...# #...#
..#.. ...#. #.#.. #.... #.#.# #.#.# #...# #...#
..#.. ...#. ##... #.... #.#.# #..## #...# ####.
..#.. ...#. #.#.. #.... #...# #...# #...# #....
..#.. #..#. #..#. #.... #...# #...# #...# #....
.###. .##.. #...# ##### #...# #...# .###. #....
Q     R     S     T     U     V     W     X
.###. ####. .#### ##### #...# #...# #...# #...#
#...# #...# #.... ..#.. #...# #...# #...# #...#
#...# #...# #.... ..#.. #...# #...# #...# .#.#.
#...# ####. .###. ..#.. #...# #...# #.#.# ..#..
#.#.# #.#.. ....# ..#.. #...# .#.#. #.#.# .#.#.
#..#. #..#. ....# ..#.. #...# .#.#. ##.## #...#
.##.# #...# ####. ..#.. .###. ..#.. #...# #...#
Y     Z     0     1     2     3     4     5
#...# ##### .###. ..#.. .###. .###. ...#. #####
#...# ....# #...# .##.. #...# #...# ..##. #....
.#.#. ...#. #..## ..#.. ....# ....# .#.#. ####.
..#.. ..#.. #.#.# ..#.. ...#. ..##. #..#. ....#
..#.. .#... ##..# ..#.. ..#.. ....# ##### ....#
..#.. #.... #...# ..#.. .#... #...# ...#. #...#
..#.. ##### .###. .###. ##### .###. ...#. .###.
6     7     8     9     +     -     .     ,
.###. ##### .###. .###. ..... ..... ..... .....
#...# ....# #...# #...# ..#.. ..... ..... .....
#.... ...#. #...# #...# ..#.. ..... ..... .....
####. ..#.. .###. .#### ##### ##### ..... .....
#...# ..#.. #...# ....# ..#.. ..... ..... ..#..
#...# ..#.. #...# #...# ..#.. ..... .##.. ..#..
.###. ..#.. .###. .###. ..... ..... .##.. .#...
/     :     %     (     )     =     _     #
....# ..... ##..# ...#. .#... ..... ..... .#.#.
....# .##.. ##.#. ..#.. ..#.. ..... ..... .#.#.
...#. .##.. ...#. .#... ...#. ##### ..... #####
..#.. ..... ..#.. .#... ...#. ..... ..... .#.#.
.#... .##.. .#... .#... ...#. ##### ..... #####
#.... .##.. .#.## ..#.. ..#.. ..... ..... .#.#.
#.... ..... #..## ...#. .#... ..... ##### .#.#.
"""
_UNKNOWN = np.array([[1] * 5, *([[1, 0, 0, 0, 1]] * 5), [1] * 5], np.bool_)


@cache
def _letters() -> dict[str, Array]:
    lines = _DRAWN.strip("\n").split("\n")
    found = {" ": np.zeros((HEIGHT, WIDTH), np.bool_)}
    for top in range(0, len(lines), HEIGHT + 1):
        names = lines[top].split()
        rows = [line.split() for line in lines[top + 1 : top + 1 + HEIGHT]]
        for k, name in enumerate(names):
            found[name] = np.array([[pixel == "#" for pixel in row[k]] for row in rows], np.bool_)
    return found


def text_mask(text: str, scale: int = 1) -> Array:
    """Return the text as pixels ``[7 * scale, n]`` bool; what there is no letter for is a box."""
    letters = _letters()
    mask = np.zeros((HEIGHT, max(0, len(text) * ADVANCE - 1)), np.bool_)
    for k, letter in enumerate(text.upper()[: len(text)]):
        mask[:, k * ADVANCE : k * ADVANCE + WIDTH] = letters.get(letter, _UNKNOWN)
    return mask.repeat(scale, axis=0).repeat(scale, axis=1)


def text_width(text: str, scale: int = 1) -> int:
    return max(0, len(text) * ADVANCE - 1) * scale


def draw_text(image: Array, x: int, y: int, text: str, colour: Colour, scale: int = 1) -> None:
    """Draw into ``image`` ``[h, w, 3]`` with the upper left corner at (x, y); what lies outside is cut off."""
    mask = text_mask(text, scale)
    left, top = max(0, -x), max(0, -y)
    part = image[max(0, y) : max(0, y + mask.shape[0]), max(0, x) : max(0, x + mask.shape[1])]
    seen = mask[top : top + part.shape[0], left : left + part.shape[1]]
    part[: seen.shape[0], : seen.shape[1]][seen] = colour
