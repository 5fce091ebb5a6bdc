"""W&B without a network: what is written, what is refused, and that a resumed run is the same run there."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from running import ROOT, SERIAL, rows_of, train_here

from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.wandb import TrackedRun, WandbSettings, WandbSink, require_wandb
from rollmill.runs.settings.train import TrainConfig

pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def records(folder: Path) -> str:
    """Everything in the files of offline runs, as text to search in."""
    files = sorted(folder.glob("offline-run-*/*.wandb"))
    assert files, list(folder.iterdir())
    return "\n".join(path.read_bytes().decode("latin1") for path in files)


def test_an_offline_run_of_a_training(tmp_path: Path) -> None:
    words = ("env=toy_target", "stop.batches=6", "wandb=true", "wandb.mode=offline", "wandb.project=mine")
    words += ("wandb.tags=[fast, small]", "wandb.job_type=test", "wandb.entity=team")
    _, folder = train_here(tmp_path, *SERIAL, *words)
    text = records(folder.path / "wandb")
    for word in ("episode/return", "learn/kl", "frames", "fast", "small", "mine", "team"):
        assert word in text, word
    assert "toy_target" in text, "the group is the environment's name unless another is given"
    assert f"wandb sync {folder.path}/wandb/offline-run-" in folder.log.read_text()
    ids = {path.name.rpartition("-")[2] for path in (folder.path / "wandb").glob("offline-run-*")}

    train_here(tmp_path, *SERIAL, *words, "stop.batches=8", mode="resume")
    again = {path.name.rpartition("-")[2] for path in (folder.path / "wandb").glob("offline-run-*")}
    assert again == ids == {(folder.path / "wandb" / "run_id.txt").read_text().strip()}
    train_here(tmp_path, *SERIAL, "env=toy_target", "stop.batches=1", mode="overwrite")  # its files are a run's


def test_a_sink(tmp_path: Path) -> None:
    sink = WandbSink(
        tmp_path / "wandb", WandbSettings(on=True, mode="offline", group="given"), TrackedRun("name", "other")
    )
    assert sink.link.startswith("offline")
    sink.write(10, {"kl": math.nan, "good/figure": 1.5})
    sink.close()
    sink.close()
    text = records(tmp_path / "wandb")
    assert "good/figure" in text
    assert "given" in text
    assert "NaN" not in text
    with pytest.raises(ValueError, match="closed"):
        sink.write(11, {})


def test_the_agent_of_a_sweep_says_which_run_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "given1")
    WandbSink(tmp_path / "wandb", WandbSettings(on=True, mode="offline"), TrackedRun("name", "group")).close()
    assert (tmp_path / "wandb" / "run_id.txt").read_text().strip() == "given1"
    assert [path.name.rpartition("-")[2] for path in (tmp_path / "wandb").glob("offline-run-*")] == ["given1"]


def test_online_without_a_login_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"W&B: .*wandb login.*wandb\.mode=offline"):
        WandbSink(tmp_path / "wandb", WandbSettings(on=True), TrackedRun("name", "group"))


def test_without_the_package_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "wandb" else find(name, *a))
    with pytest.raises(MissingExtraError, match=r'pip install "rollmill\[wandb\]"'):
        train_here(tmp_path, *SERIAL, "env=toy_target", "wandb.on=true")
    assert not (tmp_path / "x").exists()
    require_wandb(WandbSettings())  # not asked for


def test_a_project_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="no name for a project"):
        load_config(TrainConfig, [], ["wandb.project=a/b"])


def test_the_sweep_of_the_docs_is_run_by_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B's own agent runs the page's command; only its server is left out."""
    from wandb.wandb_agent import Agent

    (block,) = re.findall(r"```yaml\n(program: .*?)```", (ROOT / "docs" / "sweeps.md").read_text(), re.DOTALL)
    sweep = yaml.safe_load(block)
    own = tmp_path / "bin" / "rollmill"
    own.parent.mkdir()
    more = "wandb.mode=offline stop.batches=1 sampling.mode=serial sampling.workers=1 report.page=false"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m rollmill.cli.main "$@" {more}\n')
    own.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{own.parent}:{os.environ['PATH']}")
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_SWEEP_ID"):
        monkeypatch.setenv(name, "x")  # the agent sets them for good
    agent = Agent.__new__(Agent)
    agent._sweep_command, agent._function, agent._in_jupyter = list(sweep["command"]), None, False
    agent._forward_signals, agent._run_processes = False, {}
    chosen = {"learning.learning_rate": 0.0007, "learning.gamma": 0.98}
    assert chosen.keys() == sweep["parameters"].keys()
    args = {key: {"value": value} for key, value in chosen.items()}
    agent._command_run({"run_id": "abc123", "program": sweep["program"], "args": args})
    assert agent._run_processes["abc123"].wait() == 0
    run = RunFolder(tmp_path / "runs" / "sweep" / "abc123")
    config = load_config(TrainConfig, (run.config,), ())
    assert (config.learning.learning_rate, config.learning.gamma) == (0.0007, 0.98)
    assert config.wandb.project == "poles"
    assert sweep["metric"]["name"] in rows_of(run)[-1]
    assert (run.path / "wandb" / "run_id.txt").read_text().strip() == "abc123"
