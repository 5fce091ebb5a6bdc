"""The rules of the world, each on a hunt that is put where the rule matters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.core.fields import Array
from rollmill.envs.treasure_hunt.map import CELL, CELLS, HuntMap, centres
from rollmill.envs.treasure_hunt.settings import HuntSettings
from rollmill.envs.treasure_hunt.world import BUFF_STEPS, COOLDOWN, VIEW, Moved, World

EAST, NORTH_EAST, NORTH, WEST, SOUTH = 0, 1, 2, 4, 6
FLASH = 8


class Hunt:
    """One hunt that a test moves by hand."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(HuntSettings(**settings), 1)
        self.rng = np.random.default_rng(0)
        self.world.reset(np.arange(1), self.rng, 1.0)

    def put(self, x: float, y: float) -> None:
        self.world.position[0] = (x, y)

    def at_site(self, site: int) -> Array:
        self.world.position[0] = self.world.map.positions[site]
        return self.world.position[0].copy()

    def step(self, action: int) -> Moved:
        return self.world.step(np.array([action]), self.rng)

    @property
    def position(self) -> Array:
        return self.world.position[0]

    def beside_wall(self, row_step: int, column_step: int) -> None:
        """To a free cell far from others' walls whose neighbour in this direction is a wall."""
        free = self.world.map.free
        for row, column in self.world.map.free_cells:
            near = (row + row_step, column + column_step)
            block = free[row - 2 : row + 3, column - 3 : column + 4]
            open_side = block[:, :4] if column_step > 0 else block[:3]
            if not free[near] and open_side.all():
                self.put((column + 0.9) * CELL if column_step else (column + 0.5) * CELL, (CELLS - row - 0.5) * CELL)
                return
        raise AssertionError("no such cell")


@pytest.mark.parametrize("action", range(8))
def test_eight_directions_counter_clockwise_from_east(action: int) -> None:
    hunt = Hunt()
    before = hunt.at_site(0)
    moved = hunt.step(action)
    way = hunt.position - before
    assert np.degrees(np.arctan2(way[1], way[0])) % 360 == pytest.approx(45 * action)
    assert 660 <= moved.distance[0] <= 711


def test_the_buff_makes_faster_for_fifty_steps_and_is_gone() -> None:
    hunt = Hunt()
    hunt.at_site(0)
    first = hunt.step(EAST)  # 700 units are farther than its reach
    assert not first.got_buff[0]
    back = hunt.step(WEST)
    assert back.got_buff[0]
    assert not hunt.world.buff_there[0]
    for n in range(BUFF_STEPS):
        moved = hunt.step(EAST if n % 2 else WEST)
        assert 900 <= moved.distance[0] <= 1100
        assert not moved.got_buff[0], "it is there once"
    assert hunt.step(EAST).distance[0] <= 711
    assert hunt.world.buffs[0] == 1


def test_the_buff_comes_back_where_that_is_asked_for() -> None:
    hunt = Hunt(buff_respawn=454, max_step=5000)
    hunt.at_site(0)
    hunt.step(EAST)
    hunt.step(WEST)
    hunt.at_site(2)
    for n in range(453):
        hunt.step(EAST if n % 2 else WEST)
        assert not hunt.world.buff_there[0]
    hunt.step(EAST)
    assert hunt.world.buff_there[0]


def test_a_flash_passes_through_walls() -> None:
    hunt = Hunt()
    world = hunt.world
    for row, column in world.map.free_cells:  # a cell with a wall on the way, and free cells where the flash may land
        landing = world.map.free[row - 17 : row - 14, column]
        if len(landing) == 3 and landing.all() and not world.map.free[row - 14 : row, column].all():
            hunt.put((column + 0.5) * CELL, (CELLS - row - 0.5) * CELL)
            break
    before = hunt.position.copy()
    moved = hunt.step(FLASH + NORTH)
    assert moved.flashed[0]
    assert not moved.hit_flashing[0]
    assert 7900 <= hunt.position[1] - before[1] <= 8100
    assert world.flashes[0] == 1


def test_a_flash_into_a_wall_stays_and_spends_the_cooldown() -> None:
    hunt = Hunt()
    before = hunt.at_site(2)
    away = next(a for a in range(8) if not _lands(hunt, a))
    moved = hunt.step(FLASH + away)
    np.testing.assert_array_equal(hunt.position, before)
    assert moved.hit_flashing[0]
    assert hunt.world.cooldown[0] == COOLDOWN


def _lands(hunt: Hunt, action: int) -> bool:
    angle = action * np.pi / 4
    target = hunt.position + 8000 * np.array([np.cos(angle), np.sin(angle)])
    return bool(hunt.world._is_free(target[:1], target[1:])[0])


