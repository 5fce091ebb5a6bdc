"""Is what a recording keeps like what was played? Many trainings, kept and played compared.

    python benchmarks/unbiased.py                      the coin, every way to keep whole episodes, 10 seeds: an hour
    python benchmarks/unbiased.py --seeds 2 --only matrix
    python benchmarks/unbiased.py --only trouble       a recorder that is braked, kills of the run and of the recorder
    python benchmarks/unbiased.py --only doom          ViZDoom basic while it learns
    python benchmarks/unbiased.py --seeds 1 --frames 9000   all of it once and short: does it still work?

``toy_coin`` has episodes of 3 or 75 steps by the toss of a coin. Each run's report compares the means of kept and
played episodes and says how many standard errors they are apart (z). If chance alone has chosen, z has mean 0 and
deviation 1; ``pooled`` is the sum of all over the root of their number, and beyond 4 it is an alarm (once in 16,000).
The size of the data folder is looked at all the time; ``most`` is the largest share of the budget that was seen.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, end_on_sigterm, record

from rollmill.recording.budget import folder_bytes

ALARM = 4.0
COIN = ("env=toy_coin", "sampling.workers=2", "sampling.envs_per_worker=16", "sampling.rollout=32", "model.mlp=[16]")
KEEPS, AT_BUDGET = ("all", "episodes"), ("stop", "thin", "ring")


@dataclass
class Result:
    """One training's comparison."""

    z_return: float
    z_length: float
    kept: int
    played: int
    most: float
    """Largest share of the budget that the data folder had."""


class Training:
    """A training as a process, its data folder weighed all the time."""

    def __init__(self, folder: Path, budget_gb: float, *words: str) -> None:
        self.run, self._budget = folder / "default" / "run", budget_gb * 1e9
        self._words = [*words, f"recording.budget_gb={budget_gb}", f"run.dir={folder}", "run.name=run"]
        self.process: subprocess.Popen[bytes] | None = None
        self.most = 0.0

    def start(self, *words: str) -> None:
        command = [sys.executable, "-m", "rollmill.cli.main", "train", *self._words, *words]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=subprocess.STDOUT)

    def weigh(self, seconds: float = math.inf) -> bool:
        """Look at the folder until the process has ended, or for so long; whether it has ended."""
        assert self.process is not None
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.most = max(self.most, folder_bytes(self.run / "data") / self._budget)
            time.sleep(0.005)
        return self.process.returncode is not None

    def finish(self) -> Result:
        self.weigh()
        assert self.process is not None
        if self.process.returncode:
            self._log.seek(0)
            raise SystemExit(f"{' '.join(self._words)}\n{self._log.read().decode(errors='replace')[-3000:]}")
        found = json.loads((self.run / "data_report.json").read_text())["selection"]
        return Result(found["return"]["z"], found["length"]["z"], found["kept"], found["played"], self.most)

    def recorder(self) -> int | None:
        """The recorder's pid, if it has one by now."""
        assert self.process is not None
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    parent = int((entry / "stat").read_text().rsplit(") ", 1)[1].split()[1])
                except (OSError, IndexError):
                    continue
                if b"rollmill.recording.process" in words and parent == self.process.pid:
                    return int(entry.name)
        return None


def once(folder: Path, budget_gb: float, *words: str) -> Result:
    training = Training(folder, budget_gb, *words)
    training.start()
    return training.finish()


def braked(folder: Path, seed: int, frames: int) -> Result:
    """The recorder may run for a fifth of the time only."""
    words = (*COIN, "recording=all", "recording.queue_segments=24", f"stop.frames={frames}", f"run.seed={seed}")
    training, over = Training(folder, 0.1, *words), threading.Event()

    def brake() -> None:
        while not over.is_set():
            pid = training.recorder()
            if pid is None:
                time.sleep(0.05)
                continue
            try:
                while not over.is_set():
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.08)
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.02)
            except ProcessLookupError:
                pass

    training.start()
    thread = threading.Thread(target=brake)
    thread.start()
    try:
        return training.finish()
    finally:
        over.set()
        thread.join()


