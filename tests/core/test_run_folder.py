import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disks import mounted

from rollmill.core import run_folder
from rollmill.core.errors import CheckpointError, EnvError, RunFolderError, RunFolderLost
from rollmill.core.run_folder import RunFolder, holder, is_folder_name, remove_run


def make_run(path: Path) -> Path:
    """A folder as a finished training leaves it."""
    with RunFolder.create(path, "new"):
        make_run_files(path)
    return path


def make_run_files(path: Path) -> None:
    folder = RunFolder(path)
    folder.config.write_text("seed: 1\n")
    folder.diary.write_text("{}")
    folder.checkpoints.mkdir()
    (folder.checkpoints / "frames-000000000001.ckpt").write_text("weights")
    folder.set_state("finished", step=10)


def contents(path: Path) -> set[str]:
    return {p.name for p in path.iterdir()} - {".lock"}


# -------------------------------------------------------------------------------------------------- modes


def test_a_new_run_gets_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "experiment" / "run"
    with RunFolder.create(path, "new") as folder:
        assert path.is_dir()
        assert contents(path) == set()
        assert folder.config == path / "config.yaml"
        assert folder.tensorboard == path / "tb"


def test_new_in_an_existing_run_names_both_ways_out(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"run: exists and is not empty: .*--resume.*--overwrite"):
        RunFolder.create(path, "new")


def test_new_in_a_folder_with_remains_of_a_failed_start_is_allowed(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("")
    (tmp_path / ".probe").write_text("")
    (tmp_path / ".state.json.999999999.tmp").write_text("")
    RunFolder.create(tmp_path, "new").close()
    assert contents(tmp_path) == set()


def test_resume_keeps_everything(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    before = contents(path)
    with RunFolder.create(path, "resume"):
        assert contents(path) == before


def test_resume_of_a_missing_run_lists_near_names_and_makes_nothing(tmp_path: Path) -> None:
    for name in ("doom_seed2", "doom_seed1", "pong"):
        (tmp_path / "exp" / name).mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"nothing to resume: .*doom_seed does not exist") as caught:
        RunFolder.create(tmp_path / "exp" / "doom_seed", "resume")
    assert str(caught.value).endswith("exp there are doom_seed1, doom_seed2")
    assert not (tmp_path / "exp" / "doom_seed").exists()


def test_resume_of_a_missing_run_without_a_near_name_lists_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "exp" / "pong").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"exp there are pong$"):
        RunFolder.create(tmp_path / "exp" / "zzzzzz", "resume")
    (tmp_path / "exp" / "pong").rmdir()
    with pytest.raises(RunFolderError, match=r"exp there are no others$"):
        RunFolder.create(tmp_path / "exp" / "zzzzzz", "resume")


def test_resume_in_a_missing_experiment_lists_near_experiments(tmp_path: Path) -> None:
    (tmp_path / "health" / "run1").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"helth does not exist; in .* there are health$"):
        RunFolder.create(tmp_path / "helth" / "run1", "resume")


def test_resume_of_a_folder_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(RunFolderError, match="nothing to resume: it does not hold a run"):
        RunFolder.create(tmp_path, "resume")


def test_overwrite_deletes_the_run_and_only_the_run(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    path = make_run(tmp_path / "run")
    (path / "data").symlink_to(outside)
    (path / "tb").mkdir()
    (path / "tb" / "link").symlink_to(outside / "precious")
    with RunFolder.create(path, "overwrite"):
        assert contents(path) == set()
    assert (outside / "precious").read_text() == "keep"


@pytest.mark.parametrize("exists", [True, False])
def test_overwrite_of_nothing_is_like_new(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "run").mkdir()
    RunFolder.create(tmp_path / "run", "overwrite").close()
    assert (tmp_path / "run").is_dir()


def test_a_run_that_ended_while_it_was_starting_can_be_overwritten(tmp_path: Path) -> None:
    """Its state is the first thing it writes."""
    with RunFolder.create(tmp_path / "run", "new") as folder:
        folder.set_state("interrupted", "SIGTERM received")
        folder.log.write_text("x")
    with RunFolder.create(tmp_path / "run", "overwrite") as folder:
        assert not folder.log.exists()


def test_overwrite_refuses_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="not deleted: it does not look like a run"):
        RunFolder.create(tmp_path, "overwrite")
    assert contents(tmp_path) == {"thesis.tex"}