def test_the_cooldown_lasts_600_steps_and_a_flash_before_does_nothing() -> None:
    hunt = Hunt()
    hunt.at_site(0)
    hunt.step(FLASH + EAST)
    before = hunt.at_site(0)
    for _ in range(COOLDOWN):
        assert hunt.world.cooldown[0] > 0
        moved = hunt.step(FLASH + EAST)
        assert not moved.flashed[0]
        assert not moved.hit_wall[0]
        np.testing.assert_array_equal(hunt.position, before)
    assert hunt.world.cooldown[0] == 0
    assert hunt.step(FLASH + EAST).flashed[0]


def test_a_blocked_move_slides_along_the_wall() -> None:
    hunt = Hunt()
    hunt.beside_wall(0, 1)  # a wall to the east
    before = hunt.position.copy()
    moved = hunt.step(NORTH_EAST)
    assert hunt.position[1] - before[1] == pytest.approx(moved.distance[0], rel=0.05), "north, along the wall"
    assert hunt.position[0] - before[0] < 0.2 * CELL
    assert not moved.hit_wall[0]


DIAGONALS = {1: (1, 1), 3: (-1, 1), 5: (-1, -1), 7: (1, -1)}
"""Actions, and their way east and north."""
HERE = (60, 60)


def in_the_corner(action: int, *walls: tuple[int, int]) -> tuple[Array, Moved]:
    """What a diagonal step covers, ``[2]``, from 100 units off the corner that it leads to, on a map without any walls
    but these neighbouring cells: (1, 0) is the one beside in the step's way east or west, (0, 1) in its way north or
    south."""
    way = DIAGONALS[action]
    free = np.ones((CELLS, CELLS), bool)
    for beside, above in walls:
        free[HERE[0] - above * way[1], HERE[1] + beside * way[0]] = False
    hunt = Hunt()
    hunt.world.use(HuntMap(free, hunt.world.map.sites))
    hunt.put(*(centres(np.array(HERE)) + (CELL / 2 - 100) * np.array(way)))
    before = hunt.position.copy()
    moved = hunt.step(action)
    return (hunt.position - before) * way, moved


@pytest.mark.parametrize("action", DIAGONALS)
def test_a_diagonal_step_at_a_corner(action: int) -> None:
    far = pytest.approx(485, rel=0.04)  # 685 aslant
    assert in_the_corner(action)[0].tolist() == [far, far]
    assert in_the_corner(action, (1, 0))[0].tolist() == [far, far], "one open side is enough"
    assert in_the_corner(action, (0, 1))[0].tolist() == [far, far]
    assert in_the_corner(action, (1, 0), (1, 1))[0].tolist() == [0, far], "along a wall"
    assert in_the_corner(action, (0, 1), (1, 1))[0].tolist() == [far, 0]
    way, moved = in_the_corner(action, (1, 1))
    assert sorted(way.tolist()) == [0, far], "past an outer corner, on either side"
    assert not moved.hit_wall[0]
    way, moved = in_the_corner(action, (1, 0), (0, 1))
    assert way.tolist() == [0, 0], "not between two walls that touch"
    assert moved.hit_wall[0]


@pytest.mark.parametrize(
    ("direction", "cell"), [(EAST, (60, 120)), (NORTH, (7, 60)), (WEST, (60, 7)), (SOUTH, (120, 60))]
)
def test_nobody_leaves_the_map(direction: int, cell: tuple[int, int]) -> None:
    hunt = Hunt()
    hunt.world.use(HuntMap(np.ones((CELLS, CELLS), bool), hunt.world.map.sites))
    hunt.put(*centres(np.array(cell)))
    assert hunt.step(FLASH + direction).hit_flashing[0]
    for _ in range(15):
        moved = hunt.step(direction)
    assert moved.hit_wall[0]
    assert 0 < hunt.position.min() < hunt.position.max() < CELLS * CELL


@pytest.mark.parametrize(
    ("action", "buffed", "low", "high"), [(EAST, 0, 660, 711), (EAST, 9, 900, 1100), (FLASH + EAST, 0, 7900, 8100)]
)
def test_lengths_of_moves(action: int, buffed: int, low: float, high: float) -> None:
    lanes = 200
    world, rng, found = World(HuntSettings(), lanes), np.random.default_rng(0), []
    world.reset(np.arange(lanes), rng, 1.0)
    world.use(HuntMap(np.ones((CELLS, CELLS), bool), world.map.sites))
    for _ in range(40):
        world.position[:] = CELLS * CELL / 2 + 3 * CELL
        world.buff_left[:], world.cooldown[:] = buffed, 0
        found.append(world.step(np.full(lanes, action), rng).distance)
    assert low <= np.min(found) < low + 0.004 * (high - low)
    assert high - 0.004 * (high - low) < np.max(found) <= high


def test_the_numbers_of_the_rules() -> None:
    assert (COOLDOWN, BUFF_STEPS, HuntSettings().max_step, HuntSettings().reach, CELLS * CELL) == (
        600,
        50,
        2000,
        500,
        64000,
    )


