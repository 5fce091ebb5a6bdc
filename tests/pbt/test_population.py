"""Decisions: who is replaced, when, and that the same numbers give the same rounds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rollmill.core.seeds import Seeds
from rollmill.core.shapes import check_shape
from rollmill.pbt import population as rules
from rollmill.pbt.bandit import propose
from rollmill.pbt.evidence import Evidence, Gate, chance
from rollmill.pbt.population import Population
from rollmill.pbt.select import multi_frequency, pairs, truncation
from rollmill.pbt.settings import PbtSettings
from rollmill.pbt.space import parse_space

TUNE = {"rate": [1e-4, 1e-1]}


def exact(*means: float, episodes: int = 20, error: float = 0.0) -> list[Evidence]:
    return [Evidence(mean, error, episodes) for mean in means]


def population_of(seed: int = 0, period: int = 100, **settings: Any) -> Population:
    settings = {"members": 4, "tune": TUNE, "significance": 1.0, **settings}
    return Population(PbtSettings(**settings), parse_space(settings["tune"]), {"rate": 0.01}, Seeds(seed), period)


def copies(population: Population, evidence: Sequence[Evidence], at: int = 100) -> list[tuple[int, int | None]]:
    members = len(evidence)
    return [(move.member, move.donor) for move in population.decide([at] * members, evidence).moves]


# -- evidence -----------------------------------------------------------------------------------------------


def test_evidence_of_episodes() -> None:
    found = Evidence.of([1.0, 3.0, 5.0])
    assert (found.mean, found.episodes) == (3.0, 3)
    assert found.error == pytest.approx(2 / math.sqrt(3))
    assert Evidence.of([2.0]).error == math.inf
    assert math.isnan(Evidence.of([]).mean)


def test_the_chance_of_a_gap_is_what_a_simulation_finds() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(0, 1, (20_000, 20)), rng.normal(0, 1, (20_000, 20))
    called = [
        chance(Evidence(a, s, 20), Evidence(b, r, 20)) < 0.05
        for a, b, s, r in zip(
            *(one.mean(1), two.mean(1), one.std(1, ddof=1) / 20**0.5, two.std(1, ddof=1) / 20**0.5), strict=True
        )
    ]
    assert np.mean(called) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(("better", "worse"), [((3, 1.0), (3, 1.0)), ((5, 0.2), (40, 1.0)), ((10, 1.0), (10, 0.0))])
def test_few_episodes_are_judged_by_what_few_can_say(better: tuple[int, float], worse: tuple[int, float]) -> None:
    """The rare gaps matter, as they are counted once for each pair: p below 0.005, with as few as three episodes."""
    rng = np.random.default_rng(1)
    sides = [rng.normal(0, sigma, (40_000, count)) for count, sigma in (better, worse)]
    found = [
        chance(*(Evidence(x.mean(), x.std(ddof=1) / len(x) ** 0.5, len(x)) for x in pair)) < 0.005
        for pair in zip(*sides, strict=True)
    ]
    assert 0.001 <= np.mean(found) <= 0.007  # with unequal variances the test is a little on the safe side


def rounds_that_replace(method: Any, members: int, means: Sequence[float], rounds: int = 2_000) -> dict[int, float]:
    """Share of rounds in which each member was replaced, with 20 normal episodes each; -1: in which any was."""
    settings = PbtSettings(members=members, method=method, tune=TUNE)
    rng, found = np.random.default_rng(7), dict.fromkeys(range(-1, members), 0.0)
    for seed in range(rounds):
        population = Population(settings, parse_space(TUNE), {"rate": 0.01}, Seeds(seed), 100)
        drawn = rng.normal(np.asarray(means)[:, None], 1.0, (members, 20))
        moved = population.decide([100] * members, [Evidence.of(row.tolist()) for row in drawn]).moves
        for member in {-1, *(move.member for move in moved)} if moved else ():
            found[member] += 1 / rounds
    return found


@pytest.mark.parametrize(
    ("method", "members"), [("pbt", 2), ("pbt", 8), ("pbt", 16), ("mf", 8), ("pairwise", 2), ("pairwise", 8)]
)
def test_of_equal_members_at_most_one_round_in_twenty_replaces_any(method: Any, members: int) -> None:
    """The pairs that are compared were chosen by their ranks, so a test of one pair says nothing: it found half of the
    rounds with 8 members. 2,000 rounds of 5 % would be above 6.3 % once in 200 times."""
    assert rounds_that_replace(method, members, [0.0] * members)[-1] <= 0.063


def test_a_member_that_is_really_worse_is_replaced() -> None:
    """By 1.5 deviations of an episode, 20 episodes each, beside seven equal ones."""
    found = rounds_that_replace("pbt", 8, [-1.5, *[0.0] * 7], 500)
    assert found[0] >= 0.85
    assert sum(found[k] for k in range(1, 8)) <= 0.05


@pytest.mark.parametrize(
    ("gate", "donor", "taker", "refusal"),
    [
        (Gate(), Evidence(10, 1, 50), Evidence(5, 1, 50), ""),
        (Gate(), Evidence(10, 3, 50), Evidence(8, 3, 50), "may be chance (p = 0.32)"),
        (Gate(1.0), Evidence(10, 3, 50), Evidence(8, 3, 50), ""),
        (Gate(), Evidence(5, 1, 50), Evidence(5, 1, 50), "nobody it could learn from is better"),
        (Gate(gap=0.1), Evidence(100, 0, 50), Evidence(91, 0, 50), "the gap of 9 is below 10"),
        (Gate(gap=0.1), Evidence(-100, 0, 50), Evidence(-111, 0, 50), ""),
        (Gate(gap=0.1), Evidence(-100, 0, 50), Evidence(-109, 0, 50), "the gap of 9 is below 10"),
        (Gate(gap=0.1), Evidence(0, 0, 50), Evidence(-0.01, 0, 50), ""),
        (Gate(gap_absolute=5), Evidence(1, 0, 50), Evidence(-3, 0, 50), "the gap of 4 is below 5"),
    ],
)
def test_who_is_replaced(gate: Gate, donor: Evidence, taker: Evidence, refusal: str) -> None:
    """Negative objectives, and those around zero, are objectives like others."""
    assert gate.refusal(donor, taker) == refusal


# -- who from whom --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "count"), [(2, 1), (3, 1), (4, 2), (8, 3)])
def test_best_and_worst_of_truncation(members: int, count: int) -> None:
    """As many as Sample Factory takes with the same fraction."""
    evidence = exact(*range(members))
    ranked = Gate(1.0).ranked(evidence)
    found = truncation(ranked, evidence, Gate(1.0), np.random.default_rng(0), 0.3)
    assert {copy.member for copy in found.copies} == set(range(count))
    assert {copy.donor for copy in found.copies} <= set(range(members - count, members))


def test_members_with_few_episodes_are_left_out() -> None:
    population = population_of(min_episodes=10)
    few = [*exact(9.0, episodes=9), *exact(5.0, 1.0), *exact(0.0, episodes=0)]
    done = population.decide([100] * 4, few)
    assert [(move.member, move.donor) for move in done.moves] == [(2, 1)]
    assert done.kept[0] == "9 episodes of its present weights, 10 are needed"
    assert copies(population_of(), exact(1, 2, 3, 4, episodes=9)) == []


def test_sub_populations_have_periods_of_their_own() -> None:
    """Sixteen members in two halves: 0 to 7 at every round, 8 to 15 at every tenth."""
    evidence, gate = exact(*range(16)), Gate(1.0)
    ranked = gate.ranked(evidence)
    usual = multi_frequency(ranked, evidence, gate, 1, 16, 2)
    assert {(c.member, c.donor, c.explore) for c in usual.copies} == {
        *((0, 7, True), (1, 6, True)),  # last quarter from the first, one to one
        *((3, 15, False), (2, 14, False)),  # third quarter from the best of the others
    }
    assert {c.member: c.settings_of for c in usual.copies} == {0: 7, 1: 6, 3: 15, 2: 14}
    tenth = multi_frequency(ranked, evidence, gate, 10, 16, 2)
    assert {(c.member, c.donor) for c in tenth.copies if c.member >= 8} == {(8, 15), (9, 14)}
    worse = exact(*range(8), *range(-8, 0))
    slow = multi_frequency(gate.ranked(worse), worse, gate, 10, 16, 2)
    assert {(c.member, c.donor, c.settings_of) for c in slow.copies if c.member in (10, 11)} == {
        *((11, 7, 15), (10, 6, 15)),  # weights of the faster half, settings of the own best
    }


def test_losers_of_pairs_move_towards_winners() -> None:
    evidence, gate = exact(1, 2, 3, 4), Gate(1.0)
    found = pairs(gate.ranked(evidence), evidence, gate, np.random.default_rng(0)).copies
    assert len(found) == 2
    assert all(evidence[c.donor].mean > evidence[c.member].mean and c.settings_of == c.member for c in found)
    population = population_of(method="pairwise")
    before = [own["rate"] for own in population.settings]
    for move in population.decide([100] * 4, evidence).moves:
        assert move.donor is not None
        low, high = sorted((before[move.member], before[move.donor]))
        assert low <= population.settings[move.member]["rate"] <= high


@pytest.mark.parametrize(
    ("method", "copied", "changed"),
    [("pbt", 2, 2), ("exploit", 2, 2), ("explore", 0, 4), ("random", 0, 0), ("fixed", 0, 0), ("pb2", 2, 2)],
)
def test_what_every_method_does(method: Any, copied: int, changed: int) -> None:
    population = population_of(method=method)
    if not population.due([100] * 4):
        assert method in ("random", "fixed")
        return
    before = [dict(own) for own in population.settings]
    done = population.decide([100] * 4, exact(1, 2, 3, 4))
    assert sum(move.donor is not None for move in done.moves) == copied
    assert sum(old != new for old, new in zip(before, population.settings, strict=True)) == changed
    if method == "exploit":
        assert all(own in before for own in population.settings)


def test_pb2_goes_where_gains_were() -> None:
    """Members gain as their rate is near 0.003; the new settings go there, those of others are counted as tried."""
    population = population_of(method="pb2", members=8)
    means = np.zeros(8)
    for number in range(1, 13):
        rates = [own["rate"] for own in population.settings]
        means = means + [1 - abs(math.log10(rate / 0.003)) for rate in rates]
        for move in population.decide([100 * number] * 8, exact(*means)).moves:
            assert move.donor is not None
            means[move.member] = means[move.donor]
    near = [abs(math.log10(own["rate"] / 0.003)) for own in population.settings]
    assert np.median(near) < 0.3


def test_pb2_asks_about_the_period_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the number of the round at which its gains will be noted, not of the one that ends."""
    asked: list[float] = []

    def noted(model: Any, time: float, near: Sequence[float], rng: np.random.Generator) -> Any:
        asked.append(time)
        return propose(model, time, near, rng)

    monkeypatch.setattr(rules, "propose", noted)
    population, latest = population_of(method="pb2"), []
    for number in range(1, 5):
        decided = population.decide([100 * number] * 4, exact(1, 2, 3, 4)).moves
        latest.append((asked[-1] if asked else None, len(decided)))
    population.decide([500] * 4, exact(1, 2, 3, 4))
    times = [row["time"] for row in population.state()["gains"]]
    assert all(copied for _, copied in latest)
    # Gains of the fourth period are noted at the fourth round; the settings for it were chosen at the third.
    assert latest[2][0] == sorted(set(times))[2]


