"""What a hunt can bring: routes that know the map, as results to compare agents with, and as policies that walk them.

``oracle`` takes the shortest route over all treasures to the end, ``nearest-first`` always goes to the treasure that is
nearest now. Both walk; they neither flash nor go for the buff.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollmill.core.fields import Array
from rollmill.envs.treasure_hunt.map import CELL, HuntMap, load_map
from rollmill.envs.treasure_hunt.route import Routes
from rollmill.envs.treasure_hunt.settings import HuntSettings
from rollmill.envs.treasure_hunt.world import DIRECTIONS, WALK, World, cells_of

STEP = (WALK[0] + WALK[1]) / 2
"""Units of a mean step."""
_STRAIGHT = ((-1, 0), (1, 0), (0, -1), (0, 1))
_SLANTED = ((-1, -1), (-1, 1), (1, -1), (1, 1))
_HEADINGS = np.array([(math.cos(k * math.pi / 4), math.sin(k * math.pi / 4)) for k in range(DIRECTIONS)])
NEAR = 2 * CELL
"""Closer than this the way is straight."""


@dataclass(frozen=True)
class Route:
    """Sites in the order in which they are visited, the start and the end included."""

    sites: tuple[int, ...]
    distance: float
    """Units."""

    @property
    def steps(self) -> int:
        """Steps of mean length; the last one may fall short of the end by as much as it is taken from."""
        return math.ceil(self.distance / STEP)

    def score(self, max_step: int) -> float:
        """Return the score: 150 for the end, 0.2 for every step that is left, 100 for every treasure."""
        return 150.0 + 0.2 * (max_step - self.steps) + 100.0 * (len(self.sites) - 2)


def walking_distances(hunt_map: HuntMap, site: int) -> Array:
    """Return ``[CELLS, CELLS]`` float64, units to walk in eight directions from each cell to a site; inf for walls."""
    free = hunt_map.free
    found = np.full(free.shape, np.inf)
    first = tuple(hunt_map.sites[site].tolist())
    found[first] = 0.0
    queue = [(0.0, first)]
    while queue:
        so_far, (row, column) = heapq.heappop(queue)
        if so_far > found[row, column]:
            continue
        for (down, right), cost in [*((d, CELL) for d in _STRAIGHT), *((d, CELL * math.sqrt(2)) for d in _SLANTED)]:
            near = (row + down, column + right)
            around = free[row, near[1]] and free[near[0], column]  # not past the corner of a wall
            if free[near] and around and so_far + cost < found[near]:
                found[near] = so_far + cost
                heapq.heappush(queue, (so_far + cost, near))
    return found


class Guide:
    """Knows the ways on one map."""

    def __init__(self, hunt_map: HuntMap | None = None) -> None:
        self.map = hunt_map or load_map(0)
        self.fields = np.stack([walking_distances(self.map, site) for site in range(len(self.map.sites))])
        """``[SITES, CELLS, CELLS]``: units from every cell to every site."""
        rows, columns = self.map.sites.T
        self.between = self.fields[:, rows, columns]
        """``[SITES, SITES]``"""

    def oracle(self, start: int, end: int, treasures: Sequence[int]) -> Route:
        """Return the shortest route over all treasures (Held and Karp's dynamic programme)."""
        routes = Routes(self.between, tuple(treasures), end)
        left = np.zeros(len(self.between), bool)
        left[list(treasures)] = True
        length = float(routes.lengths(self.between[start][None], left[None])[0])
        order = [start]
        while left.any():
            order.append(routes.first(self.between[order[-1]], left))
            left[order[-1]] = False
        return Route((*order, end), length)

    def nearest_first(self, start: int, end: int, treasures: Sequence[int]) -> Route:
        """Return the route that always goes to the treasure that is nearest, then to the end."""
        here, left, order, total = start, list(treasures), [start], 0.0
        while left:
            nearest = min(left, key=lambda site: float(self.between[here, site]))
            total += float(self.between[here, nearest])
            left.remove(nearest)
            order.append(nearest)
            here = nearest
        return Route((*order, end), total + float(self.between[here, end]))

    def heading(self, position: Array, sites: Array) -> Array:
        """Return ``[n]`` int64: the direction (0 to 7) that brings each position ``[n, 2]`` nearest to its site."""
        after = position[:, None] + _HEADINGS[None] * STEP  # [n, 8, 2]
        halfway = position[:, None] + _HEADINGS[None] * (STEP / 2)
        n = len(position)
        cells = [np.clip(cells_of(p.reshape(-1, 2)), 0, self.map.free.shape[0] - 1).T for p in (after, halfway)]
        (row, column), middle = cells
        field = self.fields[sites.repeat(DIRECTIONS), row, column]
        field = np.where(self.map.free[middle[0], middle[1]], field, np.inf).reshape(n, DIRECTIONS)
        target = self.map.positions[sites]
        straight = np.hypot(*(after - target[:, None]).transpose(2, 0, 1))
        here = self.fields[sites, *cells_of(position).T]
        close = (here <= NEAR)[:, None] & np.isfinite(field)
        best: Array = np.where(close, straight, field + 1e-3 * straight).argmin(1)
        return best


class GuidedPlayer:
    """Plays the hunts of a world along routes; for the references, for demonstrations, for tests."""

    def __init__(self, world: World, how: str = "nearest-first", guide: Guide | None = None) -> None:
        if how not in ("oracle", "nearest-first"):
            raise ValueError(f"how={how!r}: 'oracle' or 'nearest-first'")
        self._world, self._how, self._guide = world, how, guide or Guide(world.map)
        self._orders: dict[int, tuple[int, ...]] = {}
        self._oracle = functools.cache(functools.partial(self._guide.oracle, world.settings.start, world.settings.end))

    def act(self) -> Array:
        """Return ``[n]`` int64: an action for each hunt."""
        world = self._world
        targets = np.array([self._target(lane) for lane in range(world.lanes)])
        return self._guide.heading(world.position, targets)

    def _target(self, lane: int) -> int:
        world, end = self._world, self._world.settings.end
        left = np.flatnonzero(world.treasures[lane])
        if not len(left):
            return end
        if self._how == "nearest-first":
            away = self._guide.fields[:, *world.cell[lane]]
            return int(left[away[left].argmin()])
        if world.step_no[lane] == 0 or lane not in self._orders:
            self._orders[lane] = self._oracle(tuple(left.tolist())).sites[1:-1]
        there = set(left.tolist())
        return next((site for site in self._orders[lane] if site in there), end)


def play_guided(
    settings: HuntSettings, how: str, lanes: int, seed: int = 0, guide: Guide | None = None
) -> tuple[Array, Array]:
    """Return steps and scores ``[lanes]`` of hunts by a player that knows the map (``guide``: its ways)."""
    world = World(settings, lanes)
    rng = np.random.default_rng(seed)
    world.reset(np.arange(lanes), rng, progress=1.0)
    player = GuidedPlayer(world, how, guide)
    steps, scores = np.zeros(lanes, np.int64), np.zeros(lanes)
    over = np.zeros(lanes, bool)
    while not over.all():
        moved = world.step(player.act(), rng)
        ended = (moved.at_end | moved.timed_out) & ~over
        steps[ended], scores[ended] = world.step_no[ended], world.score(moved.at_end)[ended]
        over |= ended
    return steps, scores
