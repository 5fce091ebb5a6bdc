"""What the agent of a treasure hunt sees: four local maps, a vector, and which actions it may take.

``maps`` ``[4, 51, 51]`` uint8, the cells around the agent, which is in the middle; **row 0 is the northernmost**, as in
an image, and columns go east. 255 stands for 1. In the order of ``MAPS``: cells that can be walked on, how often they
were visited (51 per visit, up to 255), treasures, the end.

``vector`` ``[31]`` float32 from 0 to 1, see ``VECTOR``. Distances are steps between neighbouring cells over 256,
and 1 where the thing is not there.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.lib.stride_tricks import sliding_window_view

from rollmill.core.fields import MASK_FIELD, Array
from rollmill.envs.treasure_hunt.map import SIZE
from rollmill.envs.treasure_hunt.world import DIRECTIONS, VIEW, WINDOW, World

FREE, VISITS, TREASURES, END = range(4)
MAPS = ("free", "visits", "treasures", "end")
VECTOR: dict[str, slice] = {
    "position": slice(0, 2),
    "treasure_present": slice(2, 15),
    "treasure_distance": slice(15, 28),
    "buff_present": slice(28, 29),
    "buff_distance": slice(29, 30),
    "end_distance": slice(30, 31),
}
"""Which numbers of the vector are what."""
VECTOR_SIZE = 31
FARTHEST = 256.0
ONE = 255

SPACE = spaces.Dict(
    {
        "maps": spaces.Box(0, ONE, (len(MAPS), WINDOW, WINDOW), np.uint8),
        "vector": spaces.Box(0.0, 1.0, (VECTOR_SIZE,), np.float32),
        MASK_FIELD: spaces.MultiBinary(2 * DIRECTIONS),
    }
)
ACTIONS = spaces.Discrete(2 * DIRECTIONS)


def unpack(observation: dict[str, Array]) -> dict[str, Array]:
    """Take an observation apart by name: each map, each part of the vector, the mask. Works on batches, too."""
    maps, vector = observation["maps"], observation["vector"]
    named = {name: maps[..., k, :, :] for k, name in enumerate(MAPS)}
    return {**named, **{name: vector[..., where] for name, where in VECTOR.items()}, "mask": observation[MASK_FIELD]}


class Observer:
    """Writes the observations of a world into arrays of its own, which are the same in every step."""

    def __init__(self, world: World) -> None:
        self._world = world
        n = world.lanes
        self.maps = np.zeros((n, len(MAPS), WINDOW, WINDOW), np.uint8)
        self.vector = np.zeros((n, VECTOR_SIZE), np.float32)
        self.mask = np.ones((n, 2 * DIRECTIONS), np.int8)
        self._visits = sliding_window_view(world.visits, (WINDOW, WINDOW), axis=(1, 2))
        self._lanes = np.arange(n)
        self._places = np.array(world.settings.places)
        self.look_at_map()

    def look_at_map(self) -> None:
        """Take over the world's new map."""
        free = np.pad(np.where(self._world.map.free, ONE, 0).astype(np.uint8), VIEW)
        self._free = sliding_window_view(free, (WINDOW, WINDOW))

    def look(self, distances: Array) -> dict[str, Array]:
        """Return what the agents see; ``distances``: ``world.site_distances()``."""
        self._draw_maps()
        self._write_vector(distances)
        self.mask[:, DIRECTIONS:] = (self._world.cooldown == 0)[:, None]
        return {"maps": self.maps, "vector": self.vector, MASK_FIELD: self.mask}

    def _draw_maps(self) -> None:
        world, maps = self._world, self.maps
        row, column = world.cell.T
        maps[:, FREE] = self._free[row, column]
        maps[:, VISITS] = self._visits[self._lanes, row, column]
        maps[:, TREASURES:] = 0
        seen = world.map.sites[None] - world.cell[:, None] + VIEW  # [n, sites, 2]: where sites are in the window
        inside = np.all((seen >= 0) & (seen < WINDOW), axis=-1)
        lanes, sites = np.nonzero(inside & world.treasures)
        maps[lanes, TREASURES, seen[lanes, sites, 0], seen[lanes, sites, 1]] = ONE
        end = world.settings.end
        lanes = np.flatnonzero(inside[:, end])
        maps[lanes, END, seen[lanes, end, 0], seen[lanes, end, 1]] = ONE

    def _write_vector(self, distances: Array) -> None:
        world, vector = self._world, self.vector
        near = np.minimum(distances / FARTHEST, 1.0)
        there = world.treasures[:, self._places]
        vector[:, VECTOR["position"]] = world.position / SIZE
        vector[:, VECTOR["treasure_present"]] = there
        vector[:, VECTOR["treasure_distance"]] = np.where(there, near[:, self._places], 1.0)
        vector[:, 28] = world.buff_there
        vector[:, 29] = np.where(world.buff_there, near[:, 0], 1.0)
        vector[:, 30] = near[:, world.settings.end]
