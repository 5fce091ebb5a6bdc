"""Curves of world models: training and held out in different colours, on axes that hide nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from rollmill.reports.run.report import write_run_report
from rollmill.reports.run.world import (
    PLOTS,
    GenerationRow,
    metric_curves,
    read_records,
    search_plots,
    stages_table,
    write_generations,
)


def rows(first: float) -> list[dict[str, float]]:
    """A loss that begins at ``first`` and then falls from 2 to 1; held out it is higher."""
    training = [first, *(2 - k / 50 for k in range(50))]
    return [{"frames": 10 * k, "learn/loss": y, "validation/loss": 1.1 * y} for k, y in enumerate(training)]


def test_training_and_held_out_share_a_plot_and_have_colours_and_a_legend() -> None:
    text = metric_curves(rows(2.0))
    assert text.count("<svg") == 1
    assert 'class="line c0"' in text
    assert 'class="line c1"' in text
    assert "<span>training</span>" in text
    assert "<span>held out</span>" in text


def test_the_first_values_are_drawn_where_they_are() -> None:
    """A tenth of the values lies above the ninetieth percentile: they must not become one flat line."""
    falling = [{"frames": k, "learn/loss": 100.0 - k} for k in range(100)]
    (path,) = re.findall(r'class="line" d="M([^"]*)"', metric_curves(falling))
    heights = [float(point.split()[1]) for point in path.split("L")]
    assert len(set(heights)) == 100
    assert "logarithmic axis" in metric_curves(rows(100.0))
    assert "The same from 130 on" in metric_curves(rows(10_000.0)), "there a logarithm would still be flat"


def test_metrics_that_exist_on_one_side_only_say_which() -> None:
    text = metric_curves([{"frames": k, "validation/pixel_error": 1.0 / (k + 1)} for k in range(4)])
    assert ">held out</text>" in text
    assert "legend" not in text
    assert metric_curves([{"frames": 1, "learn/loss": 2.0, "learn/learning_rate": 1.0}]) == "", "one point is no curve"


def test_metrics_that_have_a_curve_are_not_drawn_again(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("encoder: {}\nimages: {}\n")
    metrics = [{**row, "learn/learning_rate": 0.1, "time/seconds": 1.0} for row in rows(2.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    text = write_run_report(tmp_path).read_text()
    assert "<summary>2 more curves</summary>" in text
    assert text.count('aria-label="loss over updates"') == 1


def test_the_plots_of_a_search_are_shown(tmp_path: Path) -> None:
    write_generations(tmp_path, [])
    assert search_plots(tmp_path) == ""
    champions = (None, None, None), (3.0, 2.5, 3.0), (None, None, 3.0)
    rows = [GenerationRow(k + 1, 100 * k, 400 * k, 1.0, 1.0 * k, 2.0 * k, 0.0, 0.1, 0, *champions[k]) for k in range(3)]
    write_generations(tmp_path, rows)
    text = search_plots(tmp_path)
    assert text.count("<svg") == 2
    assert text.count('class="band c0"') == 2
    assert len(re.findall(r'class="point c1" d="M[^M"]*"', text)) == 2, "one evaluation, two plots"
    assert all(title in text for title in (">generations<", ">environment steps<"))
    for name in PLOTS.values():
        ElementTree.parse(tmp_path / name)


def test_a_search_of_one_generation_has_plots(tmp_path: Path) -> None:
    write_generations(tmp_path, [GenerationRow(1, 9, 9, 1.0, 1.0, 2.0, 0.0, 0.1, 0, None, None, None)])
    assert 'class="point c0"' in search_plots(tmp_path)


def test_that_no_signal_came_is_no_outcome(tmp_path: Path) -> None:
    """A stage that a signal has ended says so by its number."""
    (tmp_path / "stages").mkdir()
    for name, signal in (("vae", 0), ("dynamics", 15)):
        record = {"state": "done", "seconds": 3.0, "result": {"steps": 40, "signal": signal}}
        (tmp_path / "stages" / f"{name}.json").write_text(json.dumps(record))
    text = stages_table(read_records(tmp_path))
    assert "steps 40</td>" in text
    assert "steps 40, signal 15</td>" in text
