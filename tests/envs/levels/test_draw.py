"""Which level each episode plays."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from level_envs import id_of

from rollmill.core.errors import ConfigError
from rollmill.core.seeds import Seeds
from rollmill.envs.levels.draw import Division, LevelDraws, LevelSet, Player, Tickets, check_levels, draws_of
from rollmill.envs.levels.settings import LevelSettings
from rollmill.envs.make import EnvInstance, level_store
from rollmill.envs.settings import EnvSettings

ALL = Division("all", 0.1)


def some(order: Any, count: int = 20, division: Division = ALL) -> LevelSet:
    return LevelSet("set", np.arange(count, dtype=np.int64), order, division, Seeds(3))


def drawn(levels: LevelSet, count: int) -> list[int]:
    return [levels.seed(k) for k in range(count)]


def test_train_and_test_are_all_and_share_nothing() -> None:
    seeds = np.arange(10_000)
    test, train = (seeds[Division(part, 0.1).has(seeds)] for part in ("test", "train"))
    assert not set(test) & set(train)
    assert len(test) + len(train) == len(seeds)
    assert abs(len(test) - 1000) <= 2, "neighbouring seeds part evenly"
    assert abs(len(test[test < 500]) - 50) <= 2


@pytest.mark.parametrize("part", ["all", "train", "test"])
def test_new_seeds_are_of_the_part_and_never_twice(part: Any) -> None:
    division = Division(part, 0.1)
    levels = LevelSet("set", np.zeros(0, np.int64), "once", division, Seeds(1))
    found = np.array(drawn(levels, 3000))
    assert len(set(found.tolist())) == 3000
    assert division.has(found).all()
    assert found.min() >= 0
    assert found.max() < 2**31


def test_once_takes_what_is_known_first() -> None:
    found = drawn(some("once"), 100)
    assert sorted(found[:20]) == list(range(20))
    assert found[:20] != list(range(20))
    assert len(set(found)) == 100


def test_once_passes_over_known_ones_among_the_new() -> None:
    fresh = LevelSet("set", np.zeros(0, np.int64), "once", ALL, Seeds(3))
    known = np.sort(np.array(drawn(fresh, 10)))
    again = LevelSet("set", known, "once", ALL, Seeds(3))
    assert len(set(drawn(again, 50))) == 50


def test_cycle_goes_round_in_another_order_each_time() -> None:
    found = drawn(some("cycle"), 60)
    rounds = [found[k : k + 20] for k in (0, 20, 40)]
    assert all(sorted(one) == list(range(20)) for one in rounds)
    assert len({tuple(one) for one in rounds}) == 3


def test_sample_takes_any() -> None:
    counts = Counter(drawn(some("sample"), 4000))
    assert set(counts) == set(range(20))
    assert 120 < min(counts.values()) <= max(counts.values()) < 280


def test_the_same_run_draws_the_same_and_another_does_not() -> None:
    other = LevelSet("set", np.arange(20), "cycle", ALL, Seeds(4))
    assert drawn(some("cycle"), 20) == drawn(some("cycle"), 20) != drawn(other, 20)


def draws(tmp_path: Path | None, players: int = 3, again: bool = False, policies: int = 1) -> LevelDraws:
    found = tuple(Player(policy=k % policies) for k in range(players))
    return LevelDraws((some("once"),), found, tmp_path, again)


def test_whoever_comes_first_gets_the_next_level(tmp_path: Path) -> None:
    one = draws(tmp_path)
    fast = [one.seed(0, episode) for episode in range(18)]
    slow = [one.seed(1, episode) for episode in range(2)]
    assert sorted(fast + slow) == list(range(20)), "a fast environment takes what a slow one leaves"


def test_an_episode_asks_as_often_as_it_likes(tmp_path: Path) -> None:
    one = draws(tmp_path)
    assert one.told_seed(1, 0) is None
    first = one.seed(1, 0)
    assert first == one.seed(1, 0) == one.told_seed(1, 0)
    assert one.seed(1, 1) != first


def test_a_resumed_run_goes_on_behind_what_was_drawn(tmp_path: Path) -> None:
    before = draws(tmp_path)
    first = [before.seed(k, 0) for k in range(3)]
    after = draws(tmp_path)
    second = [after.seed(k, episode) for k, episode in itertools.product(range(3), (0, 1))]
    assert len(set(first + second)) == 9, "also where an episode's number comes again"


def test_a_replay_draws_what_it_drew(tmp_path: Path) -> None:
    before = draws(tmp_path, again=True)
    first = [before.seed(k, episode) for episode in (0, 1) for k in range(3)]
    after = draws(tmp_path, again=True)
    assert [after.seed(k, episode) for episode in (0, 1) for k in range(3)] == first
    assert after.seed(0, 2) not in first


def test_every_policy_has_levels_of_its_own(tmp_path: Path) -> None:
    one = draws(tmp_path, players=2, policies=2)
    assert sorted(one.seed(0, k) for k in range(20)) == sorted(one.seed(1, k) for k in range(20)) == list(range(20))


def _take(job: tuple[str, int]) -> list[int]:
    path, env = job
    tickets = Tickets(Path(path), again=False)
    return [tickets.number(env, episode) for episode in range(500)]


def test_many_processes_draw_every_number_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(_take, [(str(tmp_path / "x.tickets"), env) for env in range(3)])
    assert sorted(itertools.chain(*found)) == list(range(1500))


def test_half_a_record_is_cut_off(tmp_path: Path) -> None:
    env = EnvSettings(levels=LevelSettings(folder=str(tmp_path / "levels")), id=id_of())
    players = [(EnvInstance(), 0)]
    before = draws_of(env, players, Seeds(0), tmp_path)
    assert before is not None
    seeds = [before.seed(0, episode) for episode in range(3)]
    (path,) = tmp_path.glob("*.tickets")
    path.write_bytes(path.read_bytes()[:-3])
    after = draws_of(env, players, Seeds(0), tmp_path)
    assert after is not None
    assert [after.told_seed(0, episode) for episode in range(3)] == [*seeds[:2], None]
    assert after.seed(0, 3) == seeds[2]


def test_a_resumed_run_draws_from_what_was_known_when_it_began(tmp_path: Path) -> None:
    env = EnvSettings(levels=LevelSettings(folder=str(tmp_path / "levels"), draw="sample"), id=id_of())
    level_store(env).put("5", 5, b"level")

    def seeds(tickets: Path | None) -> set[int]:
        found = draws_of(env, [(EnvInstance(), 0)], Seeds(0), tickets)
        assert found is not None
        return {found.seed(0, episode) for episode in range(30)}

    assert seeds(tmp_path / "run") == {5}
    level_store(env).put("6", 6, b"level")
    assert seeds(tmp_path / "run") == {5}
    assert seeds(None) == {5, 6}


def test_without_a_file_draws_are_dealt_out_in_turn() -> None:
    env = EnvSettings(levels=LevelSettings(count=12))
    found = draws_of(env, [(EnvInstance(index=k), 0) for k in range(4)], Seeds(0))
    assert found is not None
    assert sorted(found.seed(env, episode) for env in range(4) for episode in range(3)) == list(range(12))


def test_tasks_of_a_suite_draw_from_their_own() -> None:
    env = EnvSettings(tasks=("toy_target", "toy_memory"), levels=LevelSettings(count=6))
    found = draws_of(env, [(EnvInstance(index=k), 0) for k in range(4)], Seeds(0))
    assert found is not None
    for task in range(2):
        mine = [found.seed(k, episode) for k in (task, task + 2) for episode in range(3)]
        assert sorted(mine) == list(range(6))
        assert sorted(found.numbered(task, task + 2 * k) for k in range(6)) == list(range(6))


def test_one_task_of_a_suite_has_all_numbers_to_itself() -> None:
    env = EnvSettings(tasks=("toy_target", "toy_memory"), task="toy_memory", levels=LevelSettings(count=6))
    found = draws_of(env, [(EnvInstance(index=k), 0) for k in range(4)], Seeds(0))
    assert found is not None
    assert sorted(found.numbered(k % 4, k) for k in range(6)) == list(range(6))


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (LevelSettings(folder="nowhere", draw="cycle"), "nowhere holds none; make some first: rollmill levels make"),
        (LevelSettings(folder="nowhere", draw="sample", part="test"), "of the part test, and nowhere holds none"),
        (LevelSettings(count=1, first=1, part="test"), "1 seeds hold none"),
    ],
)
def test_nothing_to_draw_from_is_refused(
    levels: LevelSettings, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        check_levels(EnvSettings(levels=levels))
    assert not list(tmp_path.iterdir()), "asking leaves nothing"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"first": 3}, "set count"),
        ({"count": 5, "draw": "once"}, "goes beyond any"),
        ({"folder": "x", "test_share": 1.0}, "below 1"),
        ({"draw": "cycle"}, "set folder or count"),
        ({"count": -1}, "must not be negative"),
        ({"count": 2, "first": 2**31 - 1}, "below 2"),
        ({"folder": "x", "max_gb": 0.0}, "must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LevelSettings(**wrong)


def test_a_vector_has_no_levels() -> None:
    with pytest.raises(ValueError, match="vector=false"):
        EnvSettings(vector=True, levels=LevelSettings(count=3))
