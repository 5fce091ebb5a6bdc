"""Checks that agents really learn: trains every task of the table, evaluates it, prints what was reached.

    python benchmarks/learn.py                  everything (about three hours on 2 cores)
    python benchmarks/learn.py cartpole masked  some of it
    python benchmarks/learn.py --seeds 1        one seed each

Exit code 1 when a task misses its mark. After each task its results are kept in ``runs/learn/results.json`` and its
learning curve beside it: the mean of the seeds as far as all of them go, each seed as a thin line (from five on a 95 %
confidence band instead).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from common import save_plot

from rollmill.core import atomic
from rollmill.launch.compare.aggregate import band, common, spread_of
from rollmill.launch.progress import read_curve
from rollmill.reports.html.plots import Plot

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Task:
    """One line of the table: what is trained and what the evaluation must show."""

    name: str
    settings: tuple[str, ...]
    at_least: float | None = None
    at_most: float | None = None
    """For tasks that must fail: a policy without memory cannot solve a memory task."""
    seeds: int = 3
    episodes: int = 100
    deterministic: bool = False
    no_faults: bool = False
    """The env raises when it is treated wrongly (an illegal action), so faults must be 0."""

    def passed(self, mean: float, faults: int) -> bool:
        if self.no_faults and faults:
            return False
        return (self.at_least is None or mean >= self.at_least) and (self.at_most is None or mean <= self.at_most)

    @property
    def mark(self) -> str:
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


TASKS = (
    Task("doom_basic", ("-f", "doom_basic"), at_least=70),
    Task("cartpole", ("-f", "cartpole"), at_least=475),
    Task("cartpole_async", ("-f", "cartpole", "sampling.mode=async"), at_least=475),
    Task("pendulum", ("-f", "pendulum"), at_least=-250, deterministic=True),
    Task("pendulum_sac", ("-f", "pendulum_sac"), at_least=-200, deterministic=True),
    Task("half_cheetah_sac", ("-f", "mujoco_half_cheetah_sac"), at_least=2000, seeds=1, deterministic=True),
    Task("memory_gru", ("-f", "toy_memory", "model.memory=gru"), at_least=0.95),
    Task("memory_lstm", ("-f", "toy_memory", "model.memory=lstm"), at_least=0.95),
    Task("memory_none", ("-f", "toy_memory", "model.memory=none"), at_most=0.3),
    Task("masked", ("-f", "toy", "env=toy_masked", "stop.frames=200_000"), at_least=9.5, no_faults=True),
    Task("image", ("-f", "toy", "env=toy_image", "stop.frames=30_000"), at_least=9.5),
    Task("agents", ("-f", "toy", "env=toy_agents"), at_least=9.5),
    Task("reach", ("-f", "toy", "env=toy_reach", "stop.frames=300_000"), at_least=-3, deterministic=True),
    Task("crazy_climber", ("-f", "crazy_climber"), at_least=25_000, episodes=20),
    Task("lunar_lander", ("-f", "lunar_lander"), at_least=200),
    Task("hopper", ("-f", "mujoco_hopper"), at_least=1000, deterministic=True),
    Task("simple_spread", ("-f", "mpe_simple_spread"), at_least=-18),
    Task("minigrid_memory", ("-f", "minigrid_memory"), at_least=0.85),
    Task("rollout_32", ("-f", "cartpole", "sampling.rollout=32"), at_least=475),
    Task(
        "rollout_128",
        ("-f", "cartpole", "sampling.rollout=128", "learning.batch_size=4096", "learning.minibatches=16"),
        at_least=475,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=[[], *(t.name for t in TASKS)], help="names; none: all")
    parser.add_argument("--seeds", type=int, default=0, help="seeds per task; 0: as the table says")
    parser.add_argument("--dir", type=Path, default=ROOT / "runs", help="folder of the runs")
    options = parser.parse_args()
    chosen = [t for t in TASKS if not options.tasks or t.name in options.tasks]
    folder, rows = options.dir / "learn", []
    for task in chosen:
        own = [run(task, seed, options.dir) for seed in range(options.seeds or task.seeds)]
        draw(folder, task.name)
        keep(folder / "results.json", task.name, own)
        rows += own
    print("\n" + table(rows))
    return 0 if all(row["passed"] for row in rows) else 1


def keep(path: Path, task: str, rows: list[dict[str, object]]) -> None:
    """Write what a task has reached beside what others have."""
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    others = [row for row in before if row["task"] != task]
    atomic.write_json(path, {"rows": [*others, *({**row, "machine": machine()} for row in rows)]})


def run(task: Task, seed: int, folder: Path) -> dict[str, object]:
    """Train and evaluate one task with one seed."""
    name = f"{task.name}-s{seed}"
    print(f"{name} ...", file=sys.stderr, flush=True)
    begun = time.monotonic()
    place = (f"run.dir={folder}", "run.experiment=learn", f"run.name={name}", f"run.seed={seed}")
    trained = rollmill("train", *task.settings, *place, "--overwrite", "--json")
    seconds = time.monotonic() - begun
    path = folder / "learn" / name
    how = ("--deterministic",) if task.deterministic else ()
    score = rollmill("eval", str(path), "--episodes", str(task.episodes), *how, "--json")
    last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    faults = int(last["sample/env_faults"])
    row: dict[str, object] = {
        "task": task.name,
        "seed": seed,
        "frames": trained["frames"],
        "seconds": round(seconds, 1),
        "mean": score["mean"],
        "standard_error": score["standard_error"],
        "mark": task.mark,
        "env_faults": faults,
        "passed": task.passed(float(score["mean"]), faults),
    }
    print(table([row]), file=sys.stderr, flush=True)
    return row


def draw(folder: Path, task: str) -> None:
    """Write the learning curve of a task, of all its seeds that are in the folder."""
    curves = [read_curve(run / "metrics.jsonl", "episode/return") for run in sorted(folder.glob(f"{task}-s[0-9]*"))]
    curves = [curve for curve in curves if curve.frames]
    frames, values = common(curves)
    if not len(frames):
        return
    mean, low, high = band(values)
    many = spread_of(len(curves)) == "confidence"
    shown = [*low, *high] if many else [value for curve in curves for value in curve.values]
    last = max(curve.frames[-1] for curve in curves)
    plot = Plot((0, last), (min(shown), max(shown)), x_title="frames", y_title=f"mean return, {task}").axes()
    if many:
        plot.band(list(zip(frames, low)), list(zip(frames, high)), "band c0")
    else:
        for curve in curves:
            plot.line(list(zip(curve.frames, curve.values)), "seed")
    plot.line(list(zip(frames, mean)))
    save_plot(folder / f"learn_{task}.svg", plot, ())


def rollmill(*words: str) -> dict[str, float]:
    """Run the command as a user would and read its JSON."""
    command = [sys.executable, "-m", "rollmill.cli.main", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def table(rows: list[dict[str, object]]) -> str:
    lines = ["| task | seed | frames | seconds | return | wanted | env faults | passed |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [
        f"| {r['task']} | {r['seed']} | {r['frames']:,} | {r['seconds']} | {r['mean']:.4g} +- "
        f"{r['standard_error']:.2g} | {r['mark']} | {r['env_faults']} | {'yes' if r['passed'] else 'NO'} |"
        for r in rows
    ]
    return "\n".join(lines)


def machine() -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }


if __name__ == "__main__":
    sys.exit(main())
