"""What is learnt on the treasure hunt? Trains, several runs beside each other, and judges them by the references.

    python benchmarks/treasure_hunt.py                              treasure_hunt, seeds 1 and 2, one after the other
    python benchmarks/treasure_hunt.py --settings treasure_hunt_13  13 treasures, 16 cores and a GPU
    python benchmarks/treasure_hunt.py --cores 2 --variants shipped no_route no_curriculum dynamic
                                                                    as many at once as there are pairs of cores
    python benchmarks/treasure_hunt.py --cores 2 --variants replay_1 replay_3
                                                                    with replay, each segment learnt once or three times
    python benchmarks/treasure_hunt.py --runs runs/default/treasure_hunt-s0
                                                                    trains nothing
    python benchmarks/treasure_hunt.py --references --maps 0 1 2    what players that know the map reach, nothing else
    python benchmarks/treasure_hunt.py --speed                      steps per second of one core, nothing else

A run that is finished is not trained again, one that was interrupted goes on: the same command may be given again.
``--minutes`` interrupts all trainings by then. Words after ``--`` are settings for all runs (``learning.device=cpu``).

``--target SCORE`` says when a run's mean score in training, over 100 episodes, first reached it: frames and seconds.

Every finished run, and each of ``--runs``, plays ``--episodes`` hunts of each number of treasures, all at once; so
do the oracle, nearest-first and random play. Per cent are of the mean scores, steps are those of the hunts that reached
the end. Prints a table and writes ``runs/benchmarks/treasure_hunt-*.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, end_on_sigterm, end_tree, machine, reached, record, with_load

from rollmill import Run
from rollmill.core.config.load import load_config
from rollmill.core.fields import MASK_FIELD, Array
from rollmill.envs.treasure_hunt.env import TreasureHuntVector
from rollmill.envs.treasure_hunt.map import load_map
from rollmill.envs.treasure_hunt.reference import Guide, play_guided
from rollmill.envs.treasure_hunt.settings import HuntSettings
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.settings.train import TrainConfig

SPARSE = ("env.args.rewards.route=0", "env.args.rewards.treasure_distance=1", "env.args.rewards.end_distance=1")
REPLAY = ("learning.targets=vtrace", "learning.epochs=1", "replay.capacity=512")
VARIANTS: dict[str, tuple[str, ...]] = {
    "shipped": (),
    "no_route": SPARSE,  # the distances of things instead, as the usual weights have it
    "no_curriculum": ("env.args.random_start=0",),  # and all numbers of treasures from the beginning
    "no_route_no_curriculum": (*SPARSE, "env.args.random_start=0"),
    "dynamic": ("env.args.dynamic_treasures=true",),
    "separate": ("model.separate_critic=true",),
    "replay_1": (*REPLAY, "replay.samples_per_insert=1"),
    "replay_3": (*REPLAY, "replay.samples_per_insert=3"),
}
LINE_SECONDS = 60.0
SPEED_STEPS = 100_000
EVALUATION_SEED = 1000


@dataclass
class Job:
    """One training."""

    name: str
    words: list[str]
    folder: Path
    cores: list[int] = field(default_factory=list)
    failed: str = ""

    def start(self) -> subprocess.Popen[Any]:
        """Begin, or go on, on its cores only."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "rollmill.cli.main", "train", *self.words]
        cores = ",".join(map(str, self.cores))
        with (self.folder.parent / f"{self.name}.out").open("a") as out:
            return subprocess.Popen(
                ["taskset", "-c", cores, *command], cwd=ROOT, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def state(self) -> str:
        """How its folder says it stands; empty where there is none."""
        return Run(self.folder).state if (self.folder / "config.yaml").exists() else ""

    def line(self) -> str:
        """How far it is."""
        path = self.folder / "metrics.jsonl"
        rows = path.read_text().splitlines() if path.exists() else []
        row = json.loads(rows[-1]) if rows else {"frames": 0}
        figures = (row.get("episode/score"), row.get("episode/return"))
        score, mean = ("-" if x is None else f"{x:.4g}" for x in figures)
        return f"{self.name}: {row['frames'] / 1e6:.2f}M frames, score {score}, return {mean}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="treasure_hunt", help="treasure_hunt, treasure_hunt_13 or a file")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=["shipped"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--cores", type=int, default=0, help="of each run; 0: all of them, one run after the other")
    parser.add_argument("--minutes", type=float, default=0.0, help="then trainings are interrupted; 0: none is")
    parser.add_argument(
        "--counts", nargs="+", type=int, help="numbers of treasures; otherwise up to the most trained with"
    )
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--references", action="store_true", help="of all numbers of treasures, on each of --maps")
    parser.add_argument("--maps", nargs="+", type=int, default=[0], help="seeds, for --references")
    parser.add_argument("--speed", action="store_true", help="steps per second of one core, observations included")
    parser.add_argument("--target", type=float, help="a mean score in training: when was it reached?")
    parser.add_argument("--deterministic", action="store_true", help="the most likely action instead of a sampled one")
    parser.add_argument("--runs", nargs="+", type=Path, default=[], help="evaluate these instead of training")
    parser.add_argument("--dir", type=Path, default=ROOT / "runs" / "hunt", help="folder of the runs")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="after --: settings for all runs")
    options = parser.parse_args()
    end_on_sigterm()
    if options.references or options.speed:
        found = with_load(speed) if options.speed else {}
        found |= on_maps(options) if options.references else {}
        print(f"recorded in {record('treasure_hunt', found).relative_to(ROOT)}")
        return 0
    jobs = [] if options.runs else list(jobs_of(options))
    if jobs:
        train(jobs, options.cores, options.minutes)
    open_jobs = [job.name for job in jobs if job.state != "finished"]
    if open_jobs:
        say(f"not finished, and not judged: {', '.join(open_jobs)}; the same command goes on with them")
    folders = options.runs or [job.folder for job in jobs if job.state == "finished"]
    runs = [judged(folder, options) for folder in folders]
    counts = sorted({row["treasures"] for run in runs for row in run["counts"]})
    guide = Guide()
    result = {"references": [references(count, options.episodes, guide) for count in counts], "runs": runs}
    if runs:
        print(table(result), flush=True)
    if runs and options.target is not None:
        print("\n" + target_table(runs, options.target), flush=True)
    path = record("treasure_hunt", {**result, "command": sys.argv[1:], "failed": [j.name for j in jobs if j.failed]})
    print(f"recorded in {path.relative_to(ROOT)}")
    return int(bool(open_jobs))


