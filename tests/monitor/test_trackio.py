"""Trackio: what it has of a run, where it is installed (``make consumers``), and what is refused where it is not."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from rollmill.core.errors import MissingExtraError
from rollmill.monitor.trackio import TrackioSettings, TrackioSink, require_trackio
from rollmill.monitor.wandb import TrackedRun

INSTALLED = importlib.util.find_spec("trackio") is not None


def test_a_run_is_found_by_its_api_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    wanted, about = TrackioSettings(on=True, project="poles"), TrackedRun("pole", "CartPole-v1", {"gamma": 0.5})
    for frames in (10, 20):  # the second is a resumed session
        sink = TrackioSink(tmp_path / "run", wanted, about)
        sink.write(frames, {"learn/kl": frames / 100, "lost": math.nan})
        sink.close()
        sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.write(30, {})
    [name] = SQLiteStorage.get_runs("poles")
    assert name.startswith("pole-")
    rows = SQLiteStorage.get_logs("poles", name)
    assert [(row["step"], row["learn/kl"]) for row in rows] == [(10, 0.1), (20, 0.2)]
    assert not any("lost" in row for row in rows)
    config = SQLiteStorage.get_run_config("poles", name)
    assert config is not None
    assert (config["gamma"], config["_Group"]) == (0.5, "CartPole-v1")
    assert capsys.readouterr().out == "", "the console is the run's"


@pytest.mark.skipif(INSTALLED, reason="Trackio is installed")
def test_without_the_package_nothing_starts() -> None:
    require_trackio(TrackioSettings())
    with pytest.raises(MissingExtraError, match=r"pip install \"rollmill\[trackio\]\""):
        require_trackio(TrackioSettings(on=True))


def test_a_project_needs_a_name() -> None:
    with pytest.raises(ValueError, match="no name for a project"):
        TrackioSettings(project="a/b")
