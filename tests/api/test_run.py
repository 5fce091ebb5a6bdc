"""Runs of every kind as Python sees them, and their metrics as a table."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from running import ROOT

import rollmill
from rollmill.api.metrics import Metrics
from rollmill.core.errors import ConfigError, MissingExtraError, RunFolderError, StoreError
from rollmill.core.run_kind import RunKind

OLD = ROOT / "tests" / "written_by_0_1"
matplotlib.use("Agg")


@pytest.mark.parametrize(
    ("folder", "kind", "drawn"),
    [
        ("online/target", "online", "episode/return"),
        ("offline/dt", "offline", "eval/return"),
        ("world/vae", "encoder", "validation/loss"),
        ("world/dynamics", "dynamics", "validation/loss"),
        ("world/controller", "controller", "search/best"),
    ],
)
def test_every_kind_of_run_opens(folder: str, kind: RunKind, drawn: str) -> None:
    run = rollmill.Run(OLD / folder)
    assert (run.kind, run.state) == (kind, "finished")
    assert type(run.config).__module__.startswith("rollmill.")
    metrics = run.metrics()
    assert metrics.rows > 0
    assert {len(column) for column in metrics.values()} == {metrics.rows}
    axes = run.plot()
    assert drawn in axes.get_ylabel()
    assert axes.get_xlabel() == metrics.axis
    assert axes.get_title() == run.path.name


def test_a_world_model_has_its_metrics_in_its_stages() -> None:
    world = rollmill.Run(OLD / "world")
    assert (world.kind, world.state, list(world.stages)) == ("world", "finished", ["vae", "dynamics", "controller"])
    with pytest.raises(RunFolderError, match="there are no metrics; its stages have, which are: vae, dynamics"):
        world.metrics()
    assert world.stages["dynamics"].metrics().rows > 0
    assert world.config.env.id


def test_the_data_of_a_run(tmp_path: Path) -> None:
    data = rollmill.Run(OLD / "online" / "target").data
    assert len(data) == len(data.episodes) > 0
    assert data.path == OLD / "online" / "target" / "data"
    assert len(rollmill.open_store(OLD / "online" / "target")) == len(data)
    window = data.windows(5, pad="left")[0]
    assert window["reward"].shape == (5,)
    assert len(data.transitions(columns=["reward"])) == data.table.steps
    assert data.episodes[-1].rewards.sum() == pytest.approx(data.episodes[-1].return_)
    shutil.copytree(OLD / "offline" / "dt", tmp_path / "dt")
    with pytest.raises(StoreError):
        _ = rollmill.Run(tmp_path / "dt").data


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no run"):
        rollmill.Run(tmp_path)


ROWS = [
    {"frames": 10, "time": 1.0, "learn/loss": 2.0},
    {"frames": 20, "time": 2.0, "learn/loss": None, "episode/return": 3},
    {"frames": 30, "time": 3.0, "learn/loss": 1.0, "episode/return": 4.5},
]


def test_columns_from_rows() -> None:
    metrics = Metrics.of_rows(ROWS)
    assert metrics.rows == 3
    assert metrics["frames"].dtype == np.int64
    np.testing.assert_array_equal(metrics["learn/loss"], [2.0, math.nan, 1.0])
    np.testing.assert_array_equal(metrics["episode/return"], [math.nan, 3.0, 4.5])
    with pytest.raises(KeyError, match="no metric 'episode/retur'; did you mean 'episode/return'"):
        _ = metrics["episode/retur"]
    assert Metrics.of_rows([]).rows == 0


def test_a_data_frame() -> None:
    frame = Metrics.of_rows(ROWS).to_pandas()
    assert frame.shape == (3, 4)
    assert frame["episode/return"].max() == 4.5


def test_what_is_drawn() -> None:
    metrics = Metrics.of_rows(ROWS)
    axes = metrics.plot("learn/loss", "episode/return", x="time")
    first, second = axes.get_lines()
    assert first.get_xdata().tolist() == [1.0, 3.0], "a row without the figure is left out"
    assert second.get_ydata().tolist() == [3.0, 4.5]
    assert metrics.plot(ax=axes) is axes
    assert len(axes.get_lines()) == 3
    with pytest.raises(ConfigError, match="name what to draw; there is: frames"):
        Metrics.of_rows([{"frames": 1}]).plot()


@pytest.mark.parametrize(("package", "call"), [("pandas", "to_pandas"), ("matplotlib.pyplot", "plot")])
def test_packages_that_are_not_there(monkeypatch: pytest.MonkeyPatch, package: str, call: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r'pip install "rollmill\[notebook\]"'):
        getattr(Metrics.of_rows(ROWS), call)()
