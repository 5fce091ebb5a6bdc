"""Many treasure hunts on one map, stepped together: positions, timers, treasures, visits. All arrays are ``[n, ...]``.

The order within a step: timers run down, the agent moves or flashes, its cell counts as visited, then the buff, the
treasures and the end are taken where they are near.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollmill.core.fields import Array
from rollmill.envs.draws import WholeNumber
from rollmill.envs.treasure_hunt.map import CELL, CELLS, SITES, HuntMap, centres, load_map
from rollmill.envs.treasure_hunt.settings import MOST_TREASURES, HuntSettings

DIRECTIONS = 8
WALK, BUFFED_WALK, FLASH = (660.0, 711.0), (900.0, 1100.0), (7900.0, 8100.0)
"""Shortest and longest distance of a move, in units."""
COOLDOWN, BUFF_STEPS = 600, 50
PIECES = 3
"""Parts of a move that are looked at one by one, each shorter than a cell: nobody walks through a thin wall."""
HIT_SHARE = 0.5
"""A move that covers less than this share of its distance has hit a wall; sliding along one covers 0.7."""
VIEW = 25
"""Cells that the agent sees in each direction."""
WINDOW = 2 * VIEW + 1
VISIT, SEEN_MOST = 51, 255
"""A visit counts 0.2, five or more count 1; kept as bytes with 255 for 1."""
_ANGLES = np.arange(DIRECTIONS) * np.pi / 4
_HEADING = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)


@dataclass(frozen=True)
class Moved:
    """What a step has done, ``[n]`` each."""

    flashed: Array  # bool
    distance: Array  # float64: units between where the agent was and where it is
    hit_wall: Array  # bool
    hit_flashing: Array  # bool
    got_buff: Array  # bool
    got: Array  # [n, SITES] bool: treasures taken
    at_end: Array  # bool
    timed_out: Array  # bool

    def forget(self, lanes: Array) -> None:
        """Leave out what has happened in these lanes (``[n]`` bool): their hunts were over before."""
        for array in vars(self).values():
            array[lanes] = 0


class World:
    """``lanes`` hunts."""

    def __init__(self, settings: HuntSettings, lanes: int) -> None:
        self.settings, self.lanes = settings, lanes
        self.use(load_map(settings.map_seed))
        self._count = WholeNumber("treasure_num", settings.treasure_num, 0, MOST_TREASURES)
        self._every = np.arange(lanes)
        self.position = np.zeros((lanes, 2))
        self.cell = np.zeros((lanes, 2), np.int64)
        self.treasures = np.zeros((lanes, SITES), bool)
        """Treasures that are there, by site."""
        self.at_start = np.zeros((lanes, SITES), bool)
        """Those that were there at the start."""
        self.buff_there = np.ones(lanes, bool)
        self.buff_left, self.buff_back, self.cooldown = (np.zeros(lanes, np.int64) for _ in range(3))
        self.step_no, self.buffs, self.flashes, self.hits = (np.zeros(lanes, np.int64) for _ in range(4))
        self.visits = np.zeros((lanes, CELLS + 2 * VIEW, CELLS + 2 * VIEW), np.uint8)
        """How often cells were visited, with a border as wide as the view."""

    def use(self, hunt_map: HuntMap) -> None:
        """Play on this map from the next hunt on."""
        self.map = hunt_map
        self._walls = np.pad(hunt_map.free, VIEW + 1)  # beyond the map there is nothing to walk on

    # -- episodes ------------------------------------------------------------------------------

    def reset(self, lanes: Array, rng: np.random.Generator, progress: float) -> None:
        """Begin new hunts in these lanes (their numbers)."""
        s = self.settings
        for counter in (self.buff_left, self.buff_back, self.cooldown, self.step_no, self.buffs, self.flashes):
            counter[lanes] = 0
        self.hits[lanes] = 0
        self.buff_there[lanes] = True
        self.visits[lanes] = 0
        self.treasures[lanes] = False
        for lane in lanes.tolist():
            sites = self._draw_treasures(rng, progress)
            self.treasures[lane, sites] = True
        self.at_start[lanes] = self.treasures[lanes]
        self.position[lanes] = self.map.positions[s.start]
        if progress < s.random_start:
            cells = self.map.free_cells[rng.integers(len(self.map.free_cells), size=len(lanes))]
            self.position[lanes] = centres(cells)
        self.cell[lanes] = cells_of(self.position[lanes])
        self._visit(lanes)

    def _draw_treasures(self, rng: np.random.Generator, progress: float) -> list[int]:
        s = self.settings
        if s.treasure_id is not None:
            return list(s.treasure_id)
        count = self._count.draw(rng, progress)
        if s.treasure_random:
            return [int(site) for site in rng.choice(s.places, count, replace=False)]
        return list(s.places[:count])

    # -- steps ---------------------------------------------------------------------------------

    def step(self, action: Array, rng: np.random.Generator) -> Moved:
        """Take one step of all hunts. A flash that is not ready leaves the agent where it is."""
        self.step_no += 1
        ready = self.cooldown == 0
        np.maximum(self.cooldown - 1, 0, out=self.cooldown)
        buffed = self.buff_left > 0
        np.maximum(self.buff_left - 1, 0, out=self.buff_left)
        self._bring_buff_back()
        before = self.position.copy()
        wants_flash = action >= DIRECTIONS
        flashed = wants_flash & ready
        heading = _HEADING[action % DIRECTIONS]
        chance = rng.random(self.lanes)
        low, high = np.where(buffed[:, None], BUFFED_WALK, WALK).T
        length = np.where(wants_flash, 0.0, low + (high - low) * chance)
        self._walk(heading * length[:, None])
        if flashed.any():
            self._flash(flashed, heading, FLASH[0] + (FLASH[1] - FLASH[0]) * chance)
        distance = np.hypot(*(self.position - before).T)
        hit_flashing = flashed & (distance == 0)
        hit_wall = ~wants_flash & (distance < HIT_SHARE * length)
        self.flashes += flashed
        self.hits += hit_wall | hit_flashing
        self.cell = cells_of(self.position)
        self._visit(self._every)
        return self._take(flashed, distance, hit_wall, hit_flashing)

    def _walk(self, way: Array) -> None:
        """Move by ``way``, along walls where they are met, and not around the corner between two of them."""
        x, y = self.position.T
        for _ in range(PIECES):
            to_x, to_y = x + way[:, 0] / PIECES, y + way[:, 1] / PIECES
            along_x, along_y = self._is_free(to_x, y), self._is_free(x, to_y)
            both = self._is_free(to_x, to_y) & (along_x | along_y)
            # Of two open ways along a wall (an outer corner) the longer one; a part of length 0 is no way.
            wide = np.abs(way[:, 0]) >= np.abs(way[:, 1])
            by_x = ~both & along_x & (wide | ~along_y)
            by_y = ~both & along_y & ~by_x
            x, y = np.where(both | by_x, to_x, x), np.where(both | by_y, to_y, y)
        self.position = np.stack([x, y], axis=1)

    def _flash(self, flashed: Array, heading: Array, length: Array) -> None:
        target = self.position + heading * length[:, None]
        lands = flashed & self._is_free(*target.T)
        self.position[lands] = target[lands]
        self.cooldown[flashed] = COOLDOWN

    def _is_free(self, x: Array, y: Array) -> Array:
        """Return ``[n]`` bool, whether a point is no wall; anywhere beyond the map is a wall."""
        column = np.clip(np.floor(x / CELL).astype(np.int64), -1, CELLS) + VIEW + 1
        row = CELLS - 1 - np.clip(np.floor(y / CELL).astype(np.int64), -1, CELLS) + VIEW + 1
        free: Array = self._walls[row, column]
        return free

    def _bring_buff_back(self) -> None:
        if self.settings.buff_respawn:
            self.buff_back -= self.buff_back > 0
            self.buff_there |= ~self.buff_there & (self.buff_back == 0)

    def _visit(self, lanes: Array) -> None:
        row, column = self.cell[lanes].T + VIEW
        visits = self.visits[lanes, row, column]
        self.visits[lanes, row, column] = np.minimum(visits.astype(np.int64) + VISIT, SEEN_MOST)

    def _take(self, flashed: Array, distance: Array, hit_wall: Array, hit_flashing: Array) -> Moved:
        away = np.hypot(*(self.position[:, None] - self.map.positions[None]).transpose(2, 0, 1))
        near = away <= self.settings.reach
        got_buff = near[:, 0] & self.buff_there
        if got_buff.any():
            self.buff_there &= ~got_buff
            self.buff_left[got_buff] = BUFF_STEPS
            self.buff_back[got_buff] = self.settings.buff_respawn
            self.buffs += got_buff
        got = near & self.treasures
        self.treasures &= ~got
        at_end = near[:, self.settings.end]
        timed_out = ~at_end & (self.step_no >= self.settings.max_step)
        return Moved(flashed, distance, hit_wall, hit_flashing, got_buff, got, at_end, timed_out)

    # -- what is known -------------------------------------------------------------------------

    @property
    def taken(self) -> Array:
        """``[n]``: treasures that were taken."""
        taken: Array = (self.at_start & ~self.treasures).sum(1)
        return taken

    def site_distances(self) -> Array:
        """Return ``[n, SITES]`` int64, the steps between neighbouring cells to each site."""
        row, column = self.cell.T
        away: Array = self.map.distances[:, row, column].T.astype(np.int64)
        return away

    def score(self, at_end: Array) -> Array:
        """Return ``[n]``: 150 for the end, 0.2 for every step left, 100 for every treasure; nothing without the end."""
        full = 150.0 + 0.2 * (self.settings.max_step - self.step_no) + 100.0 * self.taken
        return np.where(at_end, full, 0.0)


def cells_of(position: Array) -> Array:
    """Return ``[n, 2]`` int64: row and column of positions x, y."""
    column = np.floor(position[:, 0] / CELL).astype(np.int64)
    row = CELLS - 1 - np.floor(position[:, 1] / CELL).astype(np.int64)
    return np.stack([row, column], axis=1)
