"""Whatever ends a run, nothing stays: real processes, real signals, real shared memory."""

import gc
import mmap
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollmill.core import janitor, janitor_main
from rollmill.core.errors import RollmillError, RunFolderError
from rollmill.core.janitor import Janitor, child_environment, find_stale_segments, marked, sweep_stale_segments

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the janitor needs /proc")

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
if sys.argv[1] == "parent":
    child = subprocess.Popen([sys.executable, "-c", os.environ["STUBBORN"], "child"], stdout=subprocess.PIPE)
    child.stdout.readline()
    print(os.getpid(), child.pid, flush=True)
else:
    print("ready", flush=True)
time.sleep(600)
"""
"""A process that ignores SIGTERM in a session of its own, with a child of the same kind."""

RUN = """
import os, subprocess, sys, time
from pathlib import Path
from rollmill.core.janitor import Janitor, child_environment, marked
token, scratch, *command = sys.argv[1:]
janitor = Janitor.start(token, Path(scratch))
mark = marked(token)
mark.__enter__()
worker = subprocess.Popen(command, env=child_environment(token, Path(scratch)), stdout=subprocess.PIPE)
print(janitor.pid, worker.stdout.readline().decode().strip(), flush=True)
time.sleep(600)
"""
"""A run: the janitor, one worker (whose first line it passes on), and nothing else to do."""


HELPER = [
    sys.executable,
    "-c",
    "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); time.sleep(600)",
]
"""A process that leaves its parent, its group and its session, as launchers of simulators do."""


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """The limit only ends a test that is broken."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_helper() -> int:
    """A helper without any variable of the run; returns its pid."""
    with subprocess.Popen(HELPER, env={}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        return int(process.stdout.readline())


@pytest.fixture
def bystander() -> Iterator[int]:
    """What the same process has started before the run, of the very same kind."""
    pid = start_helper()
    yield pid
    os.kill(pid, signal.SIGKILL)


def stubborn(token: str, scratch: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A stubborn process and its child with the run's environment; returns their pids too."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, "parent"],
        env=child_environment(token, scratch) | {"STUBBORN": STUBBORN},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    process.stdout.close()
    return process, pids


@pytest.fixture
def token() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev/shm, so that other runs on this machine do not sweep it first."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(janitor_main, "SHARED_MEMORY", str(folder))
    return folder


@pytest.fixture
def stray(token: str, scratch: Path) -> Iterator[list[int]]:
    """Pids of stubborn processes of this run, ended at the latest with the test."""
    process, pids = stubborn(token, scratch)
    yield pids
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def plant(folder: Path, name: str, age: float) -> Path:
    path = folder / name
    path.write_bytes(bytes(4096))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


# -- processes and scratch --------------------------------------------------------------------------


def test_a_killed_run_leaves_no_process_and_no_scratch(token: str, scratch: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, token, str(scratch), sys.executable, "-c", STUBBORN, "parent"],
        env=os.environ | {"STUBBORN": STUBBORN},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    janitor_pid, *workers = [int(word) for word in run.stdout.readline().split()]
    (scratch / "left.txt").write_text("x")
    assert all(alive(pid) for pid in (janitor_pid, *workers))
    run.kill()
    run.communicate()
    wait_until(lambda: not any(alive(pid) for pid in (janitor_pid, *workers)))
    assert len(workers) == 2
    assert not scratch.exists()


def test_finish_ends_what_still_runs_and_says_so(token: str, scratch: Path) -> None:
    watchman = Janitor.start(token, scratch)
    with marked(token):
        process, pids = stubborn(token, scratch)
    report = watchman.finish()
    assert sorted(report.killed) == sorted(pids)
    assert report.survivors == ()
    assert process.wait() == -signal.SIGKILL
    assert not alive(watchman.pid)
    wait_until(lambda: not any(alive(pid) for pid in pids))  # whoever has lost its memory may still be on its way out
    assert not scratch.exists()
    assert watchman.finish() is report


def test_helpers_that_shed_everything_are_found(token: str, scratch: Path, bystander: int) -> None:
    watchman = Janitor.start(token, scratch)
    with marked(token):
        helper = start_helper()
        assert set(janitor_main.processes_of(token, set())) == {os.getpid(), helper}
        assert janitor_main.processes_of(uuid.uuid4().hex, set()) == []
    later = start_helper()
    try:
        assert watchman.finish().killed == (helper,)
        assert not alive(helper)
        assert alive(bystander)
        assert alive(later)
    finally:
        os.kill(later, signal.SIGKILL)


def test_a_killed_run_leaves_no_helper_that_shed_everything(token: str, scratch: Path, bystander: int) -> None:
    freed = f"os.execve({sys.executable!r}, {HELPER!r}, {{}})"
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, token, str(scratch), sys.executable, "-c", f"import os; {freed}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    janitor_pid, helper = [int(word) for word in run.stdout.readline().split()]
    assert alive(helper)
    run.kill()
    run.communicate()
    wait_until(lambda: not alive(janitor_pid))
    assert not alive(helper)
    assert alive(bystander)


def test_finish_does_not_wait_for_forked_children_that_hold_the_pipe(token: str, scratch: Path) -> None:
    watchman = Janitor.start(token, scratch)
    with marked(token):
        child = os.fork()
        if not child:
            signal.pause()
    assert watchman.finish().killed == (child,)
    assert watchman._process.returncode == 0, "the janitor had to be ended"
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_limit_that_cannot_be_set_is_warned_of() -> None:
    """An administrator may have set the hard limit; it takes a process of its own to try, as it cannot be undone."""
    code = """
import resource, sys
from rollmill.core import janitor, janitor_main
resource.setrlimit(janitor_main.MARK_LIMIT, (10, 1000))
with janitor.marked("token"):
    pass
assert resource.getrlimit(janitor_main.MARK_LIMIT) == (10, 1000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shed their variables would outlive this run" in done.stderr


def test_after_a_clean_end_the_report_is_empty(token: str, scratch: Path) -> None:
    assert Janitor.start(token, scratch).finish().killed == ()


def test_processes_of_other_runs_are_left_alone(stray: list[int], tmp_path: Path) -> None:
    assert Janitor.start(uuid.uuid4().hex, tmp_path / "other").finish().killed == ()
    assert all(alive(pid) for pid in stray)


def test_signals_to_the_janitor_do_not_stop_it(token: str, scratch: Path, stray: list[int]) -> None:
    scratch.mkdir(exist_ok=True)
    watchman = Janitor.start(token, scratch)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(watchman.pid, number)
    assert sorted(watchman.finish().killed) == sorted(stray)


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_janitor_is_stood_in_for(
    harm: signal.Signals, token: str, scratch: Path, stray: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "FINISH_SECONDS", 0.2)
    watchman = Janitor.start(token, scratch)
    os.kill(watchman.pid, harm)
    report = watchman.finish()
    assert sorted(report.killed) == sorted(stray)
    assert not alive(watchman.pid)
    assert not scratch.exists()


def test_the_end_is_seen_even_if_a_forked_child_holds_the_pipe(token: str, scratch: Path) -> None:
    forking = RUN.replace("time.sleep", "child = os.fork()\nif child: print(child, flush=True)\ntime.sleep")
    run = subprocess.Popen(
        [sys.executable, "-c", forking, token, str(scratch), "echo", "0"], stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    janitor_pid, forked = int(run.stdout.readline().split()[0]), int(run.stdout.readline())
    run.kill()
    run.wait()
    run.stdout.close()
    wait_until(lambda: not alive(janitor_pid))
    assert not alive(forked)
    assert not scratch.exists()


def test_what_cannot_be_killed_is_named(
    token: str, scratch: Path, stray: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor_main, "KILL_SECONDS", 0.05)
    monkeypatch.setattr(janitor_main.os, "kill", lambda pid, number: None)
    assert sorted(janitor_main.clean(token, str(scratch), set())["survivors"]) == sorted(stray)  # type: ignore[arg-type]


def test_scratch_that_cannot_be_removed_is_reported(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.rmtree", lambda path, ignore_errors: None)
    assert janitor_main.clean(token, str(tmp_path), set())["scratch_removed"] is False


def test_a_folder_with_files_is_no_scratch(token: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty"):
        Janitor.start(token, tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("bad", ["", "a b", "x=y", "Käse"])
def test_a_token_that_could_match_others_is_refused(bad: str, scratch: Path) -> None:
    with pytest.raises(ValueError, match="letters and digits"):
        Janitor.start(bad, scratch)


def test_a_janitor_that_does_not_start_is_an_error(token: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    gc.collect()  # what earlier tests left to the collector must not go in between
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(RollmillError, match="did not start"):
        Janitor.start(token, scratch)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_run_that_ends_before_the_janitor_is_ready(token: str, scratch: Path) -> None:
    """Nobody hears that it is: it does its work all the same, without complaint."""
    scratch.mkdir()
    words = [sys.executable, "-I", "-S", janitor_main.__file__, token, str(scratch), str(os.getpid())]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not scratch.exists()


def test_without_proc_only_the_scratch_folder_goes(
    token: str, scratch: Path, stray: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch.mkdir(exist_ok=True)
    monkeypatch.setattr(janitor_main, "PROC", "/nowhere")
    assert janitor_main.clean(token, str(scratch), set())["killed"] == []
    assert find_stale_segments() == []
    assert not scratch.exists()
    assert all(alive(pid) for pid in stray)


def test_systems_without_proc_are_warned(
    token: str, scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    Janitor.start(token, scratch).finish()
    assert "no /proc on darwin" in caplog.text


def test_a_run_inside_a_run_keeps_its_janitor(token: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = uuid.uuid4().hex
    monkeypatch.setenv(janitor.TOKEN_VARIABLE, outer)
    with marked(outer):
        watchman = Janitor.start(token, scratch)
    assert watchman.pid not in janitor_main.processes_of(outer, set())
    watchman.finish()


# -- shared memory ----------------------------------------------------------------------------------


def test_stale_segments_are_found_and_swept(shared_memory: Path) -> None:
    old = plant(shared_memory, "ViZDoomSMplanted123", age=60.0)
    young = plant(shared_memory, "ViZDoomSMyoung", age=-3600.0)  # however long the looks at /proc take
    other = plant(shared_memory, "somebody_elses", age=60.0)
    found = {segment.name: segment for segment in find_stale_segments()}
    assert set(found) == {old.name, young.name}
    assert found[old.name].nbytes == 4096
    assert 59 < found[old.name].age < 3600
    assert sweep_stale_segments() == [old.name]
    assert not old.exists()
    assert young.exists()
    assert other.exists()


def test_mapped_segments_are_left_alone(shared_memory: Path, token: str) -> None:
    path = plant(shared_memory, f"ViZDoomSM{token}", age=60.0)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert sweep_stale_segments() == []
    assert sweep_stale_segments() == [path.name]


def test_segments_of_an_engine_that_is_starting_are_left_alone(shared_memory: Path, token: str) -> None:
    paths = [plant(shared_memory, f"ViZDoom{kind}{token}", age=60.0) for kind in janitor_main.SEGMENT_KINDS]
    engine = subprocess.Popen([sys.executable, "-c", "input()", "+viz_instance_id", token], stdin=subprocess.PIPE)
    assert sweep_stale_segments() == []
    engine.communicate(b"\n")
    assert sorted(sweep_stale_segments()) == sorted(path.name for path in paths)


def test_segments_of_other_users_are_left_alone(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plant(shared_memory, "ViZDoomSMforeign", age=60.0)
    monkeypatch.setattr(janitor_main.os, "getuid", lambda: path.stat().st_uid + 1)
    assert find_stale_segments() == []


def test_the_sweep_waits_for_young_orphans(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor_main, "SEGMENT_AGE", 0.2)
    path = plant(shared_memory, "ViZDoomMQCtryoung", age=0.0)
    assert janitor_main.sweep([], wait=60.0) == [path.name]


def test_a_planted_segment_is_swept_by_a_real_janitor(token: str, scratch: Path) -> None:
    path = plant(Path("/dev/shm"), f"ViZDoomSM{token[:10]}", age=60.0)
    Janitor.start(token, scratch).finish()
    assert not path.exists()


# -- with a real engine -----------------------------------------------------------------------------

DOOM_WORKER = """
import numpy as np, sys
from rollmill.envs.vizdoom.env import DoomEnv
env = DoomEnv()
obs = {"obs": np.zeros((1, 72, 128, 3), np.uint8)}
env.reset(1, obs)
print(env.engine_pid, flush=True)
for line in sys.stdin:
    env.step(np.array([0]), obs)
    print("stepped", flush=True)
"""


def segments_of(engine: int) -> list[Path]:
    (instance,) = janitor_main.vizdoom_instance(engine)
    return [Path(f"/dev/shm/ViZDoom{kind}{instance}") for kind in janitor_main.SEGMENT_KINDS]


@pytest.mark.vizdoom
def test_a_killed_run_leaves_no_engine_and_no_segment(token: str, scratch: Path) -> None:
    pytest.importorskip("vizdoom")
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, token, str(scratch), sys.executable, "-c", DOOM_WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    janitor_pid, engine = [int(word) for word in run.stdout.readline().split()]
    segments = segments_of(engine)
    assert all(path.exists() for path in segments)
    assert any(scratch.iterdir())  # the engine works there
    run.kill()
    run.communicate()
    wait_until(lambda: not alive(janitor_pid))
    wait_until(lambda: not alive(engine))
    assert not any(path.exists() for path in segments)
    assert not scratch.exists()


@pytest.mark.vizdoom
def test_a_running_game_of_another_run_is_not_touched(token: str, scratch: Path, tmp_path: Path) -> None:
    pytest.importorskip("vizdoom")
    (tmp_path / "other").mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", DOOM_WORKER],
        env=child_environment(uuid.uuid4().hex, tmp_path / "other"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    engine = int(other.stdout.readline())
    segments = segments_of(engine)
    for path in segments:
        os.utime(path, (0, 0))  # old enough to be swept, were it not in use
    Janitor.start(token, scratch).finish()
    sweep_stale_segments()
    assert all(path.exists() for path in segments)
    assert other.stdin is not None
    other.stdin.write("step\n")
    other.stdin.flush()
    assert other.stdout.readline() == "stepped\n"
    other.communicate()  # closes its stdin: it ends by itself
    assert not any(path.exists() for path in segments)
