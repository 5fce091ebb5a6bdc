"""The payoff table: games put together from agents' episodes, counted and weighed."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.core.errors import ConfigError
from rollmill.pbt.matchmaking import TOP, Numbers
from rollmill.pbt.payoff import Games, Payoff, Result, require_statistic


def play(games: Games, env: int, players: list[int], returns: list[float], episode: int = 0) -> list[Result]:
    found = []
    for agent, (who, own) in enumerate(zip(players, returns, strict=True)):
        found += games.add(env * len(players) + agent, episode, who, own)
    return found


def test_a_game_counts_when_all_agents_have_ended() -> None:
    games = Games((0, 1), Numbers(1, anchors=1))
    assert games.add(4, 7, 0, 1.5) == []
    assert games.add(2, 7, 0, 0.0) == [], "another environment"
    assert games.add(5, 7, 3, -1.5) == [Result(0, 3, 1.5, 1.0)]
    assert play(games, 8, [TOP, 0], [2, 2]) == [Result(0, TOP, 2, 0.5)]
    assert play(games, 8, [1, 0], [3, 2]) == [Result(0, 1, 2, 0.0)]
    assert play(games, 8, [0, 0], [3, -3]) == [], "against itself"


def test_teams_roles_and_results_by_sign() -> None:
    teams = Games((0, 0, 1, 1), Numbers(2))
    assert play(teams, 0, [0, 0, 5, 5], [1, 3, 2, 1]) == [Result(0, 4, 2.0, 1.0)], "one opponent, whichever its policy"
    assert play(teams, 0, [0, 0, 1, 1], [1, 3, 4, 4]) == [Result(0, 1, 2.0, 0.0), Result(1, 0, 4.0, 1.0)]
    signs = Games((0, 1), Numbers(1), "positive")
    assert play(signs, 0, [0, 2], [-1, -5]) == [Result(0, 2, -1, 0.0)]


@pytest.mark.parametrize("told_first", [True, False])
def test_a_statistic_decides_when_it_is_known_of_all(told_first: bool) -> None:
    games = Games((0, 1), Numbers(1), "frags")
    steps = [lambda: games.add(0, 7, 0, 100.0), lambda: games.add(1, 7, 2, 0.0)]
    told = [lambda: games.add_statistic(0, 7, 3.0), lambda: games.add_statistic(1, 7, 4.0)]
    *early, last = [*told, *steps] if told_first else [*steps, *told]
    assert [step() for step in early] == [[]] * 3
    again = Games((0, 1), Numbers(1), "frags")
    again.load_state(games.state())
    assert games.undecided == (0 if told_first else 1)
    assert last() == [Result(0, 2, 100.0, 0.0)], "the return does not decide"
    assert (games.undecided, games.decided) == (0, 1)
    games = again
    assert last() == [Result(0, 2, 100.0, 0.0)], "and what was known is in a checkpoint"


def test_the_lower_statistic_wins_with_a_minus() -> None:
    games = Games((0, 0, 1), Numbers(1), "-deaths")
    play(games, 0, [0, 0, 1], [9, 9, 0])
    assert games.statistic == "deaths"
    told = [games.add_statistic(agent, 0, value) for agent, value in enumerate((2.0, 4.0, 5.0))]
    assert told == [[], [], [Result(0, 1, 9.0, 1.0)]]


def test_what_nobody_tells_decides_nothing() -> None:
    told = {"frags": True, "place": True, "tics": False}
    require_statistic("selfplay.result=-frags", told)
    with pytest.raises(ConfigError, match=r"selfplay.result=frag: .* no such statistic .* did you mean .frags"):
        require_statistic("selfplay.result=frag", told)
    with pytest.raises(ConfigError, match=r"--result tics: .* one number of an episode, and not one of every agent"):
        require_statistic("--result tics", told)
    with pytest.raises(ConfigError, match=r"--result x: the environment tells no statistics of every agent"):
        require_statistic("--result x", {"tics": False})


def test_what_never_ends_does_not_fill_the_memory() -> None:
    games = Games((0, 1), Numbers(1))
    games.MOST_OPEN = 5
    for env in range(20):
        games.add(2 * env, 0, 0, 1.0)
    assert len(games.state()["open"]) == 5
    again = Games((0, 1), Numbers(1))
    again.load_state(games.state())
    assert again.add(39, 0, 1, 0.0) == [Result(0, 1, 1.0, 1.0)]


def test_win_rates_follow_the_policy() -> None:
    payoff = Payoff(decay=0.9, min_games=4)
    for _ in range(3):
        payoff.add(Result(0, 1, 1.0, 1.0))
    assert payoff.win_rate(0, 1) == 0.5, "too few games to know"
    rng, scores = np.random.default_rng(0), []
    for share in (1.0, 0.2):
        for _ in range(300):
            scores.append(float(rng.random() < share))
            payoff.add(Result(0, 1, 1.0, scores[-1]))
    weights = 0.9 ** np.arange(len(scores))[::-1]
    assert payoff.win_rate(0, 1) == pytest.approx(float((weights * scores).sum() / weights.sum()), abs=1e-6)
    assert payoff.games == 603
    assert not payoff.known(0, 2)


def test_a_small_decay_knows_somebody_at_last() -> None:
    payoff = Payoff(decay=0.5, min_games=100)
    for _ in range(20):
        payoff.add(Result(0, 1, 1.0, 1.0))
    assert payoff.win_rate(0, 1) == 1.0


def test_games_since_the_last_model_are_told_once_and_go_on_after_a_checkpoint() -> None:
    payoff = Payoff(decay=1.0, min_games=1)
    for score in (1.0, 0.5, 0.0, 1.0):
        payoff.add(Result(0, 2, 2 * score, score))
    payoff.add(Result(1, 2, -1.0, 0.0))
    again = Payoff(decay=1.0, min_games=1)
    again.load_state(payoff.state())
    assert again.close() == [
        {"policy": 0, "opponent": 2, "games": 4, "wins": 2, "draws": 1, "losses": 1, "return": 1.25},
        {"policy": 1, "opponent": 2, "games": 1, "wins": 0, "draws": 0, "losses": 1, "return": -1.0},
    ]
    assert again.close() == []
    assert again.win_rate(0, 2) == 0.625
    again.forget({3})
    assert again.win_rate(0, 2) == 0.5
