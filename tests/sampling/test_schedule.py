"""Numbered episodes: who plays which, and that the number alone decides the seed."""

from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.seeds import Seeds
from rollmill.sampling.schedule import EpisodeSchedule

GAPS = st.lists(st.integers(0, 99), unique=True, max_size=9).map(lambda numbers: tuple(sorted(numbers)))


@given(st.integers(1, 7), GAPS, st.integers(1, 4), st.integers(1, 6))
def test_all_envs_together_play_every_number_once(envs: int, gaps: tuple[int, ...], stride: int, episodes: int) -> None:
    schedule = EpisodeSchedule(Seeds(1), envs, gaps, start=100, stride=stride)
    played = [schedule.number(env, n) for env in range(envs) for n in range(episodes)]
    beyond = max(0, envs * episodes - len(gaps))
    expected = [*gaps[: envs * episodes], *range(100, 100 + beyond * stride, stride)]
    assert sorted(played) == sorted(expected)
    assert [schedule.number(p % envs, p // envs) for p in range(len(expected))] == expected


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 60))
def test_a_number_has_the_same_seeds_whoever_plays_it(one: int, two: int, number: int) -> None:
    first, second = (EpisodeSchedule(Seeds(1), envs) for envs in (one, two))
    where = [(number % envs, number // envs) for envs in (one, two)]
    assert first.env_seed(*where[0]) == second.env_seed(*where[1])
    assert first.policy_seeds(*where[0], 1) == second.policy_seeds(*where[1], 1)
    assert first.policy_seeds(*where[0], 1).integer() != second.policy_seeds(*where[1], 0).integer()


@given(st.integers(1, 6), st.integers(1, 5))
def test_episodes_that_are_alike_have_one_seed_and_players_of_their_own(alike: int, envs: int) -> None:
    schedule = EpisodeSchedule(Seeds(1), envs, alike=alike)
    seeds: dict[int, set[int]] = {}
    own = set()
    for position in range(4 * alike):
        where = position % envs, position // envs
        seeds.setdefault(position // alike, set()).add(schedule.env_seed(*where))
        own.add(schedule.policy_seeds(*where, 0).integer())
    assert [len(found) for found in seeds.values()] == [1] * 4
    assert len(set.union(*seeds.values())) == 4
    assert len(own) == 4 * alike
