"""rollmill against Sample Factory 2.1.1: ViZDoom, the same network, batch and frame skip, in one run.

    python benchmarks/sample_factory.py                      2 cores, no GPU: basic and health gathering supreme
    python benchmarks/sample_factory.py --envs doom_basic --repeats 5

Runs alternate; each is measured over the same time after its first training step. Prints medians, the
ratio, memory (proportional set size of all processes) and the seconds to the first training step.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, Watched, median_text, peer_venv, record

FRAMES = re.compile(r"Total num frames: (\d+)\.")
OURS_ROW = re.compile(r'"frames": (\d+)')
CONFIGS = {
    "doom_basic": ("-f", "configs/doom_basic.yaml"),
    "doom_health_gathering_supreme": ("-f", "configs/doom_health_gathering_supreme.yaml"),
}
SETTINGS = {"workers": 2, "envs": 16, "batch": 1024}
"""Both sides; the network is convnet_simple + fc 512 + GRU 512, rollout 32, one epoch, frame skip 4, 128x72."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40)
    options = parser.parse_args()
    python = install()
    rows = []
    for env in options.envs:
        runs: dict[str, list[dict[str, float]]] = {"rollmill": [], "sample_factory": []}
        for _ in range(options.repeats):
            runs["rollmill"].append(run_ours(env, options.seconds))
            runs["sample_factory"].append(run_peer(python, env, options.seconds))
            print(env, runs["rollmill"][-1], runs["sample_factory"][-1], file=sys.stderr, flush=True)
        rows.append(summary(env, runs))
    print_table(rows)
    print(f"\nrecorded in {record('sample_factory', {'settings': SETTINGS, 'rows': rows}).relative_to(ROOT)}")
    return 0


def install() -> Path:
    return peer_venv(
        "sample-factory",
        ["torch==2.13.0", "numpy==1.26.4", "gymnasium==0.29.1", "huggingface-hub==0.36.0", "setuptools<81"],
        ["faster-fifo", "signal-slot-mp", "colorlog", "tensorboardx", "threadpoolctl", "psutil", "filelock"],
        ["opencv-python-headless", "numpy==1.26.4", "tqdm", "pyyaml", "requests"],
        ["--no-deps", "sample-factory==2.1.1", "vizdoom==1.3.2", "pygame"],
    )


def run_peer(python: Path, env: str, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-sf-") as folder:
        flags = {
            "env": env,
            "experiment": "bench",
            "train_dir": folder,
            "device": "cpu",
            "num_workers": SETTINGS["workers"],
            "num_envs_per_worker": SETTINGS["envs"],
            "batch_size": SETTINGS["batch"],
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
        words = [f"--{name}={value}" for name, value in flags.items()]
        watched = Watched([str(python), "-m", "sf_examples.vizdoom.train_vizdoom", *words], {"PYTHONUNBUFFERED": "1"})
        # Its first report with frames comes up to 5 s after the first training step; the slope does not care.
        watched.run(seconds + 10, until="Policy #0 lag: (min: 0")
    marks = [(t, int(m.group(1))) for t, line in watched.lines if (m := FRAMES.search(line))]
    return measured(marks, watched)


def run_ours(env: str, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-us-") as folder:
        words = [
            *CONFIGS[env],
            f"sampling.workers={SETTINGS['workers']}",
            f"sampling.envs_per_worker={SETTINGS['envs']}",
            f"learning.batch_size={SETTINGS['batch']}",
            "sampling.rollout=32",
            "sampling.decorrelate_steps=0",
            "learning.minibatches=1",
            "learning.epochs=1",
            "learning.micro_batch=256",
            "learning.device=cpu",
            "model.fc=[512]",
            "model.memory=gru",
            "model.hidden_size=512",
            "stop.frames=1_000_000_000",
            "report.every_frames=1",
            "report.console_seconds=0",
            f"run.dir={folder}",
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
    import json

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


def summary(env: str, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    def column(side: str, name: str) -> list[float]:
        return [run[name] for run in runs[side]]

    mine, theirs = column("rollmill", "frames_per_s"), column("sample_factory", "frames_per_s")
    return {"env": env, "ratio": statistics.median(mine) / statistics.median(theirs), "runs": runs}


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| env | | frames/s, median (range) | memory MB | first step s |\n|---|---|---|---|---|")
    for row in rows:
        for side, runs in row["runs"].items():
            rates, memory, first = ([r[n] for r in runs] for n in ("frames_per_s", "peak_mb", "first_step_s"))
            print(
                f"| {row['env']} | {side} | {median_text(rates)} | {statistics.median(memory):,.0f} | "
                f"{statistics.median(first):.1f} |"
            )
        print(f"| {row['env']} | ratio | {row['ratio']:.2f} | | |")


if __name__ == "__main__":
    begun = time.monotonic()
    code = main()
    print(f"took {time.monotonic() - begun:.0f} s")
    sys.exit(code)