def test_overwrite_refuses_a_project_that_happens_to_have_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "src").mkdir()
    (tmp_path / ".git").mkdir()
    with pytest.raises(RunFolderError, match=r"it holds what no run writes \(.git, src\)"):
        RunFolder.create(tmp_path, "overwrite")
    assert contents(tmp_path) == {"config.yaml", "src", ".git"}


def test_overwrite_refuses_a_link(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(RunFolderError, match="link: not deleted: it is a link to"):
        RunFolder.create(tmp_path / "link", "overwrite")
    assert (path / "config.yaml").exists()


def test_an_overwrite_that_fails_halfway_leaves_something_that_still_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(tmp_path / "run")

    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))

    monkeypatch.setattr(run_folder.shutil, "rmtree", fail)
    with pytest.raises(RunFolderError, match="checkpoints: cannot be used for a run: Input/output error"):
        RunFolder.create(path, "overwrite")
    monkeypatch.undo()
    RunFolder.create(path, "overwrite").close()


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="is a file, not a run folder"):
        RunFolder.create(tmp_path / "run", "new")


# --------------------------------------------------------------------------------- starts that failed


def failed_start(path: Path) -> Path:
    """A folder as a run leaves it that fails just before its first training step."""
    with RunFolder.create(path, "new") as folder:
        folder.set_state("failed", "no GPU", 0)
        folder.config.write_text("seed: 1\n")
        folder.diary.write_text("{}")
        folder.log.write_text("no GPU\n")
        for name in ("data/shards", "data/index", "tb", "eval", "checkpoints"):
            (path / name).mkdir(parents=True)
        for name in ("data/store.json", "tb/events", "report.html", "checkpoints/frames-000000000000.ckpt"):
            (path / name).write_text("x")
        for name in ("metrics.jsonl", "eval/training.jsonl"):
            (path / name).touch()
    return path


def test_what_a_failed_start_left_is_taken_over_but_for_its_log(tmp_path: Path) -> None:
    path = failed_start(tmp_path / "run")
    assert RunFolder(path).never_began()
    with RunFolder.create(path, "new") as folder:
        assert folder.took_over
        assert contents(path) == {"log.txt", "state.json"}
        assert folder.log.read_text() == "no GPU\n"
    with RunFolder.create(path, "new") as again:  # killed at once: that was a start, too
        assert again.took_over


