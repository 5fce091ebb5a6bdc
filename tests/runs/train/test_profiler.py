"""Traces of every process: what is in them, what is refused, and that no py-spy is left behind."""

import contextlib
import gzip
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from holding import HOLDING, AllWorkers
from running import SERIAL, Run, RunFolder, command_words, config_of, train_here, wait_until

from rollmill.cli.main import main
from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.envs.make import make_env
from rollmill.runs.bench.run import bench_train
from rollmill.runs.settings.train import ProfileSettings
from rollmill.runs.train import profiler as profile
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.profiler import Profiler, Spy, find_py_spy, first_line, name_threads, require_permission

QUICK = ("env=toy_target", "profile.after=0", "profile.steps=2", "profile.seconds=1")
WORKING = ("env=faulty_envs:Misbehave", "env.args.what=work")
"""Workers are found at work by whoever looks; those of the toys mostly wait."""
ENDLESS = ("stop.frames=100000000", "report.every_frames=1000000")


class UntilDone(Observer):
    """Ends the run when everything is recorded."""

    def on_training_step(self, run: Any, iteration: int) -> None:
        (profiler,) = (o for o in run.observers if isinstance(o, Profiler))
        if profiler.is_done:
            run.stop("recorded")


@pytest.fixture(autouse=True)
def no_py_spy_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(profile, "STOP_SECONDS", 120.0)  # on a busy machine it may take long to write its file
    yield
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            assert child.name() != "py-spy"


def files(folder: RunFolder) -> set[str]:
    return {path.name for path in (folder.path / "profile").iterdir()}


def torch_trace(folder: Path) -> dict[str, Any]:
    with gzip.open(folder / "main.torch.json.gz") as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def frames_of(path: Path) -> set[str]:
    """Names of all functions in a recording."""
    return {
        frame["name"].split(" ")[0].rpartition(".")[2] for frame in json.loads(path.read_text())["shared"]["frames"]
    }


# -- a run -------------------------------------------------------------------------------------------------


def test_every_process_of_a_run(tmp_path: Path) -> None:
    words = (*QUICK, *ENDLESS, *WORKING, "learning.threads=2", "sampling.mode=async")
    # More steps than there are batches waiting: some were sampled meanwhile.
    observers = [AllWorkers(), UntilDone()]
    _, folder = train_here(tmp_path, *words, "profile.steps=20", observers=observers, profile=True)
    workers = {"worker-0.speedscope.json", "worker-1.speedscope.json"}
    assert files(folder) == {"main.torch.json.gz", "main.speedscope.json", *workers}
    here = folder.path / "profile"
    assert "loop" in frames_of(here / "main.speedscope.json")
    assert {"step", "_step"} & frames_of(here / "worker-0.speedscope.json")  # a look now and then: not all are met
    events = torch_trace(here)["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    busy = {threads[event["tid"]].split(" ")[0] for event in events if event.get("cat") == "cpu_op"}
    assert "MainThread" in busy
    assert {"sampler", "learner_0"} <= {name.split("-")[0] for name in busy} | busy
    assert "profile: " in folder.log.read_text()


def test_serial_mode_is_one_process(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *QUICK, *SERIAL, *ENDLESS, observers=[UntilDone()], profile=True)
    assert files(folder) == {"main.torch.json.gz", "main.speedscope.json"}
    # The run can be overwritten: the traces are a part of it.
    train_here(tmp_path, *QUICK, *SERIAL, "stop.batches=1", mode="overwrite")
    assert not (folder.path / "profile").exists()


def test_without_py_spy(tmp_path: Path) -> None:
    words = (*QUICK, *SERIAL, *ENDLESS, "profile.py_spy=false")
    _, folder = train_here(tmp_path, *words, observers=[UntilDone()], profile=True)
    assert files(folder) == {"main.torch.json.gz"}


def test_the_trace_has_as_many_steps_as_asked_for(tmp_path: Path) -> None:
    def updates(steps: int) -> int:
        words = (*QUICK, *SERIAL, *ENDLESS, "profile.py_spy=false", f"profile.steps={steps}")
        _, folder = train_here(tmp_path / str(steps), *words, observers=[UntilDone()], profile=True)
        names = [event.get("name", "") for event in torch_trace(folder.path / "profile")["traceEvents"]]
        return sum(name.startswith("Optimizer.step") for name in names)

    assert (updates(1), updates(4)) == (1, 4)


def test_the_command_and_the_benchmark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*command_words(tmp_path, *QUICK, *SERIAL, "stop.batches=200"), "--profile", "--json"]) == 0
    assert (tmp_path / "x/run/profile/main.torch.json.gz").exists()
    config = config_of(tmp_path, *QUICK, *SERIAL, "profile.py_spy=false")
    profiler = Profiler(config.profile, tmp_path / "traces")
    result = bench_train(config, make_env(config.env).spec, 0.01, profiler, warm_up=0.0)
    assert result.frames_per_s > 0
    assert profiler.is_done  # however short the measurement
    assert (tmp_path / "traces/main.torch.json.gz").exists()


# -- a run that ends early ---------------------------------------------------------------------------------


def test_a_run_that_ends_before_the_recording(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *QUICK, *SERIAL, "profile.after=1000", "stop.batches=2", profile=True)
    assert files(folder) == set()
    assert "within profile.after=1000 s of training" in folder.log.read_text()


def test_a_run_that_ends_while_torch_records(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *QUICK, *SERIAL, "profile.steps=1000", "stop.batches=4", profile=True)
    assert files(folder) == {"main.torch.json.gz"}
    assert torch_trace(folder.path / "profile")["traceEvents"]
    assert "the traces are short" in folder.log.read_text()


