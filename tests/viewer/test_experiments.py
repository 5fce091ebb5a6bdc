"""Launched experiments as the server tells of them: what ``launch status`` and ``report`` say."""

from __future__ import annotations

from pathlib import Path

import pytest
from experimenting import online, write_run

pytest.importorskip("uvicorn")
from viewing import launched, serving


def test_how_every_run_stands_and_what_matters(tmp_path: Path) -> None:
    launched(tmp_path / "runs" / "grid", gammas=(0.5, 0.9, 0.99), seeds=3)
    with serving(tmp_path / "runs") as server:
        assert server.ask("/api/runs").json["experiments"] == ["grid"]
        found = server.ask("/api/experiment?name=grid").json
        assert server.ask("/api/experiment?name=..%2Fgrid").code == 404
        assert server.ask("/api/experiment?name=other").code == 404
    assert "10 runs" in found["summary"]
    states = {run["run"]: run["state"] for run in found["runs"]}
    assert states["g0.5-s0"] == "finished"
    assert states["to_come"] == "waiting"
    assert [item["param"] for item in found["importance"][0]["items"]] == ["learning.gamma"]
    (scores,) = found["scores"]
    assert (scores["keys"], scores["lower"], len(scores["runs"])) == (["learning.gamma"], False, 9)
    assert {tuple(run["params"]) for run in scores["runs"]} == {(0.5,), (0.9,), (0.99,)}
    assert str(tmp_path) not in str(found["runs"]), "addresses of folders stay here"


def test_a_plan_behind_a_link_is_not_read(tmp_path: Path) -> None:
    launched(tmp_path / "secret" / "grid", gammas=(0.5,), seeds=1)
    write_run(tmp_path / "runs" / "own" / "run", online(), [1.0])
    (tmp_path / "runs" / "sly").mkdir()
    (tmp_path / "runs" / "sly" / "launch").symlink_to(tmp_path / "secret" / "grid" / "launch")
    with serving(tmp_path / "runs") as server:
        assert server.ask("/api/runs").json["experiments"] == []
