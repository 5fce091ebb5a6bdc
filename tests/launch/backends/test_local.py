"""Local runs: faults, retries, a launcher that is killed, slots."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import experiment, launcher, place, sessions, states
from running import SERIAL, SMALL, SUPPORT, hostile_folder, wait_until

from rollmill.core.errors import LaunchError
from rollmill.core.identity import Identity
from rollmill.launch.backends.base import JobRequest
from rollmill.launch.backends.local import LocalBackEnd, make_slots
from rollmill.launch.experiment import PROGRAM, Experiment
from rollmill.launch.launcher import Launcher, cancel
from rollmill.launch.params import ParamGrid, ParamList
from rollmill.launch.records import Attempt, LaunchRecords, Submission
from rollmill.launch.settings import LocalSettings
from rollmill.launch.status import RunStatus


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def until(made: Launcher, name: str, attempts: int = 1) -> RunStatus:
    """Tick until the run has begun so many attempts and waits at its gate."""

    def ready() -> RunStatus | None:
        status = next(s for s in made.tick() if s.run.name == name)
        halfway = status.frames is not None and any(Path(status.run.folder, "checkpoints").glob("*.ckpt"))
        return status if status.attempts >= attempts and halfway and status.state == "running" else None

    found: RunStatus = wait_until(ready, what=f"attempt {attempts} of {name}")
    return found


def test_a_grid_with_faults_is_seen_through(tmp_path: Path, gate: Path) -> None:
    """Twelve runs, two at a time: one killed -9, one that always fails, one whose settings are wrong."""
    params = ParamGrid({"learning.gamma": [0.9, 0.99]}) * ParamGrid({"env.args.gate": [str(gate)]})
    params += ParamList([{"learning.gamma": 0.5, "env.args.fail": True}, {"learning.gamma": 0.6, "env.args.code": 2}])
    params += ParamGrid({"learning.gamma": [0.1, 0.2, 0.3, 0.4, 0.7, 0.8, 0.85, 0.95]})
    made = launcher(tmp_path, experiment(params), "local.parallel=2", "retries=1")
    assert len(made.plan.runs) == 12
    first = made.plan.runs[0].name
    until(made, first)
    os.kill(place(Path(made.plan.runs[0].folder))["pid"], signal.SIGKILL)
    until(made, first, attempts=2)
    gate.touch()

    seen: list[int] = []
    statuses = made.run(lambda now: seen.append(sum(s.state == "running" for s in now)))

    assert max(seen) <= 2
    bad = {s.run.params["learning.gamma"]: s for s in statuses if s.state == "failed"}
    assert sorted(bad) == [0.5, 0.6]
    assert sum(s.state == "finished" for s in statuses) == 10
    assert bad[0.5].attempts == 2, "tried once more"
    assert bad[0.5].reason.startswith("failed: EnvError: broken on purpose")
    assert "broken on purpose" in bad[0.5].tail
    assert bad[0.6].attempts == 1, "settings that are wrong do not get better"
    assert bad[0.6].reason == "exit code 2: this is the end: 2"
    starts = sessions(Path(made.plan.runs[0].folder))
    assert [s["step_at_start"] for s in starts] == [0, 50], "the killed run went on from its checkpoint"
    assert made.records.attempts(first)[0].reason == "killed by SIGKILL"


def test_a_killed_launcher_is_followed_by_one_that_repeats_and_loses_nothing(tmp_path: Path, gate: Path) -> None:
    what = experiment(ParamGrid({"env.args.gate": [str(gate)]}), seeds=4)
    made = launcher(tmp_path, what, "local.parallel=2")
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from rollmill.launch.launcher import Launcher, settings_of\n"
        "from rollmill.launch.records import LaunchRecords\n"
        "records = LaunchRecords(Path(sys.argv[1])); plan = records.read_plan()\n"
        "with records.as_launcher(): Launcher(records, plan, settings_of(plan)).run()\n"
    )
    folder = tmp_path / "tests"
    process = subprocess.Popen([sys.executable, "-c", code, str(folder), str(SUPPORT)])
    names = [run.name for run in made.plan.runs]
    try:
        wait_until(lambda: [s.state for s in made.look()].count("running") == 2 and _at_gate(made, names[:2]))
        assert LaunchRecords(folder).launcher_alive()
        with pytest.raises(LaunchError, match="launches it already"), LaunchRecords(folder).as_launcher():
            pass
    finally:
        process.kill()
        process.wait()
    pids = [place(folder / name)["pid"] for name in names[:2]]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids), "they go on without their launcher"
    assert states(made.tick()) == dict(zip(names, ["running", "running", "waiting", "waiting"]))
    gate.touch()
    statuses = made.run()
    assert states(statuses) == dict.fromkeys(names, "finished")
    for name in names:
        assert len(sessions(folder / name)) == 1
        assert len(made.records.attempts(name)) == 1


def _at_gate(made: Launcher, names: list[str]) -> bool:
    return all(any((made.records.experiment / name / "checkpoints").glob("*.ckpt")) for name in names)


def test_no_code_of_the_current_folder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = hostile_folder(tmp_path / "downloaded")
    monkeypatch.chdir(tmp_path / "downloaded")
    words = (*PROGRAM, "env=toy_target", *(word for word in (*SMALL, *SERIAL) if not word.startswith("run.")))
    what = Experiment("tests", settings={"stop.batches": 1}, program=words)
    assert states(launcher(tmp_path, what).run()) == {"tests_s0": "finished"}
    assert not marker.exists()


def test_a_job_that_was_not_written_down_is_found(tmp_path: Path, gate: Path) -> None:
    made = launcher(tmp_path, experiment(settings={"env.args.gate": str(gate)}))
    name = made.plan.runs[0].name
    until(made, name)
    before = made.records.submission(name)
    made.records.write_submission(name, type(before)(handle=None, count=1))  # as a launcher killed while it started it
    assert states(made.tick()) == {name: "running"}
    assert made.records.submission(name).handle == before.handle
    gate.touch()
    assert states(made.run()) == {name: "finished"}
    assert len(made.records.attempts(name)) == 1


def test_a_second_job_of_a_living_run_leaves_it_alone(tmp_path: Path, gate: Path) -> None:
    made = launcher(tmp_path, experiment(settings={"env.args.gate": str(gate)}))
    name = made.plan.runs[0].name
    until(made, name)
    command = [sys.executable, "-m", "rollmill.launch.job", str(made.records.folder), name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 75
    assert "another job of this run is alive" in done.stderr
    gate.touch()
    assert states(made.run()) == {name: "finished"}


def test_cancelled_runs_save_and_are_only_started_again_when_asked(tmp_path: Path, gate: Path) -> None:
    made = launcher(tmp_path, experiment(ParamGrid({"env.args.gate": [str(gate)]}), seeds=2))
    first, second = (run.name for run in made.plan.runs)
    until(made, first)
    assert cancel(made.records, made.plan, made.backend, [first, second]) == {first: "running", second: "waiting"}
    assert states(made.run()) == {first: "cancelled", second: "cancelled"}
    assert sessions(tmp_path / "tests" / first)[-1]["how"] == "interrupted"
    gate.touch()
    assert made.reset_failures() == [first, second]
    assert states(made.run()) == {first: "finished", second: "finished"}
    assert [s["step_at_start"] for s in sessions(tmp_path / "tests" / first)] == [0, 50]
    with pytest.raises(LaunchError, match="no run called nothing"):
        cancel(made.records, made.plan, made.backend, ["nothing"])


def test_what_failed_is_not_called_cancelled(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment(settings={"env.args.code": 2}))
    (name,) = states(made.run())
    assert cancel(made.records, made.plan, made.backend, [name]) == {}
    assert states(made.look()) == {name: "failed"}


def test_runs_of_another_host_cannot_be_cancelled_from_here(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    process = {"host": "elsewhere", "boot": "", "pid": 1, "started": 1}
    with pytest.raises(LaunchError, match="started on elsewhere: cancel it there"):
        made.backend.cancel(made.records, {"a": {"kind": "local", "slot": 0, "process": process}})


def test_a_living_job_of_another_back_end_is_left_alone(tmp_path: Path) -> None:
    """Handed in to a cluster by a launcher that was killed; the next launcher is a local one."""
    made = launcher(tmp_path, experiment())
    (name,) = (run.name for run in made.plan.runs)
    made.records.write_job(name, {"command": ["true"]})
    made.records.write_submission(name, Submission(count=1))
    me = Identity.of(os.getpid())
    assert me is not None
    made.records.write_attempt(name, Attempt(1, 0.0, me, "7_0", "new"))
    with open(made.records.attempts_folder(name) / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (status,) = made.tick()
    assert (status.state, status.reason) == ("queued", "alive, but started by another back end")


def test_a_program_that_ignores_the_request_is_killed_after_the_grace(tmp_path: Path) -> None:
    script = tmp_path / "deaf.py"
    script.write_text(
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path / 'deaf')!r}).touch()\ntime.sleep(600)\n"
    )
    what = experiment()
    made = launcher(tmp_path, type(what)(**{**vars(what), "program": (sys.executable, str(script))}))
    made.tick()
    wait_until(lambda: (tmp_path / "deaf").exists(), what="the program to start")
    name = made.plan.runs[0].name
    cancel(made.records, made.plan, made.backend, [name], grace=0.3)
    wait_until(lambda: states(made.look()) == {name: "cancelled"}, what="its end")


def test_what_is_in_the_folder_decides_how_a_run_starts(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment(seeds=2))
    finished, foreign = (Path(run.folder) for run in made.plan.runs)
    other = launcher(tmp_path / "other", experiment(seeds=1))
    other.run()
    finished.parent.mkdir(parents=True, exist_ok=True)
    os.rename(other.plan.runs[0].folder, finished)
    foreign.mkdir()
    (foreign / "config.yaml").write_text("run: {}\n")
    statuses = made.run()
    assert [s.state for s in statuses] == ["finished", "failed"]
    assert "this launch did not start" in statuses[1].reason
    assert statuses[0].attempts == 0, "it was finished before"
    assert (foreign / "config.yaml").read_text() == "run: {}\n"


# -- slots -----------------------------------------------------------------------------------------------


def test_gpus_and_cores_are_shared_out(tmp_path: Path, gate: Path) -> None:
    what = experiment(ParamGrid({"env.args.gate": [str(gate)]}), seeds=5)
    made = launcher(tmp_path, what, "local.gpus=[3,7]", "local.per_gpu=2", "local.cores=share")
    folders = [Path(run.folder) for run in made.plan.runs]

    def four_wait() -> bool:
        made.tick()
        return sum(any((f / "checkpoints").glob("*.ckpt")) for f in folders) == 4

    wait_until(four_wait, what="four runs at their gate")
    assert not folders[4].exists(), "two per GPU and no more"
    assert Counter(place(folder)["CUDA_VISIBLE_DEVICES"] for folder in folders[:4]) == {"3": 2, "7": 2}
    slots = made.backend.main.slots  # type: ignore[attr-defined]
    assert [place(folder)["cores"] for folder in folders[:4]] == [list(slot.cores) for slot in slots]
    gate.touch()
    assert set(states(made.run()).values()) == {"finished"}
    assert place(folders[4])["CUDA_VISIBLE_DEVICES"] in ("3", "7")


@given(
    gpus=st.lists(st.integers(0, 15), max_size=6, unique=True),
    per_gpu=st.integers(1, 4),
    cores=st.integers(1, 40),
    data=st.data(),
)
def test_slots_never_exceed_what_there_is(gpus: list[int], per_gpu: int, cores: int, data: st.DataObject) -> None:
    parallel = data.draw(st.integers(0, len(gpus) * per_gpu if gpus else 20))
    settings = LocalSettings(gpus=tuple(gpus), per_gpu=per_gpu, parallel=parallel)
    slots = make_slots(settings, range(cores))
    used = Counter(slot.gpu for slot in slots if slot.gpu is not None)
    assert len(slots) == settings.slots
    assert all(count <= per_gpu for count in used.values())
    assert set(used) <= set(gpus)
    if gpus:
        assert max(used.values()) - min(used[gpu] for gpu in gpus) <= 1, "GPUs are filled evenly"
    assert all(slot.cores for slot in slots)
    shared = Counter(core for slot in slots for core in slot.cores)
    assert max(shared.values()) == 1 or len(slots) > cores, "no core twice while there are enough"
    if len(slots) <= cores:
        assert len(shared) == cores, "no core is left idle"


def test_all_cores_for_everyone_if_asked() -> None:
    assert [slot.cores for slot in make_slots(LocalSettings(parallel=2, cores="all"), range(4))] == [(), ()]


def test_more_runs_than_slots_are_refused(tmp_path: Path) -> None:
    from rollmill.launch.backends.base import JobRequest

    jobs = [JobRequest(name, {}) for name in ("a", "b")]
    with pytest.raises(LaunchError, match="1 of 1 slots"):
        LocalBackEnd(LocalSettings(), cores=[0]).submit(LaunchRecords(tmp_path), jobs, [])


def test_the_pause_between_two_starts_is_kept(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment(seeds=2))
    waits: list[float] = []
    now = [100.0]
    backend = LocalBackEnd(LocalSettings(parallel=2, pause=7), clock=lambda: now[0], sleep=waits.append)
    Launcher(made.records, made.plan, made.settings, backend).tick()
    assert waits == [7.0]
    made.run()


def test_a_run_of_another_machine_is_left_alone(tmp_path: Path) -> None:
    handle = {"kind": "local", "slot": 0, "gpu": None}
    handle["process"] = {"host": "elsewhere", "boot": "x", "pid": 1, "started": 1}  # type: ignore[assignment]
    status = LocalBackEnd(LocalSettings()).status(LaunchRecords(tmp_path), {"run": handle})["run"]
    assert status.stage == "unknown"
    assert "elsewhere" in status.reason


@pytest.mark.parametrize("asked", [True, False])
def test_local_runs_are_given_a_display_where_that_is_asked_for(tmp_path: Path, asked: bool) -> None:
    """The job that starts the run reads it (``launch.job``); whether Xvfb is there it finds out itself."""
    made = launcher(tmp_path, experiment(), f"local.virtual_display={asked}".lower())
    backend = LocalBackEnd(LocalSettings(virtual_display=asked))
    (run,) = made.plan.runs
    job = JobRequest(run.name, {"command": ["true"], "cwd": str(tmp_path), "folder": run.folder})
    backend.submit(made.records, [job], [])
    assert made.records.read_job(run.name)["virtual_display"] is asked
    wait_until(lambda: made.records.attempts(run.name) and not made.records.job_alive(run.name), what="the job to end")