# -- training ----------------------------------------------------------------------------------


def jobs_of(options: argparse.Namespace) -> Iterator[Job]:
    """All trainings: the seeds of a variant come last, so that a first seed of each is there early."""
    settings = Path(options.settings)
    every = sorted({count for stage in stages(load_config(TrainConfig, [settings], []).env.args) for count in stage})
    at_once = f"env.args.treasure_num={[every]}"
    for seed in options.seeds:
        for variant in options.variants:
            name = f"{settings.stem}-{variant}-s{seed}"
            words = [*VARIANTS[variant], *([at_once] if "no_curriculum" in variant else []), *options.words]
            place = [f"run.dir={options.dir.parent}", f"run.experiment={options.dir.name}", f"run.name={name}"]
            words = ["-f", str(settings), *words, *place, f"run.seed={seed}", "report.page=false"]
            yield Job(name, words, options.dir / name)


def stages(args: dict[str, Any]) -> list[list[int]]:
    """Numbers of treasures that are trained with, by stage."""
    described = args.get("treasure_num", 13)
    if isinstance(described, str):
        return [list(range(14))]
    listed = [described] if isinstance(described, int) else described
    return [[stage] if isinstance(stage, int) else list(stage) for stage in listed]


def train(jobs: list[Job], cores_each: int, minutes: float) -> None:
    """Train all that are not finished, each on cores of its own."""
    cores = sorted(os.sched_getaffinity(0))
    each = min(cores_each or len(cores), len(cores))
    free = [cores[k : k + each] for k in range(0, len(cores) - each + 1, each)]
    waiting = [job for job in jobs if job.state != "finished"]
    running: dict[str, tuple[Job, subprocess.Popen[Any]]] = {}
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    shown = time.monotonic()
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while free and waiting:
                job = waiting.pop(0)
                job.cores = free.pop(0)
                if job.state:
                    job.words.append("--resume")
                running[job.name] = job, job.start()
                say(f"{job.name}: {'goes on' if job.state else 'begins'} on cores {job.cores}")
            time.sleep(0.5)
            for job, process in [pair for pair in running.values() if pair[1].poll() is not None]:
                del running[job.name]
                free.append(job.cores)
                ended(job, process)
            if time.monotonic() - shown > LINE_SECONDS:
                shown = time.monotonic()
                for job, _ in running.values():
                    say(job.line())
    finally:
        for job, process in running.values():
            end_tree(process)
            say(f"{job.line()}; interrupted")


