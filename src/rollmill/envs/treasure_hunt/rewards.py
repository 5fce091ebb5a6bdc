"""What a treasure hunt rewards, term by term (``envs.reward_terms``), from the world before and after a step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollmill.core.fields import Array
from rollmill.envs.reward_terms import RewardTerms
from rollmill.envs.treasure_hunt.map import SITES
from rollmill.envs.treasure_hunt.route import Routes
from rollmill.envs.treasure_hunt.world import SEEN_MOST, VIEW, Moved, World

TERMS = {
    "repeat_visit": 1.0,  # - how much more than twice the cell was visited
    "end": 1.0,  # 150 when the end is reached
    "missed_treasure": 1.0,  # -100 for each treasure that was left when the end is reached
    "missed_buff": 1.0,  # -5 when the end is reached and the buff was never taken
    "end_distance": 1.0,  # cells that the end has come nearer
    "treasure_distance": 1.0,  # cells that a treasure has come nearer, at most; times 5 with a flash
    "route": 0.0,  # cells by which the shortest way over all treasures that are left to the end has become shorter
    "treasure": 1.0,  # 100 for each treasure taken
    "wall": 1.0,  # -1 for walking into a wall
    "flash_wall": 1.0,  # -10 for flashing into one
    "buff": 1.0,  # 5 when it is taken
    "step": 1.0,  # -0.2
}
"""The terms and their usual weights."""
TOLERATED = 0.4
"""Visits of a cell that cost nothing, at 0.2 each."""
FLASH_FACTOR = 5.0
EPISODES = 100
"""Episodes after which misses are counted anew."""
LEAST_FACTOR = 0.5
_RING = np.array([1.0, 4.0, 6.0, 4.0, 1.0])
_AROUND = np.outer(_RING, _RING) / np.outer(_RING, _RING).sum()


class HuntRewards:
    """The rewards of one world."""

    def __init__(self, world: World, variables: Mapping[str, float] | None = None) -> None:
        self._world, self._settings = world, world.settings
        self.terms = RewardTerms(TERMS, world.settings.rewards, world.lanes, variables)
        self._missed, self._ended = np.zeros(SITES), 0
        self._distances = np.zeros((world.lanes, SITES))
        self._route_left = np.zeros(world.lanes)
        self._routes: Routes | None = None
        self.look_at_map()

    def look_at_map(self) -> None:
        """Take over the world's new map."""
        if self.terms.moves("route"):
            world = self._world
            self._routes = Routes(world.map.between, world.settings.places, world.settings.end)

    def begin(self, lanes: Array, distances: Array) -> None:
        """Begin episodes in these lanes; ``distances``: of all sites from all lanes."""
        self.terms.reset(lanes)
        self._distances[lanes] = distances[lanes]
        if self._routes is not None:
            self._route_left[lanes] = self._routes.lengths(distances[lanes], self._world.treasures[lanes])

    def step(self, moved: Moved, distances: Array, progress: float) -> Array:
        """Return ``[n]`` float64, the reward; ``distances`` are those after the step."""
        world, s = self._world, self._settings
        nearer, self._distances = self._distances - distances, distances.astype(np.float64)
        sought = world.treasures | moved.got  # as it was before the step
        best = np.where(sought, nearer, -np.inf).max(1)
        best = np.where(sought.any(1), best, 0.0) * np.where(moved.flashed, FLASH_FACTOR, 1.0)
        worth = self._worth(sought) if s.dynamic_treasures else 1.0
        reward = self.terms.step(
            repeat_visit=-np.maximum(0.0, self._visited() - TOLERATED),
            end=150.0 * moved.at_end,
            missed_treasure=-100.0 * world.treasures.sum(1) * moved.at_end,
            missed_buff=-5.0 * (moved.at_end & (world.buffs == 0)),
            end_distance=nearer[:, s.end],
            treasure_distance=best,
            route=self._shortened(distances),
            treasure=100.0 * (moved.got * worth).sum(1),
            wall=-1.0 * moved.hit_wall,
            flash_wall=-10.0 * moved.hit_flashing,
            buff=5.0 * moved.got_buff,
            step=-0.2 if progress >= s.step_from else 0.0,
        )
        self._count(moved.at_end | moved.timed_out)
        return reward * s.reward_scale

    def _shortened(self, distances: Array) -> Array | float:
        """Return ``[n]``, a difference of potentials, so that going back costs what going there has brought."""
        if self._routes is None:
            return 0.0
        before, self._route_left = self._route_left, self._routes.lengths(distances, self._world.treasures)
        shortened: Array = before - self._route_left
        return shortened

    def _visited(self) -> Array:
        """Return ``[n]``, 0.2 for every visit of the cell, or of those around it by their nearness."""
        world = self._world
        row, column = world.cell.T + VIEW
        lanes = np.arange(world.lanes)
        if not self._settings.neighbourhood:
            return world.visits[lanes, row, column] / SEEN_MOST
        offsets = np.arange(-2, 3)
        around = world.visits[
            lanes[:, None, None], (row[:, None] + offsets)[:, :, None], (column[:, None] + offsets)[:, None, :]
        ]
        found: Array = (around * _AROUND).sum((1, 2)) / SEEN_MOST
        return found

    def _worth(self, sought: Array) -> Array:
        """Return ``[n, SITES]``, how much more than others a treasure brings, by how often it was missed of late."""
        misses = self._missed + 1.0
        mean = (misses * sought).sum(1) / np.maximum(sought.sum(1), 1)
        worth: Array = np.maximum(LEAST_FACTOR, misses[None] / np.maximum(mean, 1e-9)[:, None])
        return worth

    def _count(self, ended: Array) -> None:
        if not ended.any():
            return
        self._missed += self._world.treasures[ended].sum(0)
        self._ended += int(ended.sum())
        if self._ended >= EPISODES:
            self._missed[:], self._ended = 0.0, 0
