"""The launch folder: identities of processes, records, plans that change, the job's own guards."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from installing import require
from launching import experiment, launcher, states
from running import wait_until

from rollmill.core.errors import ConfigError, LaunchError
from rollmill.core.identity import Identity
from rollmill.core.run_folder import RunFolder
from rollmill.launch import job as child
from rollmill.launch.launcher import cancel, settings_of
from rollmill.launch.params import ParamGrid, ParamList
from rollmill.launch.progress import last_row, read_curve
from rollmill.launch.records import Attempt, LaunchRecords, Submission, is_locked
from rollmill.launch.status import run_status


@pytest.fixture
def own_signals() -> Iterator[None]:
    """A job that runs in this process leaves its handlers behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_damaged_records_are_named(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    path = made.records.folder / "runs" / "tests_s0.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(LaunchError, match=r"tests_s0.json: cannot be read"):
        made.look()
    path.write_text("[]")
    with pytest.raises(LaunchError, match="not a JSON object"):
        made.look()
    path.write_text('{"colour": "red"}')
    with pytest.raises(LaunchError, match=r"tests_s0.json: not a record of this version.*colour"):
        made.look()
    path.unlink()
    attempt_file = made.records.attempts_folder("tests_s0") / "1.json"
    attempt_file.parent.mkdir(parents=True)
    attempt_file.write_text('{"process": {}}')
    with pytest.raises(LaunchError, match=r"1.json: not a record"):
        made.look()
    attempt_file.unlink()
    plan = made.records.folder / "plan.json"
    plan.write_text(plan.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(LaunchError, match="another version"):
        made.records.read_plan()
    with pytest.raises(LaunchError, match="not an experiment that was launched"):
        LaunchRecords(tmp_path / "nothing").read_plan()


def test_a_record_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "launch").write_text("a file in the way")
    with pytest.raises(LaunchError, match="cannot be written"):
        LaunchRecords(tmp_path).write_submission("a", Submission())
    with pytest.raises(Exception, match="cannot be used"), LaunchRecords(tmp_path).as_launcher():
        pass


def test_a_plan_may_grow_but_what_has_begun_must_stay(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment(ParamGrid({"learning.gamma": [0.5, 0.6]})))
    made.run()
    grown = launcher(tmp_path, experiment(ParamGrid({"learning.gamma": [0.5, 0.6, 0.7]})))
    assert [s.state for s in grown.look()] == ["finished", "finished", "waiting"]
    smaller = launcher(tmp_path, experiment(ParamGrid({"learning.gamma": [0.5, 0.8]})))
    assert states(smaller.look()) == {
        "gamma-0.5_s0": "finished",
        "gamma-0.8_s0": "waiting",
        "gamma-0.6_s0": "finished",
    }, "what has run stays, what never began may go"
    with pytest.raises(ConfigError, match=r"gamma-0.5_s0 has begun with other settings.*stop.frames=100.*another name"):
        launcher(tmp_path, experiment(ParamGrid({"learning.gamma": [0.5, 0.8]}), settings={"stop.frames": 200}))


def test_settings_of_a_launch_are_remembered(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment(), "retries=7", "slurm.partition=gpu")
    found = settings_of(made.records.read_plan(), ["retries=1"])
    assert (found.retries, found.slurm.partition) == (1, "gpu")


# -- how runs stand ----------------------------------------------------------------------------------------


def attempt(number: int, code: int | None = 1, job: str = "", reason: str = "") -> Attempt:
    me = Identity("h", "b", 1, 1)
    return Attempt(number, 1.0, me, job, "new", None if code is None else 2.0, code, reason)


@pytest.mark.parametrize(
    ("attempts", "submission", "state", "failures"),
    [
        ([], Submission(), "waiting", 0),
        ([], Submission(handle=None, count=1), "waiting", 0),  # killed while it handed in: it does not count
        ([], Submission({"kind": "x"}, 1), "waiting", 1),
        ([], Submission({"kind": "x"}, 3), "failed", 3),
        ([attempt(1)], Submission({"kind": "x"}, 1), "waiting", 1),
        ([attempt(1), attempt(2), attempt(3)], Submission({"kind": "x"}, 3), "failed", 3),
        ([attempt(1), attempt(2), attempt(3)], Submission({"kind": "x"}, 3, failures_reset=3), "waiting", 0),
        ([attempt(1, None), attempt(2, None)], Submission({"kind": "x"}, 2), "waiting", 2),
        (
            [attempt(1, 143, "9_0"), attempt(2, None, "9_0"), attempt(3, 1, "9_0")],
            Submission({"a": 1}, 1),
            "waiting",
            1,
        ),
        ([attempt(1, 2)], Submission({"kind": "x"}, 1), "failed", 1),
        ([attempt(1, 2)], Submission({"kind": "x"}, 1, failures_reset=1), "waiting", 0),
        ([attempt(1)], Submission({"kind": "x"}, 1, cancelled=True), "cancelled", 1),
    ],
)
def test_failures_are_counted_against_the_retries(
    tmp_path: Path, attempts: list[Attempt], submission: Submission, state: str, failures: int
) -> None:
    made = launcher(tmp_path, experiment())
    run = made.plan.runs[0]
    for one in attempts:
        made.records.write_attempt(run.name, one)
    found = run_status(made.records, run, submission, None, retries=2)
    assert (found.state, found.failures) == (state, failures)


def test_a_run_folder_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    folder = Path(made.plan.runs[0].folder)
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{")
    (found,) = made.look()
    assert found.state == "failed"
    assert "state.json: cannot be read" in found.reason


def test_a_run_that_ended_before_its_first_row_has_its_frames(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    with RunFolder.create(Path(made.plan.runs[0].folder), "new", min_free_mb=1) as folder:
        folder.set_state("finished", "reached stop.frames=600", 739)
    (found,) = made.look()
    assert (found.state, found.frames, found.mean_return) == ("finished", 739, None)


# -- the job -----------------------------------------------------------------------------------------------


def test_a_job_that_is_killed_takes_its_program_with_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    made = launcher(tmp_path, experiment(settings={"env.args.gate": str(gate)}), "retries=1")
    folder = Path(made.plan.runs[0].folder)
    made.tick()
    wait_until(lambda: any((folder / "checkpoints").glob("*.ckpt")), what="a checkpoint")
    job = made.records.attempts("tests_s0")[0].process
    os.kill(job.pid, signal.SIGKILL)
    wait_until(lambda: not job.alive, what="the job's end: its program has the signal by then")
    gate.touch()
    assert states(made.run()) == {"tests_s0": "finished"}
    first, second = made.records.attempts("tests_s0")
    assert first.ended is None
    assert second.mode in ("resume", "skip"), "it waited until the program had ended, and saved"


def test_a_run_without_a_checkpoint_starts_anew(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    folder = Path(made.plan.runs[0].folder)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("run: {}\n")
    made.records.write_attempt("tests_s0", attempt(1, 137))
    made.records.write_submission("tests_s0", Submission({"kind": "local", "slot": 0, "process": None}, 1))
    assert states(made.run()) == {"tests_s0": "finished"}
    assert made.records.attempts("tests_s0")[1].mode == "overwrite"


def test_a_start_that_failed_does_not_block_the_first_attempt(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    with RunFolder.create(Path(made.plan.runs[0].folder), "new", min_free_mb=1) as folder:
        folder.set_state("failed", "no GPU", 0)
        folder.config.write_text("run: {}\n")
        folder.checkpoints.mkdir()
        (folder.checkpoints / "frames-000000000000.ckpt").touch()
    assert states(made.run()) == {"tests_s0": "finished"}
    assert made.records.attempts("tests_s0")[0].mode == "new"


@pytest.mark.usefixtures("own_signals")
def test_a_display_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = launcher(tmp_path, experiment())
    spec = {"command": ["true"], "cwd": str(tmp_path), "folder": str(tmp_path / "run"), "virtual_display": True}
    made.records.write_job("tests_s0", spec)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert child.main([str(made.records.folder), "tests_s0"]) == 2
    assert "Xvfb is not installed" in made.records.attempts("tests_s0")[0].reason
    broken = tmp_path / "Xvfb"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert child.main([str(made.records.folder), "tests_s0"]) == 2
    assert "Xvfb did not start" in made.records.attempts("tests_s0")[1].reason


def test_a_run_with_a_display_of_its_own_saves_before_it_ends(tmp_path: Path) -> None:
    """Every process of the group gets the signal; the display must outlive the run's last words."""
    require("Xvfb", "xvfb")
    script = tmp_path / "saves.py"
    script.write_text(
        "import os, pathlib, signal, socket, sys\n"
        "def end(*_):\n"
        "    with socket.socket(socket.AF_UNIX) as display:\n"
        "        display.connect('/tmp/.X11-unix/X' + os.environ['DISPLAY'][1:])\n"
        "    pathlib.Path('saved').write_text(os.environ['XAUTHORITY'])\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('up').touch()\n"
        "signal.pause()\n"
    )
    made = launcher(tmp_path, experiment())
    command = [sys.executable, str(script)]
    spec = {"command": command, "cwd": str(tmp_path), "folder": str(tmp_path / "run"), "virtual_display": True}
    made.records.write_job("tests_s0", spec)
    words = [sys.executable, "-m", "rollmill.launch.job", str(made.records.folder), "tests_s0"]
    with subprocess.Popen(words, start_new_session=True) as job:
        wait_until(lambda: (tmp_path / "up").exists(), what="the program to start")
        os.killpg(job.pid, signal.SIGTERM)
        assert job.wait() == 143
    key = Path((tmp_path / "saved").read_text())
    assert not key.exists(), "the display is gone with the run"


def test_a_job_whose_run_was_cancelled_meanwhile_does_not_begin(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    made.records.write_job("tests_s0", {"command": ["true"], "cwd": str(tmp_path), "folder": str(tmp_path / "run")})
    made.records.set_cancelled("tests_s0", True)
    assert child.main([str(made.records.folder), "tests_s0"]) == child.CANCELLED
    assert made.records.attempts("tests_s0") == []


@pytest.mark.usefixtures("own_signals")
def test_a_folder_in_use_is_no_mistake_in_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of an attempt that was killed -9 may take long to save: later there is another try."""
    made = launcher(tmp_path, experiment(), "retries=1")
    made.records.write_job("tests_s0", {"command": ["true"], "cwd": str(tmp_path), "folder": str(tmp_path / "run")})
    made.records.write_submission("tests_s0", Submission({"kind": "local", "slot": 0, "process": None}, 1))
    monkeypatch.setattr(child, "FOLDER_SECONDS", 0.0)
    with RunFolder.create(tmp_path / "run", "new"):
        assert child.main([str(made.records.folder), "tests_s0"]) == child.BUSY
    assert [s.state for s in made.look()] == ["waiting"]


def test_a_lock_that_may_only_be_read_is_seen(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch(0o444)
    assert not is_locked(path)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(path)


def test_looking_does_not_keep_a_launcher_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rollmill.launch.records.LOCK_SECONDS", 60.0
    )  # the one that looks may have to wait for its turn
    records = LaunchRecords(tmp_path)
    (tmp_path / "launch").mkdir()
    with open(tmp_path / "launch" / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as whoever looks has it, for a moment
        timer = threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        with records.as_launcher():
            assert records.launcher_alive()
        timer.join()


def test_a_job_that_nobody_described(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="there is no such job"):
        child.Job(LaunchRecords(tmp_path), "nothing")


def test_the_scheduler_names_the_job() -> None:
    assert child.job_id({}) == ""
    assert child.job_id({"SLURM_JOB_ID": "5"}) == "5"
    assert child.job_id({"SLURM_JOB_ID": "5", "SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "1"}) == "4_1"


def test_programs_that_cannot_start_or_die_of_a_signal(tmp_path: Path) -> None:
    what = experiment(ParamList([{"learning.gamma": 0.1}]))
    missing = launcher(tmp_path / "a", type(what)(**{**vars(what), "program": ("/no/such/program",)}), "retries=0")
    (found,) = missing.run()
    assert found.state == "failed"
    assert "/no/such/program" in found.reason
    dying = ("/bin/sh", "-c", "kill -SEGV $$")
    killed = launcher(tmp_path / "b", type(what)(**{**vars(what), "program": dying}), "retries=0")
    assert killed.run()[0].reason == "killed by SIGSEGV"


# -- metrics -----------------------------------------------------------------------------------------------


def test_rows_that_are_torn_or_long_past(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) is None
    assert read_curve(path, "x").frames == []
    rows = "".join(f'{{"frames": {k}, "x": {k}.5, "pad": "{"z" * 5000}"}}\n' for k in range(40))
    path.write_text(rows + '{"frames": 39, "x": 0}\n{"frames": 40, "x": null}\n[1]\n{"frames": 41, "x"')
    row = last_row(path)
    assert row is not None
    assert row["frames"] == 40
    curve = read_curve(path, "x")
    assert curve.frames == list(range(40)), "frames rise, rows without a number are left out"
    path.write_text("no row at all\n")
    assert last_row(path) is None


# -- several back ends -------------------------------------------------------------------------------------


def test_jobs_are_looked_after_by_the_back_end_they_were_handed_to(tmp_path: Path) -> None:
    """The launch goes on with another back end while a run of the first one is still there."""
    gate = tmp_path / "gate"
    what = experiment(ParamGrid({"env.args.gate": [str(gate)]}), seeds=2)
    local = launcher(tmp_path, what)
    local.tick()
    folder = Path(local.plan.runs[0].folder)
    wait_until(lambda: any((folder / "checkpoints").glob("*.ckpt")), what="a checkpoint")
    other = launcher(tmp_path, what, "backend=ngc", "ngc.image=i", "ngc.workspace=w:/w", "ngc.template=/bin/false")
    assert states(other.look()) == {"tests_s0": "running", "tests_s1": "waiting"}
    with pytest.raises(LaunchError, match="exit code 1"):
        other.tick()
    assert cancel(other.records, other.plan, other.backend, ["tests_s0"]) == {"tests_s0": "running"}
    assert states(other.look())["tests_s0"] == "cancelled"


def test_an_attempt_is_not_blamed_for_what_the_one_before_said(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment(ParamList([{"learning.gamma": 0.5, "env.args.fail": True}])), "retries=0")
    (failed,) = made.run()
    assert failed.reason.startswith("failed: EnvError")
    (tmp_path / "dies.py").write_text("import os; os.kill(os.getpid(), 9)\n")
    spec = made.records.read_job("tests_s0")
    assert spec is not None
    made.records.write_job("tests_s0", {**spec, "command": [sys.executable, str(tmp_path / "dies.py")]})
    subprocess.run([sys.executable, "-m", "rollmill.launch.job", str(made.records.folder), "tests_s0"])
    assert made.records.attempts("tests_s0")[-1].reason == "killed by SIGKILL"
