"""``rollmill runs``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from running import SERIAL, Call, train_here

from rollmill.core.run_folder import RunFolder

WORDS = (*SERIAL, "env=toy_target", "stop.batches=1")


@pytest.fixture
def two(tmp_path: Path, call: Call) -> list[Path]:
    """Two runs below ``runs``; the second one is newer."""
    folders = []
    for name, gamma in (("one", 0.9), ("two", 0.99)):
        _, run = train_here(Path("runs"), *WORDS, f"run.name={name}", f"learning.gamma={gamma}")
        folders.append(run.path)
    return folders


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_list(call: Call, two: list[Path]) -> None:
    done = call("runs")
    assert done.code == 0
    head, *rows, empty, total = done.out.splitlines()
    assert head.split() == ["run", "state", "kind", "env", "frames", "return", "changed", "size"]
    assert {row.split()[0] for row in rows} == {"x/one", "x/two"}
    assert all(row.split()[1:4] == ["finished", "online", "toy_target"] for row in rows)
    assert (empty, total[:7]) == ("", "2 runs,")
    assert [row["run"] for row in call("runs", "tw", "finished", "--json").json] == ["x/two"]  # type: ignore[index]
    assert call("runs", "doom").out == "no run below runs fits ['doom']\n"
    assert "  diff  compare two runs" in call("runs", "--help").out


def test_nothing_there_yet(call: Call) -> None:
    done = call("runs")
    assert done.code == 2
    assert done.err == "rollmill runs: runs: there is no such folder of runs; --root names another one\n"


def test_compare(call: Call, two: list[Path]) -> None:
    done = call("runs", "diff", "one", "x/two")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["settings", "x/one", "x/two"]
    assert lines[1] == ["learning.gamma", "0.9", "0.99"]
    assert lines[2] == ["results"]
    assert lines[3] == ["state", "finished", "finished"]
    assert call("runs", "diff", "one", "two", "--json").json["settings"] == {"learning.gamma": [0.9, 0.99]}
    assert "(no setting differs)" in call("runs", "diff", "one", "one").out
    assert "no run 'three'" in call("runs", "diff", "one", "three").err


def test_remove(call: Call, two: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two
    answer(monkeypatch, "n\n")
    refused = call("runs", "rm", "one")
    assert refused.code == 1
    assert "remove 1 run, " in refused.err
    assert refused.err.endswith("? [y/N] nothing was removed\n")
    answer(monkeypatch, "")  # a job without a terminal
    assert call("runs", "rm", "one").code == 1
    assert one.is_dir()
    answer(monkeypatch, "y\n")
    done = call("runs", "rm", "one", "x/one")
    assert done.code == 0
    assert done.out.startswith("removed 1 run, ")
    assert done.out.endswith(" freed\n")
    assert not one.exists()
    removed = call("runs", "rm", str(other), "--yes", "--json").json
    assert removed["removed"] == [str(other.absolute())]
    assert not other.exists()
    assert call("runs", "rm").code == 2


def test_nothing_is_removed_if_one_of_them_must_stay(call: Call, two: list[Path]) -> None:
    one, other = two
    with RunFolder.create(other, "resume", min_free_mb=0):
        busy = call("runs", "rm", "x/*", "--yes")
    assert busy.code == 2
    assert "two: not removed: in use by pid" in busy.err
    (other / "notes.txt").write_text("mine")
    assert "it holds what no run writes (notes.txt)" in call("runs", "rm", "x/*", "--yes").err
    project = Path("project")
    project.mkdir()
    (project / "config.yaml").touch()
    assert "it does not look like a run" in call("runs", "rm", "one", "project", "--yes").err
    assert one.is_dir()
    assert other.is_dir()
    assert project.is_dir()
