from __future__ import annotations

import io

import pytest
from rich.console import Console

from rollmill.launch.records import RunRecord
from rollmill.launch.status import RunStatus
from rollmill.launch.table import cells, duration, first_line, plain, rich_table, seconds_left, summary


def run(name: str, state: str, **more: object) -> RunStatus:
    record = RunRecord(name, "g", {}, (), "/f", 1000)
    return RunStatus(record, state, attempts=1, failures=0, **more)  # type: ignore[arg-type]


RUNS = [
    run("a", "finished", frames=1000, mean_return=9.5, frames_per_s=2000.0, host="n1"),
    run("b", "running", frames=250, seconds_left=90.0),
    run("c", "failed", reason="EnvError: no\nTraceback", tail="one\ntwo"),
    run("d", "waiting"),
]


def test_cells() -> None:
    assert cells(RUNS[0]) == ("a", "finished", "1,000 (100%)", "9.5", "2,000", "-", "1", "n1", "")
    assert cells(RUNS[1])[2:6] == ("250 (25%)", "-", "-", "1m")
    assert cells(RUNS[2])[-1] == "EnvError: no"


def test_plain_text_ends_with_what_failed() -> None:
    text = plain(RUNS)
    assert "4 runs: 1 running, 1 waiting, 1 failed, 1 finished; 1,250 of 4,000 frames" in text
    assert text.endswith("c failed (1 attempt); the end of its output:\n    one\n    two")
    assert summary([run("a", "finished")]) == "1 run: 1 finished; 0 of 1,000 frames"


def test_how_long_all_of_it_will_take() -> None:
    """At the rate of those that run: 750 and 1000 frames are left, 5 are made a second."""
    going = [run("a", "finished", frames=1000), run("b", "running", frames=250, frames_per_s=5.0), run("c", "waiting")]
    assert seconds_left(going) == 350.0
    assert summary(going).endswith("; 1,250 of 3,000 frames, about 5m left")
    assert seconds_left([run("a", "finished")]) is None
    assert seconds_left([run("a", "running")]) is None  # nobody knows how fast it is
    endless = RunStatus(RunRecord("x", "g", {}, (), "/f", 0), "waiting", 0, 0)
    assert seconds_left([*going, endless]) is None


def test_a_small_terminal_shows_what_needs_attention() -> None:
    output = io.StringIO()
    Console(file=output, width=100).print(rich_table(RUNS, limit=2))
    lines = output.getvalue().splitlines()
    assert lines[1].startswith("b")
    assert lines[2].startswith("d")
    assert "... and 2 more" in output.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (61, "1m"), (3600, "1h00m"), (7500, "2h05m"), (100_000, "1d03h"), (float("inf"), "-")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_first_line_of_a_reason() -> None:
    assert first_line("\nwhat is wrong\nTraceback") == "what is wrong"
    assert len(first_line("x" * 1000)) == 300