# -- the clock ---------------------------------------------------------------------------------------------------


def test_rounds_are_due_when_all_members_are_far_enough() -> None:
    population = population_of(start=300, period=100)
    assert not population.due([500, 500, 500, 399])
    assert population.due([500, 500, 500, 400])
    copies(population, exact(1, 2, 3, 4), at=410)
    assert population.next_at == 510


def stretches(evidence: Sequence[Evidence], **settings: Any) -> list[int]:
    """By which factor the period has grown after each round, with this evidence of the best."""
    population, found = population_of(growth="auto", **{"patience": 2, **settings}), []
    for best in evidence:
        at = population.next_at
        population.decide([at] * 4, [best, *exact(*[best.mean - 9] * 3)])
        assert population.next_at - at == 100 * population.stretch
        found.append(population.stretch)
    return found


def test_the_period_doubles_when_the_best_stands_still() -> None:
    assert stretches(exact(*[1.0] * 7)) == [1, 1, 2, 2, 4, 4, 8]
    assert stretches(exact(*range(20))) == [1] * 20
    # Smoothed it goes on rising towards 3, by half as much each time: from the ninth round on by less than 1 % of 2.
    assert stretches(exact(1.0, 2.0, *[3.0] * 9)) == [*[1] * 9, 2, 2]


