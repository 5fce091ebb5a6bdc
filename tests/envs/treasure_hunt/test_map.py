import numpy as np
import pytest

from rollmill.envs.treasure_hunt.env import TreasureHuntEnv, TreasureHuntVector
from rollmill.envs.treasure_hunt.map import CELL, CELLS, WALKABLE, HuntMap, centres, generate_map, load_map
from rollmill.envs.treasure_hunt.observation import FREE
from rollmill.envs.treasure_hunt.world import VIEW


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_map_keeps_to_its_rules(seed: int) -> None:
    made = load_map(seed)
    assert WALKABLE[0] <= made.free.mean() <= WALKABLE[1]
    assert made.free[tuple(made.sites.T)].all()
    assert len(np.unique(made.sites, axis=0)) == 16
    assert made.sites[0].tolist() == [CELLS // 2, CELLS // 2]
    assert (made.distances[:, made.free] >= 0).all(), "every free cell can be reached from every site"
    border = np.concatenate([made.free[0], made.free[-1], made.free[:, 0], made.free[:, -1]])
    assert not border.any()


def test_the_shipped_map_is_that_of_seed_0() -> None:
    shipped, made = load_map(0), generate_map(0)
    np.testing.assert_array_equal(shipped.free, made.free)
    np.testing.assert_array_equal(shipped.sites, made.sites)


def test_corridors_are_as_wide_as_they_should_be() -> None:
    """Every free cell lies in a square of free cells as wide as the narrowest corridor."""
    free = load_map(0).free
    squares = np.lib.stride_tricks.sliding_window_view(free, (8, 8)).all((2, 3))
    covered = np.zeros_like(free)
    for row, column in np.argwhere(squares):
        covered[row : row + 8, column : column + 8] = True
    np.testing.assert_array_equal(covered, free)


def test_row_0_is_the_northernmost() -> None:
    north, south = centres(np.array([[0, 0], [CELLS - 1, 0]]))
    assert north[1] == (CELLS - 0.5) * CELL
    assert south[1] == 0.5 * CELL
    assert north[0] == south[0] == 0.5 * CELL


def test_a_map_survives_its_file() -> None:
    made = load_map(3)
    again = HuntMap.from_text(made.to_text())
    np.testing.assert_array_equal(again.free, made.free)
    np.testing.assert_array_equal(again.sites, made.sites)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "128 lines of 128"),
        (lambda text: text.replace("7", "."), "wrong are the sites 7"),
        (lambda text: "." + text[1:], "cannot be reached"),
    ],
)
def test_a_damaged_file_is_refused(change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        HuntMap.from_text(change(load_map(0).to_text()))


def test_distances_count_steps_between_neighbours() -> None:
    made = load_map(0)
    for site in (0, 1, 15):
        away = made.distances[site]
        row, column = made.sites[site]
        assert away[row, column] == 0
        for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            assert away[near] == 1
    a, b = made.sites[3], made.sites[9]
    assert made.distances[3][tuple(b)] == made.distances[9][tuple(a)]


def test_a_map_is_the_same_after_bytes() -> None:
    drawn = generate_map(5)
    again = HuntMap.from_bytes(drawn.to_bytes())
    for name in ("free", "sites", "distances", "between", "positions"):
        np.testing.assert_array_equal(getattr(again, name), getattr(drawn, name))
        assert getattr(again, name).dtype == getattr(drawn, name).dtype


def test_every_episode_has_a_map_of_its_own_where_that_is_asked_for() -> None:
    env = TreasureHuntEnv(map_random=True)
    maps = []
    for seed in (1, 2, 1):
        seen, _ = env.reset(seed=seed)
        maps.append(env.world.map)
        row, column = env.world.cell[0]
        assert env.world.map.free[row, column]
        assert seen["maps"][FREE, VIEW, VIEW] > 0, "what is seen is the new map"
    np.testing.assert_array_equal(maps[0].free, maps[2].free)
    assert (maps[0].free != maps[1].free).any()
    assert not hasattr(TreasureHuntEnv(), "save_level"), "one map for all is nothing to keep"
    with pytest.raises(ValueError, match="share a map"):
        TreasureHuntVector(2, map_random=True)
