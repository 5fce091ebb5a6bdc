"""Questions to a process of its own; the real ones are asked by the probe, the size trial and the contract checker."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import wait_until

from rollmill.core.errand import Errand
from rollmill.core.janitor_main import is_alive

ECHO = """
import os, sys, subprocess, time
from rollmill.core.errand import begin_errand
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
