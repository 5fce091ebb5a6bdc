"""How fast ``rollmill view`` is with many runs: folders of made-up runs, then the index, the answers and the memory.

    python benchmarks/viewer.py                      1,000 runs of 100 rows in a temporary folder
    python benchmarks/viewer.py --keep runs/made_up  leave them there, for a look in the browser

*Cold*: the first look, without an index. *Warm*: a new process that finds the index. Prints the figures and writes
``runs/benchmarks/viewer-*.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import record, with_load

from rollmill.core.config.plain import to_dict
from rollmill.core.config.yaml import to_yaml
from rollmill.core.run_folder import RunFolder
from rollmill.runs.settings.train import TrainConfig
from rollmill.viewer.catalog import Catalog
from rollmill.viewer.columns import Columns
from rollmill.viewer.index import Index

SEEDS, EXPERIMENTS = 5, 4
METRICS = 50
"""Columns besides those that are looked at."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="a folder for the runs, which stay there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch) / "runs"
        if not root.exists():
            make_runs(root, options.runs, options.rows)
        index = Path(scratch) / "index.sqlite"
        found: dict[str, Any] = {"runs": options.runs, "rows": options.rows}
        for name, job in (("cold", look), ("warm", look), ("curves", draw)):
            found[name] = with_load(lambda job=job: apart(job, root, index))
            print(f"{name}: {json.dumps(found[name])}", flush=True)
    record("viewer", found)
    return 0


def apart(job: Callable[[Path, Path], dict[str, Any]], root: Path, index: Path) -> dict[str, Any]:
    """Run a job in a process of its own: its memory is counted alone."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(job, (root, index))


def look(root: Path, index: Path) -> dict[str, Any]:
    """Seconds until all runs are listed, and again when nothing has changed."""
    begun, cpu = time.perf_counter(), time.process_time()
    kept = Index(index)
    catalog = Catalog(root, kept)
    catalog.refresh()
    answer = json.dumps(catalog.to_dict())
    listed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    catalog._due = 0.0
    begun = time.perf_counter()
    catalog.refresh()
    again = time.perf_counter() - begun
    kept.close()
    times = {"listed_s": round(listed, 3), "listed_cpu_s": round(cpu, 3)}
    return {**times, "again_s": round(again, 3), "answer_bytes": len(answer), **memory()}


def draw(root: Path, index: Path) -> dict[str, Any]:
    """Seconds until one metric of all runs is read, for the first time and then another one."""
    catalog = Catalog(root, Index(index))
    catalog.refresh()
    columns, times = Columns(catalog.root), []
    for name in ("episode/return", "learn/entropy"):
        begun = time.perf_counter()
        points = 0
        for run in catalog.runs.values():
            points += len(columns.read(RunFolder(run.folder).metrics, ["frames", name])[1])
        times.append(round(time.perf_counter() - begun, 3))
    return {"first_metric_s": times[0], "second_metric_s": times[1], "points": points, **memory()}


def memory() -> dict[str, int]:
    return {"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1_000_000}


# -- made-up runs ---------------------------------------------------------------------------------------------------


def make_runs(root: Path, runs: int, rows: int) -> None:
    """Runs with the files that a training writes, in experiments of groups of five seeds."""
    settings = to_dict(TrainConfig())
    for k in range(runs):
        group, seed = divmod(k, SEEDS)
        gamma, rate = 0.9 + 0.01 * (group % 10), 1e-4 * (1 + group // 10 % 10)
        experiment = f"sweep_{group % EXPERIMENTS}"
        settings["env"]["id"] = "CartPole-v1"
        settings["run"].update(
            seed=seed, experiment=experiment, name=f"gamma-{gamma:.2f}_rate-{rate:g}-{group}-s{seed}"
        )
        settings["learning"].update(gamma=round(gamma, 4), learning_rate=round(rate, 6))
        settings["report"]["console_seconds"] = float(group + 1)  # every group differs
        write_run(root / experiment / settings["run"]["name"], settings, curve(gamma, rate, k, rows), k)


def write_run(folder: Path, settings: dict[str, Any], returns: Sequence[float], k: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(settings))
    written = [json.dumps(row(number, value)) for number, value in enumerate(returns)]
    (folder / "metrics.jsonl").write_text("\n".join(written) + "\n")
    state = {"state": "failed" if k % 50 == 7 else "finished", "reason": "made up", "frames": 20_000 * len(returns)}
    (folder / "state.json").write_text(json.dumps(state))
    session = {"started": "2026-11-01T10:00:00+00:00", "host": f"node{k % 8}", "step_at_start": 0, "how": "finished"}
    diary = {"created": "2026-11-01T10:00:00+00:00", "command": "rollmill train", "git": None, "sessions": [session]}
    (folder / "diary.json").write_text(json.dumps(diary))


def curve(gamma: float, rate: float, seed: int, rows: int) -> list[float]:
    rng = np.random.default_rng(seed)
    way = np.arange(1, rows + 1) / rows
    return (500 * gamma * (1 - np.exp(-way * (1 + 3000 * rate))) + rng.normal(0, 15, rows)).tolist()


def row(number: int, value: float) -> dict[str, float]:
    own = {"frames": 20_000 * (number + 1), "time": 1.79e9 + number, "episode/return": value}
    own |= {"time/seconds": 5.0 * (number + 1), "learn/batches": number + 1, "learn/entropy": math.exp(-number / 30)}
    own |= {"time/frames_per_s": 4000.0 + number, "sample/env_faults": 0, "sample/worker_restarts": 0}
    return own | {f"made/up_{k}": value / (k + 1) for k in range(METRICS)}


if __name__ == "__main__":
    sys.exit(main())
