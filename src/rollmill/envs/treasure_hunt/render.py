"""An image of a hunt: the whole map with what is on it and where the agent was, beside what the agent sees."""

from __future__ import annotations

import numpy as np

from rollmill.core.fields import Array
from rollmill.envs.treasure_hunt.map import CELLS
from rollmill.envs.treasure_hunt.observation import MAPS, Observer
from rollmill.envs.treasure_hunt.world import VIEW, WINDOW, World

ZOOM = 4
"""Pixels of a cell on the map."""
WALL, FREE, SEEN, TREASURE = (38, 42, 51), (222, 224, 228), (150, 186, 230), (240, 180, 40)
START, END, BUFF, AGENT, FRAME = (120, 120, 120), (60, 170, 90), (150, 90, 200), (214, 58, 58), (90, 96, 108)
GAP = 4
SIDE = CELLS * ZOOM
PANEL = (SIDE - 3 * GAP) // len(MAPS)
"""Pixels of the panel of one local map, one below the other."""


def draw(world: World, lane: int) -> Array:
    """Return ``[512, 512 + gap + panel, 3]`` uint8 of one hunt."""
    board = _whole_map(world, lane)
    panels = _local_maps(world, lane)
    gap = np.full((SIDE, GAP, 3), FRAME, np.uint8)
    return np.concatenate([board, gap, panels], axis=1)


def _whole_map(world: World, lane: int) -> Array:
    cells = np.where(world.map.free[..., None], FREE, WALL).astype(np.uint8)
    visits = world.visits[lane, VIEW:-VIEW, VIEW:-VIEW]
    share = np.minimum(visits.astype(np.float64) / 255 + 0.3, 1.0)[..., None]
    cells = np.where(visits[..., None] > 0, (1 - share) * cells + share * np.array(SEEN), cells).astype(np.uint8)
    board = cells.repeat(ZOOM, 0).repeat(ZOOM, 1)
    s = world.settings
    _mark(board, world.map.sites[s.start], START, 6)
    _mark(board, world.map.sites[s.end], END, 8)
    if world.buff_there[lane]:
        _mark(board, world.map.sites[0], BUFF, 6)
    for site in np.flatnonzero(world.treasures[lane]):
        _mark(board, world.map.sites[site], TREASURE, 6)
    _mark(board, world.cell[lane], AGENT, 6)
    return board


def _mark(board: Array, cell: Array, colour: tuple[int, int, int], size: int) -> None:
    """A filled disc with a dark edge in the middle of a cell."""
    row, column = (cell * ZOOM + ZOOM // 2).tolist()
    across = np.arange(-size, size + 1)
    far = np.hypot(*np.meshgrid(across, across))
    for radius, paint in ((size, WALL), (size - 1.5, colour)):
        rows, columns = np.nonzero(far <= radius)
        board[np.clip(rows + row - size, 0, SIDE - 1), np.clip(columns + column - size, 0, SIDE - 1)] = paint


def _local_maps(world: World, lane: int) -> Array:
    seen = Observer(world).look(world.site_distances())["maps"][lane]
    pick = np.arange(PANEL) * WINDOW // PANEL
    panels = np.full((SIDE, PANEL, 3), FRAME, np.uint8)
    for number, local in enumerate(seen):
        top = number * (PANEL + GAP)
        panels[top : top + PANEL] = local[pick][:, pick][..., None]
    return panels
