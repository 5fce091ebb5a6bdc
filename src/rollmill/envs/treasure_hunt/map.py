"""The map of a treasure hunt: which cells can be walked on, where the sites are, and how far every cell is from them.

Words
-----
unit    the measure of positions: the map is ``SIZE`` units wide and high, x goes east, y goes north.
cell    a square of ``CELL`` units. Arrays of cells are indexed ``[row, column]``: columns go east as x does, and row 0
        is the **northernmost**, as in an image of the map.
site    one of 16 marked cells. Site 0 holds the speed buff, sites 1 to 15 can be start, end or treasure.

A map file is text: a line for each row, ``#`` for a wall, ``.`` for a free cell, and the site's number as a
hexadecimal digit where a site is.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from dataclasses import dataclass
from importlib import resources

import numpy as np

from rollmill.core.fields import Array

CELLS = 128
"""Cells along each side."""
CELL = 500.0
SIZE = CELLS * CELL
SITES = 16
WIDTHS = (8, 14)
"""Narrowest and widest corridor, in cells."""
WALKABLE = (0.23, 0.27)
"""Lowest and highest share of walkable cells."""
MARGIN = 10
"""Sites keep this many cells off the border, so that all corridors have a wall around them."""
CANDIDATES = 8
"""Places that are tried for each site: more of them spread the sites out more."""
LOOPS = 1
"""Corridors beyond those that join all sites: ways around."""


@dataclass(frozen=True)
class HuntMap:
    """A map that nothing changes; shared by all hunts on it."""

    free: Array  # [CELLS, CELLS] bool
    sites: Array  # [SITES, 2] int64: row and column

    @functools.cached_property
    def positions(self) -> Array:
        """``[SITES, 2]`` float64: x and y of the middle of each site's cell."""
        return centres(self.sites)

    @functools.cached_property
    def distances(self) -> Array:
        """``[SITES, CELLS, CELLS]`` int16: steps between neighbouring cells from each site; -1 for walls."""
        return np.stack([grid_distances(self.free, row, column) for row, column in self.sites.tolist()])

    @functools.cached_property
    def between(self) -> Array:
        """``[SITES, SITES]`` float64: steps between neighbouring cells from each site to each other one."""
        rows, columns = self.sites.T
        return self.distances[:, rows, columns].astype(np.float64)

    @functools.cached_property
    def free_cells(self) -> Array:
        """``[n, 2]`` int64: row and column of every walkable cell."""
        return np.argwhere(self.free)

    def to_text(self) -> str:
        """Return the map file."""
        marks = np.where(self.free, ".", "#")
        for number, (row, column) in enumerate(self.sites.tolist()):
            marks[row, column] = f"{number:x}"
        return "\n".join("".join(line) for line in marks) + "\n"

    def to_bytes(self) -> bytes:
        """Return all of it, distances included: finding those takes longer than drawing the map."""
        rows, columns = np.nonzero(self.free)
        known = self.distances[:, rows, columns]
        parts = (np.packbits(self.free), self.sites.astype("<i2"), known.astype("<i2"))
        return zlib.compress(b"".join(part.tobytes() for part in parts), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> HuntMap:
        """Read what ``to_bytes`` gave."""
        raw, walls, places = zlib.decompress(data), CELLS * CELLS // 8, 4 * SITES
        free = np.unpackbits(np.frombuffer(raw[:walls], np.uint8)).reshape(CELLS, CELLS).astype(bool)
        sites = np.frombuffer(raw[walls : walls + places], "<i2").reshape(SITES, 2).astype(np.int64)
        made = cls(free, sites)
        distances = np.full((SITES, CELLS, CELLS), -1, np.int16)
        distances[:, free] = np.frombuffer(raw[walls + places :], "<i2").reshape(SITES, -1)
        made.__dict__["distances"] = distances  # where the property keeps what it has found
        return made

    @classmethod
    def from_text(cls, text: str) -> HuntMap:
        """Read a map file; ValueError says what is wrong with it."""
        lines = text.split()
        if len(lines) != CELLS or any(len(line) != CELLS for line in lines):
            raise ValueError(f"a map has {CELLS} lines of {CELLS} characters")
        marks = np.array([list(line) for line in lines])
        places = [np.argwhere(marks == f"{number:x}") for number in range(SITES)]
        wrong = [number for number, found in enumerate(places) if len(found) != 1]
        if wrong:
            raise ValueError(f"a map has every site once; wrong are the sites {', '.join(map(str, wrong))}")
        made = cls(marks != "#", np.concatenate(places))
        if (made.distances[0][made.free] < 0).any():
            raise ValueError("some free cells of the map cannot be reached")
        return made


def centres(cells: Array) -> Array:
    """Return ``[..., 2]`` float64: x and y of the middle of cells given as row and column."""
    row, column = cells[..., 0], cells[..., 1]
    return np.stack([(column + 0.5) * CELL, (CELLS - row - 0.5) * CELL], axis=-1)


@functools.cache
def load_map(seed: int) -> HuntMap:
    """Return the map with this number. That of seed 0 comes from a file, so that results compare for ever."""
    if seed == 0:
        return HuntMap.from_text(resources.files(__package__).joinpath("map_0.txt").read_text(encoding="ascii"))
    return generate_map(seed)


def generate_map(seed: int) -> HuntMap:
    """Draw a map: spread-out sites, each joined to the corridors of those before it, and some ways around."""
    rng = np.random.default_rng(seed)
    for _ in range(1000):  # every third or so has the right share of walkable cells
        sites = _draw_sites(rng)
        free = _draw_corridors(sites, rng)
        if WALKABLE[0] <= free.mean() <= WALKABLE[1]:
            return HuntMap(free, sites)
    raise ValueError(f"no map for seed {seed}")


def _draw_sites(rng: np.random.Generator) -> Array:
    """Draw the sites: site 0 in the centre, each further one the farthest from all others of a few candidates."""
    sites = np.empty((SITES, 2), np.int64)
    sites[0] = CELLS // 2
    for number in range(1, SITES):
        candidates = rng.integers(MARGIN, CELLS - MARGIN, (CANDIDATES, 2))
        gaps = np.abs(candidates[:, None] - sites[None, :number]).sum(-1).min(1)
        sites[number] = candidates[gaps.argmax()]
    sites[1:] = sites[rng.permutation(np.arange(1, SITES))]  # or the first ones would lie in the corners
    return sites


def _draw_corridors(sites: Array, rng: np.random.Generator) -> Array:
    """Return ``[CELLS, CELLS]`` bool, the cells that can be walked on."""
    free = np.zeros((CELLS, CELLS), bool)
    middle = sites[:1]  # cells in the middle of corridors so far
    waiting = list(range(1, SITES))
    while waiting:
        gaps = {k: int(np.abs(middle - sites[k]).sum(1).min()) for k in waiting}
        number = min(waiting, key=lambda k: gaps[k])
        waiting.remove(number)
        near = middle[np.abs(middle - sites[number]).sum(1).argmin()]
        middle = np.concatenate([middle, _carve(free, sites[number], near, rng)])
    for _ in range(LOOPS):
        a, b = rng.choice(SITES, 2, replace=False)
        _carve(free, sites[a], sites[b], rng)
    return free


def _carve(free: Array, a: Array, b: Array, rng: np.random.Generator) -> Array:
    """Make a corridor with one bend from cell to cell; returns the cells in its middle, ``[n, 2]``."""
    narrow, wide = WIDTHS
    width = narrow + int((wide + 1 - narrow) * rng.random() ** 3)  # mostly narrow ones
    low = width // 2
    corner = np.array((a[0], b[1]) if rng.random() < 0.5 else (b[0], a[1]))
    middle = []
    for one, two in ((a, corner), (corner, b)):
        (top, left), (bottom, right) = np.minimum(one, two).tolist(), np.maximum(one, two).tolist()
        free[top - low : bottom - low + width, left - low : right - low + width] = True
        middle += [(row, column) for row in range(top, bottom + 1) for column in range(left, right + 1)]
    return np.array(middle)


def grid_distances(free: Array, row: int, column: int) -> Array:
    """Return ``[CELLS, CELLS]`` int16, the steps to one of four neighbours that every cell is away; -1: no way."""
    found = np.full(free.shape, -1, np.int16)
    found[row, column] = 0
    queue = deque([(row, column)])
    while queue:
        r, c = queue.popleft()
        for near in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
            if 0 <= near[0] < CELLS and 0 <= near[1] < CELLS and free[near] and found[near] < 0:
                found[near] = found[r, c] + 1
                queue.append(near)
    return found
