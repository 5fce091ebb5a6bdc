"""SAC beside Stable-Baselines3's, by turns: updates per second, and the return after as many frames.

    python benchmarks/sac.py                             Pendulum and HalfCheetah, three seeds (an hour or two)
    python benchmarks/sac.py --tasks pendulum --repeats 5
    python benchmarks/sac.py --no-peer --device cuda cpu  a GPU beside the CPU of its machine

Both have one environment in the learner's process, one thread, one update for each step, and the same networks (256,
256), rate, minibatch and warm-up. Rates begin with the first update. Processor seconds are given beside wall seconds,
for machines that others use; with a GPU they say little. The return is the mean of the last 10 training episodes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from common import ROOT, PeerMissingError, end_on_sigterm, load_text, record, run_peer, sb3_venv, with_load

from rollmill.core.config.load import load_config
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.run import train


@dataclass(frozen=True)
class Task:
    """What both learn."""

    env: str
    frames: int
    warmup: int
    rate: float


TASKS = {
    "pendulum": Task("Pendulum-v1", frames=10_000, warmup=500, rate=1e-3),
    "half_cheetah": Task("HalfCheetah-v5", frames=60_000, warmup=5_000, rate=3e-4),
}
WORDS = (
    *("sampling.mode=serial", "sampling.workers=1", "sampling.envs_per_worker=1", "sampling.groups=1"),
    *("sampling.rollout=8", "model.mlp=[256,256]", "model.nonlinearity=relu", "model.log_std=state"),
    *("model.action_distribution=tanh_gaussian", "model.normalize_observations=false", "learning.algorithm=sac"),
    *("learning.batch_size=8", "learning.threads=1", "sac.minibatch=256", "report.window=10"),
    *("report.tensorboard=false", "report.page=false", "checkpoints.every_seconds=1e6", "sac.save_replay=false"),
)
FIGURES = ("updates_per_s", "updates_per_cpu_s", "training_return")
PEER_SECONDS = 7_200.0


class Clock(Observer):
    """Seconds from the first update on."""

    def __init__(self) -> None:
        self.begun: tuple[float, float] | None = None
        self.ended = (0.0, 0.0)
        self.first = self.last = 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        steps = run.parts.learners[0].optimizer_steps  # type: ignore[attr-defined]
        if steps and self.begun is None:
            self.begun, self.first = (time.perf_counter(), time.process_time()), steps
        self.ended, self.last = (time.perf_counter(), time.process_time()), steps


def ours(task: Task, device: str, seed: int) -> dict[str, Any]:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        words = [f"env={task.env}", f"run.dir={folder}", f"run.seed={seed}", f"learning.learning_rate={task.rate}"]
        words += [f"stop.frames={task.frames}", f"sac.warmup={task.warmup}", f"learning.device={device}"]
        config = load_config(TrainConfig, [], [*WORDS, *words])
        outcome = train(config, Request(console="off"), [clock])
    if clock.begun is None:
        raise SystemExit(f"no update within {task.frames:,} frames: raise --frames above the warm-up")
    wall, processor = (end - begin for end, begin in zip(clock.ended, clock.begun, strict=True))
    updates = clock.last - clock.first
    rates = {"updates_per_s": updates / wall, "updates_per_cpu_s": updates / processor}
    return {**rates, "training_return": outcome.mean_return or 0.0}


def peer(task: Task, device: str, seed: int) -> dict[str, Any]:
    asked = {"env": task.env, "frames": task.frames, "warmup": task.warmup, "rate": task.rate}
    words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    return run_peer(sb3_venv(), "sb3_sac.py", *words, "--seed", str(seed), "--device", device, seconds=PEER_SECONDS)


def compare(name: str, task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """All contenders, one after the other, with every seed."""
    runners = {"rollmill": ours, **({} if options.no_peer else {"stable-baselines3": peer})}
    field = {f"{who} {device}": partial(run, task, device) for device in options.device for who, run in runners.items()}
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in field}
    for seed in range(options.repeats):
        for who, run in field.items():
            runs[who].append(with_load(partial(run, seed)))
            print(name, who, seed, runs[who][-1], file=sys.stderr, flush=True)
    return {"task": name, **vars(task), "runs": runs}


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| task | | updates/s | updates per processor second | return |", "|---|---|---|---|---|"]
    for row in rows:
        for who, runs in row["runs"].items():
            values = [[run[figure] for run in runs] for figure in FIGURES]
            cells = [f"{statistics.median(v):,.1f} ({min(v):,.1f} to {max(v):,.1f})" for v in values]
            lines.append(f"| {row['task']}, {row['frames']:,} frames | {who} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--device", nargs="+", default=["cpu"], help="cpu, cuda; several are compared")
    parser.add_argument("--frames", type=int, help="instead of each task's own")
    parser.add_argument("--warmup", type=int, help="likewise")
    parser.add_argument("--repeats", type=int, default=3, help="seeds")
    parser.add_argument("--no-peer", action="store_true", help="rollmill alone")
    options = parser.parse_args()
    end_on_sigterm()
    if not options.no_peer:
        try:
            sb3_venv()
        except PeerMissingError as error:
            raise SystemExit(f"{error}\n--no-peer measures rollmill alone") from error
    rows = []
    for name in options.tasks:
        task = TASKS[name]
        task = Task(task.env, options.frames or task.frames, options.warmup or task.warmup, task.rate)
        rows.append(compare(name, task, options))
    print(f"{table(rows)}\n{load_text(rows)}")
    print(f"recorded in {record('sac', {'rows': rows}).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
