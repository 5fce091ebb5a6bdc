from __future__ import annotations

import csv
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.errors import LaunchError
from rollmill.launch.aggregate import RunResult, aggregate, band, common, importance, interval, score, t975, write_csv
from rollmill.launch.page import render
from rollmill.launch.progress import Curve


def write_run(folder: Path, settings: dict[str, object], values: list[float], state: str = "finished") -> None:
    folder.mkdir(parents=True)
    lines = [f"{key}: {json.dumps(value)}" for key, value in settings.items()]
    (folder / "config.yaml").write_text("\n".join(lines) + "\n")
    rows = [{"frames": 10 * (k + 1), "episode/return": v, "time/seconds": k + 1.0} for k, v in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "state.json").write_text(json.dumps({"state": state, "reason": "", "frames": 10 * len(values)}))


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    for gamma, rate, seed in [(g, r, s) for g in (0.9, 0.99) for r in (1, 2) for s in range(3)]:
        values = [gamma * 100 * k + rate + 0.1 * seed for k in range(20)]
        settings = {"run": {"seed": seed, "name": "x"}, "learning": {"gamma": gamma, "learning_rate": rate}}
        write_run(tmp_path / "exp" / f"run-{gamma}-{rate}-{seed}", settings, values)
    return tmp_path / "exp"


def test_runs_that_were_started_one_by_one_are_grouped_by_what_differs(experiment: Path) -> None:
    found = aggregate(experiment)
    assert [group.name for group in found.groups] == [
        *("gamma-0.99_learning_rate-2", "gamma-0.99_learning_rate-1"),
        *("gamma-0.9_learning_rate-2", "gamma-0.9_learning_rate-1"),
    ]
    best = found.groups[0]
    assert best.params == {"learning.gamma": 0.99, "learning.learning_rate": 2}
    assert len(best.runs) == 3
    assert best.score == pytest.approx(0.99 * 100 * 18 + 2 + 0.1), "the last tenth is three rows of twenty"
    assert best.mean[0] == pytest.approx(2.1)
    assert best.low[0] == pytest.approx(2.1 - t975(2) * 0.1 / math.sqrt(3))


def test_importance_is_shared_out_by_effect(experiment: Path) -> None:
    gamma, rate = aggregate(experiment).importance
    assert (gamma.param, rate.param) == ("learning.gamma", "learning.learning_rate")
    assert gamma.share > 0.98
    assert rate.share < 0.01
    assert [level[0] for level in gamma.levels] == ["0.99", "0.9"]


def made(params: dict[str, object], value: float | None) -> RunResult:
    return RunResult("r", "g", params, "finished", Curve([], []), value, 0, None, None)


def test_importance_sees_small_effects_beside_large_ones_and_none_in_noise() -> None:
    rng = np.random.default_rng(0)
    runs = [
        made({"a": a, "b": b, "noise": n, "run.seed": s}, 10 * a + 3 * b + rng.normal(0, 0.1))
        for a in (0, 1)
        for b in (0, 1, 2)
        for n in ("x", "y")
        for s in range(3)
    ]
    shares = {item.param: item.share for item in importance(runs)}
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert shares["b"] == pytest.approx(9 * (2 / 3) / (9 * (2 / 3) + 25), abs=0.02)
    assert shares["noise"] < 0.01
    assert importance(runs[:2]) == ()
    assert importance([made({"a": 1}, 1.0), made({"a": 1}, 2.0), made({"a": 1}, 3.0)]) == ()
    many = importance([made({"a": x / 10, "b": x % 2}, float(x)) for x in range(40)])
    assert [len(item.levels) for item in many] == [4, 2], "forty values become quarters"


def test_importance_is_near_nothing_where_there_is_only_chance() -> None:
    rng = np.random.default_rng(0)
    shares = [importance([made({"a": k % 6}, rng.normal()) for k in range(30)])[0].share for _ in range(50)]
    assert np.mean(shares) < 0.08, "six levels explain 5 of 29 parts of any noise; that is taken off"


@given(st.lists(st.lists(st.floats(-100, 100), min_size=5, max_size=5), min_size=2, max_size=6))
def test_bands_agree_with_numpy(rows: list[list[float]]) -> None:
    values = np.array(rows)
    mean, low, high, count = band(values)
    n = len(rows)
    half = t975(n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
    np.testing.assert_allclose(mean, values.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(high - mean, half, atol=1e-6)
    np.testing.assert_allclose(mean - low, half, atol=1e-6)
    assert list(count) == [n] * 5


def test_places_count_only_the_runs_that_got_there() -> None:
    frames, values = common([Curve([10, 20, 30], [1, 2, 3]), Curve([10, 20], [3, 4]), Curve([], [])], points=5)
    assert list(frames) == [10, 15, 20, 25, 30]
    mean, low, _, count = band(values)
    assert list(count) == [2, 2, 2, 1, 1]
    assert list(mean) == [2, 2.5, 3, 2.5, 3]
    assert np.isnan(low[3])
    assert np.isfinite(low[:3]).all()


def test_quantiles_of_student() -> None:
    known = {1: 12.706, 4: 2.776, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}
    assert {n: round(t975(n), 3) for n in known} == known
    with pytest.raises(ValueError, match="degree of freedom"):
        t975(0)
    assert interval(np.array([3.0])) == (3.0, None)
    assert score(Curve([], [])) is None


def test_tables_for_other_programs(experiment: Path, tmp_path: Path) -> None:
    curves, runs, groups = write_csv(aggregate(experiment), tmp_path / "out")
    rows = list(csv.DictReader(curves.open()))
    assert len(rows) == 4 * 200
    assert rows[0]["group"] == "gamma-0.99_learning_rate-2"
    assert rows[0]["runs"] == "3"
    table = list(csv.DictReader(runs.open()))
    assert len(table) == 12
    assert table[0]["learning.gamma"] == "0.9"
    assert table[0]["run.seed"] == "0"
    assert [row["runs"] for row in csv.DictReader(groups.open())] == ["3"] * 4
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be written"):
        write_csv(aggregate(experiment), tmp_path / "file")


def test_the_page_is_one_well_formed_file_and_escapes_names(experiment: Path) -> None:
    write_run(experiment / "odd", {"run": {"seed": 0}, "env": {"id": "<script>alert(1)</script>"}}, [])
    page = render(aggregate(experiment))
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert len(root.findall(".//svg")) == 5, "all groups together, and each of the four that have a curve"
    assert page.count('class="band') >= 4
    assert "gamma-0.99" in page


def test_nothing_to_report(tmp_path: Path, experiment: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LaunchError, match="no runs in it"):
        aggregate(tmp_path / "empty")
    with pytest.raises(LaunchError, match=r"no run has the metric 'nothing'; there are: episode/return, frames"):
        aggregate(experiment, "nothing")
