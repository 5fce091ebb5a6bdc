"""A long training with recording on: what it takes and drops, over time. ``growth.py --kinds soak`` runs it.

Words
-----
sample    what was seen at one moment: memory, disk, frames, lag, drops.
session   samples of one life of the training; a soak whose folder is kept goes on in another one.
early     the third tenth of a session's samples: everything has been allocated and the recorder is at its pace.
late      the last tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import OWN, ROOT, end_tree, save_plot, train_command, tree_mb

from rollmill.reports.html.plots import Plot

Sample = dict[str, float]

WORDS = (
    *("sampling.mode=async", "recording.keep=all", "recording.at_budget=thin", "checkpoints.every_seconds=300"),
    *("report.page=false", "report.console_seconds=60"),
)
FOREVER = 10_000_000_000
MORE_MEMORY, MORE_MB = 1.1, 20.0
"""Late memory may be this many times the early one, and so many MB more."""
MORE_LAG, MORE_UPDATES = 1.5, 0.5
MORE_DROPS, FEW_DROPS = 2.0, 0.01
"""Segments dropped in a second: late ones against early ones, and how many never matter."""
LOGS_MB_PER_HOUR = 50.0
"""What a run may write besides its recordings: metrics, TensorBoard, log."""
NEVER = {"sample/lost_segments": "lost segments", "record/restarts": "restarts of the recorder"}
DROPS = ("sample/dropped_segments", "record/dropped_segments")
CHARTS = {
    "memory": ("memory MB", ("memory_mb",)),
    "disk": ("disk MB: recordings, all else", ("data_mb", "rest_mb")),
    "lag": ("policy lag: mean, largest", ("lag", "lag_max")),
    "drops": ("segments dropped: before learning, in recording", DROPS),
    "frames": ("frames per second", ("frames_per_s",)),
}


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Train until time or frames are over; ``result["faults"]`` says what has grown."""
    with contextlib.ExitStack() as stack:
        if options.dir is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-soak-")))
        else:
            folder = options.dir.resolve()
        run, log = folder / "soak" / "run", folder / "soak" / "samples.jsonl"
        log.parent.mkdir(parents=True, exist_ok=True)
        before = read_samples(log)
        session = 1 + int(before[-1]["session"]) if before else 0
        words = (f"stop.frames={options.frames or FOREVER}", f"recording.budget_gb={options.budget_gb}", *WORDS)
        resume = any((run / "checkpoints").glob("*.ckpt"))
        command = train_command(run, "-f", options.config, *words, *options.words, resume=resume)
        state = watch(command, run, log, session, 3600 * options.hours, options.every)
        samples = read_samples(log)
    faults = [*verdict(samples, 1000 * options.budget_gb), *([state] if state else [])]
    return {"words": options.words, "hours": options.hours, "budget_gb": options.budget_gb, "faults": faults} | {
        "samples": samples
    }


def watch(command: list[str], run: Path, log: Path, session: int, seconds: float, every: float) -> str:
    """Take samples until the training ends, or its time is over; a sentence where it ended as it should not."""
    noise = log.with_name(f"output-{session}.txt")
    with noise.open("w") as output, log.open("a") as file:
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=output, stderr=output)
        begun = time.monotonic()
        try:
            while process.poll() is None and (passed := time.monotonic() - begun) < seconds:
                print(json.dumps({"session": session, "seconds": passed, **sample(process.pid, run)}), file=file)
                file.flush()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(every)
        finally:
            ended = process.poll()
            end_tree(process)
    if ended:
        return f"the training ended with {ended}: {noise.read_text()[-1000:]}"
    return ""


def sample(pid: int, run: Path) -> Sample:
    """What there is to see now; what the training has not said yet is missing."""
    data, whole = size_mb(run / "data"), size_mb(run)
    row: Mapping[str, Any] = last_row(run / "metrics.jsonl")
    said = {
        "frames": row.get("frames"),
        "frames_per_s": row.get("time/frames_per_s"),
        "lag": row.get("learn/policy_lag"),
        "lag_max": row.get("learn/policy_lag_max"),
        **{name: row.get(name) for name in (*DROPS, *NEVER)},
    }
    seen = {"memory_mb": tree_mb(pid, OWN), "data_mb": data, "rest_mb": whole - data}
    return {**seen, **{name: float(value) for name, value in said.items() if value is not None}}


def size_mb(folder: Path) -> float:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):  # thinned or pruned meanwhile
                total += os.stat(os.path.join(place, name)).st_blocks * 512
    return total / 1e6


def last_row(path: Path) -> dict[str, Any]:
    """The newest row of metrics; nothing before the first."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65_536))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # the newest may be half written
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return {}


def read_samples(log: Path) -> list[Sample]:
    """All that was written whole: a kill may have torn the last line."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


