"""What recording costs: frames per second of a training that keeps nothing, one segment per step, or everything.

    python benchmarks/recording.py                                 ViZDoom basic, about 4 minutes
    python benchmarks/recording.py --repeats 7 --seconds 30
    python benchmarks/recording.py --budget-gb 0.2 --at-budget ring --kinds off all

The kinds take turns, each repeat in another order. Ratios are taken within each repeat, where the machine was in much
the same state; their medians are printed. ``by CPU time`` compares the CPU time that a frame took, of all processes
together: where cores are the bound it says the same as the frame rate, and other programs on the machine disturb it
less. ``forecast`` is what the run said before the start, per row, against what its store took. Limits for two cores:
0.97 (one), 0.90 (all).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, end_on_sigterm, median_text, record, tree

WORDS = {
    "off": ("recording=off",),
    "one": ("recording=one",),
    "all": ("recording=all",),
}
LIMITS = {"one": 0.97, "all": 0.90}
WARM_UP = 5.0
"""Seconds of training that are not counted."""


def train(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One training of ``WARM_UP + seconds`` seconds; its rate, and what it recorded."""
    words = [
        *("train", "-f", str(options.config), "--json", *WORDS[kind], f"run.dir={folder}", f"run.name={kind}"),
        *(f"stop.seconds={WARM_UP + options.seconds}", "stop.frames=1000000000", "report.every_frames=500"),
        *(f"recording.budget_gb={options.budget_gb}", f"recording.at_budget={options.at_budget}"),
        *("checkpoints.every_seconds=1000", *options.words),
    ]
    run = folder / "default" / kind
    with tempfile.TemporaryFile("w+", errors="replace") as noise:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollmill.cli.main", *words], cwd=ROOT, stdout=noise, stderr=subprocess.STDOUT
        )
        meter = CpuMeter(process, run)
        meter.watch()
        if process.returncode:
            noise.seek(0)
            raise SystemExit(f"{' '.join(words)}\nended with {process.returncode}:\n{noise.read()[-4000:]}")
    rows = [row for row in metrics(run) if row["time/seconds"] >= WARM_UP]
    if len(rows) < 3 or len(meter) < 3:
        raise SystemExit("the machine is too slow or too busy to measure anything: give it more --seconds")
    first, last = rows[0], rows[-1]
    found = {"frames_per_s": (last["frames"] - first["frames"]) / (last["time/seconds"] - first["time/seconds"])}
    found |= meter.per_frame()
    if kind != "off":
        found |= recorded(run, rows[-1])
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class CpuMeter:
    """CPU seconds of a training's processes between two moments at which it wrote a row of metrics (Linux)."""

    def __init__(self, process: subprocess.Popen[Any], run: Path) -> None:
        self._process, self._run = process, run
        self._marks: list[tuple[int, dict[str, float]]] = []
        """(frames, CPU seconds by role)"""

    def watch(self) -> None:
        """Until the process has ended."""
        while self._process.poll() is None:
            time.sleep(0.25)
            rows = metrics(self._run)
            if (
                rows
                and rows[-1]["time/seconds"] >= WARM_UP
                and (not self._marks or rows[-1]["frames"] > self._marks[-1][0])
            ):
                self._marks.append((rows[-1]["frames"], self._used()))

    def _used(self) -> dict[str, float]:
        used = dict.fromkeys(("recorder", "other"), 0.0)
        for pid in tree(self._process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
            except OSError:
                continue  # it has ended
            role = "recorder" if "rollmill.recording.process" in words else "other"
            used[role] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return used

    def __len__(self) -> int:
        return len(self._marks)

    def per_frame(self) -> dict[str, float]:
        """Microseconds of CPU time per frame, by role."""
        # The last marks may be from after the end of the training, when processes have gone.
        (begun, before), (ended, after) = self._marks[0], self._marks[-2]
        frames = max(1, ended - begun)
        return {f"{role}_us_per_frame": 1e6 * (after[role] - before[role]) / frames for role in before}


def recorded(run: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Figures of the recording: the forecast per row against the truth, and what was dropped."""
    log = (run / "log.txt").read_text()
    said = re.search(r"\(([\d,]+) bytes per row\)", log)
    stored = re.search(r"recorded ([\d,]+) rows", log)
    assert said is not None
    assert stored is not None
    size = sum(path.stat().st_size for path in (run / "data").rglob("*") if path.is_file())
    per_row = size / max(1, number(stored[1]))
    return {
        "rows": number(stored[1]),
        "bytes": size,
        "bytes_per_row": per_row,
        "forecast_bytes_per_row": number(said[1]),
        "forecast_error": number(said[1]) / per_row - 1,
        "dropped_segments": row["record/dropped_segments"],
        "rows_per_batch_row": row["record/rows"] / max(1, row["sample/steps"]),
    }


def number(text: str) -> int:
    return int(text.replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("doom_basic"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kinds", nargs="+", choices=list(WORDS), default=list(WORDS))
    parser.add_argument("--budget-gb", type=float, default=10.0)
    parser.add_argument("--at-budget", choices=["stop", "thin", "ring"], default="stop")
    parser.add_argument("words", nargs="*", help="more KEY=VALUE words for all kinds")
    options = parser.parse_args()
    end_on_sigterm()
    results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in options.kinds}
    for repeat in range(options.repeats):
        turn = repeat % len(options.kinds)
        for kind in options.kinds[turn:] + options.kinds[:turn]:
            with tempfile.TemporaryDirectory(prefix="bench-recording-") as folder:
                results[kind].append(train(kind, options, Path(folder)))
            print(kind, results[kind][-1], file=sys.stderr, flush=True)
    summary = {kind: summarise(kind, results) for kind in options.kinds}
    for kind, entry in summary.items():
        print(f"{kind:>4}  {entry['text']}")
    path = record("recording", {"options": vars(options) | {"config": str(options.config)}, **summary, "runs": results})
    print(f"kept in {path}")


def cpu_per_frame(run: dict[str, Any]) -> float:
    total: float = run["recorder_us_per_frame"] + run["other_us_per_frame"]
    return total


def summarise(kind: str, results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rates = [run["frames_per_s"] for run in results[kind]]
    text = f"{median_text(rates)} frames/s"
    entry: dict[str, Any] = {"frames_per_s": statistics.median(rates)}
    if kind != "off" and "off" in results:
        ratios = [run["frames_per_s"] / off["frames_per_s"] for run, off in zip(results[kind], results["off"])]
        entry["ratio"] = statistics.median(ratios)
        entry["cpu_ratio"] = statistics.median(
            cpu_per_frame(off) / cpu_per_frame(run) for run, off in zip(results[kind], results["off"])
        )
        entry["recorder_share"] = statistics.median(
            run["recorder_us_per_frame"] / cpu_per_frame(run) for run in results[kind]
        )
        entry["dropped_segments"] = sum(run["dropped_segments"] for run in results[kind])
        entry["forecast_error"] = statistics.median(run["forecast_error"] for run in results[kind])
        ok = "" if entry["ratio"] >= LIMITS[kind] else f", below the limit of {LIMITS[kind]}"
        text += f", {entry['ratio']:.3f} of off ({min(ratios):.3f} to {max(ratios):.3f}{ok})"
        text += f", by CPU time {entry['cpu_ratio']:.3f} (recorder's share {entry['recorder_share']:.1%})"
        text += f", forecast {entry['forecast_error']:+.0%}, {entry['dropped_segments']:.0f} segments dropped"
    return {**entry, "text": text}


if __name__ == "__main__":
    main()
