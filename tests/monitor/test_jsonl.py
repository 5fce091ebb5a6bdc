import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rollmill.core.errors import RunFolderError
from rollmill.monitor import jsonl
from rollmill.monitor.jsonl import JsonlSink, read_jsonl


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The system then writes what fits and refuses the rest, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def fill(path: Path, rows: int = 5) -> None:
    sink = JsonlSink(path)
    for n in range(1, rows + 1):
        sink.write(n * 100, {"x": float(n)})
    sink.close()


def frames(path: Path) -> list[int]:
    return [row["frames"] for row in read_jsonl(path)]


def test_rows_are_json_objects_with_frames_and_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path, clock=lambda: 1.23456)
    sink.write(np.int64(4096), {"episode/return": 3.5, "count": 7, "lr": np.float32(0.5), "naïve\n": 1.0})
    assert read_jsonl(path) == [  # readable before the sink is closed
        {"frames": 4096, "time": 1.235, "episode/return": 3.5, "count": 7, "lr": 0.5, "naïve\n": 1.0}
    ]
    assert path.read_bytes().count(b"\n") == 1
    sink.close()


def test_nan_and_infinity_are_null(tmp_path: Path) -> None:
    path = tmp_path / "m"
    sink = JsonlSink(path)
    sink.write(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float32("nan")})
    sink.close()
    row = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [row[name] for name in "abcd"] == [None] * 4


@pytest.mark.parametrize("name", ["frames", "time"])
def test_a_metric_cannot_take_the_place_of_frames_or_time(tmp_path: Path, name: str) -> None:
    sink = JsonlSink(tmp_path / "m")
    with pytest.raises(ValueError, match=f"cannot be called '{name}'"):
        sink.write(1, {name: 1.0})
    sink.close()
    assert read_jsonl(tmp_path / "m") == []


def test_opening_again_appends(tmp_path: Path) -> None:
    fill(tmp_path / "m", 2)
    fill(tmp_path / "m", 1)
    assert frames(tmp_path / "m") == [100, 200, 100]


def test_a_torn_last_row_is_ignored_by_readers_and_cut_when_the_file_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "rollmill")
    monkeypatch.setattr(jsonl, "_BLOCK", 7)  # so that the search for the line end crosses blocks
    path = tmp_path / "m"
    fill(path, 2)
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for length in range(start, len(whole)):
        path.write_bytes(whole[:length])
        assert frames(path) == [100]
        sink = JsonlSink(path)
        sink.write(300, {})
        sink.close()
        assert frames(path) == [100, 300]
    assert "cut off a row that a killed run had not finished" in caplog.text


def test_a_file_that_is_one_torn_row_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b'{"frames": 1')
    JsonlSink(path).close()
    assert path.read_bytes() == b""


def test_a_kill_loses_no_finished_row(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, pathlib\n"
        "from rollmill.monitor.jsonl import JsonlSink\n"
        "sink = JsonlSink(pathlib.Path(sys.argv[1]))\n"
        "for n in range(50): sink.write(n, {'x': 1.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "m")])
    assert done.returncode == -9
    assert frames(tmp_path / "m") == list(range(50))


def test_resume_removes_rows_beyond_the_point_it_continues_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rollmill")
    path = tmp_path / "m"
    fill(path)
    with open(path, "ab") as file:
        file.write(b'{"frames": 600')
    sink = JsonlSink(path, resume_step=300)
    sink.write(350, {"x": 1.0})
    sink.close()
    assert frames(path) == [100, 200, 300, 350]
    assert "removed 2 rows beyond step 300" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_resume_beyond_the_last_row_does_not_rewrite_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m"
    fill(path)
    before = path.stat().st_ino
    JsonlSink(path, resume_step=500).close()
    assert path.stat().st_ino == before
    assert frames(path) == [100, 200, 300, 400, 500]


def test_resume_of_a_run_without_metrics_starts_a_file(tmp_path: Path) -> None:
    JsonlSink(tmp_path / "m", resume_step=10).close()
    assert read_jsonl(tmp_path / "m") == []


@pytest.mark.parametrize("damage", [b"garbage\n", b"[]\n", b'{"x": 1}\n', b"\xff\n", b"\n"])
def test_a_damaged_row_in_the_middle_is_named_and_does_not_stop_a_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    path = tmp_path / "m"
    fill(path, 1)
    with open(path, "ab") as file:
        file.write(damage)
    fill(path, 3)
    with pytest.raises(RunFolderError, match="m, line 2: not"):
        read_jsonl(path)
    JsonlSink(path, resume_step=200).close()
    assert "m, line 2: not" in caplog.text
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    assert lines[1] == damage


def test_a_full_disk_is_an_error_that_leaves_no_half_row(tmp_path: Path) -> None:
    path = tmp_path / "m"
    sink = JsonlSink(path)
    sink.write(1, {"x": 1.0})
    size = path.stat().st_size
    with (
        files_no_larger_than(size + 10),
        pytest.raises(RunFolderError, match="m: metrics cannot be written: File too large"),
    ):
        sink.write(2, {"x": 2.0})
    assert path.stat().st_size == size
    sink.write(3, {"x": 3.0})
    sink.close()
    assert frames(path) == [1, 3]


def test_what_is_no_file_of_metrics_is_refused_at_once(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10**12)
    os.mkfifo(tmp_path / "fifo")
    for name, reason in (("sparse", "last row has more than 4,000,000 bytes"), ("fifo", "it is a FIFO, not a file")):
        with pytest.raises(RunFolderError, match=reason):
            JsonlSink(tmp_path / name)
        with pytest.raises(RunFolderError, match=r"more than 4,000,000 bytes|it is a FIFO"):
            read_jsonl(tmp_path / name)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="metrics cannot be written: No such file"):
        JsonlSink(tmp_path / "none" / "m")
    with pytest.raises(RunFolderError, match="cannot be read: No such file"):
        read_jsonl(tmp_path / "m")


def test_a_closed_sink_refuses_rows(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m")
    sink.close()
    with pytest.raises(ValueError, match="is closed"):
        sink.write(1, {})


def test_metrics_of_version_0_1_have_their_new_names(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"frames": 1, "time/main_answer": 0.5, "time/pictures_per_s": 2, "dial/length": 3}\n')
    (row,) = read_jsonl(path)
    assert row == {"frames": 1, "time/main_inference": 0.5, "time/images_per_s": 2, "variable/length": 3}


def test_other_units_are_steps(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl", clock=lambda: 1.0, unit="updates")
    sink.write(7, {"learn/loss": 1.0})
    sink.close()
    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 7, "unit": "updates", "time": 1.0, "learn/loss": 1.0}]