def killed(folder: Path, seed: int, frames: int, whom: str) -> Result:
    """SIGKILL at random moments: of the recorder, or of the whole run, which is then resumed."""
    words = (*COIN, "recording=all", "recording.when=spread", f"stop.frames={frames}", f"run.seed={seed}")
    training, rng = Training(folder, 0.008, *words, "checkpoints.every_seconds=1"), random.Random(seed)
    training.start()
    for _ in range(3):
        if training.weigh(rng.uniform(5, 9)):
            break
        assert training.process is not None
        if whom == "recorder":
            if (pid := training.recorder()) is not None:
                os.kill(pid, signal.SIGKILL)
        else:
            training.process.kill()
            training.process.wait()
            training.start("--resume")
    return training.finish()


def matrix(seeds: int, frames: int) -> Iterator[tuple[str, list[Result]]]:
    whens = ("run", "last:50%", f"after:{frames // 3}", "spread")
    for keep, when, at_budget in itertools.product(KEEPS, whens, AT_BUDGET):
        words = [*COIN, f"recording={keep}", f"recording.when={when}", f"recording.at_budget={at_budget}"]
        words += [f"stop.frames={frames}", "recording.every=2", "recording.block=16", "sampling.mode=serial"]
        results = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                results.append(once(Path(folder), 0.002, *words, f"run.seed={seed}"))
        yield f"{keep} {when} {at_budget}", results


def trouble(seeds: int, frames: int) -> Iterator[tuple[str, list[Result]]]:
    kinds = {
        "recorder braked to a fifth": braked,
        "recorder killed three times": lambda folder, seed, frames: killed(folder, seed, frames, "recorder"),
        "run killed and resumed three times": lambda folder, seed, frames: killed(folder, seed, frames, "run"),
    }
    for name, work in kinds.items():
        results = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                results.append(work(Path(folder), seed, frames))
        yield name, results


def doom(seeds: int, frames: int) -> Iterator[tuple[str, list[Result]]]:
    for words in (("recording.when=spread",), ("recording.at_budget=thin",), ("recording.keep=episodes",)):
        results = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                setup = ("-f", "doom_basic", "recording=all", *words, f"stop.frames={frames}")
                results.append(once(Path(folder), 0.3, *setup, f"run.seed={seed}"))
        yield f"ViZDoom basic, {' '.join(words)}", results


def summary(name: str, results: list[Result]) -> dict[str, Any]:
    row: dict[str, Any] = {"what": name, "runs": len(results)}
    for quantity in ("return", "length"):
        z = [getattr(result, f"z_{quantity}") for result in results]
        row[f"z_{quantity}"] = {
            "mean": statistics.mean(z),
            "deviation": statistics.pstdev(z),
            "largest": max(map(abs, z)),
            "pooled": sum(z) / math.sqrt(len(z)),
        }
    row["kept"] = sum(result.kept for result in results) / max(1, sum(result.played for result in results))
    row["most"] = max(result.most for result in results)
    row["alarm"] = any(abs(row[f"z_{q}"]["pooled"]) > ALARM for q in ("return", "length")) or row["most"] > 1
    return row


def line(row: dict[str, Any]) -> str:
    text = " | ".join(
        f"{q}: z {row[f'z_{q}']['mean']:+.2f} ± {row[f'z_{q}']['deviation']:.2f}, pooled {row[f'z_{q}']['pooled']:+.2f}"
        for q in ("return", "length")
    )
    alarm = "  ALARM" if row["alarm"] else ""
    return f"{row['what']:42} {row['runs']:3} runs  kept {row['kept']:6.1%}  most {row['most']:5.1%}  {text}{alarm}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--frames", type=int, help="of each training, in the place of what each part has")
    parser.add_argument("--only", choices=("matrix", "trouble", "doom"))
    options = parser.parse_args()
    end_on_sigterm()
    kinds = {
        "matrix": lambda: matrix(options.seeds, options.frames or 60_000),
        "trouble": lambda: trouble(options.seeds, options.frames or 600_000),
        "doom": lambda: doom(max(1, options.seeds // 3), options.frames or 400_000),
    }
    rows = []
    for name in [options.only] if options.only else list(kinds):
        for what, results in kinds[name]():
            rows.append(summary(what, results))
            print(line(rows[-1]), flush=True)
    record("unbiased", {"rows": rows})
    return int(any(row["alarm"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
