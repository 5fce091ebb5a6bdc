"""Does cost grow as it should? Frames per second and memory against workers and environments, and memory over time.

    python benchmarks/growth.py                                   workers 1..16 and envs per worker 1..64, ViZDoom basic
    python benchmarks/growth.py --kinds envs --sizes 1 4 16       some of it
    python benchmarks/growth.py --kinds time --minutes 30         memory of one long training
    python benchmarks/growth.py --kinds time --minutes 60 --config treasure_hunt -- learning.targets=vtrace \\
        replay.capacity=1024 replay.samples_per_insert=3          with replay; words after -- are settings
    python benchmarks/growth.py --kinds soak --hours 6                a long training with recording, on 2 cores
    python benchmarks/growth.py --kinds soak --hours 24 --frames 100_000_000 --dir runs/soak --budget-gb 20 \\
        --config doom_health_gathering_supreme -- learning.device=cuda sampling.workers=16     on a machine with a GPU

A point is a short training (asynchronous, one epoch): frames per second once it is warm, and the largest memory of all
its processes together (proportional set size, so that shared pages count once). ``time`` compares the memory (without
libraries) after the first fifth of a training with that in its last tenth: the 95th percentile of its samples, and the
5th, as a batch that is learnt takes memory for a moment. ``soak`` (``soak.py``) charts memory, disk, policy lag, drops
and frames per second of a training that records within a budget, and ends with 1 where any of them has grown; with
``--dir`` the same command goes on where it was stopped. Prints tables, writes ``runs/benchmarks/growth-*.json`` and SVG
plots.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import soak
from common import OWN, ROOT, Watched, end_on_sigterm, end_tree, median_text, record, save_plot, tree_mb, with_load

from rollmill.reports.html.plots import Plot

SIZES = {"workers": (1, 2, 4, 8, 16), "envs": (1, 2, 4, 8, 16, 32, 64)}
ROLLOUT = 32
WARM_UP_SECONDS = 4.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=["workers", "envs", "time", "soak"], default=["workers", "envs"])
    parser.add_argument("--sizes", nargs="+", type=int, help="instead of the usual ones")
    parser.add_argument("--seconds", type=float, default=12, help="of each point, once it is warm")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30, help="of --kinds time")
    parser.add_argument("--hours", type=float, default=6, help="of --kinds soak, in this call")
    parser.add_argument("--frames", type=int, help="of --kinds soak: end there")
    parser.add_argument("--budget-gb", type=float, default=2, help="of the recordings of --kinds soak")
    parser.add_argument("--every", type=float, default=10, help="seconds between two samples of --kinds soak")
    parser.add_argument("--dir", type=Path, help="folder of --kinds soak, to go on later; else it is thrown away")
    parser.add_argument(
        "--config", help="a shipped configuration or a file; doom_basic, of a soak doom_health_gathering"
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="after --: settings of --kinds time and soak")
    options = parser.parse_args()
    options.config = options.config or ("doom_health_gathering" if options.kinds == ["soak"] else "doom_basic")
    end_on_sigterm()
    results: dict[str, Any] = {"config": options.config}
    for kind in options.kinds:
        if kind == "time":
            results[kind] = over_time(options.config, 60 * options.minutes, options.words)
            continue
        if kind == "soak":
            results[kind] = soak.soak(options)
            print(soak.summary(results[kind]), flush=True)
            continue
        sizes = options.sizes or SIZES[kind]
        points: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
        for _ in range(options.repeats):
            for size in sizes:
                shape = {"workers": (size, 4), "envs": (2, size)}[kind]
                points[size].append(with_load(lambda shape=shape: point(options.config, *shape, options.seconds)))
                print(kind, size, points[size][-1], file=sys.stderr, flush=True)
        results[kind] = {str(size): runs for size, runs in points.items()}
        print("\n" + table(kind, points) + "\n", flush=True)
    path = record("growth", results)
    for kind in ("workers", "envs"):
        if kind in results:
            draw(kind, results[kind], path.parent)
    if "time" in results:
        draw_time(results["time"], path.parent)
    if "soak" in results:
        soak.draw(results["soak"], path.parent)
    print(f"recorded in {path.relative_to(ROOT)}")
    return 1 if results.get("soak", {}).get("faults") else 0


def words_of(config: str, folder: str) -> list[str]:
    words = ["-f", config, f"run.dir={folder}", "run.name=growth", "stop.frames=10_000_000_000", "report.page=false"]
    words += ["report.tensorboard=false", "learning.epochs=1", "learning.minibatches=1", "sampling.mode=async"]
    return [sys.executable, "-m", "rollmill.cli.main", "train", *words]


def point(config: str, workers: int, envs: int, seconds: float) -> dict[str, Any]:
    """Rate and memory of one shape; the batch is what all lanes fill in one rollout, at least 512 rows."""
    groups = min(envs, 2)
    segment = ROLLOUT * envs // groups
    batch = segment * max(1, round(max(512, workers * envs * ROLLOUT) / segment))
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as folder:
        words = [f"sampling.workers={workers}", f"sampling.envs_per_worker={envs}", f"sampling.groups={groups}"]
        words += [f"sampling.rollout={ROLLOUT}", f"learning.batch_size={batch}", "sampling.decorrelate_steps=0"]
        words += ["report.every_frames=1", "report.console_seconds=0"]
        watched = Watched([*words_of(config, folder), *words], {"PYTHONUNBUFFERED": "1"})
        watched.run(WARM_UP_SECONDS + seconds, until="policy lag")
        rows = metrics(folder)
    if len(rows) < 3:
        raise SystemExit("no figures in the output:\n" + "\n".join(line for _, line in watched.lines[-30:]))
    begin = next((row for row in rows if row["time/seconds"] >= rows[0]["time/seconds"] + WARM_UP_SECONDS), rows[0])
    frames, took = (rows[-1][name] - begin[name] for name in ("frames", "time/seconds"))
    return {"frames_per_s": frames / took, "peak_mb": watched.peak_mb, "batch": batch}


def metrics(folder: str) -> list[dict[str, Any]]:
    """The rows of the only run in a folder."""
    path = next(Path(folder).glob("*/*/metrics.jsonl"), None)
    return [json.loads(line) for line in path.read_text().splitlines()] if path else []


def over_time(config: str, seconds: float, more: list[str]) -> dict[str, Any]:
    """Memory of one training without mapped files, sampled once per second."""
    samples: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as folder:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        words = [*words_of(config, folder), "report.every_frames=10_000", *more]
        process = subprocess.Popen(words, cwd=ROOT, start_new_session=True, **quiet)
        begun = time.monotonic()
        while process.poll() is None and (passed := time.monotonic() - begun) < seconds:
            samples.append((passed, tree_mb(process.pid, OWN)))
            time.sleep(1)
        if process.poll() is not None:
            raise SystemExit(f"the training ended by itself after {time.monotonic() - begun:.0f} s")
        end_tree(process)
        frames = metrics(folder)[-1]["frames"]
    parts = [sorted(mb for t, mb in samples if a * seconds <= t < b * seconds) for a, b in ((0.2, 0.3), (0.9, 1.0))]
    (early_floor, early), (late_floor, late) = ((part[len(part) // 20], part[-1 - len(part) // 20]) for part in parts)
    print(
        f"after {seconds / 60:.0f} minutes and {frames:,} frames: {early:,.0f} MB -> {late:,.0f} MB "
        f"({100 * (late / early - 1):+.1f} %), between batches {early_floor:,.0f} MB -> {late_floor:,.0f} MB "
        f"({100 * (late_floor / early_floor - 1):+.1f} %)",
        flush=True,
    )
    return {"words": more, "seconds": seconds, "frames": frames, "early_mb": early, "late_mb": late, "samples": samples}


def table(kind: str, points: dict[int, list[dict[str, Any]]]) -> str:
    what = {"workers": "workers x 4 envs", "envs": "2 workers x envs"}[kind]
    lines = [f"| {what} | frames/s | memory MB | batch |", "|---|---|---|---|"]
    for size, runs in points.items():
        rate, memory = (median_text([run[name] for run in runs]) for name in ("frames_per_s", "peak_mb"))
        lines.append(f"| {size} | {rate} | {memory} | {runs[0]['batch']:,} |")
    return "\n".join(lines)


def draw(kind: str, results: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """One plot of the rate, one of memory."""
    of: dict[str, Callable[[dict[str, Any]], float]] = {
        "frames per second": lambda run: run["frames_per_s"],
        "memory MB": lambda run: run["peak_mb"],
    }
    for name, value in of.items():
        line = [(float(size), statistics.median(map(value, runs))) for size, runs in results.items()]
        most = (max(x for x, _ in line), 1.1 * max(y for _, y in line))
        title = {"workers": "workers (4 envs each)", "envs": "envs per worker (2 workers)"}[kind]
        plot = Plot((0, most[0]), (0, most[1]), size=(420, 240), x_title=title, y_title=name)
        save_plot(folder / f"growth_{kind}_{name.split()[0]}.svg", plot.axes().line(line, kind="line c0"), ())


def draw_time(result: dict[str, Any], folder: Path) -> None:
    line = [(t / 60, mb) for t, mb in result["samples"]]
    most = (line[-1][0], 1.2 * max(mb for _, mb in line))
    plot = Plot((0, most[0]), (0, most[1]), size=(420, 240), x_title="minutes", y_title="memory MB")
    save_plot(folder / "growth_time.svg", plot.axes().line(line, kind="line c0"), ())


if __name__ == "__main__":
    sys.exit(main())
