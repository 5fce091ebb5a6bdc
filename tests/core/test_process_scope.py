"""The scratch folder of a scope: nobody makes it before there is somebody to remove it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import wait_until

from rollmill.core.errors import RollmillError
from rollmill.core.janitor_main import is_alive
from rollmill.core.process_scope import process_scope

KILLED = """
import os, signal, subprocess
from rollmill.core.process_scope import process_scope

class Killed(subprocess.Popen):
    def __init__(self, *words, **options):
        if {before}:
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(*words, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

subprocess.Popen = Killed
with process_scope():
    raise AssertionError("it was killed before")
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of this process and of others."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_what_simulators_set_is_taken_back_and_nothing_is_missing_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may start a process at any time, with the variables that there are."""
    before = dict(os.environ)
    with process_scope(inside=True) as environment:
        assert dict(os.environ) == environment != before
        os.environ["PUT_BY_A_SIMULATOR"] = "1"
        os.environ["PATH"] = "changed"
        monkeypatch.setattr(type(os.environ), "clear", lambda _: pytest.fail("no variable was there for a moment"))
    assert dict(os.environ) == before


def test_the_folder_is_there_while_the_scope_lasts(temporary: Path) -> None:
    with process_scope() as environment:
        (folder,) = temporary.iterdir()
        assert environment["ROLLMILL_SCRATCH"] == str(folder)
        assert (folder.name[:9], folder.stat().st_mode & 0o777) == ("rollmill-", 0o700)
        (folder / "file").touch()
    assert not list(temporary.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="the janitor needs /proc")
@pytest.mark.parametrize("before", [True, False], ids=["before the janitor starts", "before it is ready"])
def test_a_kill_among_the_first_moments_leaves_no_folder(temporary: Path, before: bool) -> None:
    command = [sys.executable, "-c", KILLED.format(before=before)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -9
    for pid in map(int, done.stdout.split()):
        wait_until(lambda pid=pid: not is_alive(pid), what="the janitor to have done its work")  # type: ignore[misc]
    assert not list(temporary.iterdir())


def test_a_folder_that_cannot_be_made_is_named(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (temporary / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "file"))
    with pytest.raises(RollmillError, match=r"the scratch folder cannot be made: .*Not a directory"), process_scope():
        raise AssertionError
