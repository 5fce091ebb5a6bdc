"""What each reward term brings, to the number; what the shortest way is and what it pays; which term can be farmed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rollmill.core.fields import Array
from rollmill.envs.treasure_hunt.env import TreasureHuntEnv, TreasureHuntVector
from rollmill.envs.treasure_hunt.map import centres
from rollmill.envs.treasure_hunt.rewards import TERMS
from rollmill.envs.treasure_hunt.route import Routes
from rollmill.envs.treasure_hunt.world import COOLDOWN, VIEW

EAST, WEST, FLASH = 0, 4, 8
BUFF, END, START = 0, 1, 2
"""Sites."""
NOTHING = dict.fromkeys(TERMS, 0.0)


def only(term: str, **settings: object) -> TreasureHuntEnv:
    """A hunt that rewards nothing but one term, as it is."""
    env = TreasureHuntEnv(rewards={**NOTHING, term: 1.0}, reward_scale=1.0, **settings)
    env.reset(seed=0)
    env.world.cooldown[0] = COOLDOWN  # a flash is not ready: it does nothing, for a step
    return env


def put(env: TreasureHuntEnv, row: int, column: int) -> float:
    """Put the agent into the middle of a cell; returns the reward of a step that does nothing there."""
    env.world.position[0] = centres(np.array((row, column)))
    return env.step(FLASH)[1]


def visit(env: TreasureHuntEnv, *sites: int) -> list[float]:
    """Put the agent onto one site after the other; returns what each has brought."""
    return [put(env, *env.world.map.sites[site]) for site in sites]


@pytest.mark.parametrize(
    ("term", "settings", "sites", "brought"),
    [
        ("end", {}, [3, END], [0, 150]),
        ("treasure", {"treasure_num": 2}, [3, 3, 5, 4, END], [100, 0, 0, 100, 0]),
        ("missed_treasure", {"treasure_num": 3}, [4, BUFF, END], [0, 0, -200]),
        ("missed_treasure", {"treasure_num": 1}, [3, END], [0, 0]),
        ("missed_treasure", {"treasure_num": 3, "max_step": 3}, [4, BUFF], [0, 0]),  # time runs out
        ("missed_buff", {}, [START, END], [0, -5]),
        ("missed_buff", {}, [BUFF, END], [0, 0]),
        ("missed_buff", {"max_step": 2}, [START], [0]),
        ("buff", {}, [BUFF, BUFF, END], [5, 0, 0]),
        ("buff", {"buff_respawn": 1}, [BUFF, BUFF], [5, 5]),
        ("step", {}, [START, END], [-0.2, -0.2]),
        # The start is the first visit of its cell. Two cost nothing, five count as 1.
        ("repeat_visit", {}, [START] * 5 + [3], [0, -0.2, -0.4, -0.6, -0.6, 0]),
        ("wall", {}, [START], [0]),
        ("flash_wall", {}, [START], [0]),  # it was not ready
    ],
)
def test_what_is_brought_by_places(term: str, settings: dict[str, int], sites: list[int], brought: list[float]) -> None:
    assert visit(only(term, **settings), *sites) == pytest.approx(brought)


def test_terms_are_weighted_and_scaled() -> None:
    env = TreasureHuntEnv(rewards={**NOTHING, "end": 2.0}, reward_scale=0.5)
    env.reset(seed=0)
    env.world.cooldown[0] = COOLDOWN
    env.world.position[0] = env.world.map.positions[END]
    _, reward, _, _, info = env.step(FLASH)
    assert reward == info["episode_stats"]["reward_end"] == 150.0


def test_a_step_into_a_wall_costs_one() -> None:
    env = only("wall")
    free = env.world.map.free
    row, column = next(cell for cell in env.world.map.free_cells if not free[cell[0], cell[1] + 1])
    put(env, row, column)
    assert env.step(EAST)[1] == -1.0, "half a cell is less than half of a step"
    assert env.step(WEST)[1] == 0.0


def flashes(env: TreasureHuntEnv) -> dict[bool, tuple[float, Array]]:
    """Reward of a flash that has landed and of one that has not, and cells by which sites came nearer."""
    found = {}
    for direction in range(8):
        put(env, *env.world.map.sites[START])
        env.world.cooldown[0] = 0
        before = env.world.site_distances()[0]
        _, reward, _, _, info = env.step(FLASH + direction)
        found[info["distance"] > 7000] = (reward, before - env.world.site_distances()[0])
    assert len(found) == 2, "some directions lead into walls"
    return found


def test_a_flash_into_a_wall_costs_ten() -> None:
    found = flashes(only("flash_wall"))
    assert (found[True][0], found[False][0]) == (0.0, -10.0)
    assert {reward for reward, _ in flashes(only("wall")).values()} == {0.0}, "nobody has walked"


def test_the_end_pays_the_cells_by_which_it_comes_nearer() -> None:
    env = only("end_distance")
    row, column = env.world.map.sites[END]
    put(env, row, column + 3)
    assert put(env, row, column + 2) == 1.0
    assert put(env, row, column + 3) == -1.0
    landed = flashes(env)[True]
    assert landed[0] == landed[1][END], "no more for a flash"


def test_the_treasure_that_came_nearest_pays_and_five_times_that_for_a_flash() -> None:
    env = only("treasure_distance", treasure_num=5)
    rng = np.random.default_rng(2)
    before = env.world.site_distances()[0]
    farther = 0
    for cell in env.world.map.free_cells[rng.integers(len(env.world.map.free_cells), size=40)]:
        there = np.flatnonzero(env.world.treasures[0])  # before the step: one that is taken in it counts, too
        paid = put(env, *cell)
        now = env.world.site_distances()[0]
        assert paid == max(before[there] - now[there])
        farther += paid < 0
        before = now
    assert farther, "where all are farther away, it costs"
    there = np.flatnonzero(env.world.treasures[0])
    found = flashes(env)
    assert found[True][0] == 5 * max(found[True][1][there]) != 0
    assert found[False][0] == 0
    assert visit(only("treasure_distance", treasure_num=0), 3, 4) == [0.0, 0.0], "none is there"
    taken = only("treasure_distance", treasure_num=1)
    first, then = visit(taken, 3, 4)
    assert first == taken.world.map.between[START, 3]
    assert then == 0, "it is gone"


def test_visits_around_count_by_their_nearness() -> None:
    env = only("repeat_visit", neighbourhood=True)
    world = env.world
    row, column = world.map.sites[START]
    around = np.random.default_rng(0).integers(0, 256, (9, 9))
    world.visits[0, row + VIEW - 4 : row + VIEW + 5, column + VIEW - 4 : column + VIEW + 5] = around
    around[4, 4] = min(255, around[4, 4] + 51)
    ring = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
    visited = sum(ring[r] * ring[c] * around[2 + r, 2 + c] / 255 for r in range(5) for c in range(5))
    assert visited > 0.4
    assert put(env, row, column) == pytest.approx(0.4 - visited)
    world.visits[:] = 0
    assert put(env, row, column) == 0


# -- treasures that are missed more often ----------------------------------------------------------


class Missing:
    """A hunt of ``max_step`` steps after the other, with treasures that bring more the more often they were missed."""

    def __init__(self, max_step: int, lanes: int = 1, **settings: object) -> None:
        weights = {**NOTHING, "treasure": 1.0}
        usual = {"rewards": weights, "reward_scale": 1.0, "dynamic_treasures": True, "max_step": max_step}
        self.env = TreasureHuntVector(lanes, **{**usual, **settings})
        self.env.reset(seed=0)
        self.steps = max_step

    def play(self, *sites: int) -> list[float]:
        """Play one hunt: to these sites in the first lane, until the time is up in all; returns what was brought."""
        env, brought = self.env, []
        for number in range(self.steps):
            env.world.cooldown[:] = 2  # nobody flashes, and nobody moves
            if number < len(sites):
                env.world.position[0] = env.world.map.positions[sites[number]]
            _, reward, terminated, truncated, _ = env.step(np.full(env.num_envs, FLASH))
            brought.append(float(reward[0]))
            if terminated.any():
                break
        assert (terminated | truncated).all()
        _, reward, *_ = env.step(np.full(env.num_envs, FLASH))  # the next one begins
        assert not reward.any()
        return brought[: len(sites)]


def test_a_treasure_brings_more_the_more_often_it_was_missed() -> None:
    """(misses + 1) over the mean of those that are there, and half at least."""
    hunts = Missing(max_step=4, treasure_num=3)
    assert hunts.play(3) == [100]
    for _ in range(7):
        hunts.play(3, 4)
    # Misses by now: none of treasure 3, one of 4, eight of 5.
    assert hunts.play(5, 4, 3) == pytest.approx([100 * 9 / 4, 100 * 2 / 1.5, 100])
    assert hunts.play(3, 5, 4) == pytest.approx([50, 100 * 9 / 5.5, 100]), "1 / 4 would be less than half"


def test_misses_count_where_the_end_is_reached_too() -> None:
    hunts = Missing(max_step=3, treasure_num=2)
    hunts.play(3, END)
    assert hunts.play(4, 3) == pytest.approx([100 * 2 / 1.5, 100])


def test_misses_are_forgotten_after_a_hundred_episodes() -> None:
    hunts = Missing(max_step=1, treasure_num=2)
    brought = [hunts.play(3)[0] for _ in range(202)]
    assert brought == pytest.approx([100, 100 / 1.5, *[50] * 98] * 2 + [100, 100 / 1.5])


def test_misses_change_nothing_unless_asked_for() -> None:
    hunts = Missing(max_step=2, treasure_num=2, dynamic_treasures=False)
    assert [hunts.play(3) for _ in range(5)] == [[100]] * 5


def test_episodes_of_all_lanes_are_counted_together() -> None:
    hunts = Missing(max_step=2, treasure_num=1, lanes=30)
    for _ in range(3):
        hunts.play()
    hunts.env.world.treasures[0, 4] = True  # of another kind: never missed until now
    assert hunts.play(3, 4)[0] == pytest.approx(100 * 91 / 46)
    hunts.env.world.treasures[0, 4] = True
    assert hunts.play(3, 4) == [100, 100], "120 episodes are over"


def test_sums_of_terms_are_those_of_one_hunt() -> None:
    env = TreasureHuntVector(2, rewards={**NOTHING, "step": 1.0, "wall": 1.0}, max_step=3)
    env.reset(seed=0)
    for number in range(12):
        *_, info = env.step(np.array([FLASH, FLASH]))
        assert ("episode_stats" in info) == (number % 4 == 2)
        if "episode_stats" in info:
            assert info["episode_stats"]["reward_step"] == pytest.approx([-0.06] * 2)


def test_weights_follow_the_variables_of_the_run() -> None:
    variables = {"reward_step": 3.0}
    env = TreasureHuntEnv(rewards=NOTHING, reward_scale=1.0, variables=variables)
    env.reset(seed=0)
    assert env.step(EAST)[1] == pytest.approx(-0.6)


# -- the shortest way ------------------------------------------------------------------------------


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


def test_route_is_of_the_map_that_is_played() -> None:
    env = only("route", treasure_num=3, map_random=True)
    for seed in (1, 2):
        env.reset(seed=seed)
        env.world.cooldown[0] = COOLDOWN
        before = shortest(env)
        paid = put(env, *env.world.map.free_cells[1000])
        assert paid == pytest.approx(before - shortest(env))


def test_going_back_costs_what_going_there_brought() -> None:
    env = only("route", treasure_num=5)
    cell = env.world.cell[0].copy()
    rng = np.random.default_rng(0)
    total = sum(env.step(int(action))[1] for action in rng.integers(0, 8, 60))
    assert total != 0, "it has come nearer, or farther away"
    assert env.world.treasures[0].sum() == 5
    assert total + put(env, *cell) == pytest.approx(0)


@pytest.mark.parametrize("term", ["route", "end_distance", "treasure_distance"])
def test_ways_begin_anew_with_every_hunt(term: str) -> None:
    """The way to where the next hunt starts pays nothing."""
    weights = {**NOTHING, term: 1.0}
    env = TreasureHuntVector(2, rewards=weights, reward_scale=1.0, max_step=30, treasure_num="uniform")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        _, reward, *_ = env.step(rng.integers(0, 8, 2))
        assert np.abs(reward).max() <= 4, "a step covers less than two cells in each direction"


def test_route_is_off_unless_asked_for() -> None:
    assert {name: float(name != "route") for name in TERMS} == TERMS, "all others count as they are"
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
