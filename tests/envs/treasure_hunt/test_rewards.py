"""Reward terms about the way: what the shortest way is, what it pays, and which term can be farmed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rollmill.envs.treasure_hunt.env import TreasureHuntEnv, TreasureHuntVector
from rollmill.envs.treasure_hunt.map import centres
from rollmill.envs.treasure_hunt.rewards import TERMS
from rollmill.envs.treasure_hunt.route import Routes

EAST, WEST, FLASH = 0, 4, 8
NOTHING = dict.fromkeys(TERMS, 0.0)


def only(term: str, **settings: object) -> TreasureHuntEnv:
    """A hunt that rewards nothing but one term, as it is."""
    env = TreasureHuntEnv(rewards={**NOTHING, term: 1.0}, reward_scale=1.0, **settings)
    env.reset(seed=0)
    env.step(FLASH)  # from now on a flash is not ready: it does nothing, for a step
    return env


def put(env: TreasureHuntEnv, row: int, column: int) -> float:
    """Put the agent into the middle of a cell; returns the reward of a step that does nothing there."""
    env.world.position[0] = centres(np.array((row, column)))
    return env.step(FLASH)[1]


def shortest(env: TreasureHuntEnv) -> float:
    """Cells from the agent over all treasures that are left to the end: the best of all orders."""
    world = env.world
    away = world.site_distances()[0]
    ways = [
        away[order[0]] + sum(world.map.between[a, b] for a, b in itertools.pairwise(order))
        for treasures in itertools.permutations(np.flatnonzero(world.treasures[0]))
        for order in [(*treasures, world.settings.end)]
    ]
    return float(min(ways))


def test_the_shortest_way_on_a_line() -> None:
    """Sites at 0, 10 (the end), 4 and -3, the agent at 1: first back to -3, or it would have to return."""
    at = np.array([0.0, 10.0, 4.0, -3.0])
    routes = Routes(np.abs(at[:, None] - at), places=(2, 3), end=1)
    left = np.array([[0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]], bool)
    away = np.abs(at - 1.0).repeat(3).reshape(4, 3).T
    assert routes.lengths(away, left).tolist() == [4 + 7 + 6, 3 + 6, 9]
    assert routes.first(away[0], left[0]) == 3


def test_the_shortest_way_without_places() -> None:
    routes = Routes(np.zeros((3, 3)), places=(), end=1)
    assert routes.lengths(np.array([[5.0, 7.0, 9.0]]), np.zeros((1, 3), bool)).tolist() == [7.0]


def test_route_pays_the_cells_by_which_the_way_gets_shorter() -> None:
    env = only("route", treasure_num=1)
    row, column = env.world.map.sites[3]  # its neighbours, two and three cells away, in a corridor of eight
    put(env, row, column + 3)
    assert put(env, row, column + 2) == 1.0, "one cell nearer to the treasure, and from there to the end"


def test_route_is_the_difference_of_the_best_of_all_orders() -> None:
    env = only("route", treasure_num=4)
    rng = np.random.default_rng(2)
    before = shortest(env)
    for cell in env.world.map.free_cells[rng.integers(len(env.world.map.free_cells), size=30)]:
        paid = put(env, *cell)
        now = shortest(env)
        assert paid == pytest.approx(before - now)
        before = now


def test_going_back_costs_what_going_there_brought() -> None:
    env = only("route", treasure_num=5)
    cell = env.world.cell[0].copy()
    rng = np.random.default_rng(0)
    total = sum(env.step(int(action))[1] for action in rng.integers(0, 8, 60))
    assert total != 0, "it has come nearer, or farther away"
    assert env.world.treasures[0].sum() == 5
    assert total + put(env, *cell) == pytest.approx(0)


def test_route_begins_anew_with_every_hunt() -> None:
    """The way to where the next hunt starts pays nothing."""
    weights = {**NOTHING, "route": 1.0}
    env = TreasureHuntVector(2, rewards=weights, reward_scale=1.0, max_step=30, treasure_num="uniform")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        _, reward, *_ = env.step(rng.integers(0, 8, 2))
        assert np.abs(reward).max() <= 4, "a step covers less than two cells in each direction"


def test_route_is_off_unless_asked_for() -> None:
    assert TERMS["route"] == 0
    env = TreasureHuntEnv(treasure_num=3, max_step=20)
    env.reset(seed=0)
    for _ in range(20):
        *_, info = env.step(EAST)
    assert info["episode_stats"]["reward_route"] == 0


def between_two_treasures(env: TreasureHuntEnv) -> tuple[int, int]:
    """A cell from where the way east leads to treasure 3 and the way west to treasure 4."""
    world, free = env.world, env.world.map.free
    away = world.map.distances[[4, 3]].astype(int)
    for row, column in world.map.free_cells:
        near = free[row - 1 : row + 2, column - 4 : column + 5]
        slope = away[:, row, column - 4 : column + 5]
        apart = (np.diff(slope[0]) == 1).all() and (np.diff(slope[1]) == -1).all()
        if near.all() and apart and slope.min() > 6:
            return row, column
    raise AssertionError("no such cell")


@pytest.mark.parametrize(("term", "farmed"), [("treasure_distance", True), ("route", False)])
def test_walking_to_and_fro_between_two_treasures(term: str, farmed: bool) -> None:
    """The largest change over all treasures is never a loss there; a difference of potentials cannot be farmed."""
    env = only(term, treasure_num=2)
    put(env, *between_two_treasures(env))
    brought = sum(env.step(action)[1] for action in (EAST, WEST) * 20)
    if farmed:
        assert brought >= 40
    else:
        assert abs(brought) <= 4
