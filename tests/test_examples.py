"""Runs the examples as a user would, in one process and with fewer frames, and looks at what they reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run_example(name: str, folder: Path, *overrides: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(rows of metrics, how it ended) of one example."""
    command = [sys.executable, str(EXAMPLES / name), "sampling.mode=serial", f"run.dir={folder}", *overrides]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = folder / "examples" / Path(name).stem
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return rows, json.loads((run / "state.json").read_text())


def test_own_env_learns_to_walk_to_the_end(tmp_path: Path) -> None:
    rows, state = run_example("own_env.py", tmp_path, "stop.frames=8_000")
    assert state["state"] == "finished"
    assert rows[0]["episode/return"] < 0, "a random walk does not get there quickly"
    assert rows[-1]["episode/return"] > 0.2, "4 to 8 steps at -0.1, then 1"


def test_own_model_learns_to_see(tmp_path: Path) -> None:
    rows, state = run_example("own_model.py", tmp_path, "stop.frames=8_000")
    assert state["state"] == "finished"
    assert rows[-1]["episode/return"] > 6, "random actions reach 2.5"


def test_an_own_model_with_memory_and_arguments(tmp_path: Path) -> None:
    changes = ("model.memory=gru", "model.hidden_size=16", "model.custom_args.cells=3", "stop.batches=1")
    _, state = run_example("own_model.py", tmp_path, *changes)
    assert state["state"] == "finished"


def test_the_observer_adds_a_metric_and_ends_the_run(tmp_path: Path) -> None:
    rows, state = run_example("observer.py", tmp_path)
    assert state["state"] == "finished"
    assert "hits" in state["reason"]
    assert state["frames"] < 100_000, "it ended before its limit"
    rates = [row["toy/hit_rate"] for row in rows]
    assert rates[0] < rates[-1] <= 1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_every_example_is_run_here(path: Path) -> None:
    assert f'"{path.name}"' in Path(__file__).read_text(encoding="utf-8")
