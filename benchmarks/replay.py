"""What does replay bring, and what does it take? Frames and seconds to a score, and memory of a competition's settings.

    python benchmarks/replay.py frames                      CartPole to 475 with ratios 1 and 3, seeds 1 to 5
    python benchmarks/replay.py frames --seeds 1 2 --ratios 1 2 4
    python benchmarks/replay.py memory                      the treasure hunt with a competition's settings, and without
    python benchmarks/replay.py kills                       killed 20 times and resumed, with a pool

Ratios take turns, seed by seed. Those settings are capacity 200, batches of 60 segments of 256 steps; the buffer is
full after 51,200 frames, and memory is the most that all processes took together (proportional set size), by turns.
Prints tables and writes ``runs/benchmarks/replay-*.json``; the exit code is 1 where a mark of ``kills`` was missed. For
the hunt, ``benchmarks/treasure_hunt.py --variants replay_1 replay_3 --target SCORE`` is what ``frames`` is here.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from common import ROOT, Marks, Watched, end_on_sigterm, median_text, ours, reached, record, train_command, with_load

from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.errors import CheckpointError
from rollmill.core.model_pool import ModelPool
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
RATIO, INSERTS = 3.0, 2_000
KILLED = (
    *("-f", "cartpole", "sampling.mode=async", "learning.targets=vtrace", "learning.epochs=1", "replay.capacity=128"),
    *(f"replay.samples_per_insert={RATIO:g}", "replay.save=true", "pool.every_updates=5", "pool.keep=10"),
    *("pool.milestone_updates=100", "checkpoints.every_seconds=1", "stop.frames=100_000_000", "stop.mean_return=null"),
    *("report.every_frames=1_000", "report.tensorboard=false", "report.page=false"),
)
KILL_SECONDS = (2.0, 8.0)
"""After a start; some are killed before they have learnt anything."""
PRESET = ("replay.capacity=200", "replay.preload=4", "replay.samples_per_insert=5", "replay.trigger=new")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["frames", "memory", "kills"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--frames", type=int, default=60_000, help="of each training of memory")
    parser.add_argument("--repeats", type=int, default=2, help="of memory")
    parser.add_argument("--times", type=int, default=20, help="of kills")
    options = parser.parse_args()
    end_on_sigterm()
    results: dict[str, Any] = {"command": sys.argv[1:]}
    marks = Marks()
    for what in options.what:
        if what == "kills":
            results[what] = kills(options.times, marks)
        else:
            results[what] = frames(options) if what == "frames" else memory(options)
    if marks.rows:
        print(marks.table())
    print(f"recorded in {record('replay', {**results, 'marks': marks.rows}).relative_to(ROOT)}")
    return 0 if marks.all_met else 1


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


def kills(times: int, marks: Marks) -> dict[str, Any]:
    """SIGKILL at random moments, and ``--resume``: the pool stays whole, and the ratio holds over all sessions."""
    rng, lost, broken, newest, saved, backwards = random.Random(0), 0, 0, -1, -1, 0
    with tempfile.TemporaryDirectory(prefix="bench-replay-") as place:
        folder = Path(place) / "bench" / "run"
        pool, checkpoints = ModelPool(folder / "pool"), Checkpoints(folder / "checkpoints")
        for _ in range(times):
            session(folder, lambda: None, rng.uniform(*KILL_SECONDS))
            entries = pool.entries()
            broken += sum(not is_whole(pool.path_of(entry)) for entry in entries)
            lost += bool(entries) and entries[-1].id < newest
            newest = entries[-1].id if entries else newest
            frames = checkpoints.load_newest().step
            backwards += frames < saved
            saved = frames
            print(f"frames {saved:,}, models up to {newest}", file=sys.stderr, flush=True)
        session(folder, lambda: (last_row(folder) or {}).get("replay/inserted", 0.0) >= INSERTS or None, 600.0)
        row = last_row(folder)
        files = {path.name for path in (folder / "pool").glob("*.ckpt")} - {entry.file for entry in pool.entries()}
    assert row is not None
    marks.within("samples per insert over all sessions", row["replay/ratio"], RATIO, 0.02)
    marks.equal("models that are half written, or gone", broken + lost, 0)
    marks.equal("checkpoints that are older than before the kill", backwards, 0)
    marks.at_most("files in the pool that no entry names, after the last kill", len(files), 1)
    return {"kills": times, "inserted": row["replay/inserted"], "sampled": row["replay/sampled"], "models": newest + 1}


def session(folder: Path, enough: Callable[[], Any], seconds: float) -> None:
    """Begin the training, or go on, and kill it when it is ``enough``, after so many seconds at the latest."""
    resume = any((folder / "checkpoints").glob("*.ckpt"))
    process = subprocess.Popen(
        train_command(folder, *KILLED, resume=resume), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    end = time.monotonic() + seconds
    while time.monotonic() < end and not enough() and process.poll() is None:
        time.sleep(0.05)
    if process.returncode is not None:
        raise SystemExit(f"it does not go on:\n{process.communicate()[1].decode()}")
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    psutil.wait_procs(below, timeout=60)


def last_row(folder: Path) -> dict[str, Any] | None:
    path = folder / "metrics.jsonl"
    rows = read_jsonl(path) if path.exists() else []
    return rows[-1] if rows else None


def is_whole(path: Path) -> bool:
    try:
        load_checkpoint(path)
    except CheckpointError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