# -- the verdict -------------------------------------------------------------------------------------------


def verdict(samples: Sequence[Sample], budget_mb: float) -> list[str]:
    """What has grown that must not, in sentences."""
    if not samples:
        return ["there are no samples"]
    most = max(s["data_mb"] for s in samples)
    faults = [f"the recordings took {most:,.0f} MB of {budget_mb:,.0f} MB"] if most > budget_mb else []
    longest = max(sessions(samples), key=len)
    if len(longest) < 20:
        return [*faults, f"{len(longest)} samples in a row are too few to judge by"]
    early, late = longest[len(longest) // 5 : 3 * len(longest) // 10], longest[-(len(longest) // 10) :]
    hours = (longest[-1]["seconds"] - longest[0]["seconds"]) / 3600
    for name, part in (("memory", 0.95), ("memory between batches", 0.05)):
        a, b = (quantile([s["memory_mb"] for s in some], part) for some in (early, late))
        if b > MORE_MEMORY * a + MORE_MB:
            faults.append(f"{name} grew from {a:,.0f} to {b:,.0f} MB")
    a, b = (statistics.fmean(s["rest_mb"] for s in some) for some in (early, late))
    if b - a > max(MORE_MB, LOGS_MB_PER_HOUR * hours):
        faults.append(f"what is no recording grew from {a:,.0f} to {b:,.0f} MB in {hours:.1f} h")
    a, b = (mean_of("lag", some) for some in (early, late))
    if b > MORE_LAG * a + MORE_UPDATES:
        faults.append(f"the policy lag rose from {a:.2f} to {b:.2f} updates")
    for name in DROPS:
        a, b = (rate_of(name, some) for some in (early, late))
        if b > MORE_DROPS * a + FEW_DROPS:
            faults.append(f"{name} rose from {a:.3f} to {b:.3f} in a second")
    faults += [f"{int(longest[-1][name]):,} {words}" for name, words in NEVER.items() if longest[-1].get(name)]
    return faults


def sessions(samples: Sequence[Sample]) -> list[list[Sample]]:
    numbers = dict.fromkeys(s["session"] for s in samples)
    return [[s for s in samples if s["session"] == number] for number in numbers]


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def mean_of(name: str, samples: Sequence[Sample]) -> float:
    values = [s[name] for s in samples if name in s]
    return statistics.fmean(values) if values else 0.0


def rate_of(name: str, samples: Sequence[Sample]) -> float:
    """How fast a count rises, per second."""
    known = [(s["seconds"], s[name]) for s in samples if name in s]
    if len(known) < 2 or known[-1][0] == known[0][0]:
        return 0.0
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


# -- what is shown -----------------------------------------------------------------------------------------


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """A chart for each of ``CHARTS``; sessions follow each other."""
    offset, points = 0.0, []
    for session in sessions(result["samples"]):
        points += [(offset + s["seconds"]) / 3600 for s in session]
        offset += session[-1]["seconds"]
    paths = []
    for name, (title, fields) in CHARTS.items():
        lines = [[(x, s[f]) for x, s in zip(points, result["samples"], strict=True) if f in s] for f in fields]
        most = max((y for line in lines for _, y in line), default=0.0)
        plot = Plot((0, max(points[-1], 1e-6)), (0, 1.1 * most or 1.0), size=(640, 240), x_title="hours", y_title=title)
        plot.axes()
        for number, line in enumerate(lines):
            plot.line(line, kind=f"line c{number}")
        paths.append(folder / f"soak_{name}.svg")
        save_plot(paths[-1], plot, ())
    return paths


def summary(result: Mapping[str, Any]) -> str:
    """A line for each figure: first, median and last value."""
    samples = result["samples"]
    lines = [f"{len(samples):,} samples of {len(sessions(samples))} sessions; {frames_of(samples):,} frames"]
    show: Callable[[float], str] = lambda value: f"{value:,.2f}"  # noqa: E731  # three of them in a line
    for name in ("memory_mb", "data_mb", "rest_mb", "lag", "lag_max", "frames_per_s", *DROPS):
        values = [s[name] for s in samples if name in s]
        if values:
            lines.append(
                f"{name}: {show(values[0])} at first, {show(statistics.median(values))}, {show(values[-1])} last"
            )
    return "\n".join([*lines, *(f"GREW: {fault}" for fault in result["faults"])])


def frames_of(samples: Sequence[Sample]) -> int:
    return int(max((s["frames"] for s in samples if "frames" in s), default=0))


if __name__ == "__main__":
    sys.exit("python benchmarks/growth.py --kinds soak")
