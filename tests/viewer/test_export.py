"""A copy of the pages: what cannot be read is named, and the rest is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from experimenting import online, write_run

pytest.importorskip("uvicorn")
from viewing import counting_store, launched, population_run

from rollmill.cli.main import main
from rollmill.viewer.catalog import Catalog
from rollmill.viewer.export import export
from rollmill.viewer.index import Index


def test_damage_does_not_cost_the_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "runs"
    write_run(root / "exp" / "good", online(), [1.0])
    counting_store(root / "sound", (3, 4))
    counting_store(root / "broken", (3,))
    (root / "broken" / "store.json").write_text("{")
    launched(root / "grid", gammas=(0.5,), seeds=1)
    (root / "grid" / "launch" / "plan.json").write_text("[]")
    population_run(root / "pop" / "three")
    (root / "pop" / "three" / "population.jsonl").write_text("nonsense\n")
    counting_store(root / "bad_report", (3,))
    (root / "bad_report" / "report.json").write_text("{")
    copied = export(Catalog(root, Index(None)), tmp_path / "copy", episodes=1)
    assert (copied.runs, copied.episodes) == (3, 2)
    assert {problem.partition(":")[0] for problem in copied.problems} == {"broken", "grid", "pop/three", "bad_report"}
    assert str(tmp_path) not in copied.path.read_text()
    assert main(["view", str(root), "--export", str(tmp_path / "other"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["problems"] == list(copied.problems)
    assert said.err.count("warning: not in the copy: ") == 4
