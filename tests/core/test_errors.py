"""What user code raises, in words: cut, and never an error itself."""

import pytest

from rollmill.core.errors import MESSAGE_CHARACTERS, TRACE_CHARACTERS, error_text, trace_text


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no map"), "ValueError: no map"),
        (SystemExit(3), "SystemExit: 3"),
        (Unprintable(), "Unprintable: (it cannot be shown: its text raises RuntimeError)"),
    ],
)
def test_what_it_says(error: BaseException, text: str) -> None:
    assert error_text(error) == text


def test_how_much_is_left_out_is_said() -> None:
    text = error_text(ValueError("a" * 600 + "b" * 600))
    assert text == f"ValueError: {'a' * 500} [... 200 characters left out ...] {'b' * 500}"
    assert len(error_text(ValueError("x" * 10_000_000))) < MESSAGE_CHARACTERS + 100


def test_traces_are_cut() -> None:
    try:
        raise Unprintable from ValueError("y" * 1_000_000)
    except Unprintable as error:
        trace = trace_text(error)
    assert len(trace) < TRACE_CHARACTERS + 100
    assert "characters left out" in trace
    assert trace.rstrip().endswith("Unprintable: <exception str() failed>")
