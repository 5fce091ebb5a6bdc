"""An image of a hunt: the whole map with what is on it and where the agent was, beside what the agent sees."""

from __future__ import annotations

import numpy as np

from rollmill.core.fields import Array
from rollmill.envs.treasure_hunt.map import CELLS
from rollmill.envs.treasure_hunt.observation import END, FREE, MAPS, TREASURES, VISITS, Observer
from rollmill.envs.treasure_hunt.world import VIEW, WINDOW, World

ZOOM = 4
"""Pixels of a cell on the map."""
Colour = tuple[int, int, int]
WALL, OPEN, TRAIL, FRAME, READY = (38, 42, 51), (222, 224, 228), (52, 116, 196), (90, 96, 108), (255, 255, 255)
TREASURE, TAKEN = (240, 180, 40), (176, 168, 146)
AT_START, AT_END, BUFF, AGENT = (120, 120, 120), (60, 170, 90), (150, 90, 200), (214, 58, 58)
PAINTS: dict[int, Colour] = {FREE: OPEN, VISITS: TRAIL, TREASURES: TREASURE, END: AT_END}
"""Of the local maps."""
GAP = 4
SIDE = CELLS * ZOOM
PANEL = (SIDE - 3 * GAP) // len(MAPS)
"""Pixels of the panel of one local map, one below the other."""
JOINED = 2
"""Cells between which a step can lead: visited ones so near to each other are joined by a line."""


def draw(world: World, lane: int) -> Array:
    """Return ``[512, 512 + gap + panel, 3]`` uint8 of one hunt.

    The agent is red, with a white middle while the flash is ready and a violet ring while the buff lasts.
    """
    board = _whole_map(world, lane)
    panels = _local_maps(world, lane)
    gap = np.full((SIDE, GAP, 3), FRAME, np.uint8)
    return np.concatenate([board, gap, panels], axis=1)


def _whole_map(world: World, lane: int) -> Array:
    cells = np.where(world.map.free[..., None], OPEN, WALL).astype(np.uint8)
    board = cells.repeat(ZOOM, 0).repeat(ZOOM, 1)
    _draw_trail(board, world.visits[lane, VIEW:-VIEW, VIEW:-VIEW] > 0)
    s, sites = world.settings, world.map.sites
    _mark(board, sites[s.start], AT_START, 6)
    _mark(board, sites[s.end], AT_END, 8)
    if world.buff_there[lane]:
        _mark(board, sites[0], BUFF, 6)
    for site in np.flatnonzero(world.at_start[lane]):
        there = world.treasures[lane, site]
        _mark(board, sites[site], TREASURE if there else TAKEN, 6 if there else 4)
    if world.buff_left[lane]:
        _mark(board, world.cell[lane], BUFF, 11)
    _mark(board, world.cell[lane], AGENT, 7)
    if not world.cooldown[lane]:
        _mark(board, world.cell[lane], READY, 3)
    return board


def _draw_trail(board: Array, visited: Array) -> None:
    """Draw lines between the middles of visited cells that a step joins."""
    found = np.argwhere(visited)
    offsets = found[None] - found[:, None]
    near = (np.abs(offsets).max(-1) <= JOINED) & (offsets @ np.array([CELLS, 1]) >= 0)
    one, two = np.nonzero(near)
    along = np.linspace(0.0, 1.0, JOINED * ZOOM + 1)[:, None, None]
    points = (found[one] * (1 - along) + found[two] * along).reshape(-1, 2) * ZOOM + ZOOM // 2
    rows, columns = points.round().astype(np.int64).T
    for down in (0, 1):
        for right in (0, 1):
            board[rows - down, columns - right] = TRAIL


def _mark(board: Array, cell: Array, colour: Colour, size: int) -> None:
    """Draw a filled disc with a dark edge in the middle of a cell."""
    row, column = (cell * ZOOM + ZOOM // 2).tolist()
    across = np.arange(-size, size + 1)
    far = np.hypot(*np.meshgrid(across, across))
    for radius, paint in ((size, WALL), (size - 1.5, colour)):
        rows, columns = np.nonzero(far <= radius)
        board[np.clip(rows + row - size, 0, SIDE - 1), np.clip(columns + column - size, 0, SIDE - 1)] = paint


def _local_maps(world: World, lane: int) -> Array:
    """Draw one panel for each map, 0 as a wall is and 1 in the map's own colour; the agent is in the middle."""
    seen = Observer(world).look(world.site_distances())["maps"][lane]
    pick = np.arange(PANEL) * WINDOW // PANEL
    panels = np.full((SIDE, PANEL, 3), FRAME, np.uint8)
    for number, local in enumerate(seen):
        share = (local[pick][:, pick][..., None] / 255.0) ** 0.5  # a first visit is to be seen, too
        panel = ((1 - share) * WALL + share * PAINTS[number]).astype(np.uint8)
        if number in (TREASURES, END):  # single cells
            for row, column in np.argwhere(local):
                _mark_panel(panel, row, column, PAINTS[number])
        _mark_panel(panel, VIEW, VIEW, AGENT)
        top = number * (PANEL + GAP)
        panels[top : top + PANEL] = panel
    return panels


def _mark_panel(panel: Array, row: int, column: int, colour: Colour) -> None:
    """Draw a square of about two cells around a cell of a local map."""
    down, right = (int((place + 0.5) * PANEL / WINDOW) for place in (row, column))
    panel[max(0, down - 2) : down + 3, max(0, right - 2) : right + 3] = colour
