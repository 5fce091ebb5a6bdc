"""Values made of files are kept until a file changes."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rollmill.viewer.index import Index


class Reader:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, path: Path) -> Any:
        self.calls += 1
        return {"text": path.read_text()}


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    file, base, read = tmp_path / "a", tmp_path / "cache" / "index.sqlite", Reader()
    file.write_text("one")
    index = Index(base)
    assert index.recall(file, "text", read) == index.recall(file, "text", read) == {"text": "one"}
    index.close()
    index = Index(base)
    assert index.recall(file, "text", read) == {"text": "one"}
    assert read.calls == 1
    file.write_text("three")
    assert index.recall(file, "text", read) == {"text": "three"}
    assert index.recall(tmp_path / "none", "text", read) is None


def test_another_file_of_the_same_size_and_time_is_another_file(tmp_path: Path) -> None:
    file, new, index, read = tmp_path / "a", tmp_path / "b", Index(None), Reader()
    file.write_text("one")
    index.recall(file, "text", read)
    new.write_text("two")
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    new.replace(file)
    assert index.recall(file, "text", read) == {"text": "two"}


def test_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    base, read = tmp_path / "index.sqlite", Reader()
    for name in ("run", "run_2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("x")
    index = Index(base)
    for name in ("run", "run_2"):
        index.recall(tmp_path / name / "a", "text", read)
    index.save()
    index.forget(tmp_path / "run")
    index.close()
    with sqlite3.connect(base) as found:
        assert [Path(path).parent.name for (path,) in found.execute("SELECT path FROM facts")] == ["run_2"]


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""])
def test_a_damaged_index_is_made_anew(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    base, file, read = tmp_path / "index.sqlite", tmp_path / "a", Reader()
    base.write_bytes(content)
    file.write_text("x")
    with caplog.at_level(logging.WARNING):
        index = Index(base)
    assert ("is damaged" in caplog.text) == bool(content)
    index.recall(file, "text", read)
    index.close()
    assert Index(base).recall(file, "text", read) == {"text": "x"}
    assert read.calls == 1


def test_a_value_that_is_no_json_any_more_is_read_anew(tmp_path: Path) -> None:
    base, file, read = tmp_path / "index.sqlite", tmp_path / "a", Reader()
    file.write_text("x")
    index = Index(base)
    index.recall(file, "text", read)
    index.close()
    with sqlite3.connect(base) as found:
        found.execute("UPDATE facts SET value = '{'")
    found.close()
    assert Index(base).recall(file, "text", read) == {"text": "x"}


def test_without_a_place_for_it_the_index_is_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        index = Index(tmp_path / "file" / "index.sqlite")
    assert "cannot be kept" in caplog.text
    assert index.recall(tmp_path / "file", "size", lambda path: path.stat().st_size) == 0


def test_names_of_files_need_not_be_text(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    file.write_text(json.dumps(1))
    index = Index(tmp_path / "index.sqlite")
    assert index.recall(file, "text", Reader()) == {"text": "1"}
    index.save()
