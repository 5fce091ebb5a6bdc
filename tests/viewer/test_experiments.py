"""Launched experiments as the server tells of them: what ``launch status`` and ``report`` say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from experimenting import online, write_run

pytest.importorskip("uvicorn")
from viewing import launched, serving

from rollmill.core.identity import Identity
from rollmill.launch.records import Attempt, LaunchRecords, Submission
from rollmill.viewer.catalog import Catalog
from rollmill.viewer.experiments import LOG_BYTES
from rollmill.viewer.index import Index


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


def attempts_of(experiment: Path, run: str, log: str) -> None:
    """A run that failed once."""
    records = LaunchRecords(experiment)
    attempt = Attempt(1, 1.79e9, Identity("node7", "boot", 1, 1), "", "new", 1.79e9 + 5, 1, "it broke", "last words")
    records.write_attempt(run, attempt)
    records.log_path(run, 1).write_text(log)


def test_attempts_and_their_logs(tmp_path: Path) -> None:
    launched(tmp_path / "runs" / "grid", gammas=(0.5,), seeds=1)
    attempts_of(tmp_path / "runs" / "grid", "g0.5-s0", "x" * LOG_BYTES + "\nthe end\n")
    with serving(tmp_path / "runs") as server:
        (attempt,) = server.ask("/api/experiment?name=grid").json["runs"][0]["attempts"]
        log = server.ask("/api/attempt?name=grid&run=g0.5-s0&number=1").json["log"]
        for other in ("run=g0.5-s0&number=2", "run=..%2Fgrid&number=1", "run=to_come&number=1"):
            assert server.ask(f"/api/attempt?name=grid&{other}").code == 422
    assert (attempt["number"], attempt["exit_code"], attempt["reason"]) == (1, 1, "it broke")
    assert log.startswith("(the last 60,000 of")
    assert log.endswith("the end\n")


def test_whatever_is_written_about_a_launch_is_news(tmp_path: Path) -> None:
    launched(tmp_path / "runs" / "grid", gammas=(0.5,), seeds=1)
    catalog = Catalog(tmp_path / "runs", Index(None))
    told = catalog.refresh()
    for write in (
        lambda: attempts_of(tmp_path / "runs" / "grid", "to_come", "log"),
        lambda: LaunchRecords(tmp_path / "runs" / "grid").set_cancelled("to_come", True),
        lambda: LaunchRecords(tmp_path / "runs" / "grid").write_submission("to_come", Submission(count=1)),
    ):
        catalog._due = 0.0
        assert catalog.refresh() == told, "nothing has changed"
        write()
        catalog._due = 0.0
        assert catalog.refresh() == told + 1
        told += 1


@pytest.mark.parametrize("place", ["launch/attempts/g0.5-s0/1.log", "g0.5-s0/metrics.jsonl", "linked"])
def test_nothing_of_an_experiment_is_read_that_a_link_leads_to_outside(tmp_path: Path, place: str) -> None:
    experiment = tmp_path / "runs" / "grid"
    launched(experiment, gammas=(0.5,), seeds=1)
    attempts_of(experiment, "g0.5-s0", "log")
    write_run(tmp_path / "secret" / "run", online(), [1.0])
    (experiment / place).unlink(missing_ok=True)
    (experiment / place).symlink_to(tmp_path / "secret" / "run")
    with serving(tmp_path / "runs") as server:
        answer = server.ask("/api/experiment?name=grid")
    assert (answer.code, b"leads out of" in answer.body) == (422, True)


def test_a_plan_cannot_name_a_folder_elsewhere(tmp_path: Path) -> None:
    launched(tmp_path / "runs" / "grid", gammas=(0.5,), seeds=1)
    write_run(tmp_path / "secret", online(), [12345.0])
    records = LaunchRecords(tmp_path / "runs" / "grid")
    plan = records.read_plan()
    first = replace(plan.runs[0], folder=str(tmp_path / "secret"))
    records.write_plan(replace(plan, runs=(first,)))
    with serving(tmp_path / "runs") as server:
        assert b"12345" not in server.ask("/api/experiment?name=grid").body
        records.write_plan(replace(plan, runs=(replace(first, name="../../secret"),)))
        answer = server.ask("/api/experiment?name=grid")
    assert (answer.code, b"no name of a folder" in answer.body) == (422, True)
