"""SAC beside Stable-Baselines3's, by turns: updates per second, and the return after as many frames.

    python -m venv .venv-bench-sb3 && .venv-bench-sb3/bin/pip install stable-baselines3
    python benchmarks/sac.py --peer .venv-bench-sb3/bin/python

Both have one environment in the learner's process, one thread, one update for each step, and the same networks (256,
256), rate, minibatch and warm-up. Processor seconds are given beside wall seconds, for machines that others use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rollmill.core.config.load import load_config
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.run import train

PEER = Path(__file__).parent / "peers" / "sb3_sac.py"
WORDS = (
    *("sampling.mode=serial", "sampling.workers=1", "sampling.envs_per_worker=1", "sampling.groups=1"),
    *("sampling.rollout=8", "model.mlp=[256,256]", "model.nonlinearity=relu", "model.log_std=state"),
    *("model.action_distribution=tanh_gaussian", "model.normalize_observations=false", "learning.algorithm=sac"),
    *(
        "learning.batch_size=8",
        "sac.minibatch=256",
        "report.window=10",
        "report.tensorboard=false",
        "report.page=false",
    ),
    *("checkpoints.every_seconds=1e6", "sac.save_replay=false"),
)


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


def ours(options: argparse.Namespace, seed: int) -> dict[str, float]:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"env={options.env}",
            f"run.dir={folder}",
            f"run.seed={seed}",
            f"learning.learning_rate={options.rate}",
        ]
        words += [f"stop.frames={options.frames}", f"sac.warmup={options.warmup}", "learning.device=cpu"]
        config = load_config(TrainConfig, [], [*WORDS, *words])
        outcome = train(config, Request(console="off"), [clock])
    assert clock.begun is not None
    wall, processor = (end - begin for end, begin in zip(clock.ended, clock.begun, strict=True))
    updates = clock.last - clock.first
    return {
        "updates_per_s": updates / wall,
        "updates_per_cpu_s": updates / processor,
        "training_return": outcome.mean_return or 0.0,
    }


def peer(options: argparse.Namespace, seed: int) -> dict[str, float]:
    asked = {"env": options.env, "frames": options.frames, "warmup": options.warmup, "rate": options.rate, "seed": seed}
    words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    done = subprocess.run([options.peer, str(PEER), *words], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the Python of a virtual environment with stable-baselines3")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--frames", type=int, default=6000)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"rollmill": [], **({"stable-baselines3": []} if options.peer else {})}
    for seed in range(options.repeats):
        for name, rows in found.items():
            rows.append((ours if name == "rollmill" else peer)(options, seed))
            print(name, seed, json.dumps(rows[-1]), flush=True)
    for name, rows in found.items():
        for key in ("updates_per_s", "updates_per_cpu_s", "training_return"):
            values = [float(row[key]) for row in rows]
            print(
                f"{name:18} {key:18} median {statistics.median(values):10.1f}  {min(values):.1f} to {max(values):.1f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
