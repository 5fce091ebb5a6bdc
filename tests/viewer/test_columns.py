"""Metrics as columns: every row, nothing rounded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.fields import Array
from rollmill.monitor.jsonl import new_name
from rollmill.viewer.columns import Columns, columns_in, is_row, names_in, read_columns
from rollmill.viewer.index import stamp_of

ROWS = [
    {"frames": 2**24 + 1, "time": 1.0, "episode/return": 0.1},
    {"frames": 2**53 - 1, "time": 2.0, "learn/loss": 3},
    {"frames": 10, "episode/return": None, "unit": "x", "time/main_answer": 5},
]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_all(path: Path, *names: str) -> dict[str, Array]:
    return read_columns(path, names, path.stat().st_size)


def test_every_row_has_its_place(tmp_path: Path) -> None:
    file = write(tmp_path / "metrics.jsonl", ROWS)
    with open(file, "a") as text:
        text.write('no row\n[1]\n{"frames": 1' + "0" * 400 + '}\n{"torn": 1')
    found = read_all(file, "frames", "episode/return", "learn/loss", "time/main_inference", "torn", "unit")
    assert found["frames"][:3].tolist() == [2**24 + 1, 2**53 - 1, 10], "float32 would round them"
    np.testing.assert_equal(found["episode/return"], [0.1, np.nan, np.nan, np.nan])
    np.testing.assert_equal(found["learn/loss"][:2], [np.nan, 3])
    assert found["time/main_inference"][2] == 5, "by its name of today"
    assert all(np.isnan(found[name]).all() for name in ("torn", "unit"))
    assert {len(column) for column in found.values()} == {4}
    rows = [line for line in file.read_bytes().split(b"\n")[:-1] if is_row(line)]
    assert names_in(rows) == ["frames", "time", "episode/return", "learn/loss", "time/main_inference"]


NAMES = st.text(min_size=1, max_size=5)
VALUES = st.none() | st.floats() | st.integers(-(2**60), 2**60)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=6), st.booleans())
def test_columns_are_those_of_a_reader_of_json(rows: list[dict[str, float | None]], close: bool) -> None:
    lines = [json.dumps(row, separators=(",", ":") if close else None).encode() for row in rows]
    named = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in named if new_name(name) == name and name not in map(new_name, set(named) - {name})]
    found = columns_in(lines, names)
    for name in names:
        wanted = [float("nan") if row.get(name) is None else float(row[name]) for row in rows]
        np.testing.assert_equal(found[name], [value if np.isfinite(value) else np.nan for value in wanted])
    numbers = {new_name(n) for row in rows for n, value in row.items() if value is not None and np.isfinite(value)}
    assert numbers <= set(names_in(lines)) <= set(map(new_name, named))


def test_columns_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    file = write(tmp_path / "metrics.jsonl", ROWS)
    columns = Columns(tmp_path)
    first = columns.read(file, ["frames"])[0]
    assert columns.read(file, ["frames"])[0] is first
    assert columns.read(file, ["time", "frames"])[1] is first, "what is asked for later is read beside it"
    write(file, [*ROWS, ROWS[0]])
    assert len(columns.read(file, ["frames", "no such"])[1]) == 4


def test_columns_of_one_answer_are_of_one_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file grows, or is replaced, between the look at its size and the reading of another column."""
    file = write(tmp_path / "metrics.jsonl", ROWS)
    columns = Columns(tmp_path)
    columns.read(file, ["frames"])
    old = stamp_of(file)
    monkeypatch.setattr("rollmill.viewer.columns.stamp_of", lambda _: old)
    write(file, [*ROWS, *ROWS])
    assert {len(column) for column in columns.read(file, ["frames", "time"])} == {3}
    write(file, ROWS[:1])
    assert {len(column) for column in columns.read(file, ["frames", "learn/loss"])} == {1}


def test_memory_has_a_limit(tmp_path: Path) -> None:
    columns = Columns(tmp_path, memory_bytes=1000)
    files = [write(tmp_path / f"{k}.jsonl", ROWS * 20) for k in range(5)]
    for file in files:
        columns.read(file, ["frames", "time"])
    assert len(columns._kept) == 1
    assert columns._bytes == 2 * 8 * 20 * len(ROWS)


def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    write(tmp_path / "secret.jsonl", ROWS)
    (tmp_path / "root" / "metrics.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(OSError, match="leads out of"):
        Columns(tmp_path / "root").read(tmp_path / "root" / "metrics.jsonl", ["frames"])
    assert Columns(tmp_path).read(tmp_path / "none", ["frames"])[0].size == 0