class StopWhileSpying(Observer):
    """Ends the run a second of training after every py-spy has begun: SIGINT does not kill it any more."""

    begun = 0.0

    def on_training_step(self, run: Any, iteration: int) -> None:
        (profiler,) = (o for o in run.observers if isinstance(o, Profiler))
        if not profiler._spies:
            return
        if not self.begun:
            wait_until(lambda: all(catches_sigint(spy._process.pid) for spy in profiler._spies), what="py-spy to begin")
            self.begun = time.monotonic()
        if time.monotonic() > self.begun + 1.0:
            run.stop("told to")


def catches_sigint(pid: int) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGINT - 1) & 1)


def test_a_run_that_ends_while_py_spy_records(tmp_path: Path) -> None:
    words = (*QUICK, *ENDLESS, "profile.seconds=1000")
    _, folder = train_here(tmp_path, *words, observers=[AllWorkers(), StopWhileSpying()], profile=True)
    assert "main.speedscope.json" in files(folder)
    assert frames_of(folder.path / "profile/main.speedscope.json")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_py_spy_survives_the_run(tmp_path: Path, rollmill: Run, number: signal.Signals) -> None:
    held = f"observers=[{HOLDING}:AllWorkers]"  # there is nothing to look into before a worker has started
    command = rollmill(*command_words(tmp_path, *QUICK, *ENDLESS, "profile.seconds=1000", held), "--profile")

    def spies() -> list[int]:
        found = []
        for pid in command.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # a short-lived one has ended meanwhile
                if psutil.Process(pid).name() == "py-spy":
                    found.append(pid)
        return found

    assert len(wait_until(lambda: spies() if len(spies()) == 3 else None, what="one py-spy per process")) == 3
    command.send(number)
    command.wait()
    command.assert_nothing_left()


# -- what is refused, and what goes wrong ------------------------------------------------------------------


def test_py_spy_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r'pip install "rollmill\[profile\]"'):
        train_here(tmp_path / "runs", *QUICK, *SERIAL, profile=True)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "py-spy").touch(0o755)
    assert find_py_spy() == tmp_path / "py-spy"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="another user is needed")
def test_no_permission(tmp_path: Path) -> None:
    """As a user who may not trace this process: py-spy itself finds out."""
    program = tmp_path / "py-spy"
    drop = "setpriv --reuid 65534 --regid 65534 --clear-groups"
    program.write_text(f'#!/bin/sh\nexec {drop} "{find_py_spy()}" "$@"\n')
    program.chmod(0o755)
    with pytest.raises(ConfigError, match=r"(?s)Permission Denied.*SYS_PTRACE.*ptrace_scope=0.*profile\.py_spy=false"):
        require_permission(program, os.getpid())


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    spy = Spy(find_py_spy(), ended.pid, tmp_path / "x.json", ProfileSettings(), os.environ)
    assert spy.finish().startswith("Error: Failed to get process executable name")
    assert not (tmp_path / "x.json").exists()


def test_a_py_spy_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = tmp_path / "py-spy"
    stubborn.write_text("#!/bin/sh\ntrap '' INT\necho ready >&2\nsleep 1000 & wait\n")
    stubborn.chmod(0o755)
    monkeypatch.setattr(profile, "STOP_SECONDS", 0.2)
    spy = Spy(stubborn, os.getpid(), tmp_path / "x.json", ProfileSettings(), os.environ)
    children = wait_until(lambda: psutil.Process(spy._process.pid).children(), what="it to sleep")
    spy.interrupt()
    assert "did not end within 0.2 s and was killed" in spy.finish()
    for child in children:
        child.kill()


def test_a_failing_py_spy_is_reported_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "py-spy"
    broken.write_text("#!/bin/sh\n[ $1 = dump ] && exit 0\necho 'no such luck' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(profile, "find_py_spy", lambda: broken)
    outcome, folder = train_here(tmp_path, *QUICK, *SERIAL, *ENDLESS, observers=[UntilDone()], profile=True)
    assert outcome.state == "finished"
    assert "profile: no main.speedscope.json: py-spy says: no such luck" in folder.log.read_text()


def test_a_trace_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gzip, "open", full)
    with caplog.at_level(logging.ERROR, "rollmill"):
        outcome, folder = train_here(tmp_path, *QUICK, *SERIAL, *ENDLESS, observers=[UntilDone()], profile=True)
    assert outcome.reason == "recorded"
    assert "torch's trace could not be written: [Errno 28] No space left" in folder.log.read_text()
    assert files(folder) == {"main.speedscope.json"}


# -- small parts -------------------------------------------------------------------------------------------


def test_threads_get_their_names() -> None:
    trace = {
        "schema": 1,
        "traceEvents": [
            {"name": "thread_name", "tid": 7, "ph": "M", "args": {"name": "thread 7 (python)"}},
            {"name": "thread_name", "tid": 8, "ph": "M", "args": {"name": "thread 8 (python)"}},
            {"name": "aten::add", "tid": 7},
        ],
    }
    named = name_threads(trace, {7: "sampler", None: "not started"})
    assert [event.get("args") for event in named["traceEvents"]] == [
        {"name": "sampler (7)"},
        {"name": "thread 8 (python)"},
        None,
    ]
    assert named["schema"] == 1


def test_the_first_complaint() -> None:
    assert first_line("\n  what \nwhy\n") == "what"
    assert first_line(" \n") == "nothing"


@pytest.mark.parametrize("override", ["after=-1", "steps=0", "seconds=0", "rate=0", "seconds=1.5"])
def test_settings_that_make_no_sense(override: str) -> None:
    with pytest.raises(ConfigError, match="profile"):
        config_of(Path(), f"profile.{override}")
