"""Letters of 5 x 7 pixels, drawn into pictures with nothing but numpy. All letters are capital ones."""

from __future__ import annotations

from functools import cache

import numpy as np

from rollmill.core.fields import Array

WIDTH, HEIGHT = 5, 7
ADVANCE = WIDTH + 1

# Eight letters side by side, one column of space between them; the line above the picture names them.
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
    """The text as pixels ``[7 * scale, n]`` bool; what there is no letter for is a box."""
    letters = _letters()
    mask = np.zeros((HEIGHT, max(0, len(text) * ADVANCE - 1)), np.bool_)
    for k, letter in enumerate(text.upper()[: len(text)]):
        mask[:, k * ADVANCE : k * ADVANCE + WIDTH] = letters.get(letter, _UNKNOWN)
    return mask.repeat(scale, axis=0).repeat(scale, axis=1)


def text_width(text: str, scale: int = 1) -> int:
    return max(0, len(text) * ADVANCE - 1) * scale


def draw_text(picture: Array, x: int, y: int, text: str, colour: tuple[int, int, int], scale: int = 1) -> None:
    """Draw into ``picture`` ``[h, w, 3]`` with the upper left corner at (x, y); what lies outside is cut off."""
    mask = text_mask(text, scale)
    left, top = max(0, -x), max(0, -y)
    part = picture[max(0, y) : max(0, y + mask.shape[0]), max(0, x) : max(0, x + mask.shape[1])]
    seen = mask[top : top + part.shape[0], left : left + part.shape[1]]
    part[: seen.shape[0], : seen.shape[1]][seen] = colour
