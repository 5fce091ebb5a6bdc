"""On a real SLURM cluster of three nodes, on this host's loopback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from holding import HOLDING
from launching import (
    checked_ledger,
    experiment,
    in_second_round,
    launcher,
    place,
    population,
    population_launcher,
    sessions,
    states,
)
from running import SMALL, wait_until
from slurm_cluster import Cluster, missing

from rollmill.core.config.yaml import parse_value
from rollmill.core.errors import LaunchError
from rollmill.launch.backends.slurm import SlurmBackEnd, Task, batch_script, parse_accounts, query
from rollmill.launch.experiment import Experiment
from rollmill.launch.launcher import Launcher, cancel
from rollmill.launch.params import ParamGrid
from rollmill.launch.settings import SlurmSettings
from rollmill.launch.status import RunStatus


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    before = dict(os.environ)
    os.environ["SLURM_CONF"] = str(made.conf)
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        made.start()
        yield made
    finally:
        made.stop()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def settled(made: Launcher, **wanted: int) -> list[RunStatus]:
    """Look until there are so many runs in each state."""

    def counted() -> list[RunStatus] | None:
        now = made.look()
        found = [s.state for s in now]
        return now if all(found.count(state) == count for state, count in wanted.items()) else None

    result: list[RunStatus] = wait_until(counted, what=f"{wanted}")
    return result


def at_gate(run: Path) -> bool:
    return any((run / "checkpoints").glob("*.ckpt"))


def test_an_array_is_handed_in_watched_and_cancelled(cluster: Cluster, tmp_path: Path, gate: Path) -> None:
    what = experiment(ParamGrid({"env.args.gate": [str(gate)]}), seeds=12)
    made = launcher(tmp_path, what, "backend=slurm")
    with made.records.as_launcher():
        made.tick()
    statuses = settled(made, running=3, queued=9)
    handles = [made.records.submission(run.name).handle or {} for run in made.plan.runs]
    assert len({handle["job"] for handle in handles}) == 1, "one array"
    assert [handle["task"] for handle in handles] == list(range(12))
    assert {s.host for s in statuses if s.state == "running"} == {"n1", "n2", "n3"}
    running = [s.run.name for s in statuses if s.state == "running"]
    queued = [s.run.name for s in statuses if s.state == "queued"]
    wait_until(lambda: all(at_gate(tmp_path / "tests" / name) for name in running))

    assert sorted(cancel(made.records, made.plan, made.backend, [running[0], queued[0]])) == sorted(
        [running[0], queued[0]]
    )
    gate.touch()
    made.run()
    found = states(made.look())
    assert [found.pop(name) for name in (running[0], queued[0])] == ["cancelled", "cancelled"]
    assert set(found.values()) == {"finished"}
    saved = sessions(tmp_path / "tests" / running[0])[-1]
    assert (saved["how"], saved["step_at_end"]) == ("interrupted", 50), "cancelled runs save first"

    local = launcher(tmp_path / "local", experiment())
    local.run()
    one, other = Path(local.plan.runs[0].folder), tmp_path / "tests" / running[1]
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}, "the same as a local run leaves"
    assert local.look()[0].to_dict().keys() == made.look()[0].to_dict().keys()


def test_a_run_whose_node_dies_goes_on_elsewhere(cluster: Cluster, tmp_path: Path, gate: Path) -> None:
    made = launcher(tmp_path, experiment(settings={"env.args.gate": str(gate)}), "backend=slurm", "retries=0")
    name, folder = made.plan.runs[0].name, Path(made.plan.runs[0].folder)
    made.tick()
    wait_until(lambda: at_gate(folder))
    (status,) = settled(made, running=1)
    node, job = status.host, place(folder)["SLURM_JOB_ID"]
    attempt = made.records.attempts(name)[0]
    try:
        # The machine is gone: first those that could still tell the controller how the job ended, then the job.
        for parent in psutil.Process(attempt.process.pid).parents():
            if parent.name() == "slurmstepd":
                parent.kill()
        os.killpg(os.getpgid(attempt.process.pid), signal.SIGKILL)
        cluster.kill_node(node)
        settled(made, queued=1)
        cluster.start_now(job)
        wait_until(lambda: len(made.records.attempts(name)) == 2, what="the second attempt")
        (status,) = settled(made, running=1)
        assert status.host != node
        assert status.reason == "before: killed"
        gate.touch()
        assert states(made.run()) == {name: "finished"}
    finally:
        cluster.revive_node(node)
    assert [s["step_at_start"] for s in sessions(folder)] == [0, 50]
    assert made.records.submission(name).count == 1, "SLURM started it again, not the launcher"


def test_a_population_on_two_nodes_of_which_one_dies(cluster: Cluster, tmp_path: Path, gate: Path) -> None:
    words = ("backend=slurm", "slurm.parallel=2", "retries=0")
    made = population_launcher(tmp_path, population(**{"env.args.gate": str(gate)}), *words)
    wait_until(lambda: in_second_round(made, 0), what="the second round of member 0")
    node = made.look()[0].host
    attempt = made.records.attempts("member-0")[-1]
    try:
        for parent in psutil.Process(attempt.process.pid).parents():
            if parent.name() == "slurmstepd":
                parent.kill()
        os.killpg(os.getpgid(attempt.process.pid), signal.SIGKILL)
        cluster.kill_node(node)
        settled(made, queued=1)
        cluster.start_now(made.records.attempts("member-0")[-1].job)
        gate.touch()
        most: list[int] = []
        statuses = made.run(lambda now: most.append(sum(s.active for s in now)))
    finally:
        cluster.revive_node(node)
    assert set(states(statuses).values()) == {"finished"}
    assert max(most) <= 2, "a limit that arrays do not share"
    assert len(checked_ledger(made)) == 4
    assert any(attempt.failed for attempt in made.records.attempts("member-0"))


def test_a_run_that_outlives_its_job_is_not_started_twice(cluster: Cluster, tmp_path: Path, gate: Path) -> None:
    """The daemon of its node dies, the run does not: SLURM starts it again elsewhere, and that job steps back."""
    made = launcher(tmp_path, experiment(settings={"env.args.gate": str(gate)}), "backend=slurm", "retries=0")
    name, folder = made.plan.runs[0].name, Path(made.plan.runs[0].folder)
    made.tick()
    wait_until(lambda: at_gate(folder))
    (status,) = settled(made, running=1)
    job = place(folder)["SLURM_JOB_ID"]
    try:
        number = (made.records.submission(name).handle or {})["job"]
        cluster.kill_node(status.host)
        wait_until(lambda: query({number})[number, 0].state == "PENDING", what="the job to be queued again")
        cluster.start_now(job)
        wait_until(lambda: query({number})[number, 0].state == "FAILED", what="the second job to step back")
        assert made.tick()[0].reason == "alive, though its job has ended"
        gate.touch()
        assert states(made.run()) == {name: "finished"}
    finally:
        cluster.revive_node(status.host)
    assert len(sessions(folder)) == 1


def test_a_preempted_training_resumes_from_its_checkpoint(cluster: Cluster, tmp_path: Path, gate: Path) -> None:
    """The real ``rollmill train``, requeued while it trains; it does not go far before that."""
    words = (*SMALL[1:], "sampling.mode=serial", "env=toy_target", "checkpoints.every_seconds=0", "stop.frames=4000")
    words += (f"observers=[{HOLDING}:Gate]", "observers.args.Gate.at=20", f"observers.args.Gate.gate={gate}")
    pairs = (word.split("=") for word in words)
    what = Experiment("tests", settings={key: parse_value(value, key) for key, value in pairs})
    made = launcher(tmp_path, what, "backend=slurm", "retries=0")
    name, folder = made.plan.runs[0].name, Path(made.plan.runs[0].folder)
    made.tick()
    wait_until(lambda: at_gate(folder), what="a checkpoint")
    number = (made.records.submission(name).handle or {})["job"]
    cluster.call("scontrol", "requeue", f"{number}_0")
    wait_until(lambda: query({number})[number, 0].state == "PENDING", what="the job to be queued again")
    gate.touch()
    cluster.start_now(f"{number}_0")
    assert states(made.run()) == {name: "finished"}
    first, second = sessions(folder)
    assert first["how"].startswith("interrupted")
    assert second["step_at_start"] == first["step_at_end"] > 0
    assert second["how"].startswith("finished")


def test_a_run_near_its_time_limit_goes_back_into_the_queue(cluster: Cluster, tmp_path: Path, gate: Path) -> None:
    temp = tmp_path / "disk"
    temp.mkdir()
    words = ("slurm.time=10:00", "slurm.warn_seconds=60", f"slurm.temp_dir={temp}", 'slurm.lines=["--nice=5"]')
    made = launcher(tmp_path, experiment(settings={"env.args.gate": str(gate)}), "backend=slurm", "retries=0", *words)
    name, folder = made.plan.runs[0].name, Path(made.plan.runs[0].folder)
    made.tick()
    wait_until(lambda: at_gate(folder))
    assert Path(place(folder)["TMPDIR"]).parent == temp
    number = (made.records.submission(name).handle or {})["job"]
    cluster.call("scancel", "--batch", "--signal=USR1", f"{number}_0")
    wait_until(lambda: query({number})[number, 0].state == "PENDING", what="the job to be queued again")
    gate.touch()
    cluster.start_now(f"{number}_0")
    assert states(made.run()) == {name: "finished"}
    assert [s["step_at_start"] for s in sessions(folder)] == [0, 50]
    assert made.records.attempts(name)[0].reason == "interrupted: signal 15"
    wait_until(lambda: not list(temp.iterdir()), what="temporary folders to be removed")


def test_jobs_that_were_not_written_down_are_found_by_their_name(
    cluster: Cluster, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / """it's 5% of "all" here"""  # sbatch has its own idea of all of these
    root.mkdir()
    monkeypatch.chdir(root)
    made = launcher(root, experiment(settings={"env.args.gate": str(gate)}, seeds=2), "backend=slurm")
    made.tick()
    before = {run.name: made.records.submission(run.name) for run in made.plan.runs}
    for name in before:
        made.records.write_submission(name, type(before[name])(handle=None, count=1))
    made.tick()
    assert {name: made.records.submission(name).handle for name in before} == {n: s.handle for n, s in before.items()}
    gate.touch()
    assert set(states(made.run()).values()) == {"finished"}
    assert all(len(made.records.attempts(name)) == 1 for name in before)
    logs = {path.name for path in (made.records.folder / "slurm").glob("*.out")}
    tokens = {(submission.handle or {})["token"] for submission in before.values()}
    assert logs == {f"{token}-{index}.out" for token in tokens for index in (0, 1)}


