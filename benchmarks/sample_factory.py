"""rollmill against Sample Factory 2.1.1: ViZDoom, the same network, batch and frame skip, in one run.

    python benchmarks/sample_factory.py                      2 cores, no GPU: basic and health gathering supreme
    python benchmarks/sample_factory.py --envs doom_basic --repeats 5
    python benchmarks/sample_factory.py --gpu                all cores and one GPU: health gathering supreme, batch 4096

Runs alternate; each is measured over the same time after its first training step. Prints medians, the
ratio, memory (proportional set size of all processes) and the seconds to the first training step.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import ROOT, Watched, median_text, peer_venv, record, run_timed

from rollmill.core.machine import available_cores

FRAMES = re.compile(r"Total num frames: (\d+)\.")
OURS_ROW = re.compile(r'"frames": (\d+)')
CONFIGS = {
    "doom_basic": ("-f", "doom_basic"),
    "doom_health_gathering_supreme": ("-f", "doom_health_gathering_supreme"),
}


@dataclass(frozen=True)
class Side:
    """Workers and batch of one side; the network is convnet_simple + fc 512 + GRU 512, rollout 32, one epoch."""

    workers: int
    envs: int
    batch: int
    words: tuple[str, ...] = ()
    report_frames: int = 1
    """Frames between two rows of our metrics: the rate is read from them, but rows cost time, too."""


PEER = "sample_factory"
ON_CPU = ("learning.micro_batch=256", "learning.threads=2", "learning.device=cpu", "sampling.inference_batch_share=0.5")
CPU = {
    "rollmill": Side(2, 16, 1024, ON_CPU),  # bfloat16 where the processor has units for it (learning.precision=auto)
    "rollmill float32": Side(2, 16, 1024, (*ON_CPU, "learning.precision=float32")),
    PEER: Side(2, 16, 1024, ("--device=cpu",)),
}


def gpu_sides() -> dict[str, Side]:
    """The best settings found for each on 16 cores; ours chooses its workers by itself."""
    cores = available_cores()
    peer = ("--device=gpu", "--policy_workers_per_policy=2")
    return {
        "rollmill": Side(0, 16, 4096, ("learning.device=cuda",), report_frames=100_000),
        PEER: Side(cores, 20, 4096, peer),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--gpu", action="store_true", help="one GPU and all cores instead of 2 workers without GPU")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has Sample Factory (default: a new venv)")
    options = parser.parse_args()
    python = options.peer_python or install()
    sides = gpu_sides() if options.gpu else CPU
    rows = []
    for env in ["doom_health_gathering_supreme"] if options.gpu else options.envs:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        simulation = [bare_simulation(env)]
        for _ in range(options.repeats):
            for name, side in sides.items():
                theirs = name == PEER
                run = run_peer(python, env, side, options.seconds) if theirs else run_ours(env, side, options.seconds)
                runs[name].append(run)
                print(env, name, run, file=sys.stderr, flush=True)
            simulation.append(bare_simulation(env))
        rows.append(summary(env, runs, simulation))
    print_table(rows)
    settings = {name: asdict(side) for name, side in sides.items()}
    print(f"\nrecorded in {record('sample_factory', {'settings': settings, 'rows': rows}).relative_to(ROOT)}")
    return 0


def bare_simulation(env: str) -> float:
    """Frames per second of bare simulator processes, one per core."""
    command = [sys.executable, "-m", "rollmill.cli.main", "bench", "sim", *CONFIGS[env], "--seconds", "5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["sim"]["frames_per_s"])


def install() -> Path:
    return peer_venv(
        "sample-factory",
        ["torch==2.13.0", "numpy==1.26.4", "gymnasium==0.29.1", "huggingface-hub==0.36.0", "setuptools<81"],
        ["faster-fifo", "signal-slot-mp", "colorlog", "tensorboardx", "threadpoolctl", "psutil", "filelock"],
        ["opencv-python-headless", "numpy==1.26.4", "tqdm", "pyyaml", "requests"],
        ["--no-deps", "sample-factory==2.1.1", "vizdoom==1.3.2", "pygame"],
    )


def run_peer(python: Path, env: str, side: Side, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-sf-") as folder:
        flags = {
            "env": env,
            "experiment": "bench",
            "train_dir": folder,
            "num_workers": side.workers,
            "num_envs_per_worker": side.envs,
            "batch_size": side.batch,
            "rollout": 32,
            "recurrence": 32,
            "num_epochs": 1,
            "num_batches_per_epoch": 1,
            "use_rnn": True,
            "res_w": 128,
            "res_h": 72,
            "wide_aspect_ratio": False,
            "env_frameskip": 4,
            "train_for_env_steps": 10**9,
            "save_every_sec": 10**6,
        }
        words = [*(f"--{name}={value}" for name, value in flags.items()), *side.words]
        watched = Watched([str(python), "-m", "sf_examples.vizdoom.train_vizdoom", *words], {"PYTHONUNBUFFERED": "1"})
        # Its first report with frames comes up to 5 s after the first training step; the slope does not care.
        watched.run(seconds + 10, until="Policy #0 lag: (min: 0")
    marks = [(t, int(m.group(1))) for t, line in watched.lines if (m := FRAMES.search(line))]
    return measured(marks, watched)


def run_ours(env: str, side: Side, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-us-") as folder:
        words = [
            *CONFIGS[env],
            f"sampling.workers={side.workers}",
            f"sampling.envs_per_worker={side.envs}",
            f"learning.batch_size={side.batch}",
            "sampling.rollout=32",
            "sampling.decorrelate_steps=0",
            "learning.minibatches=1",
            "learning.epochs=1",
            "model.fc=[512]",
            "model.memory=gru",
            "model.hidden_size=512",
            "model.memory_skip=false",  # the peer has none
            "stop.frames=1_000_000_000",
            f"report.every_frames={side.report_frames}",
            "report.console_seconds=0",
            f"run.dir={folder}",
            *side.words,
        ]
        command = [sys.executable, "-m", "rollmill.cli.main", "train", *words]
        watched = Watched(command, {"PYTHONUNBUFFERED": "1"})
        watched.run(seconds + 5, until="policy lag")
        metrics = next(Path(folder).glob("*/*/metrics.jsonl")).read_text().splitlines()
    marks = [frames_and_time(line) for line in metrics]
    first = next(t for t, line in watched.lines if "policy lag" in line)
    shift = first - marks[0][0]
    return measured([(t + shift, frames) for t, frames in marks], watched)


def frames_and_time(line: str) -> tuple[float, int]:
    row: dict[str, Any] = json.loads(line)
    return float(row["time/seconds"]), int(row["frames"])


def measured(marks: list[tuple[float, int]], watched: Watched) -> dict[str, float]:
    """Frames per second between the first report with frames (and 5 s more) and the last one."""
    some = [(t, frames) for t, frames in marks if frames > 0]
    if len(some) < 3:
        raise SystemExit("no figures in the output:\n" + "\n".join(line for _, line in watched.lines[-30:]))
    begin = next(((t, f) for t, f in some if t >= some[0][0] + 5), some[0])
    end = some[-1]
    return {
        "frames_per_s": (end[1] - begin[1]) / (end[0] - begin[0]),
        "peak_mb": watched.peak_mb,
        "first_step_s": some[0][0],
    }


def summary(env: str, runs: dict[str, list[dict[str, float]]], simulation: list[float]) -> dict[str, Any]:
    def column(side: str, name: str) -> list[float]:
        return [run[name] for run in runs[side]]

    def ratios(name: str) -> dict[str, float]:
        return {
            side: statistics.median(column(side, name)) / statistics.median(column(PEER, name))
            for side in runs
            if side != PEER
        }

    share = statistics.median(column("rollmill", "frames_per_s")) / statistics.median(simulation)
    return {
        "env": env,
        "ratio": ratios("frames_per_s"),
        "memory_ratio": ratios("peak_mb"),
        "share_of_simulation": share,
        "simulation": simulation,
        "runs": runs,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| env | | frames/s, median (range) | memory MB | first step s |\n|---|---|---|---|---|")
    for row in rows:
        for side, runs in row["runs"].items():
            rates, memory, first = ([r[n] for r in runs] for n in ("frames_per_s", "peak_mb", "first_step_s"))
            print(
                f"| {row['env']} | {side} | {median_text(rates)} | {statistics.median(memory):,.0f} | "
                f"{statistics.median(first):.1f} |"
            )
        for side, ratio in row["ratio"].items():
            print(f"| {row['env']} | {side} / {PEER} | {ratio:.2f} | {row['memory_ratio'][side]:.2f} | |")
        print(f"| {row['env']} | bare simulation | {median_text(row['simulation'])} | | |")
        print(f"| {row['env']} | rollmill's share of it | {100 * row['share_of_simulation']:.0f} % | | |")


if __name__ == "__main__":
    run_timed(main)
