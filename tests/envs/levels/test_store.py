"""Levels in a folder: what is served is what was written, whoever dies while writing and however full it is."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rollmill.envs.levels.store import STALE_SECONDS, Level, LevelStore

WRITER = """
import sys, numpy as np
from pathlib import Path
from rollmill.envs.levels.store import LevelStore
store = LevelStore(Path(sys.argv[1]), int(sys.argv[3]))
seed = int(sys.argv[2])
print("ready", flush=True)
while True:
    seed += 1
    store.put(str(seed), seed, np.random.default_rng(seed).bytes(200_000))
"""
"""Writes levels until it is killed."""


def writer(folder: Path, first: int, max_bytes: int = 0) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-P", "-c", WRITER, str(folder), str(first), str(max_bytes)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def kill_while_writing(folder: Path, first: int, wait: float) -> None:
    process = writer(folder, first)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        time.sleep(wait)  # anywhere between two levels or within one
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_what_was_put_is_there_for_everybody(tmp_path: Path) -> None:
    one, two = LevelStore(tmp_path / "a"), LevelStore(tmp_path / "a")
    assert two.get("5") is None
    assert one.put("5", 5, b"five")
    assert two.get("5") == b"five"
    assert not two.put("5", 5, b"five"), "it is there already"
    one.put("key/of some\nkind", 7, b"")
    one.put("nobody's", -1, b"x")
    assert two.get("key/of some\nkind") == b""
    assert two.seeds().tolist() == [5, 7]
    assert (len(two.levels()), two.total_bytes) == (3, 5)


def test_names_of_files_say_what_they_are() -> None:
    level = Level.of("12", 12, b"abc")
    assert Level.parse(level.name) == level
    assert Level.parse(Level.of("k", -1, b"").name) == Level.of("k", -1, b"")
    assert Level.parse(f".{level.name}.ab12.99.tmp") is None
    assert Level.parse(f"{level.name[:-6]}.damaged") is None


@pytest.mark.parametrize("damage", [b"", b"fivf", b"five and more", b"fiv"])
def test_a_damaged_level_is_named_and_not_served(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = LevelStore(tmp_path)
    store.put("5", 5, b"five")
    path = tmp_path / store.levels()[0].place
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert store.get("5") is None
    assert str(path) in caplog.text
    assert [aside.stem for aside in store.damaged()] == [path.stem]
    assert store.seeds().tolist() == []
    assert store.put("5", 5, b"five")
    assert store.get("5") == b"five"


def test_writers_that_are_killed_leave_whole_levels(tmp_path: Path) -> None:
    for k in range(5):
        kill_while_writing(tmp_path, 1000 * k, wait=0.004 * k)
    store = LevelStore(tmp_path)
    for seed in store.seeds().tolist():
        assert store.get(str(seed)) == np.random.default_rng(seed).bytes(200_000)
    assert not store.damaged()


def test_the_limit_is_kept_by_many_writers_at_once(tmp_path: Path) -> None:
    limit = 3_100_000
    writers = [writer(tmp_path, 1000 * k, limit) for k in range(4)]
    try:
        store = LevelStore(tmp_path)
        while store.total_bytes < limit - 200_000:
            assert all(process.poll() is None for process in writers)
            assert store.total_bytes <= limit + len(writers) * 200_000, "each may hold one before it looks"
    finally:
        for process in writers:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    LevelStore(tmp_path, limit).put(
        "one more", 0, bytes(200_000)
    )  # whoever writes next removes what a killed writer had too many
    assert limit - 400_000 < LevelStore(tmp_path).total_bytes <= limit


def test_a_lower_limit_removes_the_newest(tmp_path: Path) -> None:
    for seed in range(4):
        LevelStore(tmp_path).put(str(seed), seed, bytes(100))
        path = next(path for path in tmp_path.glob("??/*.level") if path.name.startswith(f"{seed}-"))
        os.utime(path, (seed, seed))
    tight = LevelStore(tmp_path, 250)
    assert not tight.put("9", 9, bytes(100))
    assert tight.seeds().tolist() == [0, 1]


def test_a_full_store_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LevelStore(tmp_path, 150)
    assert store.put("1", 1, bytes(100))
    for seed in (2, 3):
        assert not store.put(str(seed), seed, bytes(100))
    assert caplog.text.count("have reached env.levels.max_gb") == 1


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = LevelStore(tmp_path / "file" / "levels")
    assert not store.put("1", 1, b"x")
    assert "levels cannot be kept" in caplog.text


def test_leftovers_of_the_dead_are_found_when_they_are_old(tmp_path: Path) -> None:
    store = LevelStore(tmp_path)
    store.put("1", 1, b"x")
    part = next(tmp_path.glob("??"))
    old, young = part / ".a.level.00.17.tmp", part / ".b.level.00.17.tmp"
    for path, age in ((old, STALE_SECONDS + 10), (young, 0)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    assert list(store.leftovers()) == [old]
    assert store.seeds().tolist() == [1]
