"""On a real Ray of one node; see ``ray_launch.py``."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launching import experiment, launcher
from running import SUPPORT

from rollmill.core.errors import LaunchError, MissingExtraError
from rollmill.launch.backends.base import JobRequest
from rollmill.launch.backends.ray import RayBackEnd, submission_id
from rollmill.launch.records import Submission
from rollmill.launch.settings import RaySettings


def test_runs_are_handed_in_found_again_cancelled_and_resumed() -> None:
    pytest.importorskip("ray", reason="the ray extra is not installed")
    spaces = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*spaces, "true"], capture_output=True).returncode != 0:
        pytest.skip("no right to make namespaces, and Ray would listen on all interfaces")
    # Ray makes sockets below its folder, whose whole path may have 107 characters at most: TMPDIR may be too deep.
    with tempfile.TemporaryDirectory(prefix="rr", dir="/tmp") as folder:
        environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}
        environment["RAY_AUTH_MODE"] = "disabled"  # a user who has a token is asked for it everywhere
        command = [*spaces, sys.executable, str(SUPPORT / "ray_launch.py"), folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + Path(folder, "ray.out").read_text()
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    names = ["tests_s0", "tests_s1", "tests_s2"]
    assert told["first"] == dict(zip(names, ["running", "running", "waiting"]))
    assert told["found"] == {"tests_s0": "True"}
    assert told["last"] == dict(zip(names, ["finished", "cancelled", "finished"]))
    assert told["again"] == dict.fromkeys(names, "finished")
    assert told["population"] == {f"member-{k}": "finished" for k in range(4)}
    assert told["rounds"] == 3
    assert told["starts"] == [0, 50], "the cancelled run had saved, and went on from there"


def test_the_job_runs_no_code_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    backend = RayBackEnd(RaySettings())
    monkeypatch.setattr(backend, "_client", SimpleNamespace(submit_job=lambda entrypoint, **_: told.append(entrypoint)))
    made = launcher(tmp_path, experiment())
    (run,) = made.plan.runs
    made.records.write_submission(run.name, Submission(handle=None, count=1))
    job = JobRequest(run.name, {"command": ["true"], "cwd": "/a folder", "folder": run.folder})
    backend.submit(made.records, [job], [])
    assert told == [
        f"cd '/a folder' && exec {sys.executable} -P -m rollmill.launch.job {made.records.folder} {run.name}"
    ]


def test_without_ray_there_is_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("ray"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    made = launcher(tmp_path, experiment(), "backend=ray")
    with pytest.raises(MissingExtraError, match=r"rollmill\[ray\]"):
        made.tick()


def test_a_cluster_that_does_not_answer_leaves_runs_unknown(tmp_path: Path) -> None:
    class Silent:
        def list_jobs(self) -> None:
            raise ConnectionError("nobody there")

        def submit_job(self, **_: object) -> None:
            raise RuntimeError("nobody there")

        stop_job = submit_job

    made = launcher(tmp_path, experiment(), "backend=ray")
    backend = RayBackEnd(RaySettings())
    backend._client = Silent()
    made.backend = backend
    assert backend.status(made.records, {"run": None})["run"].stage == "unknown"
    with pytest.raises(LaunchError, match="did not take tests_s0: nobody there"):
        made.tick()


def test_the_name_of_a_job_follows_from_the_run(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    made.records.write_submission("a b", Submission(count=2, submitted=1.5))
    assert submission_id(made.records, "a b") == "rollmill-tests-a-b-2-5dc"
    made.records.write_submission("a b", Submission(count=2, submitted=1.501))
    assert submission_id(made.records, "a b") == "rollmill-tests-a-b-2-5dd", "another launch of the same name"
