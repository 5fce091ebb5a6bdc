"""Processes that work on items: all results, errors come home, nobody is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from running import wait_until

from rollmill.core.errors import StoreError
from rollmill.store import parallel
from rollmill.store.parallel import map_unordered


def square(item: int) -> int:
    return item * item


def trouble(item: str) -> None:
    if item == "die":
        os._exit(9)
    if item == "bug":
        raise KeyError("a bug")
    raise StoreError("explained")


def runs(process: psutil.Process) -> bool:
    """A zombie does not, whoever fails to bury it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has just ended
        return False


def spawned() -> list[psutil.Process]:
    """Children of this process that work on items; tests before may have left others to end."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] if parallel.__name__ in child.cmdline() else []
    return found


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_item_has_its_result(workers: int) -> None:
    items = list(range(7))
    assert sorted(map_unordered(square, items, workers)) == [(i, i * i) for i in items]


def test_nothing_to_do() -> None:
    assert list(map_unordered(square, [], 3)) == []


def test_one_process_for_each_core_that_can_be_kept_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may see more cores than it may use the time of."""
    monkeypatch.setattr(parallel, "available_cores", lambda: 2)
    before = spawned()
    results = map_unordered(square, [1, 2, 3, 4])
    next(results)
    assert len([process for process in spawned() if process not in before]) == 2
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_explained_error_comes_home(workers: int) -> None:
    with pytest.raises(StoreError, match="explained"):
        list(map_unordered(trouble, ["a", "b"], workers))


def test_a_bug_comes_home_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in trouble.*KeyError: 'a bug'"):
        list(map_unordered(trouble, ["bug", "bug"], 2))


def loud(item: int) -> int:
    print("x" * 500_000)
    return item


def test_what_is_printed_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert sorted(map_unordered(loud, [1, 2, 3], 2)) == [(1, 1), (2, 2), (3, 3)]
    assert "process 0: xxx" in caplog.text


def test_a_process_that_dies_is_named_with_its_item() -> None:
    with pytest.raises(StoreError, match="exit code 9 while it was at die"):
        list(map_unordered(trouble, ["die", "die"], 2))


def test_whoever_stops_listening_ends_the_processes() -> None:
    before = spawned()
    results = map_unordered(square, [1, 2, 3], 2)
    next(results)
    mine = [p for p in spawned() if p not in before]
    assert mine
    results.close()  # type: ignore[attr-defined]
    assert not [p for p in mine if runs(p)]


PARENT = """
import sys, time
from rollmill.store.parallel import map_unordered
for _ in map_unordered(abs, [1, 2, 3], 2):
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_children_of_a_killed_parent_leave(tmp_path: Path) -> None:
    """Of a script without ``if __name__``: the children do not run it again."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    children = psutil.Process(parent.pid).children(recursive=True)
    assert len(children) >= 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not any(map(runs, children)), what="they leave")
