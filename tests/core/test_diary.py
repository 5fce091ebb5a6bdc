import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rollmill
from rollmill.core import diary as diary_module
from rollmill.core.diary import Diary, git_state, machine, versions
from rollmill.core.errors import RunFolderError

COMMAND = ["rollmill", "train", "--env", "my env"]
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "diary.json"


def test_a_new_diary_says_where_the_run_comes_from(path: Path) -> None:
    Diary.create(path, COMMAND)
    content = json.loads(path.read_text())
    assert content["command"] == "rollmill train --env 'my env'"
    assert content["created"].endswith("+00:00")
    assert content["folder"] == str(path.parent)
    assert content["versions"]["rollmill"] == rollmill.__version__
    assert content["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert content["machine"]["memory_bytes"] > 10**8
    assert content["parent"] is None
    assert content["sessions"] == []


def test_sessions_are_appended(path: Path) -> None:
    diary = Diary.create(path, COMMAND)
    diary.begin_session(COMMAND, step=0)
    diary.end_session("interrupted by SIGINT", step=500)
    again = Diary.open(path)
    again.begin_session([*COMMAND, "--resume"], step=400, overrides={"lr": [0.1, 0.2]})
    first, second = json.loads(path.read_text())["sessions"]
    assert (first["how"], first["step_at_end"]) == ("interrupted by SIGINT", 500)
    assert first["ended"] is not None
    assert (second["step_at_start"], second["overrides"]) == (400, {"lr": [0.1, 0.2]})
    assert second["command"].endswith("--resume")
    assert second["how"] is None


def test_a_session_whose_end_is_missing_was_killed(path: Path) -> None:
    Diary.create(path, COMMAND).begin_session(COMMAND, step=0)
    Diary.open(path).begin_session(COMMAND, step=10)
    first, second = json.loads(path.read_text())["sessions"]
    assert first["how"] == "killed (its end was not recorded)"
    assert second["how"] is None


def test_an_end_without_a_beginning_is_a_mistake_of_the_caller(path: Path) -> None:
    diary = Diary.create(path, COMMAND)
    with pytest.raises(RuntimeError, match="without begin_session"):
        diary.end_session("finished", 1)
    diary.begin_session(COMMAND, 0)
    diary.end_session("finished", 1)
    with pytest.raises(RuntimeError, match="without begin_session"):
        diary.end_session("finished", 1)


def test_the_parent_is_recorded(path: Path) -> None:
    diary = Diary.create(path, COMMAND)
    diary.set_parent(Path("runs/a/frames-1.ckpt"), 1, "abc", {"lr": (0.1, 0.2)})
    assert json.loads(path.read_text())["parent"] == {
        "checkpoint": "runs/a/frames-1.ckpt",
        "frames": 1,
        "checksum": "abc",
        "difference": {"lr": [0.1, 0.2]},
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"sessions": 3}'])
def test_a_damaged_diary_is_an_error(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(RunFolderError, match=r"diary\.json"):
        Diary.open(path)


def test_a_diary_nested_absurdly_deep_is_an_error(path: Path) -> None:
    path.write_text("[" * 5000 + "]" * 5000)
    with pytest.raises(RunFolderError, match="cannot be read: nested more than 64 deep"):
        Diary.open(path)


@pytest.mark.parametrize("session", ["3", "{}"])
def test_sessions_of_another_make_are_an_error(path: Path, session: str) -> None:
    path.write_text(f'{{"sessions": [{session}]}}')
    with pytest.raises(RunFolderError, match="a session that has no end"):
        Diary.open(path).begin_session(["rollmill"], 0)


def test_a_missing_diary_is_an_error(path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"the diary of the run cannot be read: .*No such file"):
        Diary.open(path)


def test_a_diary_that_cannot_be_written_is_an_error(path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot be written: No such file"):
        Diary.create(path.parent / "none" / "diary.json", COMMAND)


# -------------------------------------------------------------------------------------------------- facts


@needs_git
def test_the_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "untracked").write_text("")
    assert git_state(tmp_path / "runs") == {"commit": commit, "dirty": False}
    (tmp_path / "a.py").write_text("a = 2\n")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


def test_a_git_that_takes_too_long_leaves_it_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "git"
    program.write_text('#!/bin/sh\ncase "$*" in *rev-parse*) echo abc;; *) exec /bin/sleep 60;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    run = subprocess.run

    def hurry(words: list[str], timeout: float, **options: object) -> object:
        """As long as it needs for what the program answers; the rest is hardly waited for."""
        return run(words, timeout=60 if "rev-parse" in words else min(timeout, 0.2), **options)  # type: ignore[call-overload]

    monkeypatch.setattr(diary_module.subprocess, "run", hurry)
    assert git_state(tmp_path) == {"commit": "abc", "dirty": None}


def test_versions_are_found_without_importing_and_missing_packages_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diary_module, "PACKAGES", ("numpy", "no-such-package"))
    found = versions()
    assert found["numpy"] is not None
    assert found["no-such-package"] is None
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    program = "import sys; from rollmill.core.diary import versions; versions(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_machine_is_json() -> None:
    json.dumps(machine(), allow_nan=False)
