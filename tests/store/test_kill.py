"""Writers killed at any moment, real processes: what was acknowledged is there, and right."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from running import SUPPORT
from storing import by_uid, make_episode, same, small_schema

from rollmill.store.care.recover import recover
from rollmill.store.reader import Store

ENDLESS = 1_000_000
"""More episodes than anybody writes before he is killed."""

WRITER = """
import sys
from pathlib import Path
from rollmill.store.episode import EpisodeInfo
from rollmill.store.writer import StoreWriter
from storing import make_episode, small_schema

path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
schema = small_schema()
writer = StoreWriter(path, schema, block=4, shard_bytes=20_000, sync="seal")
print("ready", flush=True)
sys.stdin.readline()
for uid in range(first, first + count):
    episode = make_episode(schema, 5 + uid % 37, uid)
    writer.begin("waiting", EpisodeInfo(uid=10**9 + uid))
    writer.append("waiting", {name: array[:5] for name, array in episode.columns.items()})
    writer.add_episode(episode)
    print(uid, flush=True)  # acknowledged
    writer.discard("waiting")
writer.close()
print("closed", flush=True)
"""


def start(path: Path, first: int, count: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(first), str(count)],
        cwd=SUPPORT,  # where ``storing`` is
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([".", os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def acknowledged(process: subprocess.Popen[str], until: int | None = None) -> list[int]:
    """The uids a writer reports; with ``until`` only so many, else all to the end of its output."""
    assert process.stdout is not None
    found: list[int] = []
    while until is None or len(found) < until:
        line = process.stdout.readline()
        if not line or line == "closed\n":
            break
        if line.endswith("\n"):
            found.append(int(line))
    return found


def check(path: Path, uids: list[int]) -> None:
    schema = small_schema()
    store = Store(path)
    assert store.problems == []
    numbers = by_uid(store)
    assert set(numbers) >= set(uids)
    assert max(numbers, default=0) < 10**9, "unfinished episodes are not listed"
    for uid, i in numbers.items():
        assert same(store.episode(i), make_episode(schema, 5 + uid % 37, uid))


def settle(path: Path) -> int:
    """Recover what killed writers left; returns how many shards that sealed."""
    left = [p for p in (path / "shards").iterdir() if p.name.endswith(".open.tfrecord")]
    done = recover(path)
    # Whoever is killed between two shards leaves none; whoever has just begun one leaves it without a header.
    assert len(done.sealed) + len(done.skipped) == len(left)
    assert all("no header" in why for _, why in done.skipped)
    assert done.problems == []
    return len(done.sealed)


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    sealed = 0
    for until in (1, 9, 20, 38, 57):
        path = tmp_path / str(until)
        process = start(path, 0, ENDLESS)
        go(process)
        uids = acknowledged(process, until)
        process.send_signal(signal.SIGKILL)
        uids += acknowledged(process)
        process.wait()
        check(path, uids)
        sealed += settle(path)
        check(path, uids)
    assert sealed


def test_eight_writers_of_which_three_are_killed(tmp_path: Path) -> None:
    rng = random.Random(0)
    processes = [start(tmp_path, ENDLESS * k, ENDLESS if k < 3 else 60) for k in range(8)]
    for process in processes:
        go(process)
    uids: list[int] = []
    for process in processes[:3]:
        uids += acknowledged(process, until=rng.randrange(1, 30))
        process.send_signal(signal.SIGKILL)
    for k, process in enumerate(processes):
        found = acknowledged(process)
        assert k < 3 or len(found) == 60
        uids += found
        process.wait()
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 3 + [0] * 5
    check(tmp_path, uids)
    settle(tmp_path)
    check(tmp_path, uids)
    # Another writer joins the store afterwards.
    last = start(tmp_path, 9 * ENDLESS, 3)
    go(last)
    uids += acknowledged(last)
    last.wait()
    check(tmp_path, uids)
