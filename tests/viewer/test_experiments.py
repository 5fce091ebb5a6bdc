"""Launched experiments as the server tells of them: what ``launch status`` and ``report`` say."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from experimenting import online, write_run
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("uvicorn")
from viewing import launched, serving

from rollmill.core.errors import RollmillError
from rollmill.core.identity import Identity
from rollmill.launch.records import Attempt, LaunchRecords, Submission
from rollmill.viewer import experiments
from rollmill.viewer.catalog import Catalog
from rollmill.viewer.experiments import LOG_BYTES, Experiments, attempt_log
from rollmill.viewer.export import export
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


HANDLES: dict[str, dict[str, Any]] = {
    "ngc": {"kind": "ngc", "id": "1"},
    "slurm": {"kind": "slurm", "job": "1", "task": 0, "token": "abc"},
    "ray": {"kind": "ray", "address": "http://127.0.0.1:1", "id": "1"},
}


@pytest.mark.parametrize("kind", HANDLES)
def test_nothing_that_a_plan_names_is_run_or_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Neither by the server nor for a copy: programs leave a mark, and no process is started nor address called."""
    experiment, mark = tmp_path / "runs" / "grid", tmp_path / "it was run"
    launched(experiment, gammas=(0.5,), seeds=1)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("evil", "squeue", "sacct", "ngc", "ray"):
        (programs / name).write_text(f"#!/bin/sh\ntouch '{mark}'\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    records = LaunchRecords(experiment)
    launch = {"backend": kind, "ngc": {"program": str(programs / "evil"), "image": "i", "workspace": "w:/w"}}
    records.write_plan(replace(records.read_plan(), launch={**launch, "ray": {"address": "http://127.0.0.1:1"}}))
    records.write_submission("to_come", Submission(handle=HANDLES[kind], count=1))
    started: list[str] = []
    sys.addaudithook(lambda event, _: started.append(event) if event in WATCHED and watching else None)
    watching = [True]
    try:
        found = Experiments(tmp_path / "runs")(experiment)
        export(Catalog(tmp_path / "runs", Index(None)), tmp_path / "copy", episodes=0)
    finally:
        watching.clear()
    assert (started, mark.exists()) == ([], False)
    (run,) = (run for run in found["runs"] if run["run"] == "to_come")
    assert (run["state"], run["reason"]) == ("queued", f"handed in to {kind}; rollmill launch status asks there")


WATCHED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect")


def test_a_job_stands_as_its_records_say(tmp_path: Path) -> None:
    """Alive here, begun elsewhere, cancelled before it began, killed; no scheduler is asked."""
    experiment = tmp_path / "runs" / "grid"
    launched(experiment, gammas=(), seeds=0)
    records, handle = LaunchRecords(experiment), HANDLES["slurm"]
    here, gone = Identity.of(os.getpid()), Identity("elsewhere", "boot", 1, 1)
    assert here is not None

    def state(attempt: Attempt | None, cancelled: bool = False) -> tuple[str, str]:
        shutil.rmtree(records.attempts_folder("to_come"), ignore_errors=True)
        records.write_submission("to_come", Submission(handle=handle, count=1))
        records.set_cancelled("to_come", cancelled)
        if attempt is not None:
            records.write_attempt("to_come", attempt)
        (run,) = Experiments(tmp_path / "runs")(experiment)["runs"]
        return run["state"], run["host"]

    begun = Attempt(1, 1.79e9, here, "7", "new")
    assert state(begun) == ("running", here.host)
    assert state(replace(begun, process=gone)) == ("running", "elsewhere")
    assert state(replace(begun, process=replace(here, started=1)))[0] == "waiting", "killed, and to be tried again"
    assert state(None, cancelled=True) == ("cancelled", "")
    assert state(replace(begun, ended=1.8e9, exit_code=2, reason="wrong"))[0] == "failed"
    assert state(None) == ("queued", "")
    write_run(experiment / "to_come", online(), [1.0])
    assert state(replace(begun, process=gone)) == ("finished", "elsewhere"), "though nobody has written down its end"
    assert state(None) == ("finished", "")


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=5), st.sampled_from(["..", "/"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)
KEYS = ("version", "name", "cwd", "launch", "expect", "written", "host", "runs", "search", "population")
OF_RUN = ("name", "group", "params", "command", "folder", "frames", "more")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An experiment and its plan."""
    experiment = tmp_path_factory.mktemp("fuzz") / "runs" / "grid"
    launched(experiment, gammas=(0.5, 0.9), seeds=1)
    return experiment, (experiment / "launch" / "plan.json").read_text()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_stands_in_a_plan_is_told_or_refused(grid: tuple[Path, str], data: st.DataObject) -> None:
    """By a sentence: neither the page nor the table of runs fails by it."""
    experiment, plan = grid[0], json.loads(grid[1])
    plan |= data.draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2))
    if isinstance(plan["runs"], list) and plan["runs"] and isinstance(plan["runs"][0], dict):
        plan["runs"][0] |= data.draw(st.dictionaries(st.sampled_from(OF_RUN), VALUES, max_size=2))
    attempt = asdict(Attempt(1, 1.0, Identity("h", "b", 1, 1), "", "new"))
    attempt |= data.draw(st.dictionaries(st.sampled_from(list(attempt)), VALUES, max_size=2))
    handed_in = {"handle": HANDLES["ngc"], "count": 1}
    handed_in |= data.draw(st.dictionaries(st.sampled_from(("handle", "count", "failures_reset")), VALUES, max_size=2))
    for place, value in (("plan", plan), ("attempts/to_come/1", attempt), ("runs/to_come", handed_in)):
        path = experiment / "launch" / f"{place}.json"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(value))
    with contextlib.suppress(RollmillError, OSError):
        json.dumps(Experiments(experiment.parent)(experiment), allow_nan=False)
    with contextlib.suppress(RollmillError, OSError):
        attempt_log(experiment, experiment.parent, "to_come", 1)
    catalog = Catalog(experiment.parent, Index(None))
    catalog.refresh()
    assert len(catalog.to_dict()["ids"]) == 2


def test_comparing_runs_takes_a_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are compared again once something of them has changed, and not before that is due; the page is told when."""
    experiment, times = tmp_path / "runs" / "grid", [0.0]
    launched(experiment, gammas=(0.5, 0.9), seeds=2)
    monkeypatch.setattr(experiments.time, "monotonic", lambda: times[0])
    aggregate, compared = experiments.aggregate, []

    def counted(folder: Path) -> Any:
        compared.append(folder)
        times[0] += 2.0
        return aggregate(folder)

    monkeypatch.setattr(experiments, "aggregate", counted)
    told = Experiments(tmp_path / "runs")
    assert (told(experiment)["again"], told(experiment)["again"], len(compared)) == (None, None, 1)
    with open(experiment / "g0.5-s0" / "metrics.jsonl", "a") as text:
        text.write(json.dumps({"frames": 1000, "episode/return": 77.0}) + "\n")
    found = told(experiment)
    assert (found["again"], len(compared)) == (100.0, 1), "two seconds are a fiftieth of a hundred"
    assert next(run for run in found["runs"] if run["run"] == "g0.5-s0")["return"] == 77.0, (
        "how runs stand is always new"
    )
    times[0] += 100.0
    assert (told(experiment)["again"], len(compared)) == (None, 2)
