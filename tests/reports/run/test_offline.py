"""Pages about offline policies, made from files alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmill.reports.html.document import kind_of
from rollmill.reports.run.offline import Video, write_comparison
from rollmill.reports.run.report import write_run_report
from rollmill.reports.run.results import Results, Row


def write_run(folder: Path, losses: list[float], rising: bool) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text("algorithm: dt\nfit: {}\n")
    rows = [
        {"frames": 10 * k, "learn/loss": 1.0, "validation/loss": y, "validation/rising": float(rising)}
        for k, y in enumerate(losses, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("rising", [True, False])
def test_a_loss_that_has_risen_is_told(tmp_path: Path, rising: bool) -> None:
    page = write_run_report(write_run(tmp_path / "dt", [3.0, 1.0, 2.0, 2.5], rising))
    assert kind_of(page) == "offline"
    text = page.read_text()
    assert ("Held-out loss has risen since update 20, from 1 to 2.5" in text) == rising
    assert ">lowest<" in text, "where it was lowest is pointed out in either case"
    assert "It was not evaluated in its environment" in text


def test_policies_side_by_side_with_their_videos(tmp_path: Path) -> None:
    video = tmp_path / "report" / "one.mp4"
    video.parent.mkdir()
    video.write_bytes(b"film")
    results = Results("an <env>", [Row.of("dt", [1.0, 2.0], target=2.0), Row.of("random", [0.0, 1.0])])
    page = write_comparison(tmp_path / "report.html", results, [Video("dt, asked for 2", video)], "2 episodes")
    text = page.read_text()
    assert kind_of(page) == "comparison"
    assert "<title>an &lt;env&gt;</title>" in text
    assert "data:video/mp4;base64,ZmlsbQ==" in text
    assert '<a href="report/one.mp4">' in text
    assert "<figcaption>dt, asked for 2</figcaption>" in text
