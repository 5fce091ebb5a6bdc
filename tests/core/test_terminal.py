"""Control characters of others are shown, not sent."""

from __future__ import annotations

import contextlib
import io
import logging
import sys

import pytest

from rollmill.core.run_log import CleanFormatter
from rollmill.core.terminal import CleanStream, clean_output, drawing, printable

NASTY = "\x1b]0;title\x07\x1b[2J\r\x9b31mred\x00\u202eabc\ud800"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x0d\x9b31mred\x00\u202eabc\ud800"


def test_what_is_shown() -> None:
    assert printable(NASTY) == SHOWN
    assert printable(printable(NASTY)) == SHOWN
    for text in ("one\ttwo\nthree", "Grüße, שלום, 日本, 👩‍🔬", ""):
        assert printable(text) == text
    assert printable("a\r\nb") == "a\nb"


def test_logs_are_clean_with_their_tracebacks() -> None:
    try:
        raise ValueError(NASTY)
    except ValueError:
        record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (NASTY,), sys.exc_info())
    text = CleanFormatter("%(message)s").format(record)
    assert text.startswith(f"{SHOWN}\nTraceback")
    assert text.endswith(f"ValueError: {SHOWN}")


def test_streams(capsys: pytest.CaptureFixture[str]) -> None:
    outside = sys.stdout
    with clean_output(), clean_output():
        print(NASTY)
        print("one", NASTY, file=sys.stderr)
        sys.stdout.writelines(["a\x1b", "b"])
        assert isinstance(sys.stdout, CleanStream)
        assert drawing(sys.stdout) is outside
        assert sys.stdout.encoding == outside.encoding
        print("\x1b[K", end="", file=drawing(sys.stdout))
    assert sys.stdout is outside
    assert drawing(outside) is outside
    out, err = capsys.readouterr()
    assert out == f"{SHOWN}\na\\x1bb\x1b[K"
    assert err == f"one {SHOWN}\n"


def test_libraries_are_told_that_it_is_no_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with contextlib.redirect_stdout(Terminal()), clean_output():
        assert not sys.stdout.isatty()
        assert drawing(sys.stdout).isatty()


def test_a_process_may_have_no_output_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with clean_output():
        print("nowhere")
