"""Metrics as columns: every row, nothing rounded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rollmill.viewer.columns import Columns, read_columns

ROWS = [
    {"frames": 2**24 + 1, "time": 1.0, "episode/return": 0.1},
    {"frames": 2**53 - 1, "time": 2.0, "learn/loss": 3},
    {"frames": 10, "episode/return": None, "unit": "x", "time/main_answer": True},
]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_row_has_its_place(tmp_path: Path) -> None:
    file = write(tmp_path / "metrics.jsonl", ROWS)
    with open(file, "a") as text:
        text.write('no row\n[1]\n{"frames": 1' + "0" * 400 + '}\n{"torn": 1')
    found = read_columns(file)
    assert found["frames"][:3].tolist() == [2**24 + 1, 2**53 - 1, 10], "float32 would round them"
    np.testing.assert_equal(found["episode/return"], [0.1, np.nan, np.nan, np.nan])
    np.testing.assert_equal(found["learn/loss"][:2], [np.nan, 3])
    assert "time/main_inference" in found, "by its name of today"
    assert "torn" not in found
    assert {len(column) for column in found.values()} == {4}


def test_columns_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    file = write(tmp_path / "metrics.jsonl", ROWS)
    columns = Columns(tmp_path)
    first = columns.read(file, ["frames"])[0]
    assert columns.read(file, ["frames"])[0] is first
    write(file, [*ROWS, ROWS[0]])
    assert len(columns.read(file, ["frames", "no such"])[1]) == 4


def test_memory_has_a_limit(tmp_path: Path) -> None:
    columns = Columns(tmp_path, memory_bytes=1000)
    files = [write(tmp_path / f"{k}.jsonl", ROWS * 20) for k in range(5)]
    for file in files:
        columns.read(file, ["frames"])
    assert len(columns._kept) == 1
    assert columns._bytes == sum(column.nbytes for column in read_columns(files[0]).values())


def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    write(tmp_path / "secret.jsonl", ROWS)
    (tmp_path / "root" / "metrics.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(OSError, match="leads out of"):
        Columns(tmp_path / "root").read(tmp_path / "root" / "metrics.jsonl", ["frames"])
    assert Columns(tmp_path).read(tmp_path / "none", ["frames"])[0].size == 0
