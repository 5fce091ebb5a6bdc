"""CMA-ES through pycma: it climbs, it is continued exactly, it leaves the rest of the process alone."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from rollmill.core.errors import CheckpointError, MissingExtraError, NonFiniteError
from rollmill.core.fields import Array
from rollmill.worldmodel.controller.cmaes import FULL_UP_TO, Search, resume_search

PEAK = np.linspace(-1, 1, 6)


def height(members: Array) -> Array:
    return -np.square(members - PEAK).sum(1)


def climb(search: Search, generations: int) -> Search:
    for _ in range(generations):
        search.tell(height(search.ask()))
    return search


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_it_climbs(covariance: str) -> None:
    search = climb(Search(6, 12, 0.5, seed=0, covariance=covariance), 60)  # type: ignore[arg-type]
    assert np.abs(search.mean - PEAK).max() < 0.02
    assert search.sigma < 0.1


def test_members_follow_from_seed_and_returns_alone() -> None:
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr,index]
    one, other = climb(Search(6, 8, 0.5, seed=4), 5), climb(Search(6, 8, 0.5, seed=4), 5)
    assert np.array_equal(one.ask(), other.ask())
    assert np.array_equal(one.ask(), one.ask())  # asking twice changes nothing
    assert not np.array_equal(one.ask(), Search(6, 8, 0.5, seed=5).ask())
    assert np.array_equal(np.random.get_state()[1], state)  # type: ignore[index]  # the global generator is not ours


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_replayed_search_is_the_same_to_the_bit(covariance: str) -> None:
    whole = climb(Search(6, 8, 0.5, seed=1, covariance=covariance), 9)  # type: ignore[arg-type]
    half = climb(Search(6, 8, 0.5, seed=1, covariance=covariance), 4)  # type: ignore[arg-type]
    half.ask()  # killed while a generation played
    resumed = resume_search(half.state(), seed=1, covariance=covariance, how="replay", where="here")  # type: ignore[arg-type]
    climb(resumed, 5)
    assert resumed.generation == whole.generation == 9
    assert np.array_equal(resumed.mean, whole.mean)
    assert np.array_equal(resumed.ask(), whole.ask())


def test_steps_shrink_beside_what_cma_es_does() -> None:
    plain, shrunk = (Search(6, 8, 0.5, seed=1, shrink=shrink) for shrink in (1.0, 0.5))
    for search in (plain, shrunk):
        climb(search, 1)
    assert shrunk.sigma == pytest.approx(plain.sigma / 2)
    climb(shrunk, 4)
    again = resume_search(shrunk.state(), seed=1, covariance="auto", how="replay", where="here")
    assert np.array_equal(again.ask(), shrunk.ask())
    climb(again, 1)
    assert again.sigma == climb(shrunk, 1).sigma


def test_a_replay_that_ends_elsewhere_is_refused_and_the_mean_is_the_way_on() -> None:
    state = climb(Search(6, 8, 0.5, seed=1), 4).state()
    moved = {**state, "mean": state["mean"] + 0.01}
    with pytest.raises(CheckpointError, match=r"rounds otherwise.*resume=mean"):
        resume_search(moved, seed=1, covariance="full", how="replay", where="here")
    search = resume_search(moved, seed=1, covariance="full", how="mean", where="here")
    assert np.array_equal(search.mean, moved["mean"])
    assert search.sigma == pytest.approx(state["sigma"])
    assert search.generation == 4
    assert np.allclose(search.stds, state["stds"], rtol=1e-3)
    again = resume_search(climb(search, 3).state(), seed=1, covariance="full", how="replay", where="here")
    assert np.array_equal(again.mean, search.mean)
    assert again.generation == 7


def test_nonsense_is_not_told() -> None:
    search = Search(6, 8, 0.5, seed=0)
    with pytest.raises(NonFiniteError, match="generation 0: the return of member 2 is nan"):
        search.tell(np.array([0, 0, np.nan, 0, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="8 members"):
        search.tell(np.zeros(7))


def test_many_weights_get_a_diagonal() -> None:
    search = Search(FULL_UP_TO + 1, 6, 0.1, seed=0)
    search.tell(np.arange(6.0))
    assert search._es.opts["CMA_diagonal"] is True


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(MissingExtraError, match=r"rollmill\[world\]"):
        Search(2, 4, 0.1, seed=0)