def test_what_sbatch_refuses_is_told(cluster: Cluster, tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment(), "backend=slurm", "slurm.partition=nowhere")
    with pytest.raises(LaunchError, match=r"sbatch.*invalid partition"):
        made.tick()
    assert states(made.look()) == {made.plan.runs[0].name: "waiting"}, "not counted as a failure"


# -- without a cluster -----------------------------------------------------------------------------------


def test_the_script_says_what_was_asked_for() -> None:
    settings = SlurmSettings(
        partition="gpu",
        time="24:00:00",
        memory="16G",
        cpus=8,
        gpus=1,
        parallel=4,
        account="lab",
        warn_seconds=120,
        lines=("--constraint=a100",),
        setup=("module load cuda", "rollmill doctor"),
    )
    text = batch_script(settings, Path("/e/launch"), Path("/e/launch/slurm/t.txt"), 12, "/work dir", "t")
    expected = Path(__file__).with_name("slurm_script.txt").read_text()
    assert text.replace(sys.executable, "PYTHON") == expected


def test_a_controller_that_does_not_answer_leaves_runs_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    backend = SlurmBackEnd(SlurmSettings())
    made = launcher(tmp_path, experiment())
    found = backend.status(made.records, {"run": {"kind": "slurm", "job": "1", "task": 0, "token": "x"}})
    assert found["run"].stage == "unknown"
    assert "squeue is not installed" in found["run"].reason


def test_accounts_tell_how_tasks_ended() -> None:
    found = parse_accounts(
        "12_0|COMPLETED|n1\n12_1|CANCELLED by 0|n2\n12_[2-3]|PENDING|None assigned\n12_4|RUNNING|n3\n"
    )
    assert found == {
        ("12", 0): Task("COMPLETED", "n1"),
        ("12", 1): Task("CANCELLED", "n2"),
        ("12", 4): Task("RUNNING", "n3"),
    }
    assert [found["12", k].status.stage for k in (0, 1, 4)] == ["ended", "ended", "running"]
    assert found["12", 1].status.reason == "SLURM: cancelled"
    assert Task("PENDING", reason="Resources").status.reason == "SLURM: Resources"
    assert Task("NODE_FAIL").status.reason == "SLURM: node fail"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cpus": -1}, "must not be negative"),
        ({"warn_seconds": 60}, "needs a time limit"),
        ({"lines": ("constraint=a100",)}, "no option of sbatch"),
        ({"lines": ("--a\nrm -rf",)}, "no option of sbatch"),
        ({"partition": "gpu; rm"}, "sbatch would not take"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SlurmSettings(**wrong)  # type: ignore[arg-type]
