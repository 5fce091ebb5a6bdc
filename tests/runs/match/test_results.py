"""What is counted, and what is said about it."""

from __future__ import annotations

import json

import pytest

from rollmill.runs.match.results import MatchResult, Player, Table


def result(*games: tuple[int, int, float, float], players: int = 2) -> MatchResult:
    """From games (player of side 0, player of side 1, their returns)."""
    table = Table(players)
    for one, other, mine, yours in games:
        table.add((one, other), (mine, yours), steps=3)
    return MatchResult("game", [Player(name, name) for name in "ABCDE"[:players]], table, seed=1)


def test_a_draw_is_half_a_point_for_both() -> None:
    found = result((0, 1, 1, -1), (1, 0, 0, 0), (1, 0, 5, 2))
    assert found.table.wins.tolist() == [[0, 1], [1, 0]]
    assert found.table.draws.tolist() == [[0, 1], [1, 0]]
    assert found.table.points.tolist() == [[0, 1.5], [1.5, 0]]
    assert found.table.margin.tolist() == [[0, -1], [1, 0]]
    assert found.table.first.tolist() == [2.5, 3]
    assert (found.games, found.table.steps) == (3, 9)
    assert found.table.share(0, 1) == 0.5


def test_who_wins_more_games_may_win_less() -> None:
    found = result((0, 1, 1, -1), (0, 1, 1, -1), (1, 0, 9, -9))
    assert found.best == "A"
    assert found.mean_margin(0) == pytest.approx(-14 / 3)
    assert "By how much is won, the order is B, A" in found.text()
    assert "By how much" not in result((0, 1, 1, -1)).text()


def test_whoever_never_wins_may_be_no_opponent() -> None:
    assert "Nobody has won a game" in result((0, 1, 2, 2), (1, 0, 2, 2)).text()


def test_the_document_is_what_the_table_says() -> None:
    games = [(0, 1, 1.0, 0.0)] * 3 + [(1, 2, 1.0, 0.0)] * 3 + [(0, 2, 0.0, 0.0)] * 2
    found = json.loads(json.dumps(result(*games, players=3).to_dict(), allow_nan=False))
    assert found["order"] == ["A", "B", "C"]
    assert found["games"] == 8
    pair = found["pairs"][0]
    assert (pair["players"], pair["games"], pair["wins"], pair["draws"], pair["losses"]) == (["A", "B"], 3, 3, 0, 0)
    assert pair["interval"][0] < 1 <= pair["interval"][1]
    assert sum(player["strength"] for player in found["players"]) == pytest.approx(1)
    assert all(one["interval"][0] < one["elo"] < one["interval"][1] for one in found["players"])
