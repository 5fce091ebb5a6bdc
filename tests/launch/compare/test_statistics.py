"""Statistics of few runs against hand-computed cases, other implementations and a published table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, trim_mean

from rollmill.launch.compare.methods import normalised
from rollmill.launch.compare.statistics import Estimate, improvement, iqm, iqm_of, profile

# Micheli, Alonso and Fleuret, "Transformers are sample-efficient world models" (2023): Atari 100K, five runs a game.
# Game, score of a random player, of a human, of the five runs.
ATARI_100K = """
Alien 227.8 7127.7 368.7 452.5 437.2 331.7 510
Amidar 5.8 1719.5 196.0 126 164.9 162.9 65.1
Assault 222.4 742.0 1481.3 928.1 1121.8 1556.0 2534.8
Asterix 210.0 8503.3 762.5 1114 1082 716.5 593
BankHeist 14.2 753.1 42.2 48.8 68.4 46.4 59.6
BattleZone 2360.0 37187.5 16990 14570 11300 10070 12440
Boxing 0.1 12.1 86.2 49.3 55.8 83.5 75.5
Breakout 1.7 30.5 104.6 85.6 69.7 70.3 88.1
ChopperCommand 811.0 7387.8 1150 1276 1659 2162 1578
CrazyClimber 10780.5 35829.4 64101 66127 62740 77066 26587
DemonAttack 152.1 1971.0 905 2011.9 2888.5 2613.4 1753
Freeway 0.0 29.6 30.9 31.5 30.5 30.8 31.6
Frostbite 65.2 4334.7 274.3 250.0 295 250 226.3
Gopher 257.6 2412.5 2987.2 2476.8 3110.4 1171.4 1434.8
Hero 1027.0 30826.4 6916.2 6933.9 6740.6 7881.6 6714.7
Jamesbond 29.0 302.8 487.5 394 486 464 482
Kangaroo 52.0 3035.0 2249 732 750 90 370
Krull 1598.0 2665.5 6047.4 7364.8 4980.6 6006.3 8683
KungFuMaster 258.5 22736.3 7301 15949 34406 14372 36771
MsPacman 307.3 6951.6 1251.6 941.5 590.3 770.8 1441.1
Pong -20.7 14.6 19.3 18.5 16.6 6.2 12.4
PrivateEye 24.9 69571.3 100 100 100 100 100
Qbert 163.9 13455.0 853 575 790.2 1027.2 483.2
RoadRunner 11.5 7845.0 11355 2033 17106 7614 9965
Seaquest 68.4 42054.7 752.2 855.8 691 386 621.6
UpNDown 533.4 11693.2 3793 5367.5 2943.7 3637.9 1988.9
"""


def atari() -> list[np.ndarray]:
    """Human-normalised scores, an array for each game."""
    games = [[float(word) for word in line.split()[1:]] for line in ATARI_100K.strip().splitlines()]
    return [
        normalised([np.array(runs)], np.array(runs), lower=False, reference=(random, human))[0]
        for random, human, *runs in games
    ]


def test_a_published_table() -> None:
    """The paper's own metrics: IQM 0.501, median 0.289, mean 1.046."""
    games = atari()
    found = iqm_of(games)
    assert round(found.value, 3) == 0.501
    assert round(float(np.median([game.mean() for game in games])), 3) == 0.289
    assert round(float(np.mean([game.mean() for game in games])), 3) == 1.046
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert found.high - found.low < 0.15, "26 games of five runs tell much, although five runs do not"


def test_interquartile_means_by_hand() -> None:
    twelve = np.array([5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6.0])  # 5 6 6 7 7 8 are the middle half
    assert iqm(twelve) == 6.5
    assert iqm(np.array([1, 3, 5, 7, 9, 11, 13, 15, 17.0])) == 9
    assert iqm(np.array([1.0, 2.0, 6.0])) == 3, "three runs have no quarter to cut"
    assert iqm_of([np.array([2.0]), np.array([4.0])]) == Estimate(3.0), "no interval without runs to draw from"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_interquartile_means_are_those_of_scipy(scores: list[float]) -> None:
    assert iqm(np.array(scores)) == pytest.approx(trim_mean(scores, 0.25), rel=1e-9, abs=1e-6)


