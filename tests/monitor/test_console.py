import io
import logging
import math
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from rollmill.monitor import console as console_module
from rollmill.monitor.console import (
    RECORDING_ROWS,
    ConsoleSink,
    Row,
    bytes_text,
    count_text,
    duration_text,
    number_text,
    stdout_is_terminal,
)
from rollmill.monitor.metrics import Progress

LOG = logging.getLogger("rollmill")
METRICS = {
    "speed/frames_per_s": 24_133.0,
    "episode/return": 12.345,
    "episode/length": 523.2,
    "learner/policy_lag": 1.23,
    "learner/entropy": 1.2345,
    "learner/kl": 0.00432,
    "learner/explained_variance": 0.87,
}


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    before = LOG.level
    LOG.setLevel(logging.INFO)
    yield
    LOG.setLevel(before)


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=24)


def shown(sink: ConsoleSink, width: int = 80) -> list[str]:
    """The panel as lines of plain text."""
    console = Console(file=io.StringIO(), width=width)
    console.print(sink.panel())
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue().splitlines()


# -------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (950, "950"), (999.6, "1.00K"), (1000, "1.00K"), (12_345, "12.3K"), (999_600, "1.00M"),
        (4_560_000, "4.56M"), (123_456_789, "123M"), (2e9, "2.00G"), (5e12, "5.00T"), (-1500, "-1.50K"),
        (math.nan, "nan"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_counts(value: float, text: str) -> None:
    assert count_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (12_345, "12.3 KB"), (999_960_000, "1.00 GB"), (2e12, "2.00 TB")],
)
def test_bytes(value: float, text: str) -> None:
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (45.4, "45 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (3599.7, "1 h 00 min"),
        (7_620, "2 h 07 min"), (86_399, "1 d 00 h"), (4 * 86_400 + 3 * 3600, "4 d 03 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (12.345, "12.35"), (-1234.9, "-1235"), (0.012345, "0.01235"), (1.2e-7, "1.2e-07"),
        (1234567.0, "1.235e+06"), (math.nan, "nan"), (-math.inf, "-inf"), (99999.9, "100000"),
    ],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


# -------------------------------------------------------------------------------------------------- panel


def test_the_panel_reads_well_at_80_columns(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard").write_bytes(bytes(12_345))
    sink = ConsoleSink("health / seed1", Progress(100_000_000, clock=clock), tmp_path, console=terminal(), clock=clock)
    LOG.info("started 16 workers")
    LOG.warning("worker 3: env 2 raised ValueError and was restarted (1 of 10); the text is in log.txt")
    clock.now = 3725.0
    sink.write(12_345_678, METRICS)
    lines = shown(sink)
    sink.close()
    assert {len(line) for line in lines} == {80}
    text = [" ".join(line.strip("│╭╮╰╯─ ").split()) for line in lines]
    assert text[0] == "health / seed1"
    assert text[1].startswith("12.3M of 100M frames (12 %) ━━")
    assert text[3:8] == [
        "frames/s 24.1K KL 0.004320",
        "return 12.35 explained var. 0.8700",
        "length 523.2 time 1 h 02 min",
        "policy lag 1.230 time left 1 h 01 min",
        "entropy 1.234",
    ]
    assert text[8].startswith("disk used 12.3 KB disk free ")
    assert text[9] == "warnings (1)"
    assert "worker 3: env 2 raised ValueError" in text[10]
    assert text[11].endswith("log.txt")  # wrapped, not cut off
    assert text[12] == "log"
    assert text[13].endswith("started 16 workers")


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_the_panel_fits_other_widths(clock: FakeClock, width: int) -> None:
    sink = ConsoleSink("t", Progress(10, clock=clock), console=terminal(width), clock=clock)
    LOG.warning("x" * 1000)
    LOG.info("z" * 1000)
    sink.write(5, METRICS)
    lines = shown(sink, width)
    sink.close()
    assert {len(line) for line in lines} == {min(width, 100)}
    assert sum("z" in line for line in lines) == 1  # a log line is cut at the edge


def test_what_is_not_known_is_a_dash_and_what_is_not_finite_is_shown(clock: FakeClock) -> None:
    sink = ConsoleSink("t", console=terminal(), clock=clock)
    sink.write(1, {"kl": math.nan})
    lines = shown(sink)
    sink.close()
    assert any("1 frames" in line for line in lines)
    assert any("KL" in line and "nan" in line for line in lines)
    assert any("time left" in line and "-" in line for line in lines)


def test_messages_cannot_steer_the_terminal_or_use_markup(clock: FakeClock) -> None:
    sink = ConsoleSink("a\x1b[31m[red]", console=terminal(), clock=clock)
    LOG.info("b\x1b]0;title\x07[bold]\nsecond")
    text = "\n".join(shown(sink))
    sink.close()
    assert "\x1b" not in text
    assert r"a\x1b[31m[red]" in text
    assert r"b\x1b]0;title\x07[bold] second" in text


def test_only_the_latest_lines_are_kept(clock: FakeClock) -> None:
    sink = ConsoleSink("t", console=terminal(), clock=clock)
    for n in range(20):
        LOG.info("line %d.", n)
        LOG.warning("careful %d.", n)
    text = "\n".join(shown(sink))
    sink.close()
    assert "warnings (20)" in text
    assert [n for n in range(20) if f"line {n}." in text] == [15, 16, 17, 18, 19]
    assert [n for n in range(20) if f"careful {n}." in text] == [17, 18, 19]
    assert len(text.splitlines()) <= 24


def test_other_rows_can_be_asked_for(clock: FakeClock) -> None:
    sink = ConsoleSink("t", rows=(Row("my figure", "mine", count_text),), console=terminal(), clock=clock)
    sink.write(1, {"a/b/mine": 2000.0, "a/not_mine": 1.0})
    assert any("my figure" in line and "2.00K" in line for line in shown(sink))
    sink.close()


def test_the_disk_is_walked_now_and_then(tmp_path: Path, clock: FakeClock) -> None:
    sink = ConsoleSink("t", folder=tmp_path, console=terminal(), clock=clock)
    (tmp_path / "file").write_bytes(bytes(5000))
    (tmp_path / "dangling").symlink_to("nowhere")
    clock.now = 0.5
    assert any("disk used  " in line and " 0 B " in line for line in shown(sink))
    clock.now = 1.5
    assert any("5.0" in line and "disk used" in line for line in shown(sink))
    sink.close()


def test_a_folder_that_takes_long_to_walk_is_walked_rarely(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[float] = []

    def slow(folder: Path) -> int:
        walks.append(clock.now)
        clock.now += 0.5
        return 1

    monkeypatch.setattr(console_module, "_bytes_below", slow)
    disk = console_module._Disk(tmp_path, clock)
    for second in range(120):
        clock.now = max(clock.now, float(second))
        disk.used()
    assert walks == [0.0, 50.0, 100.0], "one part in a hundred"


def test_disk_used_is_never_less_than_what_was_recorded(tmp_path: Path, clock: FakeClock) -> None:
    sink = ConsoleSink("t", folder=tmp_path, rows=RECORDING_ROWS, console=terminal(), clock=clock)
    sink.write(10, {"record/bytes": 163e6})
    (line,) = [line for line in shown(sink) if "disk used" in line]
    assert "163 MB" in line
    sink.close()


@pytest.mark.parametrize(
    ("seconds", "metrics", "text"),
    [
        (10.0, {}, "714K of 1.50M frames (47 %)"),
        (58.0, {}, "714K frames, 58 s of 1 min 00 s (96 %)"),
        (10.0, {"learn/batches": 99.0}, "714K frames, 99 of 100 batches (99 %)"),
    ],
)
def test_the_percentage_is_that_of_the_limit_beside_it(
    clock: FakeClock, seconds: float, metrics: dict[str, float], text: str
) -> None:
    progress = Progress(1_500_000, 60.0, clock=clock, max_batches=100)
    sink = ConsoleSink("t", progress, console=Console(file=io.StringIO(), force_terminal=False), clock=clock)
    clock.now = seconds
    sink.write(714_000, metrics)
    assert sink.line().startswith(text)
    assert any(text in line for line in shown(sink))


def test_between_rows_it_is_told_how_far_the_run_is(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """Rows may be minutes apart; whoever watches sees every few seconds that something goes on."""
    quiet = Console(file=io.StringIO(), force_terminal=False)
    sink = ConsoleSink("t", Progress(10_000, clock=clock), every_s=5, console=quiet, clock=clock, unit="updates")
    for second in range(16):
        clock.now = float(second)
        sink.tick(second * 10, {"time/updates_per_s": 10.0})
    assert caplog.messages == [
        "0 of 10.0K updates (0 %) | left 16 min 40 s",
        "50 of 10.0K updates (0 %) | left 16 min 35 s",
        "100 of 10.0K updates (1 %) | left 16 min 30 s",
        "150 of 10.0K updates (1 %) | left 16 min 25 s",
    ]


def test_the_last_metrics_are_those_with_which_the_run_has_ended(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = Console(file=io.StringIO(), force_terminal=False)
    sink = ConsoleSink("t", Progress(600_000, clock=clock), rows=RECORDING_ROWS, console=quiet, clock=clock)
    sink.write(599_000, {"record/bytes": 1e6, "record/episodes": 574.0})
    sink.end(602_100, {"record/episodes": 606.0})
    sink.close()
    assert caplog.messages[-1] == "602K of 600K frames (100 %) | recorded 1.00 MB | kept episodes 606 | left 0 s"


def test_files_that_vanish_during_the_walk_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(10))
    monkeypatch.setattr(os, "walk", lambda folder: [(str(folder), [], ["a", "gone"])])
    assert console_module._bytes_below(tmp_path) == 10


def test_a_nearly_full_disk_is_marked(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ConsoleSink("t", folder=tmp_path, console=terminal(), clock=clock)
    for free, style in ((5e8, "bold red"), (5e9, "")):
        monkeypatch.setattr(console_module._Disk, "free", lambda _, free=free: free)
        assert sink._free_text().style == style
    sink.close()


# ----------------------------------------------------------------------------------- on and off a terminal


def test_on_a_terminal_the_panel_is_redrawn_but_not_too_often(clock: FakeClock) -> None:
    console = terminal()
    sink = ConsoleSink("t", console=console, clock=clock)
    assert sink.live
    output = console.file
    assert isinstance(output, io.StringIO)
    clock.now = 1.0
    sink.write(1111, {})
    assert "1.11K frames" in output.getvalue()
    clock.now += 0.1
    sink.write(2222, {})
    sink.refresh()
    assert "2.22K frames" not in output.getvalue()
    clock.now += 0.2
    sink.refresh()
    assert "2.22K frames" in output.getvalue()
    sink.write(3333, {})
    sink.close()
    assert "3.33K frames" in output.getvalue()


def test_closing_takes_the_panel_off_the_logger(clock: FakeClock) -> None:
    before = list(LOG.handlers)
    sink = ConsoleSink("t", console=terminal(), clock=clock)
    assert len(LOG.handlers) == len(before) + 1
    sink.close()
    sink.close()
    assert LOG.handlers == before


def test_elsewhere_there_are_log_lines_at_most_every_few_seconds(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = Console(file=io.StringIO(), force_terminal=False)
    sink = ConsoleSink("t", Progress(100_000_000, clock=clock), every_s=10, console=quiet, clock=clock)
    assert not sink.live
    sink.refresh()
    assert caplog.messages == []  # nothing to say yet
    for second in range(25):
        clock.now = float(second)
        sink.write(second * 1_000_000, METRICS)
    assert len(caplog.messages) == 3
    sink.close()
    sink.close()
    assert len(caplog.messages) == 4
    assert caplog.messages[-1] == (
        "24.0M of 100M frames (24 %) | frames/s 24.1K | return 12.35 | length 523.2 | "
        "policy lag 1.230 | entropy 1.234 | KL 0.004320 | explained var. 0.8700 | left 52 min 29 s"
    )
    output = quiet.file
    assert isinstance(output, io.StringIO)
    assert output.getvalue() == ""


def test_a_dumb_terminal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    for term, expected in (("xterm-256color", True), ("dumb", False), ("", False)):
        monkeypatch.setenv("TERM", term)
        assert stdout_is_terminal() is expected


PROGRAM = """
import logging, sys
from rollmill.monitor.console import ConsoleSink
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
sink = ConsoleSink("my run")
sink.write(1234, {"episode/return": 5.0})
sink.close()
print("torch" in sys.modules, flush=True)
"""


def test_a_real_terminal_gets_the_panel() -> None:
    main, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=child, stdin=child, env=environment)
    os.close(child)
    output = b""
    while True:
        try:
            data = os.read(main, 65536)
        except OSError:  # the other side of the terminal is gone
            break
        if not data:
            break
        output += data
    os.close(main)
    assert process.wait() == 0
    text = output.decode()
    assert "╭─" in text
    assert "my run" in text
    assert "1.23K frames" in text
    assert text.rstrip().endswith("False")


def test_a_pipe_gets_lines_even_where_colours_are_forced() -> None:
    environment = {**os.environ, "TERM": "xterm", "FORCE_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1.23K frames | return 5.000", "False"]


def test_own_statistics_of_the_environment_have_rows(clock: FakeClock) -> None:
    sink = ConsoleSink("t", console=terminal(), clock=clock)
    own = {f"episode/stat{k}": float(k) for k in range(8)}
    sink.write(10, {**METRICS, "episode/return_min": 1.0, "episode/count": 5.0, **own})
    text = "\n".join(shown(sink))
    assert "stat0" in text
    assert "stat5" in text
    assert "stat6" not in text, "six at most"
    assert "return_min" not in text
    sink.close()


def test_some_rows_are_for_the_panel_only(clock: FakeClock) -> None:
    rows = (Row("return", "episode/return"), Row("entropy", "entropy", in_line=False))
    sink = ConsoleSink("t", rows=rows, console=Console(file=io.StringIO(), force_terminal=False), clock=clock)
    sink.write(10, METRICS)
    assert "return" in sink.line()
    assert "entropy" not in sink.line()
    assert any("entropy" in line for line in shown(sink))
    sink.close()
