"""Serial mode is made for breakpoints: pausing trips no time-out, and a debugger works in every part."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

from running import ROOT, SERIAL, SMALL, rows_of, train_here

from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.sampling.pool import WATCH_SECONDS

LIMITS = ("sampling.step_timeout=0.01", "sampling.reset_timeout=0.01", "sampling.start_timeout=0.01")


class Pause(Observer):
    """Stands still for longer than every time-out and than the pool's interval of looking around."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == 2:
            time.sleep(WATCH_SECONDS + 0.2)


def test_a_pause_trips_nothing(tmp_path: Path) -> None:
    slow = ("env=faulty_envs:Misbehave", "env.args.what=pause", "env.args.env=1", f"env.args.once={tmp_path / 'once'}")
    outcome, folder = train_here(tmp_path, *SERIAL, *LIMITS, *slow, "stop.batches=6", observers=[Pause()])
    assert (tmp_path / "once").exists(), "the env did pause"
    assert outcome.state == "finished"
    last = rows_of(folder)[-1]
    assert last["sample/env_faults"] == last["sample/worker_restarts"] == last["sample/lost_segments"] == 0


PLACES = (
    "rollmill.sampling.worker.Worker.work",  # the sampler's side
    "rollmill.envs.toy.Target.step",  # the env
    "rollmill.learning.step.Step.losses",  # the learner
)
"""In the order in which a run comes to them."""


def test_breakpoints_stop_in_the_same_process(tmp_path: Path) -> None:
    """The real debugger on the real command: stops at every place, shows where it is, goes on to the end."""
    words = [*SMALL, *SERIAL, *LIMITS, "env=toy_target", "stop.batches=2", f"run.dir={tmp_path}"]
    imports = "".join(f"import {place.rsplit('.', 2)[0]}\n" for place in PLACES)
    breakpoints = "".join(f"b {place}\n" for place in PLACES)
    stops = "".join(f"c\nw\ncl {number}\n" for number in range(1, len(PLACES) + 1))
    done = subprocess.run(
        [sys.executable, "-m", "pdb", "-m", "rollmill.cli.main", "train", *words],
        input=f"{imports}{breakpoints}{stops}c\nq\n",
        capture_output=True,
        text=True,
        timeout=600,
    )
    # Each stop shows its line, then the stack, whose last entry is that line again.
    stops_shown = done.stdout.split("Deleted breakpoint")
    assert len(stops_shown) == len(PLACES) + 1, done.stdout
    for place, shown in zip(PLACES, stops_shown):
        function = place.rpartition(".")[2]
        assert re.search(rf"^> \S+\(\d+\){function}\(\)", shown, re.MULTILINE), f"no stop at {place}: {shown}"
        assert re.search(r"runs/train/loop\.py\(\d+\)loop\(\)", shown), f"the loop is not on the stack: {shown}"
    assert "finished: reached stop.batches=2" in done.stdout, done.stdout + done.stderr


def test_leaving_the_debugger_in_an_env_ends_the_run(tmp_path: Path) -> None:
    """BdbQuit is an Exception, but no fault of the env."""
    words = [*SMALL, *SERIAL, "env=toy_target", "stop.batches=200", f"run.dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "pdb", "-m", "rollmill.cli.main", "train", *words],
        input="import rollmill.envs.toy\nb rollmill.envs.toy.Target.step\nc\nq\n",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "failed in step" not in done.stderr
    assert "finished" not in done.stdout


LAUNCH = ROOT / ".vscode" / "launch.json"


def test_the_debug_profile_runs_and_ends_by_itself(tmp_path: Path) -> None:
    """What the editor starts, without the editor."""
    profile = json.loads(LAUNCH.read_text(encoding="utf-8"))["configurations"][0]
    assert "sampling.mode=serial" in profile["args"]
    command = [sys.executable, "-m", profile["module"], *profile["args"]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "finished: reached stop.batches=20" in done.stdout


def test_a_test_run_goes_through_everything_once(tmp_path: Path) -> None:
    """``stop.batches=1``: one training step, checkpoints before and after it, a report, and the final values."""
    outcome, folder = train_here(tmp_path, "env=toy_target", "sampling.mode=async", "stop.batches=1")
    assert (outcome.state, outcome.reason) == ("finished", "reached stop.batches=1")
    assert len(list(folder.checkpoints.iterdir())) == 2
    assert "batches: 1" in folder.config.read_text()
    assert (folder.path / "report.html").is_file()
