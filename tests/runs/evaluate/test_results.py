"""Rows on disk: there as episodes end, in order and whole at the end."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from rollmill.core.errors import RunFolderError
from rollmill.runs.evaluate.results import (
    COLUMNS,
    CsvFile,
    EpisodeRow,
    EvalResult,
    Score,
    Video,
    document,
    table,
    write_document,
)


def row(number: int, value: float = 1.0) -> EpisodeRow:
    return EpisodeRow(number, 0, 100 + number, value, 5, True)


def result(name: str = "a/b.ckpt", **more: object) -> EvalResult:
    return EvalResult(name, 10, "toy", Score([row(0), row(1, 2.0)]), **more)  # type: ignore[arg-type]


def test_rows_stand_there_as_they_end_and_in_order_when_all_have(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    with CsvFile(path) as file:
        file.begin("c", 9, "policy")
        file.add([row(3), row(1)], {"done": 2})
        lines = path.read_text().splitlines()
        assert lines[0] == ",".join(COLUMNS)
        assert [line.split(",")[3] for line in lines[1:]] == ["3", "1"]
        progress = json.loads((tmp_path / "x.csv.progress.json").read_text())
        assert (progress["state"], progress["rows"], progress["done"]) == ("running", 2, 2)
        file.keep(Score([row(1), row(3)]))
        file.begin("c", 9, "random")
        file.add([row(0)], {})
        file.keep(Score([row(0)]))
    with open(path, newline="") as read:
        rows = list(csv.DictReader(read))
    assert [(r["policy"], r["episode"], r["seed"]) for r in rows] == [
        ("policy", "1", "101"),
        ("policy", "3", "103"),
        ("random", "0", "100"),
    ]
    assert json.loads((tmp_path / "x.csv.progress.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt, "interrupted"), (RuntimeError, "failed")])
def test_what_had_ended_stays_after_a_failure(tmp_path: Path, error: type[BaseException], state: str) -> None:
    path = tmp_path / "x.csv"

    def play() -> None:
        with CsvFile(path) as file:
            file.add([row(2)], {})
            raise error

    with pytest.raises(error):
        play()
    assert len(path.read_text().splitlines()) == 2
    assert json.loads((tmp_path / "x.csv.progress.json").read_text())["state"] == state


def test_a_disk_that_is_full_is_named() -> None:
    with pytest.raises(RunFolderError, match=r"/dev/full: rows cannot be written: No space left"):
        CsvFile(Path("/dev/full"))


def test_the_document_of_one_and_of_several(tmp_path: Path) -> None:
    assert document([result()])["mean"] == 1.5
    assert [entry["checkpoint"] for entry in document([result(), result("c.ckpt")])["results"]] == [
        "a/b.ckpt",
        "c.ckpt",
    ]
    write_document(tmp_path / "x.json", [result()])
    assert json.loads((tmp_path / "x.json").read_text()) == json.loads(json.dumps(document([result()])))
    with pytest.raises(RunFolderError, match="the result cannot be written"):
        write_document(tmp_path / "missing/x.json", [result()])


def test_own_metrics_have_columns_where_there_are_several_checkpoints() -> None:
    one = EvalResult(
        "a.ckpt", 1, "toy", Score([row(0), row(1)], stats={(0, 0): {"success": 1.0}, (1, 0): {"success": 0.0}})
    )
    other = EvalResult("b.ckpt", 1, "toy", Score([row(0)]))
    _, head, *lines = [line.split() for line in table([one, other]).splitlines()]
    assert head[-1] == "success"
    assert [line[-1] for line in lines] == ["0.5", "-"]


def test_the_table_names_videos_and_what_was_lost() -> None:
    videos = [Video("v/a.mp4", "a", [0], 30.0), Video("v/b.mp4", "a", [1], 30.0, "it did not repeat")]
    text = table([EvalResult("a.ckpt", 1, "toy", Score([row(0)], lost=2), videos=videos)])
    assert "; 2 more were lost by faults" in text
    assert text.endswith("video v/a.mp4\nno video v/b.mp4: it did not repeat")