def test_walking_into_a_wall_is_a_hit() -> None:
    hunt = Hunt()
    hunt.beside_wall(0, 1)
    moved = hunt.step(EAST)
    assert moved.hit_wall[0]
    assert moved.distance[0] < 0.2 * CELL
    assert hunt.world.hits[0] == 1


def test_nobody_ever_stands_in_a_wall_or_crosses_one() -> None:
    world = World(HuntSettings(), 64)
    rng = np.random.default_rng(1)
    world.reset(np.arange(64), rng, 1.0)
    for _ in range(500):
        before = world.position.copy()
        moved = world.step(rng.integers(0, 16, 64), rng)
        assert world.map.free[tuple(world.cell.T)].all()
        walked = ~moved.flashed
        for share in np.linspace(0, 1, 15):
            on_the_way = before + share * (world.position - before)
            column, row = on_the_way[:, 0] // CELL, CELLS - 1 - on_the_way[:, 1] // CELL
            inside = world.map.free[row.astype(int), column.astype(int)]
            # Two slides around a corner make a bend: the straight line between its ends may touch the corner.
            assert (inside | ~walked).mean() > 0.95


def test_treasures_and_the_end_are_taken_within_reach() -> None:
    hunt = Hunt(treasure_num=2)
    x, y = hunt.world.map.positions[3]
    hunt.put(x - 700 - 499, y)
    assert hunt.step(EAST).got[0].sum() in (0, 1)
    hunt.put(x, y)
    hunt.world.treasures[0, 3] = True
    hunt.put(x - 685, y)
    got = hunt.step(EAST).got[0]
    assert np.flatnonzero(got).tolist() == [3]
    assert hunt.world.taken[0] == 1
    assert not hunt.step(WEST).got[0].any(), "once"
    end = hunt.world.map.positions[1]
    hunt.put(*(end - (685, 0)))
    moved = hunt.step(EAST)
    assert moved.at_end[0]
    score = 150 + 0.2 * (2000 - hunt.world.step_no[0]) + 100
    assert hunt.world.score(moved.at_end)[0] == pytest.approx(score)


@pytest.mark.parametrize("reach", [200.0, 500.0, 1400.0])
@pytest.mark.parametrize("inside", [True, False])
def test_things_are_taken_within_reach_and_not_beyond(reach: float, inside: bool) -> None:
    hunt = Hunt(reach=reach, treasure_num=1)
    hunt.world.cooldown[0] = COOLDOWN
    for site in (0, 3, 1):
        x, y = hunt.world.map.positions[site]
        hunt.put(x + 0.6 * reach + (0 if inside else 1), y - 0.8 * reach)
        moved = hunt.step(FLASH)
        found = {0: moved.got_buff[0], 3: moved.got[0, 3], 1: moved.at_end[0]}
        assert found == {thing: inside and thing == site for thing in found}


def test_time_runs_out() -> None:
    hunt = Hunt(max_step=5)
    for _ in range(4):
        assert not hunt.step(EAST).timed_out[0]
    moved = hunt.step(WEST)
    assert moved.timed_out[0]
    assert hunt.world.score(moved.at_end)[0] == 0


def test_visits_are_counted_up_to_five() -> None:
    hunt = Hunt()
    row, column = hunt.world.cell[0] + VIEW
    assert hunt.world.visits[0, row, column] == 51
    for visits in (102, 153, 204, 255, 255):
        hunt.world._visit(np.arange(1))
        assert hunt.world.visits[0, row, column] == visits


def test_treasures_come_in_order_at_random_or_as_told() -> None:
    assert np.flatnonzero(Hunt(treasure_num=4).world.treasures[0]).tolist() == [3, 4, 5, 6]
    assert np.flatnonzero(Hunt(treasure_id=[14, 4]).world.treasures[0]).tolist() == [4, 14]
    sets = set()
    world = World(HuntSettings(treasure_num=4, treasure_random=True), 50)
    world.reset(np.arange(50), np.random.default_rng(0), 1.0)
    for treasures in world.treasures:
        found = np.flatnonzero(treasures)
        assert len(found) == 4
        assert set(found) <= set(range(3, 16))
        sets.add(tuple(found))
    assert len(sets) > 20


def test_random_starts_for_a_first_part_of_the_run() -> None:
    world = World(HuntSettings(random_start=0.3), 40)
    world.reset(np.arange(40), np.random.default_rng(0), 0.1)
    assert len(np.unique(world.cell, axis=0)) > 30
    assert world.map.free[tuple(world.cell.T)].all()
    np.testing.assert_array_equal(world.position, centres(world.cell))
    world.reset(np.arange(40), np.random.default_rng(0), 0.3)
    assert len(np.unique(world.cell, axis=0)) == 1