def ended(job: Job, process: subprocess.Popen[Any]) -> None:
    if process.returncode:
        said = (job.folder.parent / f"{job.name}.out").read_text().splitlines()[-5:]
        job.failed = "\n".join(said)
        say(f"{job.name} FAILED ({process.returncode}):\n{job.failed}")
    else:
        say(f"{job.line()}; done")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# -- judging -----------------------------------------------------------------------------------


def judged(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A run's results with each number of treasures."""
    run = Run(folder)
    agent = run.policy(device="cpu", deterministic=options.deterministic)
    trained = dict(run.config.env.args)
    most = max(count for stage in stages(trained) for count in stage)
    rows = []
    for count in options.counts if options.counts is not None else range(most + 1):
        rows.append(play(agent.act, count, options.episodes))
        say(f"{folder.name}: {count} treasures: score {rows[-1]['score']:.1f}")
    metrics = read_jsonl(run.path / "metrics.jsonl")
    target = options.target
    return {
        "run": folder.name,
        "state": run.state,
        "frames": agent.frames,
        "minutes": metrics[-1]["time/seconds"] / 60 if metrics else 0.0,
        "target": None if target is None else reached(metrics, "episode/score", target),
        "args": trained,
        "counts": rows,
    }


def play(act: Callable[[dict[str, Array]], Array], count: int, episodes: int) -> dict[str, Any]:
    """One standard hunt in each of ``episodes`` lanes, so that short ones do not count more often than long ones."""
    env = TreasureHuntVector(episodes, treasure_num=count)
    obs, _ = env.reset(seed=EVALUATION_SEED + count)
    steps, scores, taken = np.zeros(episodes, np.int64), np.zeros(episodes), np.zeros(episodes, np.int64)
    reached, over = np.zeros(episodes, bool), np.zeros(episodes, bool)
    while not over.all():
        obs, _, terminated, truncated, info = env.step(act(obs))
        now = (terminated | truncated) & ~over
        steps[now], scores[now], taken[now] = (info[k][now] for k in ("step_no", "score", "treasure_count"))
        reached |= terminated & now
        over |= now
    return figures(count, steps, scores, reached, taken)


def figures(count: int, steps: Array, scores: Array, reached: Array, taken: Array) -> dict[str, Any]:
    return {
        "treasures": count,
        "score": float(scores.mean()),
        "steps": float(steps[reached].mean()) if reached.any() else None,
        "reached": float(reached.mean()),
        "all_taken": float((reached & (taken == count)).mean()),
    }


def guided(count: int, episodes: int, guide: Guide, map_seed: int = 0) -> dict[str, Any]:
    """What the two players that know the map reach."""
    settings, found = HuntSettings(treasure_num=count, map_seed=map_seed), {}
    for how in ("oracle", "nearest-first"):
        steps, scores = play_guided(settings, how, episodes, EVALUATION_SEED + count, guide)
        found[how] = {"score": float(scores.mean()), "steps": float(steps.mean())}
    return found


def references(count: int, episodes: int, guide: Guide) -> dict[str, Any]:
    """What the oracle, nearest-first and random play reach."""
    found = {"treasures": count, **guided(count, episodes, guide)}
    rng = np.random.default_rng(EVALUATION_SEED)
    found["random"] = play(lambda obs: (rng.random(obs[MASK_FIELD].shape) * obs[MASK_FIELD]).argmax(1), count, episodes)
    say(f"references for {count} treasures: {found['oracle']['score']:.1f}, {found['nearest-first']['score']:.1f}")
    return found


def on_maps(options: argparse.Namespace) -> dict[str, Any]:
    """The standard task with every number of treasures, on each map."""
    rows = []
    print("| map | treasures | oracle, steps | score | nearest first, steps | score |\n|---|---|---|---|---|---|")
    for seed in options.maps:
        guide = Guide(load_map(seed))
        for count in options.counts if options.counts is not None else range(14):
            found = guided(count, options.episodes, guide, seed)
            figures = " | ".join(f"{own['steps']:.0f} | {own['score']:.0f}" for own in found.values())
            print(f"| {seed} | {count} | {figures} |", flush=True)
            rows.append({"map": seed, "treasures": count, **found})
    return {"maps": rows}


def speed() -> dict[str, Any]:
    """Random actions, hunts that begin anew included; each pass is about as many steps."""
    rows = []
    print("| hunts together | steps/s of one core | of processor time |\n|---|---|---|")
    for lanes in (1, 16, 64, 256):
        env, rng = TreasureHuntVector(lanes), np.random.default_rng(0)
        env.reset(seed=0)
        actions = rng.integers(0, 16, (SPEED_STEPS // lanes, lanes))
        clocks = (time.perf_counter, time.process_time)
        begun = [clock() for clock in clocks]
        for chosen in actions:
            env.step(chosen)
        rates = [actions.size / (clock() - start) for clock, start in zip(clocks, begun)]
        rows.append({"lanes": lanes, "per_s": rates[0], "per_processor_s": rates[1]})
        print(f"| {lanes} | {rates[0]:,.0f} | {rates[1]:,.0f} |", flush=True)
    return {"speed": rows}


def table(result: dict[str, Any]) -> str:
    """A row for every run and number of treasures."""
    here = machine()
    known = {row["treasures"]: row for row in result["references"]}
    lines = [
        f"{here['cpu']}, {here['cores']} cores, commit {here['commit'][:10]}, {here['time']}",
        "",
        "| run | treasures | score | % of nearest-first | % of oracle | steps | / oracle | / nearest-first "
        "| all taken | frames | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in result["runs"]:
        tail = f"{run['frames'] / 1e6:.1f}M | {run['minutes']:.1f}"
        lines += [row_text(run["run"], row, known[row["treasures"]], tail) for row in run["counts"]]
    for name in ("oracle", "nearest-first", "random"):
        lines += [row_text(name, {"treasures": n, **row[name]}, row, " | ") for n, row in known.items()]
    return "\n".join(lines)


def target_table(runs: list[dict[str, Any]], target: float) -> str:
    """When every run first had the score."""
    lines = [f"| run | frames to a mean score of {target:g} | seconds |", "|---|---|---|"]
    for run in runs:
        at = run["target"]
        lines.append(
            f"| {run['run']} | {at['frames']:,} | {at['seconds']:.0f} |" if at else f"| {run['run']} | - | - |"
        )
    return "\n".join(lines)


def row_text(name: str, row: dict[str, Any], reference: dict[str, Any], tail: str) -> str:
    oracle, nearest = reference["oracle"], reference["nearest-first"]
    taken = f"{100 * row['all_taken']:.0f} %" if "all_taken" in row else ""
    steps = " |  | "
    if row["steps"] is not None:
        steps = f"{row['steps']:.1f} | {row['steps'] / oracle['steps']:.3f} | {row['steps'] / nearest['steps']:.3f}"
    return (
        f"| {name} | {row['treasures']} | {row['score']:.1f} | {100 * row['score'] / nearest['score']:.1f} "
        f"| {100 * row['score'] / oracle['score']:.1f} | {steps} | {taken} | {tail} |"
    )


if __name__ == "__main__":
    sys.exit(main())