def append(name: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("x")

    return write


@pytest.mark.parametrize(
    "change",
    [
        append("metrics.jsonl"),
        append("checkpoints/frames-000000000064.ckpt"),
        append("checkpoints/frames-000000000064.ckpt.abandoned"),
        append("data/shards/W-00000.open.tfrecord"),
        append("data/notes.csv"),
        append("eval/training.jsonl"),
        append("profile/main.json"),
        append("videos/video.mp4"),
        append("thesis.tex"),
        lambda path: (path / "state.json").unlink(),
        lambda path: (path / "state.json").write_text('{"state": "failed"}'),
        lambda path: (path / "state.json").write_text("["),
        lambda path: RunFolder(path).set_state("finished", "", 0),
        lambda path: (path / "wandb").symlink_to("data"),
        lambda path: ((path / "tb").rename(path.parent / "tb"), (path / "tb").symlink_to(path.parent / "tb")),
    ],
)
def test_a_folder_with_anything_else_is_not_taken_over(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = failed_start(tmp_path / "run")
    change(path)
    before = sorted(path.rglob("*"))
    assert not RunFolder(path).never_began()
    with pytest.raises(RunFolderError, match="exists and is not empty"):
        RunFolder.create(path, "new")
    assert sorted(path.rglob("*")) == before


def test_a_start_under_way_is_not_taken_over(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:
        folder.set_state("running", "starting", 0)
        with pytest.raises(RunFolderError, match=f"in use by pid {os.getpid()}"):
            RunFolder.create(tmp_path / "run", "new")
        assert folder.read_state() is not None


# ----------------------------------------------------------------------------------------- lost folders


def replace_folder(path: Path) -> None:
    shutil.rmtree(path)
    make_run(path)


def empty_folder(path: Path) -> None:
    for name in contents(path):
        (path / name).unlink()


LOSSES = [
    (shutil.rmtree, "does not exist any more"),
    (lambda path: path.rename(path.with_name("moved")), "does not exist any more"),
    (lambda path: (path.rename(path.with_name("moved")), path.write_text("")), "another folder has taken its place"),
    (replace_folder, "another folder has taken its place"),
    (empty_folder, "it was emptied"),
]


@pytest.mark.parametrize(("lose", "why"), LOSSES)
def test_a_lost_folder_is_noticed_and_nothing_is_written_in_its_place(
    tmp_path: Path, lose: Callable[[Path], object], why: str
) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, "new") as folder:
        folder.set_state("running")
        folder.config.write_text("seed: 1\n")
        folder.require()
        lose(path)
        before = sorted(tmp_path.rglob("*"))
        assert why in folder.lost()
        with pytest.raises(RunFolderLost, match=f"run: the folder of the run is lost: .*{why}") as failure:
            folder.require()
        assert failure.value.exit_code == 1
        with pytest.raises(RunFolderLost):
            folder.set_state("finished")
        assert sorted(tmp_path.rglob("*")) == before


def test_an_unmounted_disk_is_a_lost_folder(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "4m") as disk:
        folder = RunFolder.create(disk / "run", "new", min_free_mb=1)
        folder.set_state("running")
        assert not folder.lost()
        subprocess.run(["umount", "-l", str(disk)], check=True)
        assert "unmounted" in folder.lost()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)  # for whoever unmounts it at the end
        assert "unmounted" in folder.lost()
        folder.close()


@pytest.mark.parametrize("name", [".lock", "state.json", "config.yaml"])
def test_a_single_file_may_go(tmp_path: Path, name: str) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:
        folder.set_state("running")
        folder.config.write_text("seed: 1\n")
        (tmp_path / "run" / name).unlink()
        folder.require()


def test_a_folder_that_is_only_named_is_not_watched(tmp_path: Path) -> None:
    RunFolder(tmp_path / "none").require()
    folder = RunFolder.create(tmp_path / "run", "new")
    folder.close()
    shutil.rmtree(tmp_path / "run")
    folder.require()


def test_a_forked_child_does_not_watch_it(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:
        pid = os.fork()
        if pid == 0:
            os._exit(1 if folder.lost() else 0)
        assert os.waitpid(pid, 0)[1] == 0
        assert not folder.lost()


def test_watching_looks_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(run_folder.time, "monotonic", lambda: now)
    with RunFolder.create(tmp_path / "run", "new") as folder:
        folder.watch()
        shutil.rmtree(tmp_path / "run")
        now += run_folder.LOOK_SECONDS / 2
        folder.watch()
        now += run_folder.LOOK_SECONDS / 2
        with pytest.raises(RunFolderLost):
            folder.watch()


def fail(error: Exception | None) -> None:
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [OSError("x"), CheckpointError("x"), RunFolderError("x"), None])
def test_whatever_a_lost_folder_leads_to_is_called_by_its_name(tmp_path: Path, error: Exception | None) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(RunFolderLost) as failure, folder.guarded(), contextlib.ExitStack() as stack:
            stack.callback(fail, error)
        assert failure.value.__cause__ is error


def test_other_errors_keep_their_name(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:
        with folder.guarded():
            pass
        with pytest.raises(OSError, match="disk"), folder.guarded():
            raise OSError("disk")
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(EnvError), folder.guarded():
            raise EnvError("it fell over")


# --------------------------------------------------------------------------------------------------- lock


def test_two_trainings_in_one_folder_are_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    holder = RunFolder.create(path, "resume")
    for mode in ("resume", "overwrite"):
        with pytest.raises(RunFolderError, match=f"run: in use by pid {os.getpid()} on {socket.gethostname()}"):
            RunFolder.create(path, mode)  # type: ignore[arg-type]
    assert (path / "config.yaml").exists()
    holder.close()
    RunFolder.create(path, "resume").close()


def test_the_lock_holds_between_processes_and_ends_with_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from rollmill.core.run_folder import RunFolder\n"
        "folder = RunFolder.create(pathlib.Path(sys.argv[1]), 'new')\n"
        "print('locked', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(RunFolderError, match=f"in use by pid {process.pid} on"):
            RunFolder.create(tmp_path / "run", "new")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    RunFolder.create(tmp_path / "run", "new").close()


@pytest.mark.parametrize("closes", [True, False])
def test_forked_workers_and_programs_do_not_keep_the_lock(tmp_path: Path, closes: bool) -> None:
    """Neither holds the folder after the training has let go, nor lets go of it too early."""
    context = multiprocessing.get_context("fork")
    ready, leave = context.Event(), context.Event()
    folder = RunFolder.create(tmp_path / "run", "new")

    def child() -> None:
        if closes:
            folder.close()
        ready.set()
        leave.wait(60)

    worker = context.Process(target=child)
    worker.start()
    code = "print('up', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    program = subprocess.Popen([sys.executable, "-c", code], close_fds=False, **pipes)
    try:
        assert ready.wait(60)
        # Popen may return before the kernel has closed the files of the new program; its first word comes after.
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        with pytest.raises(RunFolderError, match="in use"):
            RunFolder.create(tmp_path / "run", "new")
        folder.close()
        RunFolder.create(tmp_path / "run", "new").close()
    finally:
        leave.set()
        worker.join()
        program.communicate(b"\n")
    assert worker.exitcode == 0


def test_a_forked_child_does_not_close_a_file_that_got_the_number_of_the_lock(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "new")
    pid = os.fork()
    if pid == 0:  # the lock is closed here, so a file gets its number, once those below it are taken
        descriptor = -1
        while descriptor < folder._lock:
            descriptor = os.open(tmp_path, os.O_RDONLY)
        same = descriptor == folder._lock
        folder.close()
        os._exit(0 if same and os.fstat(descriptor) else 1)  # fstat raises where it was closed
    _, status = os.waitpid(pid, 0)
    folder.close()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_run_that_appeared_before_the_lock_was_held_is_not_taken_for_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_folder._take_lock

    def another_run_was_quicker(path: Path) -> int:
        make_run_files(path)
        return real(path)

    monkeypatch.setattr(run_folder, "_take_lock", another_run_was_quicker)
    with pytest.raises(RunFolderError, match="exists and is not empty"):
        RunFolder.create(tmp_path / "run", "new")
    monkeypatch.undo()
    RunFolder.create(tmp_path / "run", "resume").close()  # and the lock was let go


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RunFolderError, match=r"\.lock: cannot be locked: No locks available"):
        RunFolder.create(tmp_path / "run", "new")


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "new")
    folder.close()
    folder.close()


