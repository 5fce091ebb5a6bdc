"""Do learning curves agree? Trains variants of a task with several seeds and compares what they learn, frame by frame.

    python benchmarks/curves.py                                  CartPole and ViZDoom basic, all variants, 3 seeds
    python benchmarks/curves.py --tasks cartpole --variants async sync --seeds 5

Every variant is compared with ``async``: the mean return over the second half of the frames, one number per seed.
*Within noise* is what Welch's t-test says at 5 %: with a few seeds it finds gross differences only, so the numbers are
printed, too. Policy lag is counted in training steps.
Prints tables, writes ``runs/benchmarks/curves-*.json`` and one SVG per task beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, end_on_sigterm, ours, record, save_plot, with_load

from rollmill.reports.html.plots import Plot

BASE = "async"
VARIANTS = {
    BASE: ("sampling.mode=async",),
    "sync": ("sampling.mode=sync",),
    "recorded": ("sampling.mode=async", "recording=one", "recording.budget_gb=1"),
    "all_recorded": ("sampling.mode=async", "recording=all", "recording.budget_gb=4"),
    "bfloat16": ("sampling.mode=async", "learning.precision=bfloat16"),
}
TASKS = {
    "cartpole": ("-f", "cartpole", "stop.mean_return=null", "stop.frames=150_000"),
    "doom_basic": ("-f", "doom_basic", "learning.precision=float32", "stop.frames=400_000"),
}
IMAGES = ("bfloat16",)
"""Variants for tasks with images only."""
POINTS = 60
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 8: 2.31, 10: 2.23, 15: 2.13, 30: 2.04}
"""Two-sided 5 % points of Student's t by degrees of freedom."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=ROOT / "runs", help="folder of the runs")
    options = parser.parse_args()
    end_on_sigterm()
    rows: list[dict[str, Any]] = []
    for task in options.tasks:
        names = [name for name in options.variants if task != "cartpole" or name not in IMAGES]
        for seed in range(options.seeds):  # variants take turns, so that a busy hour hits all of them
            for name in names:
                rows.append(with_load(lambda t=task, n=name, s=seed: train(t, n, s, options.dir)))
                print(f"{task} {name} {seed}: {rows[-1]['level']:.4g}", file=sys.stderr, flush=True)
        print("\n" + table([row for row in rows if row["task"] == task]) + "\n", flush=True)
    path = record("curves", {"rows": rows})
    for task in options.tasks:
        mine = [row for row in rows if row["task"] == task]
        legend = list(dict.fromkeys(row["variant"] for row in mine))
        save_plot(path.parent / f"curves_{task}.svg", plot(mine), legend)
    print(f"recorded in {path.relative_to(ROOT)}")
    return 0


def train(task: str, variant: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run: its curve of returns over frames, its level (second half) and its policy lag."""
    name = f"{task}-{variant}-s{seed}"
    place = (f"run.dir={folder}", "run.experiment=curves", f"run.name={name}", f"run.seed={seed}")
    often = ("report.every_frames=5_000", "report.tensorboard=false", "report.page=false")
    ours("train", *TASKS[task], *VARIANTS[variant], *place, *often, "--overwrite")
    text = (folder / "curves" / name / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    known = [row for row in rows if row.get("episode/return") is not None]
    frames = np.array([row["frames"] for row in known], float)
    returns = np.array([row["episode/return"] for row in known], float)
    lags = [row["learn/policy_lag"] for row in rows if "learn/policy_lag" in row]
    grid = np.linspace(0, frames[-1], POINTS + 1)[1:]
    curve = np.interp(grid, frames, returns)
    return {
        "task": task,
        "variant": variant,
        "seed": seed,
        "frames": grid.tolist(),
        "curve": curve.tolist(),
        "level": float(curve[POINTS // 2 :].mean()),
        "lag": statistics.mean(lags),
        "lag_most": max(row.get("learn/policy_lag_max", row["learn/policy_lag"]) for row in rows if lags),
        "seconds": rows[-1]["time/seconds"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Levels per seed, and the difference to the base with its standard error."""
    lines = ["| task | variant | return in the second half, per seed | difference | noise? | policy lag, mean, most |"]
    lines.append("|---|---|---|---|---|---|")
    base = [row["level"] for row in rows if row["variant"] == BASE]
    for name in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == name]
        levels = [row["level"] for row in mine]
        verdict = difference = ""
        if name != BASE and min(len(base), len(levels)) > 1:
            gap, error, limit = welch(levels, base)
            difference, verdict = f"{gap:+.3g} ± {error:.2g}", "within" if abs(gap) <= limit else "BEYOND"
        lag = f"{statistics.mean(row['lag'] for row in mine):.2f}, {max(row['lag_most'] for row in mine):.2f}"
        shown = ", ".join(f"{level:.4g}" for level in levels)
        lines.append(f"| {mine[0]['task']} | {name} | {shown} | {difference} | {verdict} | {lag} |")
    return "\n".join(lines)


def welch(one: list[float], two: list[float]) -> tuple[float, float, float]:
    """Difference of the means, its standard error, and the size from which on it is no noise."""
    parts = [statistics.variance(values) / len(values) for values in (one, two)]
    error = sum(parts) ** 0.5
    spread = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (one, two)))
    freedom = error**4 / spread if spread else 1.0
    quantile = T_95[max(n for n in T_95 if n <= max(1.0, freedom))]
    return statistics.mean(one) - statistics.mean(two), error, quantile * error


def plot(rows: list[dict[str, Any]]) -> Plot:
    """All runs, one colour per variant."""
    values = [value for row in rows for value in row["curve"]]
    most = max(row["frames"][-1] for row in rows)
    title = f"mean return, {rows[0]['task']}"
    drawn = Plot((0, most), (min(values), max(values)), size=(640, 320), x_title="frames", y_title=title).axes()
    names = list(dict.fromkeys(row["variant"] for row in rows))
    for row in rows:
        drawn.line(list(zip(row["frames"], row["curve"])), kind=f"line c{names.index(row['variant'])}")
    return drawn


if __name__ == "__main__":
    sys.exit(main())
