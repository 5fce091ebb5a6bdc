"""This version against another one, by turns on one machine: training rate, start-up, memory, `rollmill --help`.

    git worktree add ../before d48d4be
    python benchmarks/versions.py ../before                     ViZDoom basic, health gathering supreme, CartPole
    python benchmarks/versions.py ../before --tasks cartpole --repeats 9

Both use the packages of this Python and their own settings files. Rates come from ``rollmill bench train``; start-up is
a training of one step, from the start of the command to its end; memory is the most that all its processes had.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, end_on_sigterm, load_text, record, tree_mb, with_load

TASKS = ("doom_basic", "doom_health_gathering_supreme", "cartpole")
HELP_RUNS = 5


@dataclass(frozen=True)
class Version:
    """A checkout."""

    name: str
    path: Path

    def command(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "rollmill.cli.main", *words],
            cwd=self.path,
            env=os.environ | {"PYTHONPATH": str(self.path / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def settings(self, task: str) -> str:
        """The settings file as this version finds it."""
        old = self.path / "configs" / f"{task}.yaml"
        return str(old) if old.is_file() else task

    def rate(self, task: str, seconds: float) -> dict[str, Any]:
        """Frames per second of a training."""
        process = self.command("bench", "train", "-f", self.settings(task), "--seconds", str(seconds), "--json")
        out = _output(process)
        return {"value": json.loads(out)["train"]["frames_per_s"]}

    def start(self, task: str) -> dict[str, Any]:
        """Seconds of a training of one step, and MB of all its processes at most."""
        with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
            begun, peak = time.monotonic(), 0.0
            process = self.command("train", "-f", self.settings(task), f"run.dir={folder}", "stop.batches=1")
            while process.poll() is None:
                peak = max(peak, tree_mb(process.pid))
                time.sleep(0.05)
            seconds = time.monotonic() - begun
            _output(process)
        return {"value": seconds, "mb": peak}

    def help(self) -> dict[str, Any]:
        """Milliseconds of ``rollmill --help``."""
        begun = time.monotonic()
        for _ in range(HELP_RUNS):
            _output(self.command("--help"))
        return {"value": 1000 * (time.monotonic() - begun) / HELP_RUNS}


def _output(process: subprocess.Popen[str]) -> str:
    out, noise = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args}\nended with {process.returncode}:\n{noise[-3000:]}")
    return out


def by_turns(versions: list[Version], repeats: int, measure: Callable[[Version], dict[str, Any]]) -> dict[str, Any]:
    """Each version in turn, the first one changing: what drifts hits both alike."""
    runs: dict[str, list[dict[str, Any]]] = {version.name: [] for version in versions}
    for k in range(repeats):
        for version in versions if k % 2 == 0 else reversed(versions):
            runs[version.name].append(with_load(lambda version=version: measure(version)))
    return {"runs": runs}


def show(title: str, row: dict[str, Any], key: str = "value") -> None:
    values = {name: [run[key] for run in runs] for name, runs in row["runs"].items()}
    ours, other = values.values()
    ratio = statistics.median(ours) / statistics.median(other)
    texts = ", ".join(f"{n} {statistics.median(x):.4g} ({min(x):.4g} to {max(x):.4g})" for n, x in values.items())
    print(f"{title:48} {texts}; ratio of medians {ratio:.3f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of the other version")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement of a rate")
    options = parser.parse_args()
    end_on_sigterm()
    versions = [Version("this", ROOT), Version("other", options.other.resolve())]
    rows = {"help": by_turns(versions, options.repeats, Version.help)}
    show("rollmill --help, ms", rows["help"])
    for task in options.tasks:
        rows[task] = by_turns(versions, options.repeats, lambda v, task=task: v.rate(task, options.seconds))
        show(f"{task}, frames/s", rows[task])
        rows[f"{task} start"] = by_turns(versions, min(3, options.repeats), lambda v, task=task: v.start(task))
        show(f"{task}, seconds of one training step", rows[f"{task} start"])
        show(f"{task}, MB at most", rows[f"{task} start"], "mb")
    print(load_text(list(rows.values())), end="")
    print(record("versions", {"options": vars(options) | {"other": str(options.other)}, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
