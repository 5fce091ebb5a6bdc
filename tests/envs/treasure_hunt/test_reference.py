from __future__ import annotations

import itertools

import numpy as np
import pytest

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


@pytest.mark.parametrize(("how", "count"), [("oracle", 0), ("oracle", 6), ("oracle", 13), ("nearest-first", 13)])
def test_players_reach_what_the_routes_promise(guide: Guide, how: str, count: int) -> None:
    steps, scores = play_guided(HuntSettings(treasure_num=count), how, lanes=4)
    treasures = list(range(3, 3 + count))
    route = guide.oracle(2, 1, treasures) if how == "oracle" else guide.nearest_first(2, 1, treasures)
    assert np.abs(steps - route.steps).max() <= 0.03 * route.steps + 3
    np.testing.assert_allclose(scores, 150 + 0.2 * (2000 - steps) + 100 * count)


def test_the_standard_task(guide: Guide) -> None:
    """The shipped map's own metrics: they must never change, or results no longer compare."""
    treasures = list(range(3, 16))
    assert guide.oracle(2, 1, treasures).steps == 466
    assert guide.nearest_first(2, 1, treasures).steps == 572