def test_the_bootstrap_is_that_over_every_possible_draw() -> None:
    """Few enough runs to write all draws down: 3 ** 3 of one task with 2 ** 2 of another."""
    first, second = np.array([0.0, 1.0, 5.0]), np.array([10.0, 12.0])
    every = [
        float(iqm(np.array([*a, *b])))
        for a in itertools.product(first, repeat=3)
        for b in itertools.product(second, repeat=2)
    ]
    assert len(every) == 108
    found = iqm_of([first, second])
    low, high = np.percentile(every, (2.5, 97.5))
    assert (found.low, found.high) == (pytest.approx(low, abs=0.35), pytest.approx(high, abs=0.35))
    pooled = iqm_of([np.concatenate([first, second])])
    assert pooled.low is not None
    assert found.low is not None
    assert pooled.low < found.low, "without strata a draw may leave a whole task out"


def test_intervals_cover_what_they_say() -> None:
    """Of many experiments with 20 runs, about 95 % of the intervals hold the true mean."""
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        found = iqm_of([generator.normal(size=20)])
        held += (found.low or 0.0) <= 0.0 <= (found.high or 0.0)
    assert 0.86 * 200 <= held <= 199


def test_probability_of_improvement_by_hand() -> None:
    # A race of tortoises and hares, T H H H H H T T T T T H: a tortoise is ahead of a hare in 11 of 36 pairs.
    order = "THHHHHTTTTTH"
    tortoises, hares = (np.array([12.0 - k for k, name in enumerate(order) if name == who]) for who in "TH")
    assert improvement([tortoises], [hares]).value == pytest.approx(11 / 36)
    assert improvement([hares], [tortoises]).value == pytest.approx(25 / 36)
    assert improvement([hares], [tortoises], lower=True).value == pytest.approx(11 / 36)
    assert mannwhitneyu(hares, tortoises).statistic == 25
    ties = improvement([np.array([1.0, 2.0])], [np.array([2.0, 2.0])])
    assert ties == Estimate(0.25), "half of every draw; too few runs for an interval"
    two = improvement([np.array([1.0, 1.0]), np.array([5.0] * 8)], [np.array([0.0, 0.0]), np.array([9.0] * 3)])
    assert (two.value, two.low, two.high) == (0.5, 0.5, 0.5), "tasks count the same, however many runs they have"


def test_the_interval_of_an_improvement_is_that_over_every_possible_draw() -> None:
    first, second = np.array([1.0, 3.0, 5.0]), np.array([2.0, 4.0])
    strata = ([first, np.array([1.0, 1.0])], [second, np.array([0.0, 0.0, 0.0])])
    every = [
        (float(np.mean([(x > y) + 0.5 * (x == y) for x in a for y in b])) + 1.0) / 2
        for a in itertools.product(first, repeat=3)
        for b in itertools.product(second, repeat=2)
    ]
    found = improvement(*strata)
    low, high = np.percentile(every, (2.5, 97.5))
    assert (found.low, found.high) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05))


def test_performance_profiles_by_hand() -> None:
    strata = [np.array([1.0, 2.0, 3.0]), np.array([3.0, 4.0])]
    thresholds = np.array([0.0, 1.0, 3.0, 4.0])
    share, low, high = profile(strata, thresholds)
    assert share.tolist() == [1.0, 0.8, 0.2, 0.0], "better than the threshold, not equal to it"
    assert low is not None
    assert high is not None
    assert (low[0], high[0], low[3], high[3]) == (1.0, 1.0, 0.0, 0.0)
    assert low[1] < 0.8 < high[1]
    assert profile(strata, thresholds, lower=True)[0].tolist() == [0.0, 0.0, 0.4, 0.8]
    assert profile([np.array([1.0])], thresholds)[1:] == (None, None)


def test_scales_where_lower_is_better() -> None:
    runs = np.array([2.0, 4.0, 6.0])
    assert normalised([runs], runs, lower=False, reference=None)[0].tolist() == [0.0, 0.5, 1.0]
    assert normalised([runs], runs, lower=True, reference=None)[0].tolist() == [1.0, 0.5, 0.0]
    assert normalised([runs], runs, lower=True, reference=(10.0, 0.0))[0].tolist() == pytest.approx([0.8, 0.6, 0.4])
    same = np.array([3.0, 3.0])
    assert normalised([same], same, lower=False, reference=None)[0].tolist() == [0.0, 0.0]
