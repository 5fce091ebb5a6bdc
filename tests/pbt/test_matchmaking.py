"""Rules and draws of self-play: shares as promised, the same for the same episode, numbers that never meet."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.core.errors import ConfigError
from rollmill.core.seeds import Seeds
from rollmill.pbt.matchmaking import LIVE, TOP, Candidate, Draw, Numbers, Odds, pfsp, weigh
from rollmill.pbt.selfplay_settings import SelfPlaySettings, Weighting


def candidates(*win_rates: float) -> list[Candidate]:
    return [Candidate(k, 10 * k, 100 * k, rate) for k, rate in enumerate(win_rates)]


def test_rules() -> None:
    found = candidates(0.9, 0.5, 0.1, 1.0)
    of = lambda rule, **words: weigh(SelfPlaySettings(rule=rule, **words), found)  # noqa: E731
    assert of("latest") == [0, 0, 0, 1]
    assert of("uniform") == [0.25] * 4
    assert of("newest", window=2) == [0, 0, 0.5, 0.5]
    assert of("newest", window=9) == [0.25] * 4
    np.testing.assert_allclose(of("mix"), [0.05, 0.05, 0.05, 0.85])
    np.testing.assert_allclose(of("pfsp"), np.array([0.01, 0.25, 0.81, 0]) / 1.07)


@pytest.mark.parametrize(
    ("weighting", "at"),
    [
        ("linear", [1, 0.75, 0.5, 0.25, 0]),
        ("squared", [1, 0.5625, 0.25, 0.0625, 0]),
        ("variance", [0, 0.1875, 0.25, 0.1875, 0]),
        ("linear_capped", [0.5, 0.5, 0.5, 0.25, 0]),
    ],
)
def test_pfsp_weightings(weighting: Weighting, at: list[float]) -> None:
    assert [pfsp(weighting, x) for x in (0, 0.25, 0.5, 0.75, 1)] == at


def test_whoever_beats_all_plays_all() -> None:
    assert weigh(SelfPlaySettings(rule="pfsp"), candidates(1, 1, 1, 1)) == [0.25] * 4


def test_an_own_rule_is_checked() -> None:
    settings = SelfPlaySettings(rule="a:b")
    assert weigh(settings, candidates(0.5, 0.5), lambda found: [own.version for own in found]) == [0, 1]
    for answer, reason in (([1], "expected 2 weights"), ([1, -1], "none negative"), (None, "list of weights")):
        with pytest.raises(ConfigError, match=reason):
            weigh(settings, candidates(0.5, 0.5), lambda _, answer=answer: answer)


def test_numbers_of_policies_models_and_anchors_never_meet() -> None:
    numbers = Numbers(policies=3, anchors=2)
    models = [numbers.model(model, policy) for model in range(50) for policy in range(3)]
    anchors = [numbers.anchor(k) for k in range(2)]
    assert len({*range(3), *models, *anchors}) == 3 + 150 + 2
    assert [numbers.model_of(n) for n in models] == [model for model in range(50) for _ in range(3)]
    assert [numbers.model_of(n) for n in (0, 1, 2, TOP, TOP - 1)] == [None] * 5
    assert numbers.opponent_of(numbers.model(7, 2)) == numbers.model(7)
    last = max(model for model in range(TOP) if numbers.fits(model))
    assert numbers.model(last, 2) < TOP - 1
    assert numbers.model(last + 1, 2) >= TOP - 1


def draw_of(shares: dict[int, float], policies: int = 1, sides: tuple[int, ...] = (0, 1)) -> Draw:
    count = max(sides) + 1
    players = tuple(range(count)) if policies > 1 else (0,) * count
    draw = Draw(Numbers(policies, anchors=1), sides, players, tuple(range(count)), Seeds(3))
    draw.odds = (Odds.of(shares),) * policies
    draw.versions = {number: 10 * number for number in shares if 0 < number < TOP}
    return draw


def test_shares_are_kept_and_sides_take_turns_by_chance() -> None:
    draw = draw_of({LIVE: 0.2, TOP: 0.1, 1: 0.3, 2: 0.4})
    games = 4000
    lanes = np.arange(2 * games)
    seats = draw.seat(lanes, np.full(2 * games, 5))
    pairs = seats.policy_id.reshape(games, 2)
    opponents = pairs.max(axis=1)
    for number, share in ((0, 0.2), (TOP, 0.1), (1, 0.3), (2, 0.4)):
        assert abs((opponents == number).mean() - share) < 0.03
    assert abs((pairs[opponents > 0][:, 0] == 0).mean() - 0.5) < 0.03
    assert (pairs.min(axis=1) == 0).all(), "somebody learns in every game"
    np.testing.assert_array_equal(seats.opponent.reshape(games, 2), pairs[:, ::-1])
    np.testing.assert_array_equal(
        seats.version, np.where((seats.policy_id > 0) & (seats.policy_id < TOP), 10, 0) * seats.policy_id
    )


def test_an_episode_has_the_same_players_whoever_asks_when() -> None:
    draw = draw_of({1: 0.5, 2: 0.5})
    lanes, episodes = np.arange(40), np.repeat(np.arange(20) % 3, 2)
    together = draw.seat(lanes, episodes).policy_id
    order = np.random.default_rng(0).permutation(20)
    apart = np.zeros(40, int)
    for env in order:
        apart[2 * env : 2 * env + 2] = draw.seat(
            lanes[2 * env : 2 * env + 2], episodes[2 * env : 2 * env + 2]
        ).policy_id
    np.testing.assert_array_equal(together, apart)
    assert (draw.seat(lanes, episodes + 1).policy_id != together).any()


def test_roles_are_played_by_the_weights_of_their_role() -> None:
    draw = draw_of({4: 1.0}, policies=2, sides=(0, 0, 1))
    seats = draw.seat(np.arange(300), np.zeros(300, int))
    assert {tuple(game) for game in seats.policy_id.reshape(100, 3).tolist()} == {(0, 0, 5), (4, 4, 1)}
    assert {tuple(game) for game in seats.opponent.reshape(100, 3).tolist()} == {(5, 5, 0), (1, 1, 4)}


def test_probabilities_must_add_up() -> None:
    with pytest.raises(ValueError, match=r"add up to 0\.9"):
        Odds.of({1: 0.9})
    assert Odds.of({1: 0.1, 2: 0.2, 3: 0.7}).draw(np.nextafter(1.0, 0)) == 3
