"""Processes, threads and memory, of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from running import wait_until

from rollmill.monitor.usage import Usage, descendants, read_process, tree_of

# Starts a child of its own, four threads, takes 50 MB, says so, and waits to be told to end.
PROGRAM = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
end = threading.Event()
threads = [threading.Thread(target=end.wait) for _ in range(4)]
for thread in threads: thread.start()
memory = bytearray(50_000_000)
print(child.pid, flush=True)
sys.stdin.read()
end.set()
child.stdin.close()
child.wait()
"""


@pytest.fixture(scope="module")
def family() -> Iterator[tuple[int, int]]:
    """(process, its child)"""
    command = [sys.executable, "-S", "-c", PROGRAM]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.pid, int(process.stdout.readline())
    process.communicate("")


def test_one_process(family: tuple[int, int]) -> None:
    found = read_process(family[0])
    assert found is not None
    assert (found.pid, found.parent, found.threads) == (family[0], os.getpid(), 5)
    assert 50 < found.own_mb < 100
    assert found.cpu_seconds >= 0
    assert "python" in found.name


def test_a_process_that_is_gone() -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    assert read_process(done.pid) is None
    assert descendants(done.pid) == {}


def test_everything_below_a_process(family: tuple[int, int]) -> None:
    parent, child = family
    assert set(descendants(parent)) == {parent, child}
    assert {parent, child} <= set(descendants(os.getpid()))
    assert [process.pid for process in tree_of(parent, descendants(os.getpid()))] == [parent, child]


def test_metrics_of_a_run(family: tuple[int, int]) -> None:
    """The process stands for a run whose only worker is its child."""
    parent, child = family
    metrics = Usage(root=parent).metrics(workers=[child])
    assert metrics["usage/processes"] == 2
    assert metrics["usage/threads"] == 6
    assert metrics["usage/threads_main"] == 5
    assert metrics["usage/threads_worker"] == 1
    assert metrics["usage/memory_main_mb"] > 50 > metrics["usage/memory_worker_mb"] > 0
    assert metrics["usage/memory_mb"] >= metrics["usage/memory_main_mb"] + metrics["usage/memory_worker_mb"]
    assert "usage/cores" not in metrics, "nothing to compare with at the first look, and 0 would be untrue"


def test_looking_costs_something_so_it_is_done_now_and_then() -> None:
    now = [0.0]
    worker = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        usage = Usage(root=worker.pid, every_s=5.0, clock=lambda: now[0])
        first = usage.metrics()
        assert "usage/cores" not in first
        used = cpu_seconds(worker.pid)
        wait_until(lambda: cpu_seconds(worker.pid) > used + 0.1)  # work that the next look should find
        now[0] = 4.9
        assert usage.metrics() == first
        now[0] = 5.0
        assert usage.metrics()["usage/cores"] > 0
    finally:
        worker.kill()
        worker.wait()


def test_busy_cores_are_known_at_the_first_look_where_it_was_told_to_begin() -> None:
    now = [0.0]
    worker = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        usage = Usage(root=worker.pid, clock=lambda: now[0])
        usage.begin()
        used = cpu_seconds(worker.pid)
        wait_until(lambda: cpu_seconds(worker.pid) > used + 0.1)
        now[0] = 0.5
        assert usage.metrics()["usage/cores"] > 0.1
    finally:
        worker.kill()
        worker.wait()


def cpu_seconds(pid: int) -> float:
    found = read_process(pid)
    assert found is not None
    return found.cpu_seconds


def test_without_proc(tmp_path: object) -> None:
    from pathlib import Path

    assert Usage(proc=Path(str(tmp_path)) / "none").metrics() == {}
