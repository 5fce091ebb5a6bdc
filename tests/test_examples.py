"""Runs the examples as a user would, in one process and with fewer frames, and looks at what they reached."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dreaming import line_model
from running import ROOT

from rollmill.launch.experiment import load_experiment
from rollmill.launch.plan import make_plan
from rollmill.runs.launching import check_run
from rollmill.worldmodel.controller.nets import build_own
from rollmill.worldmodel.encoder.file import build_encoder

EXAMPLES = ROOT / "examples"


def run_example(name: str, folder: Path, *overrides: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(rows of metrics, how it ended) of one example, run as a program by this interpreter."""
    words = [str(EXAMPLES / name), "sampling.mode=serial", f"run.dir={folder}", *overrides]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(words[0], run_name="__main__")
    assert ended.value.code == 0
    run = folder / "examples" / Path(name).stem
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return rows, json.loads((run / "state.json").read_text())


def test_an_example_is_a_program(tmp_path: Path) -> None:
    words = [sys.executable, str(EXAMPLES / "own_env.py"), f"run.dir={tmp_path}", "stop.batches=1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "examples/own_env/state.json").read_text())["state"] == "finished"


def test_own_env_learns_to_walk_to_the_end(tmp_path: Path) -> None:
    rows, state = run_example("own_env.py", tmp_path, "stop.frames=8_000")
    assert state["state"] == "finished"
    assert rows[0]["episode/return"] < 0, "a random walk does not get there quickly"
    assert rows[-1]["episode/return"] > 0.2, "4 to 8 steps at -0.1, then 1"


def test_own_model_learns_to_see(tmp_path: Path) -> None:
    rows, state = run_example("own_model.py", tmp_path, "stop.frames=8_000")
    assert state["state"] == "finished"
    assert rows[-1]["episode/return"] > 6, "random actions reach 2.5"


def test_own_learner_learns_to_balance(tmp_path: Path) -> None:
    rows, state = run_example("own_learner.py", tmp_path, "stop.frames=20_000")
    assert state["state"] == "finished"
    assert rows[-1]["episode/return"] > 80, "random actions reach 22"
    assert rows[-1]["learn/entropy"] < rows[0]["learn/entropy"]


def test_an_own_model_with_memory_and_arguments(tmp_path: Path) -> None:
    changes = ("model.memory=gru", "model.hidden_size=16", "model.custom_args.cells=3", "stop.batches=1")
    _, state = run_example("own_model.py", tmp_path, *changes)
    assert state["state"] == "finished"


def test_an_observer_adds_a_metric(tmp_path: Path) -> None:
    rows, state = run_example("observers/custom_metric.py", tmp_path, "stop.frames=4_000")
    assert state["state"] == "finished"
    rates = [row["hit_rate/all"] for row in rows]
    assert rates[0] < rates[-1] <= 1
    assert 0 < rows[-1]["hit_rate/worker0"] <= 1
    assert 0 < rows[-1]["hit_rate/worker1"] <= 1


def test_an_observer_ends_the_run(tmp_path: Path) -> None:
    # Nothing is learnt, so the rule fires soon after its 20 steps.
    rows, state = run_example(
        "observers/early_stop.py", tmp_path, "learning.learning_rate=1e-9", "report.window=10_000"
    )
    assert state["state"] == "finished"
    assert "for 20 training steps" in state["reason"]
    assert state["frames"] < 100_000, "it ended before its limit"
    assert max(row["plateau/steps"] for row in rows) >= 10


def test_an_observer_makes_the_task_harder(tmp_path: Path) -> None:
    rows, state = run_example("observers/curriculum.py", tmp_path, "stop.frames=6_000")
    assert state["state"] == "finished"
    lengths = [row["variable/length"] for row in rows]
    assert lengths == sorted(lengths)
    assert lengths[-1] > 2
    seen = [row["episode/length_of_corridor"] for row in rows if "episode/length_of_corridor" in row]
    assert seen[0] < 3, "environments began with what the observer had set, not with env.variables"
    assert seen[-1] > 1.5, "they have seen the change"


@pytest.mark.parametrize(("name", "runs"), [("grid_envs.py", 60), ("grid_search.yaml", 24)])
def test_the_descriptions_of_experiments_can_be_planned(name: str, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    experiment = load_experiment(f"examples/{name}")
    assert len(make_plan(experiment, Path("runs"), check_run).runs) == runs


def test_parts_of_a_world_model_can_be_built() -> None:
    """``cli/world/test_own.py`` learns and plays with them."""
    file = EXAMPLES / "own_world_model.py"
    assert build_encoder(f"{file}:Flat", (8, 8, 3), size=4).size == 4
    assert line_model(custom=f"{file}:Gated").memory_size == 8
    assert build_own(f"{file}:TwoLayers", {"width": 2}, 3, 1, "cpu").weights == (3 + 1) * 2 + (2 + 1)


MADE_BY_HAND = EXAMPLES / "policies" / "make.py"  # trains for minutes; test_policies replays what it made
EVERY = sorted(path for path in EXAMPLES.rglob("*.py") if path != MADE_BY_HAND)


@pytest.mark.parametrize("path", EVERY, ids=lambda p: p.stem)
def test_every_example_is_run_here(path: Path) -> None:
    assert f'"{path.relative_to(EXAMPLES)}"' in Path(__file__).read_text(encoding="utf-8")


PROLOG = EXAMPLES / "slurm_prolog.sh"


def prolog(rollmill: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script as slurmd starts it: with hardly any environment."""
    given = {"PATH": "/usr/bin:/bin", "ROLLMILL": str(rollmill), "ROLLMILL_RUN_DIR": str(folder), **environment}
    return subprocess.run([str(PROLOG)], env=given, cwd="/", capture_output=True, text=True)


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("doctor", "code", "said"),
    [
        ("exit 0", 0, ""),
        ("echo 'fault  disk  none is left'; exit 1", 1, "not fit for job 7: fault  disk  none is left"),
        ("exit 124", 1, "doctor did not answer within 60 s"),
        (
            "echo '--ned: no such flag'; exit 2",
            0,
            "ended with 2, which says nothing about the node: --ned: no such flag",
        ),
    ],
)
def test_the_prolog_drains_nodes_that_are_not_fit(tmp_path: Path, doctor: str, code: int, said: str) -> None:
    stub = program(tmp_path / "rollmill", f'echo "$@" > {tmp_path}/words\n{doctor}')
    done = prolog(stub, tmp_path, SLURM_JOB_ID="7", ROLLMILL_NEED="vizdoom atari")
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert (tmp_path / "words").read_text() == f"doctor --clean --run-dir {tmp_path} --need vizdoom atari\n"


def test_a_prolog_without_rollmill_drains_nothing(tmp_path: Path) -> None:
    done = prolog(tmp_path / "nowhere", tmp_path)
    assert (done.returncode, "is missing: this node is not checked" in done.stderr) == (0, True)


def test_the_prolog_asks_the_real_doctor(tmp_path: Path) -> None:
    ask = f"exec env PYTHONPATH={':'.join(sys.path)} {sys.executable} -m rollmill.cli.main doctor"
    real = program(tmp_path / "rollmill", f'shift 2\n{ask} "$@"')  # without --clean, which would touch other tests
    assert prolog(real, tmp_path).returncode == 0
    assert prolog(real, Path("/proc/nothing")).returncode == 1, "no run can be written there"
