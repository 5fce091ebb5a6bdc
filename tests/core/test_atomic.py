import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rollmill.core import atomic


def hidden(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_new_contents_replace_the_old_and_no_temporary_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    atomic.write_bytes(path, [b"old"])
    atomic.write_bytes(path, [b"new", bytearray(b"er"), memoryview(b"!")])
    assert path.read_bytes() == b"newer!"
    assert hidden(tmp_path) == []


def test_the_file_is_synced_before_the_rename_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a", []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.write_text(path, "new")
    assert synced == [(str(tmp_path / f".a.{os.getpid()}.tmp"), False), (str(tmp_path), True)]


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert atomic.create_bytes(path, [b"fir", b"st"])
    assert not atomic.create_bytes(path, [b"second"])
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("there", [False, True])
def test_a_file_is_created_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    def no_links(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "f"
    if there:
        path.write_bytes(b"old")
    assert atomic.create_bytes(path, [b"new"]) is not there
    assert path.read_bytes() == (b"old" if there else b"new")
    assert os.listdir(tmp_path) == ["f"]


def test_a_file_that_cannot_be_created_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: object, target: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(OSError, match="broken"):
        atomic.create_bytes(tmp_path / "f", [b"new"])
    assert os.listdir(tmp_path) == []


def test_text_and_json(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "a.txt", "Grüße\n")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "Grüße\n"
    atomic.write_json(tmp_path / "a.json", {"a": [1, None, 0.1]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, None, 0.1]}


def test_json_refuses_nan_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    atomic.write_json(path, 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(path, float("nan"))
    assert path.read_text() == "1\n"


def test_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    atomic.write_text(Path("a.txt"), "a")
    assert (tmp_path / "a.txt").read_text() == "a"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_an_error_of_the_disk_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    path = tmp_path / "a"
    atomic.write_text(path, "old")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError) as caught:
        atomic.write_text(path, "new")
    assert caught.value.errno == number
    assert path.read_text() == "old"
    assert hidden(tmp_path) == []


def test_an_interrupt_between_chunks_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    atomic.write_text(path, "old")

    def chunks():
        yield b"half"
        assert hidden(tmp_path) == [f".a.{os.getpid()}.tmp"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic.write_bytes(path, chunks())
    assert path.read_text() == "old"
    assert hidden(tmp_path) == []


def test_a_kill_during_the_write_keeps_the_old_file_and_the_leftover_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    atomic.write_text(path, "old")
    program = (
        "import os, signal, pathlib\n"
        "from rollmill.core import atomic\n"
        "def chunks():\n"
        "    yield b'x' * 100_000\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"atomic.write_bytes(pathlib.Path({str(path)!r}), chunks())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    assert process.wait() == -9
    leftover = tmp_path / f".a.{process.pid}.tmp"
    assert leftover.exists()
    assert path.read_text() == "old"
    assert atomic.sweep_temporary(tmp_path) == [leftover]
    assert hidden(tmp_path) == []


def test_a_folder_that_cannot_be_synced_is_accepted_but_other_errors_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_with(number: int):
        def fsync(_: int) -> None:
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(os, "fsync", fail_with(errno.EINVAL))
    atomic.sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO))
    with pytest.raises(OSError):
        atomic.sync_folder(tmp_path)


def test_the_sweep_spares_the_living_and_what_is_not_ours(tmp_path: Path) -> None:
    dead = tmp_path / f".a.ckpt.{dead_pid()}.tmp"
    living = tmp_path / f".a.ckpt.{os.getppid()}.tmp"
    impossible = tmp_path / f".a.ckpt.{10**30}.tmp"
    foreign = [tmp_path / name for name in (".note.tmp", "a.1.tmp", ".hidden", ".x.tmp.swp")]
    for path in [dead, living, impossible, *foreign]:
        path.write_bytes(b"")
    assert set(atomic.sweep_temporary(tmp_path)) == {dead, impossible}
    assert living.exists()
    assert all(path.exists() for path in foreign)


def test_a_leftover_of_our_own_pid_is_swept_unless_it_is_being_written(tmp_path: Path) -> None:
    leftover = tmp_path / f".b.{os.getpid()}.tmp"
    leftover.write_bytes(b"from a killed process that had this pid before")

    def chunks():
        assert atomic.sweep_temporary(tmp_path) == [leftover]
        yield b"contents"

    atomic.write_bytes(tmp_path / "a", chunks())
    assert (tmp_path / "a").read_bytes() == b"contents"


def test_a_pid_that_belongs_to_another_user_counts_as_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(_pid: int, _signal: int) -> None:
        raise PermissionError

    path = tmp_path / ".a.1.tmp"
    path.write_bytes(b"")
    monkeypatch.setattr(os, "kill", kill)
    assert atomic.sweep_temporary(tmp_path) == []


def test_two_threads_cannot_write_one_file_at_once(tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    def chunks():
        yield b"first"
        inside.set()
        leave.wait()

    thread = threading.Thread(target=atomic.write_bytes, args=(tmp_path / "a", chunks()))
    thread.start()
    inside.wait()
    with pytest.raises(RuntimeError, match="another thread"):
        atomic.write_text(tmp_path / "a", "second")
    leave.set()
    thread.join()
    assert (tmp_path / "a").read_bytes() == b"first"
