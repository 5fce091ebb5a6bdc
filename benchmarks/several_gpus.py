"""Several learners on the GPUs of one machine: what they gain, and that they hold together (NCCL).

    python benchmarks/several_gpus.py                               two GPUs, health gathering supreme with a GRU
    python benchmarks/several_gpus.py --ranks 4 --seconds 120
    python benchmarks/several_gpus.py --device cuda:0               the ranks share one GPU, by gloo
    python benchmarks/several_gpus.py --device cpu --config toy_memory --seconds 10

With fewer GPUs than ranks it says so and ends with 0: there is nothing to measure. Else, by turns, one rank and all of
them train with the same batch, workers and settings: frames per second. Then a run goes on with one rank and with all
of them again, and one must go on when its last rank is killed. Ends with 1 where any of that fails. Recorded in
``runs/benchmarks/several_gpus-*.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import ROOT, end_on_sigterm, end_tree, median_text, record, train_command, tree, with_load

RANK_MODULE = "rollmill.runs.train.ranks.rank_main"
BATCHES = 6
"""Training steps of the runs that are continued."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", help="cuda: rank r on GPU r, by NCCL; cuda:0, cpu: by gloo")
    parser.add_argument("--config", default="doom_health_gathering_supreme")
    parser.add_argument("--seconds", type=float, default=60, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="after --: further settings")
    options = parser.parse_args()
    end_on_sigterm()
    gpus = torch.cuda.device_count()
    if options.device.startswith("cuda") and gpus < (options.ranks if options.device == "cuda" else 1):
        print(f"skipped: {options.ranks} ranks with --device {options.device}, and this machine has {gpus} usable GPUs")
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-ranks-") as folder:
        bench = Bench(options, Path(folder) / "bench")
        rates = bench.rates()
        faults = [*bench.goes_on(), *bench.loses_a_rank()]
    for name, values in rates.items():
        print(f"{name}: {median_text([run['frames_per_s'] for run in values])} frames/s")
    one, all_of_them = (statistics.median(run["frames_per_s"] for run in runs) for runs in rates.values())
    print(f"{options.ranks} ranks have {all_of_them / one:.2f} times the rate of one")
    for fault in faults:
        print(f"FAILED: {fault}")
    path = record("several_gpus", {**vars(options), "gpus": gpus, "rates": rates, "faults": faults})
    print(f"recorded in {path.relative_to(ROOT)}")
    return 1 if faults else 0


class Bench:
    """The runs of one call."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder

    def command(self, name: str, ranks: int, *words: str, resume: bool = False) -> list[str]:
        given = ("-f", self.options.config, f"learning.device={self.options.device}", f"learning.ranks={ranks}")
        quiet = ("report.tensorboard=false", "report.page=false", "sampling.mode=async")
        return train_command(self.folder / name, *given, *quiet, *self.options.words, *words, resume=resume)

    def rates(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {"1 rank": [], f"{self.options.ranks} ranks": []}
        for number in range(self.options.repeats):
            for (name, runs), ranks in zip(found.items(), (1, self.options.ranks), strict=True):
                runs.append(with_load(lambda n=number, r=ranks: self._rate(f"rate-{r}-{n}", r)))
                print(name, runs[-1], file=sys.stderr, flush=True)
        return found

    def _rate(self, name: str, ranks: int) -> dict[str, Any]:
        """Frames per second of the second half of a training of so many seconds."""
        words = (f"stop.seconds={self.options.seconds}", "stop.frames=10_000_000_000", "report.every_frames=1")
        ended = self._end(subprocess.Popen(self.command(name, ranks, *words), **_QUIET))
        if ended[0]:
            raise SystemExit(f"{ranks} ranks ended with {ended[0]}:\n{ended[1][-3000:]}")
        rows = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        late = [row for row in rows if row["time/seconds"] >= self.options.seconds / 2]
        if len(late) < 2:
            raise SystemExit(
                f"{len(rows)} training steps in {self.options.seconds:g} s are too few; give more --seconds"
            )
        frames, took = (late[-1][key] - late[0][key] for key in ("frames", "time/seconds"))
        return {"frames_per_s": frames / took}

    def goes_on(self) -> list[str]:
        """With all ranks, with one, with all again."""
        faults = []
        for number, ranks in enumerate((self.options.ranks, 1, self.options.ranks), 1):
            words = (f"stop.batches={number * BATCHES}",)
            code, text = self._end(subprocess.Popen(self.command("on", ranks, *words, resume=number > 1), **_QUIET))
            if code:
                faults.append(f"going on with {ranks} ranks ended with {code}: {text[-1500:]}")
        return faults

    def loses_a_rank(self) -> list[str]:
        """Another rank than the first is killed after some training steps: the others make some more."""
        process = subprocess.Popen(self.command("dies", self.options.ranks, "report.every_frames=1"), **_QUIET)
        metrics = self.folder / "dies" / "metrics.jsonl"

        def reach(rows: int) -> None:
            while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= rows):
                time.sleep(0.2)

        try:
            reach(3)
            others = [pid for pid in tree(process.pid) if RANK_MODULE in _words(pid)]
            if not others:
                return [f"no other rank was found: {self._end(process)[1][-1500:]}"]
            os.kill(others[-1], signal.SIGKILL)
            reach(metrics.read_text().count("\n") + 5)
            process.terminate()
            code, text = self._end(process)
        finally:
            end_tree(process)
        went_on = f"{self.options.ranks - 1} of {self.options.ranks} ranks go on" in text
        return [] if went_on and code == 143 else [f"a rank was killed, and the run ended with {code}: {text[-1500:]}"]

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            text = process.communicate()[0]
        except BaseException:
            end_tree(process)
            raise
        return process.returncode, text


_QUIET: dict[str, Any] = {
    "cwd": ROOT,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
    "text": True,
    "start_new_session": True,
}


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