def test_what_rises_by_less_and_less_stands_still() -> None:
    """An objective that creeps towards its limit has a new highest value in every round."""
    creeping = [-50 * 0.9**k - 1 / (k + 1) for k in range(200)]
    assert stretches(exact(*creeping), patience=10)[-1] >= 8
    assert stretches(exact(*creeping[:30]), patience=10)[-1] == 1


def test_noise_is_no_rise() -> None:
    """Of 60 rounds of an objective that stays, with its standard error, nearly all count as standing still."""
    rng = np.random.default_rng(0)
    grown = [stretches([Evidence(x, 1.0, 20) for x in rng.normal(size=60)], patience=5)[-1] for _ in range(50)]
    assert np.median(grown) >= 2**11
    rising = [Evidence(3.0 * k + x, 1.0, 20) for k, x in enumerate(rng.normal(size=60))]
    assert stretches(rising, patience=5)[-1] == 1


def test_a_population_that_was_saved_without_its_lowest_goes_on() -> None:
    population = population_of(growth="auto", patience=2)
    copies(population, exact(5, 0, 0, 0))
    state = population.state()
    del state["lowest"]
    check_shape(state, rules.STATE_SHAPE)
    population.load_state(state)
    for mean in (5.0, 5.0):
        copies(population, exact(mean, 0, 0, 0), at=population.next_at)
    assert population.stretch == 2


