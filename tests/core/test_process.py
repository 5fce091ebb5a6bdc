"""Processes of our own: children that serve, errands that are asked something. Real ones, of a few lines."""

import logging
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from running import wait_until

from rollmill.core import process as process_module
from rollmill.core.janitor_main import is_alive
from rollmill.core.process import Child, Errand, Lines, OutputLog, Recent, module_command

SERVE = """
import os, signal, sys, time
from rollmill.core.child import begin_child
setup, parent = begin_child(int(sys.argv[1]))
{what}
"""

ECHO = """
import os, sys, subprocess, time
from rollmill.core.child import begin_errand
from rollmill.core.exits import leave
question, reply = begin_errand(int(sys.argv[1]))
print("some noise", flush=True)
{what}
leave(0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


Serve = Callable[..., Child]


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """Starts children that do what is given; they are ended with the test."""
    made: list[Child] = []

    def start(what: str, setup: object = None, inherit: Sequence[int] = ()) -> Child:
        (folder / "child_of_test.py").write_text(SERVE.format(what=what))
        made.append(Child("child_of_test", setup, os.environ, inherit))
        return made[-1]

    yield start
    for child in made:
        child.end()
        child.close()


def told(child: Child) -> dict[str, Any]:
    """The next thing that it says."""
    while not (events := child.read_events()):
        assert not child.events.ended, child.read_output()
        child.events.wait()
    (event,) = events
    return event


# -- children --------------------------------------------------------------------------------------------------


def test_what_a_child_is_told_and_what_it_tells(serve: Serve) -> None:
    child = serve(
        "parent.tell('heard', {'setup': setup}); print('one'); print('two', end='', flush=True)", ["x" * 200_000]
    )
    assert told(child) == {"kind": "heard", "setup": ["x" * 200_000]}
    assert child.ends_within(None)
    assert (child.alive, child.code, child.how_it_ended()) == (False, 0, "ended with exit code 0")
    assert child.read_output() == ["one", "two"]
    assert child.output.ended
    assert list(child.last_lines) == ["one", "two"]


def test_what_it_is_given_is_found_where_this_process_finds_it(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was added to the search path in the meantime, as the folders of a user's own code are."""
    code = folder / "code"
    code.mkdir()
    (code / "own_of_test.py").write_text("class Own:\n    number = 7\n")
    monkeypatch.syspath_prepend(code)
    own = __import__("own_of_test")
    child = serve("parent.tell('number', {'number': setup.number})", own.Own())
    assert told(child)["number"] == 7