# --------------------------------------------------------------------------------------- disks and rights


def test_a_full_disk_is_refused_before_anything_starts(small_disk: Path) -> None:
    with pytest.raises(RunFolderError, match=r"too full for a run: 1.0 MB free, at least 50 MB needed"):
        RunFolder.create(small_disk / "run", "new")
    with contextlib.suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(1 << 20))
    with pytest.raises(RunFolderError, match="No space left on device"):
        RunFolder.create(small_disk / "run2", "new", min_free_mb=0)


def test_a_full_disk_does_not_cost_the_run_that_was_to_be_overwritten(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    with pytest.raises(RunFolderError, match="too full"):
        RunFolder.create(path, "overwrite", min_free_mb=10**12)
    assert "config.yaml" in contents(path)
    RunFolder.create(path, "resume").close()


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder this process may not write in; root may write anywhere, so it becomes somebody else."""
    folder = Path(tempfile.mkdtemp())  # not below tmp_path, which others cannot enter
    (folder / "exists").mkdir(mode=0o555)
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["exists", "missing"])
def test_a_folder_that_may_not_be_written(read_only_folder: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="cannot be used for a run: Permission denied"):
        RunFolder.create(read_only_folder / name, "new")


# -------------------------------------------------------------------------------------------------- state


def test_the_state_is_written_and_read(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:
        assert folder.read_state() is None
        folder.set_state("running")
        folder.set_state("failed", "worker 3 died", 1000)
        state = folder.read_state()
    assert state is not None
    assert (state["state"], state["reason"], state["frames"]) == ("failed", "worker 3 died", 1000)
    assert state["pid"] == os.getpid()
    assert state["time"].endswith("+00:00")
    assert {**json.loads((tmp_path / "run" / "state.json").read_text()), "step": 1000} == state


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_state_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"state.json: cannot be read"):
        RunFolder(tmp_path).read_state()


def test_a_state_of_another_make_is_an_error(tmp_path: Path) -> None:
    for text in ("{}", '{"state": 3}', '{"state": "finished", "frames": {}}', '{"state": "finished", "reason": null}'):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"state\.json: cannot be read: (state|step|reason) is"):
            RunFolder(tmp_path).read_state()
    (tmp_path / "state.json").write_text('{"state": "finished"}')
    assert RunFolder(tmp_path).read_state() == {"state": "finished", "reason": "", "step": 0}


def test_a_state_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"state.json: cannot be written: No such file"):
        RunFolder(tmp_path / "none").set_state("running")


# ------------------------------------------------------------------------------------------------ remove


def test_a_run_is_removed_with_its_folder(tmp_path: Path) -> None:
    remove_run(make_run(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_stages_of_a_world_model_are_removed_too(tmp_path: Path) -> None:
    stage = make_run(tmp_path / "stage")
    for name in ("dynamics.bin", "curve.svg"):
        (stage / name).touch()
    remove_run(stage)
    whole = tmp_path / "world"
    for name in ("stages", "raw"):
        (whole / name).mkdir(parents=True)
    (whole / "config.yaml").touch()
    make_run(whole / "vae")
    with RunFolder.create(whole / "vae", "resume", min_free_mb=0), pytest.raises(RunFolderError, match="in use by pid"):
        remove_run(whole)
    remove_run(whole)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_removed(tmp_path: Path) -> None:
    run, link = make_run(tmp_path / "run"), tmp_path / "link"
    link.symlink_to(run)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/config.yaml").touch()
    for path, why in (
        (link, "it is a link to"),
        (tmp_path / "project", r"it does not look like a run \(no diary.json or state.json\)"),
        (tmp_path / "nowhere", "there is no such run folder"),
    ):
        with pytest.raises(RunFolderError, match=why):
            remove_run(path)
    (run / "notes.txt").touch()
    with pytest.raises(RunFolderError, match=r"what no run writes \(notes.txt\)"):
        remove_run(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "project", "run"]
    assert list(RunFolder(run).checkpoints.iterdir())


def test_who_is_at_work(tmp_path: Path) -> None:
    assert holder(tmp_path) == ""
    run = make_run(tmp_path / "run")
    assert holder(run) == ""
    with RunFolder.create(run, "resume", min_free_mb=0):
        assert holder(run) == f"pid {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(RunFolderError, match="not removed: in use by"):
            remove_run(run)
    assert holder(run) == ""


def test_names_of_folders() -> None:
    for name in ("a", "CartPole-v1_s0", "two words", "Grüße", "x" * 255):
        assert is_folder_name(name), name
    for name in ("", ".", "..", ".hidden", "a/b", "a\\b", "a\nb", "\x1b[2J", "a\0", " a", "a ", "x" * 256, "ü" * 128):
        assert not is_folder_name(name), name
