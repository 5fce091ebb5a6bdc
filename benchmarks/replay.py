"""What does replay bring, and what does it take? Frames and seconds to a score, and memory of a competition's settings.

    python benchmarks/replay.py frames                      CartPole to 475 with ratios 1 and 3, seeds 1 to 5
    python benchmarks/replay.py frames --seeds 1 2 --ratios 1 2 4
    python benchmarks/replay.py memory                      the treasure hunt with a competition's settings, and without

Ratios take turns, seed by seed. Those settings are capacity 200, batches of 60 segments of 256 steps; the buffer is
full after 51,200 frames, and memory is the most that all processes took together (proportional set size), by turns.
Prints a table and writes ``runs/benchmarks/replay-*.json``. For the hunt, ``benchmarks/treasure_hunt.py --variants
replay_1 replay_3 --target SCORE`` is what ``frames`` is here.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, Watched, end_on_sigterm, median_text, ours, reached, record, train_command, with_load

from rollmill.monitor.jsonl import read_jsonl

SCORE = 475.0
CARTPOLE = (
    *("-f", "cartpole", "sampling.mode=async", "learning.targets=vtrace", "learning.epochs=1"),
    *("learning.learning_rate=1e-3", "replay.capacity=128", "stop.frames=400_000", "report.every_frames=1_000"),
    *("report.tensorboard=false", "report.page=false"),
)
HUNT = (
    *("env=treasure_hunt", "env.vector=true", "sampling.rollout=256", "learning.batch_size=15360"),
    *("sampling.envs_per_worker=4", "learning.targets=vtrace", "report.tensorboard=false", "report.page=false"),
)
PRESET = ("replay.capacity=200", "replay.preload=4", "replay.samples_per_insert=5", "replay.trigger=new")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["frames", "memory"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--frames", type=int, default=60_000, help="of each training of memory")
    parser.add_argument("--repeats", type=int, default=2, help="of memory")
    options = parser.parse_args()
    end_on_sigterm()
    results: dict[str, Any] = {"command": sys.argv[1:]}
    for what in options.what:
        results[what] = frames(options) if what == "frames" else memory(options)
    print(f"recorded in {record('replay', results).relative_to(ROOT)}")
    return 0


def frames(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every ratio with every seed."""
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        for ratio in options.ratios:
            rows.append(with_load(lambda r=ratio, s=seed: to_score(r, s)))
            print(rows[-1], file=sys.stderr, flush=True)
    print(f"| ratio | reached {SCORE:g} | frames | seconds of training |\n|---|---|---|---|")
    for ratio in options.ratios:
        mine = [row for row in rows if row["ratio"] == ratio]
        there = [row for row in mine if row["frames"] is not None]
        figures = [median_text([row[name] for row in there]) if there else "-" for name in ("frames", "seconds")]
        print(f"| {ratio:g} | {len(there)} of {len(mine)} | {figures[0]} | {figures[1]} |", flush=True)
    return rows


def to_score(ratio: float, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-replay-") as folder:
        words = (f"replay.samples_per_insert={ratio}", f"run.seed={seed}", f"run.dir={folder}")
        outcome = ours("train", *CARTPOLE, *words)
        rows = read_jsonl(Path(outcome["folder"]) / "metrics.jsonl")
    # The run ends with the training step that reaches the score: mostly before another row of metrics is due.
    last = {"frames": outcome["frames"], "time/seconds": rows[-1]["time/seconds"], "return": outcome["mean_return"]}
    found = reached(rows, "episode/return", SCORE) or reached([last], "return", SCORE)
    return {"ratio": ratio, "seed": seed, **(found or {"frames": None, "seconds": None})}


def memory(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """With replay and without, by turns."""
    found: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    for _ in range(options.repeats):
        for name, words in (("without", ()), ("with", PRESET)):
            found[name].append(with_load(lambda w=words: peak(w, options.frames)))
            print(name, found[name][-1], file=sys.stderr, flush=True)
    without, replay = (statistics.median(run["peak_mb"] for run in found[name]) for name in found)
    print(f"without replay {without:,.0f} MB, with it {replay:,.0f} MB: {replay - without:,.0f} MB more", flush=True)
    return found


def peak(words: tuple[str, ...], limit: int) -> dict[str, Any]:
    """The most memory of one training."""
    with tempfile.TemporaryDirectory(prefix="bench-replay-") as folder:
        run = Path(folder) / "bench" / "run"
        watched = Watched(train_command(run, *HUNT, *words, f"stop.frames={limit}", "report.every_frames=1"))
        watched.run(3600)
        path = run / "metrics.jsonl"
        rows = read_jsonl(path) if path.exists() else []
    if not rows:
        raise SystemExit("no figures in the output:\n" + "\n".join(line for _, line in watched.lines[-30:]))
    return {"peak_mb": watched.peak_mb, "frames": rows[-1]["frames"], "packed": rows[-1].get("replay/bytes", 0.0)}


if __name__ == "__main__":
    sys.exit(main())
