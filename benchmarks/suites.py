"""What several tasks for one policy cost and gain, measured.

    python benchmarks/suites.py returns     two toys, rewards of 1 and 100: scaled task by task, and all by one
    python benchmarks/suites.py schedule    tasks of different speed: equal shares when mixed, own rates by worker

Results are kept in ``runs/benchmarks``; ``--times`` says how many seeds or turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Parts, main_of_parts, train_run

from rollmill.core.fields import TASK_FIELD
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.monitor.jsonl import read_jsonl
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.sampler import Sampler, SamplerPlan, SamplerThread
from rollmill.sampling.settings import SamplingSettings

PACED = f"{ROOT / 'tests' / 'support' / 'paced_envs.py'}:Paced"
TASKS = tuple(
    {"name": name, "id": PACED, "args": {"seconds": seconds}}
    for name, seconds in (("slow", 0.02), ("middle", 0.005), ("fast", 0.001))
)
NAMES = tuple(str(task["name"]) for task in TASKS)
SECONDS = 8.0


def measure_returns(seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for by_task in (True, False):
            scores = []
            for seed in range(seeds):
                folder = train_run(
                    Path(place) / "x" / f"{by_task}{seed}",
                    *("env=toy_pair", "sampling.mode=serial", "learning.learning_rate=1e-3", "stop.frames=130_000"),
                    *("learning.batch_size=1024", "model.mlp=[64,64]", "report.page=false", f"run.seed={seed}"),
                    f"model.returns_by_task={str(by_task).lower()}",
                )
                last = read_jsonl(folder / "metrics.jsonl")[-1]
                scores.append({name: last[f"task/{name}/score"] for name in ("small", "large")})
            found["task by task" if by_task else "all by one"] = scores
    scaled, plain = found.values()
    passed = all(min(row.values()) >= 95 for row in scaled) and all(row["small"] < 60 for row in plain)
    return {"mark": "both >= 95 with, the small one < 60 without", "passed": passed, **found}


def measure_schedule(turns: int) -> dict[str, Any]:
    mixed = _rates("mixed", TASKS)
    shares = [mixed[name] / max(mixed.values()) for name in NAMES]
    beside: list[float] = []
    alone: list[float] = []
    for _ in range(turns):
        beside.append(_rates("worker", TASKS)["fast"])
        alone.append(_rates("worker", TASKS[2:])["fast"])
    ratio = statistics.median(one / two for one, two in zip(beside, alone, strict=True))
    found = {"mixed, steps/s": mixed, "fast beside slow ones, steps/s": beside, "fast alone, steps/s": alone}
    passed = min(shares) >= 0.95 and ratio >= 0.9
    return {
        "mark": "mixed: equal within 5 %; own workers: >= 90 % of the own rate",
        "passed": passed,
        "ratio": ratio,
    } | found


def _rates(spread: str, tasks: tuple[dict[str, Any], ...]) -> dict[str, float]:
    """Steps per second of each task; one worker for each of them."""
    env = EnvSettings(tasks=tasks, task_spread=spread)  # type: ignore[arg-type]
    spec, count = make_env(env).spec, len(tasks)
    settings = SamplingSettings(mode="async", workers=count, envs_per_worker=2, groups=2, rollout=10, affinity=False)
    plan = SamplerPlan(settings, env, spec, Seeds(1), 3, environment=os.environ, even=spread == "mixed")
    sampler = Sampler(plan, [RandomPolicy(spec, 0)])
    sampler.start()
    thread = SamplerThread(sampler)
    thread.start()
    try:
        for _ in range(4 * count):  # until all have begun
            _steps(sampler, count)
        steps, begun = np.zeros(count), time.monotonic()
        while (taken := time.monotonic() - begun) < SECONDS:
            steps += _steps(sampler, count)
    finally:
        thread.stop()
        sampler.stop()
        thread.join()
    return dict(zip([str(task["name"]) for task in tasks], (steps / taken).tolist(), strict=True))


def _steps(sampler: Sampler, tasks: int) -> np.ndarray[Any, Any]:
    """Of the next segment: how many of which task."""
    slots = sampler.take(1, timeout=0.2)
    if slots is None:
        return np.zeros(tasks)
    segment = sampler.arena.segment(slots[0])
    valid = segment["valid"][:-1]
    found: np.ndarray[Any, Any] = (segment[OBS + TASK_FIELD][:-1] * valid[..., None]).sum((0, 1)).astype(float)
    sampler.release(slots)
    return found


PARTS: Parts = {
    "returns": (measure_returns, 1),
    "schedule": (measure_schedule, 5),
}


if __name__ == "__main__":
    sys.exit(main_of_parts("suites", __doc__, PARTS))
