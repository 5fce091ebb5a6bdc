from __future__ import annotations

import itertools

import numpy as np
import pytest

from rollmill.envs.treasure_hunt.map import load_map
from rollmill.envs.treasure_hunt.reference import Guide, play_guided
from rollmill.envs.treasure_hunt.settings import HuntSettings


@pytest.fixture(scope="module")
def guide() -> Guide:
    return Guide()


def test_the_oracle_is_the_best_of_all_orders(guide: Guide) -> None:
    treasures = [4, 9, 12, 7, 15]
    best = min(
        sum(guide.between[a, b] for a, b in itertools.pairwise((2, *order, 1)))
        for order in itertools.permutations(treasures)
    )
    route = guide.oracle(2, 1, treasures)
    assert route.distance == pytest.approx(best)
    assert sorted(route.sites[1:-1]) == sorted(treasures)
    assert route.distance == pytest.approx(sum(guide.between[a, b] for a, b in itertools.pairwise(route.sites)))


@pytest.mark.parametrize("count", range(14))
def test_nearest_first_is_never_better(guide: Guide, count: int) -> None:
    treasures = list(range(3, 3 + count))
    oracle, nearest = guide.oracle(2, 1, treasures), guide.nearest_first(2, 1, treasures)
    assert oracle.steps <= nearest.steps
    assert oracle.score(2000) >= nearest.score(2000)


@pytest.mark.parametrize("how", ["oracle", "nearest-first"])
@pytest.mark.parametrize("count", range(14))
def test_players_reach_what_the_routes_promise(guide: Guide, how: str, count: int) -> None:
    steps, scores = play_guided(HuntSettings(treasure_num=count), how, lanes=2, guide=guide)
    treasures = list(range(3, 3 + count))
    route = guide.oracle(2, 1, treasures) if how == "oracle" else guide.nearest_first(2, 1, treasures)
    assert np.abs(steps - route.steps).max() <= 0.03 * route.steps + 3
    np.testing.assert_allclose(scores, 150 + 0.2 * (2000 - steps) + 100 * count)


@pytest.mark.parametrize("map_seed", [1, 2])
@pytest.mark.parametrize("how", ["oracle", "nearest-first"])
def test_players_find_their_way_on_other_maps(how: str, map_seed: int) -> None:
    own = Guide(load_map(map_seed))
    steps, scores = play_guided(HuntSettings(treasure_num=13, map_seed=map_seed), how, lanes=2, guide=own)
    assert np.abs(steps - own.oracle(2, 1, range(3, 16)).steps).max() < 200
    assert (scores > 1600).all(), "all treasures, and the end"


def test_players_take_the_treasures_of_the_world(guide: Guide) -> None:
    """Whichever they are, and another start and end."""
    settings = HuntSettings(start=5, end=9, treasure_random=True, treasure_num="uniform", max_step=3000)
    for how in ("oracle", "nearest-first"):
        _, scores = play_guided(settings, how, lanes=6, seed=3, guide=guide)
        assert (scores > 150).all()


def test_there_are_two_players(guide: Guide) -> None:
    with pytest.raises(ValueError, match="'oracle' or 'nearest-first'"):
        play_guided(HuntSettings(), "nearest", lanes=1, guide=guide)


def test_the_standard_task(guide: Guide) -> None:
    """The shipped map's own metrics: they must never change, or results no longer compare."""
    treasures = list(range(3, 16))
    assert guide.oracle(2, 1, treasures).steps == 466
    assert guide.nearest_first(2, 1, treasures).steps == 572