# -- the same again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pbt", "mf", "pairwise", "pb2", "explore"])
def test_a_population_that_is_saved_and_loaded_goes_on_as_if_nothing_had_happened(method: Any) -> None:
    def rounds(population: Population, begin: int, end: int) -> list[dict[str, Any]]:
        found = []
        for number in range(begin, end):
            rng = np.random.default_rng(number)
            evidence = [Evidence.of(rng.normal(k, 3, 20).tolist()) for k in range(8)]
            found.append(population.decide([population.next_at] * 8, evidence).entry())
        return found

    def fresh(seed: int = 3) -> Population:
        return population_of(seed, method=method, members=8, growth="auto")

    whole = rounds(fresh(), 0, 12)
    first, second = fresh(), fresh(4)
    parts = rounds(first, 0, 5)
    second = fresh()
    second.load_state(first.state())
    assert parts + rounds(second, 5, 12) == whole
    assert rounds(fresh(4), 0, 12) != whole


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 0}, "members must be at least 1"),
        ({"members": 1, "method": "mf"}, "nothing is tuned with one member"),
        ({"members": 6, "method": "mf"}, "6 members cannot be shared out"),
        ({"min_episodes": 200}, "more than the episodes=100"),
        ({"perturb_min": 1.0}, "perturb_min must be above 1"),
        ({"replace_fraction": 0.6}, "replace_fraction must be above 0 and at most 0.5"),
        ({"mutation_rate": 2}, "between 0 and 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PbtSettings(**{"members": 4, **settings})