def test_the_current_folder_is_not_searched(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be somebody else's: a ``json.py`` there must not be taken for Python's."""
    elsewhere = tmp_path / "downloaded"
    elsewhere.mkdir()
    for name in ("json", "pickle"):
        (elsewhere / f"{name}.py").write_text("raise ImportError\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert told(serve("parent.tell('fine', {})")) == {"kind": "fine"}


def test_ending_is_the_parents_business(serve: Serve) -> None:
    read, write = os.pipe()
    child = serve("parent.tell('ready', {}); os.read(setup, 1); parent.tell('on', {}); time.sleep(3600)", read, [read])
    told(child)
    assert os.getpgid(child.pid) == child.pid, "a Ctrl-C in the terminal does not reach it"
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(child.pid, number)
    os.write(write, b"x")
    assert told(child) == {"kind": "on"}, "it reads what it has inherited"
    for fd in (read, write):
        os.close(fd)
    child.end()
    assert child.how_it_ended() == "was killed by signal 9 (SIGKILL)"
    child.end()


def test_a_child_that_ends_by_itself_is_not_killed(serve: Serve) -> None:
    child = serve("sys.stdin.read(); sys.exit(3)")
    child.end(patience=3600)
    assert (child.code, child.how_it_ended()) == (3, "ended with exit code 3")


FAIL = """
import sys
from rollmill.core.child import run_child
from rollmill.core.errors import ConfigError
def work(setup, parent):
    parent.tell('begun', {{}})
    {what}
sys.exit(run_child(work))
"""


@pytest.mark.parametrize(
    ("what", "code", "kind", "error"),
    [
        ("raise KeyError('a bug')", 1, "KeyError", "KeyError: 'a bug'"),
        ("sys.exit(7)", 1, "SystemExit", "SystemExit: 7"),
        ("raise ConfigError('wrong')", 2, "ConfigError", "wrong"),
    ],
)
def test_what_goes_wrong_comes_home(folder: Path, what: str, code: int, kind: str, error: str) -> None:
    (folder / "failing_child_of_test.py").write_text(FAIL.format(what=what))
    child = Child("failing_child_of_test", None, os.environ)
    assert child.ends_within(None)
    begun, failed = child.read_events()
    assert (begun, child.code) == ({"kind": "begun"}, code)
    trace = failed.pop("trace")
    assert failed == {"kind": "failed", "type": kind, "error": error}
    assert ("in work" in trace) == (kind != "ConfigError"), "an error that explains itself needs no traceback"
    child.close()


def test_work_that_is_done_tells_nothing_more(folder: Path) -> None:
    (folder / "working_child_of_test.py").write_text(FAIL.format(what="return"))
    child = Child("working_child_of_test", None, os.environ)
    assert child.ends_within(None)
    assert (child.read_events(), child.code) == ([{"kind": "begun"}], 0)
    child.close()


def test_a_crash_leaves_its_stack(serve: Serve) -> None:
    child = serve("print('before', flush=True); os.abort()")
    child.ends_within(None)
    child.read_output()
    assert child.crash_stack().startswith("Fatal Python error: Aborted")
    assert "child_of_test.py" in child.crash_stack()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone does it")
def test_a_child_dies_with_its_parent(folder: Path) -> None:
    (folder / "child_of_test.py").write_text(SERVE.format(what="parent.tell('ready', {}); time.sleep(3600)"))
    code = (
        "import os, time; from rollmill.core.process import Child; child = Child('child_of_test', None, os.environ); "
        "child.events.wait(); print(child.pid, flush=True); time.sleep(3600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    wait_until(lambda: not is_alive(pid), what="the child to end")


def test_a_child_without_its_parent_does_not_even_begin(folder: Path) -> None:
    """The parent died between starting it and telling it what to do."""
    (folder / "child_of_test.py").write_text(SERVE.format(what="print('begun')"))
    read, write = os.pipe()
    with os.fdopen(write, "wb") as pipe:
        pickle.dump((1, 0, sys.path, "{}", pickle.dumps(None)), pipe)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = module_command("child_of_test", str(read))
    done = subprocess.run(command, pass_fds=(read,), env=environment, capture_output=True, text=True)
    os.close(read)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_one_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(process_module.subprocess, "Popen", fail)
    before = os.listdir("/dev/fd")
    with pytest.raises(BlockingIOError):
        Child("child_of_test", None, os.environ)
    assert len(os.listdir("/dev/fd")) == len(before)


def test_lines_as_they_come() -> None:
    read, write = os.pipe()
    lines = Lines(read, longest=5)
    assert (lines.read(), lines.wait(0), lines.ended) == ([], False, False)
    os.write(write, b"one\ntw")
    assert lines.wait(0)
    assert lines.read(9) == [b"one"]
    os.write(write, b"o\nendless")
    assert lines.read() == [b"two", b"endless"]
    os.write(write, b"half")
    os.close(write)
    assert (lines.read(9), lines.ended) == ([b"half"], True)
    lines.close()


def test_half_an_event_is_none() -> None:
    read, write = os.pipe()
    lines = Lines(read)
    os.write(write, b"{}\n{")
    os.close(write)
    assert (lines.read(9), lines.ended) == ([b"{}"], True)
    lines.close()


def test_only_the_last_ten_minutes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(process_module.time, "monotonic", lambda: now)
    recent = Recent()
    assert [recent.add(), recent.add()] == [1, 2]
    now = 1599.0
    assert recent.add() == 3
    now = 1601.0
    assert recent.count == 1


def test_output_is_logged_within_bounds(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(process_module, "RECENT_LINES", 2)
    output = OutputLog("somebody")
    with caplog.at_level(logging.INFO, "rollmill"):
        output.write(["a", "b", "c", "d"])
        output.close()
    assert caplog.messages == ["somebody: a", "somebody: b", "somebody: 2 lines of output were not logged (too many)"]


# -- errands ---------------------------------------------------------------------------------------------------


def ask(folder: Path, what: str, question: dict[str, object] | None = None) -> Errand:
    (folder / "errand_of_test.py").write_text(ECHO.format(what=what))
    return Errand("errand_of_test", question or {}, os.environ)


def test_question_and_answers(folder: Path) -> None:
    errand = ask(folder, "reply(**question); reply(last=True)", {"long": "x" * 200_000})
    assert errand.first_line(None) == {"long": "x" * 200_000}
    assert errand.ends_within(300)
    assert errand.lines[1:] == [{"last": True}]
    assert errand.noise == "some noise\n"
    assert errand.end() == "ended with exit code 0"
    errand.close()
    errand.close()


def test_an_answer_counts_whatever_comes_after_it(folder: Path) -> None:
    errand = ask(folder, "reply(answer=1); time.sleep(3600)")
    assert errand.first_line(None) == {"answer": 1}
    assert not errand.ends_within(0)
    assert errand.end() == "was killed by signal 9 (SIGKILL)"
    errand.close()


def test_half_an_answer_is_none(folder: Path) -> None:
    errand = ask(folder, "os.write(int(sys.argv[1]), b'{\"answ'); os.abort()")
    assert errand.first_line(None) is None
    assert "Fatal Python error: Aborted" in errand.last_noise
    assert errand.end() == "was killed by signal 6 (SIGABRT)"
    errand.close()


def test_one_that_takes_too_long(folder: Path) -> None:
    errand = ask(folder, "time.sleep(3600)")
    with pytest.raises(TimeoutError, match=re.escape("no answer within 0.1 s")):
        errand.first_line(0.1)
    errand.close()


def test_what_it_has_started_ends_with_it(folder: Path) -> None:
    errand = ask(folder, "reply(pid=subprocess.Popen(['sleep', '3600']).pid)")
    line = errand.first_line(None)
    assert line is not None
    errand.close()
    wait_until(lambda: not is_alive(line["pid"]), what="it to end with its group")
