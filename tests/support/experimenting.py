"""Folders of experiments for tests: runs with settings and metrics, without anything having been trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_run(
    folder: Path,
    settings: Mapping[str, Any],
    values: Sequence[float],
    state: str = "finished",
    metric: str = "episode/return",
    first: int = 10,
) -> None:
    """A run whose metric has these values, ten frames apart from ``first`` on."""
    folder.mkdir(parents=True)
    lines = [f"{key}: {json.dumps(value)}" for key, value in settings.items()]
    (folder / "config.yaml").write_text("\n".join(lines) + "\n")
    rows = [{"frames": first + 10 * k, metric: v, "time/seconds": k + 1.0} for k, v in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    frames = rows[-1]["frames"] if rows else 0
    (folder / "state.json").write_text(json.dumps({"state": state, "reason": "", "frames": frames}))


def online(seed: int = 0, env: str = "CartPole-v1", **settings: Any) -> dict[str, Any]:
    """Settings of an online run."""
    return {"run": {"seed": seed}, "env": {"id": env}, **settings}


def offline(store: Path, seed: int = 0, **settings: Any) -> dict[str, Any]:
    """Settings of an offline run, which names no environment: its store does."""
    return {
        "run": {"seed": seed},
        "store": str(store),
        "algorithm": "dt",
        "env": None,
        "fit": {"steps": 10},
        **settings,
    }
