"""Populations as the server tells of them: what the ledger says, and whose weights are whose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from experimenting import online, write_run

pytest.importorskip("uvicorn")
from viewing import KEY, RATES, launched, population_run, serving


def test_whose_weights_went_where(tmp_path: Path) -> None:
    population_run(tmp_path / "runs" / "pop" / "three")
    write_run(tmp_path / "runs" / "pop" / "alone", online(), [1.0])
    with serving(tmp_path / "runs") as server:
        found = server.ask(f"/api/population?run={server.id_of('pop/three')}").json
        alone = server.ask(f"/api/population?run={server.id_of('pop/alone')}")
        assert server.ask("/api/population?run=nobody").code == 404
    assert (found["best"], found["line"], found["frames"]) == (1, [1, 1, 1], [1000, 2000])
    assert found["end"] == 2002, "members are not equally far"
    assert found["objectives"] == [[10.0, 20.0], [11.0, 21.0], [12.0, None]]
    assert [(move["round"], move["member"], move["from"]) for move in found["moves"]] == [
        (1, 2, 0),
        (2, 0, 1),
        (2, 2, 1),
    ]
    assert found["stays"] == [[1, "nobody is better"]]
    last = found["members"][2]
    assert (last["begin"][KEY], last["now"][KEY]) == (RATES[2], RATES[1] / 2)
    assert last["replaced"] == 2
    assert [holder for holder, _, _ in last["way"]] == [1, 2]
    assert (alone.code, b"population.jsonl" in alone.body) == (422, True)


def test_members_may_be_runs_of_their_own(tmp_path: Path) -> None:
    """The ledger then lies in the experiment's folder."""
    experiment = tmp_path / "runs" / "grid"
    launched(experiment, gammas=(0.5,), seeds=1)
    made = population_run(tmp_path / "made")
    with serving(tmp_path / "runs") as server:
        assert server.ask("/api/runs").json["populations"] == []
        (made / "population.jsonl").rename(experiment / "population.jsonl")
        server.runs()
        assert server.ask("/api/runs").json["populations"] == ["grid"]
        assert server.ask("/api/population?name=grid").json["best"] == 1
        assert server.ask("/api/population?name=..").code == 404


@pytest.mark.parametrize("line", ['{"round": 1}\n', "[1]\n", '{"round": 1, "members": [], "moves": [], "kept": {}}\n'])
def test_a_damaged_ledger_is_said(tmp_path: Path, line: str) -> None:
    run = population_run(tmp_path / "runs" / "pop" / "three")
    with open(run / "population.jsonl", "a") as file:
        file.write(line)
    with serving(tmp_path / "runs") as server:
        answer = server.ask(f"/api/population?run={server.id_of('pop/three')}")
    assert (answer.code, b"is damaged" in answer.body) == (422, True)


def test_a_ledger_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    run = population_run(tmp_path / "runs" / "pop" / "three")
    (run / "population.jsonl").unlink()
    os.mkfifo(run / "population.jsonl")
    with serving(tmp_path / "runs") as server:
        answer = server.ask(f"/api/population?run={server.id_of('pop/three')}")
    assert (answer.code, b"FIFO" in answer.body) == (422, True)


def test_a_ledger_behind_a_link_is_not_read(tmp_path: Path) -> None:
    secret = population_run(tmp_path / "secret" / "three")
    run = population_run(tmp_path / "runs" / "pop" / "three")
    (run / "population.jsonl").unlink()
    (run / "population.jsonl").symlink_to(secret / "population.jsonl")
    with serving(tmp_path / "runs") as server:
        answer = server.ask(f"/api/population?run={server.id_of('pop/three')}")
    assert (answer.code, b"leads out of" in answer.body) == (422, True)
