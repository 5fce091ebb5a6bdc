"""How processes end: real ones."""

import os
import subprocess
import sys

import pytest

from rollmill.core.exits import describe_exit, exits_are_exceptions


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


LEAVING = """
import atexit, threading, time
from rollmill.core import exits
exits.FAREWELL_SECONDS = {patience}
{before}
print("the last words", end="")
exits.leave(5)
"""


@pytest.mark.parametrize(
    ("before", "patience"),
    [
        ("threading.Thread(target=time.sleep, args=(3600,)).start()", 60.0),
        ("atexit.register(time.sleep, 3600)", 0.1),
    ],
    ids=["a thread", "a farewell without end"],
)
def test_nobody_holds_it_up(before: str, patience: float) -> None:
    done = run(LEAVING.format(before=before, patience=patience))
    assert (done.returncode, done.stdout, done.stderr) == (5, "the last words", "")


def test_what_was_to_happen_at_the_end_happens() -> None:
    done = run(LEAVING.format(before="atexit.register(print, ', said later', end='')", patience=60.0))
    assert done.stdout == "the last words, said later"


def test_an_exit_of_user_code_is_an_exception() -> None:
    with exits_are_exceptions(), pytest.raises(SystemExit) as ending:
        os._exit(3)
    assert ending.value.code == 3


def test_forked_children_and_other_threads_end_as_they_mean_to() -> None:
    with exits_are_exceptions():
        child = os.fork()
        if not child:
            try:
                os._exit(3)
            except SystemExit:
                os.abort()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    code = """
import os, threading
from rollmill.core.exits import exits_are_exceptions
with exits_are_exceptions():
    thread = threading.Thread(target=os._exit, args=(4,))
    thread.start()
    thread.join()
"""
    assert run(code).returncode == 4


def test_afterwards_all_is_as_it_was() -> None:
    before = os._exit
    with exits_are_exceptions():
        assert os._exit is not before
    assert os._exit is before


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (-40, "was killed by signal 40"),
    ],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
