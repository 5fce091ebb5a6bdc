"""The payoff table on the page of a run."""

from __future__ import annotations

from typing import Any

from rollmill.reports.run.selfplay import MOST, selfplay, table_of

BEGIN: dict[str, Any] = {"begin": [], "rule": "uniform", "policies": 1, "anchors": {"random": 32767}}


def won(opponent: str, wins: int, draws: int, losses: int, policy: int = 0) -> dict[str, Any]:
    games = wins + draws + losses
    counts = {"games": games, "wins": wins, "draws": draws, "losses": losses, "return": 0.0}
    return {"policy": policy, "opponent": opponent, **counts}


def line(model: int, *results: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "version": 10 * model, "frames": 100 * model, "results": list(results)}


def test_a_row_for_each_model_and_a_column_for_whom_it_met() -> None:
    lines = [BEGIN, line(0), line(1, won("model 0", 3, 0, 1), won("random", 1, 2, 1)), line(2, won("model 1", 0, 1, 1))]
    names, shares = table_of(lines)
    assert names == ["random", "model 0", "model 1", "model 2"]
    assert shares[2] == [0.5, 0.75, None, None]
    assert shares[3] == [None, None, 0.25, None]
    assert shares[0] == [None] * 4
    page = str(selfplay(lines))
    assert "model 1 against model 0: 75.0%" in page
    assert "Games against past selves" in page


def test_of_many_models_some_are_drawn_the_newest_among_them() -> None:
    lines = [BEGIN, *(line(k, won(f"model {k - 1}", 1, 0, 0)) for k in range(100))]
    names, _ = table_of(lines)
    assert len(names) <= MOST + 1
    assert names[-1] == "model 99"


def test_each_policy_has_its_own_table_and_no_run_without_games_has_one() -> None:
    two = [
        {**BEGIN, "policies": 2, "anchors": {}},
        line(0),
        line(1, won("model 0", 1, 0, 0), won("model 0", 0, 0, 1, 1)),
    ]
    page = str(selfplay(two))
    assert "Games of policy 0" in page
    assert "Games of policy 1" in page
    assert "model 1 against model 0: 0.0%" in page
    assert str(selfplay([])) == str(selfplay([BEGIN, line(0)])) == ""
