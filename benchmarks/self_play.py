"""What self-play against past selves costs, measured.

    python benchmarks/self_play.py speed     16 frozen opponents against mirror self-play, by turns

Results are kept in ``runs/benchmarks``; the exit code is 1 where a mark was missed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Marks, record

from rollmill.core.config.load import load_config
from rollmill.core.run_folder import RunFolder
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train import publishing
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.run import train

RUNS = Path("runs") / "self_play"
MODELS = 16
EVERY = 20
"""Batches between two models."""
WARM_UP = EVERY * (MODELS + 1)
"""Batches before anything is measured: there are as many opponents as there may be then."""
SPEED = (
    *("env=leduc_poker", "learning.gamma=1", "sampling.workers=2", "sampling.envs_per_worker=8", "sampling.groups=2"),
    *("sampling.rollout=16", "learning.batch_size=512", "model.mlp=[64,64]", "stop.frames=100000000"),
    *("report.tensorboard=false", "checkpoints.every_seconds=1e6"),
)
"""Nothing to simulate: what acting and publishing cost is all there is."""
FROZEN = ("selfplay.rule=uniform", f"pool.every_updates={EVERY}", f"pool.keep={MODELS}")


class Meter(Observer):
    """Frames per second after the warm-up, for so many seconds; then the run is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.rate, self.models = seconds, 0.0, 0
        self._begun: tuple[float, int] | None = None

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        now = time.monotonic()
        if iteration == WARM_UP:
            self._begun = now, run.frames
        if self._begun is not None and now - self._begun[0] >= self.seconds:
            self.rate = (run.frames - self._begun[1]) / (now - self._begun[0])
            self.models = len(run.selfplay.models) if run.selfplay is not None else 0
            run.stop("measured")


def run_of(name: str, words: Sequence[str], observers: Sequence[Observer] = ()) -> RunFolder:
    shutil.rmtree(RUNS / "default" / name, ignore_errors=True)
    config = load_config(TrainConfig, [], [*words, f"run.dir={RUNS}", f"run.name={name}"])
    train(config, Request(command=("benchmark",), console="off"), observers)
    return RunFolder(config.folder)


def speed(rounds: int, seconds: float, marks: Marks) -> dict[str, Any]:
    """Frames per second of both, by turns; and how long it takes until a model that is published can be played."""
    publish, took = publishing.Publisher._publish, []

    def timed(self: publishing.Publisher, run: OnlineRun) -> None:
        begun = time.perf_counter()
        publish(self, run)
        took.append(time.perf_counter() - begun)

    publishing.Publisher._publish = timed  # type: ignore[method-assign]
    rates: dict[str, list[float]] = {"mirror": [], "frozen": []}
    for _ in range(rounds):
        for name, words in (("mirror", ()), ("frozen", FROZEN)):
            meter = Meter(seconds)
            run_of(f"speed-{name}", (*SPEED, *words), [meter])
            rates[name].append(meter.rate)
            print(f"{name}: {meter.rate:,.0f} frames/s, {meter.models} opponents", flush=True)
    medians = {name: statistics.median(own) for name, own in rates.items()}
    ratios = [b / a for a, b in zip(rates["mirror"], rates["frozen"], strict=True)]
    found = {
        "frames_per_s": medians,
        "share": statistics.median(ratios),
        "publish_ms": 1e3 * statistics.median(took),
        "publish_ms_worst": 1e3 * max(took),
    }
    marks.at_least("share of the frames per second of mirror self-play", found["share"], 0.8)
    marks.at_most("from a publication until the model can be played, ms, median", found["publish_ms"], 50)
    return {**found, "rates": rates}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed",))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    asked = parser.parse_args()
    marks = Marks()
    found = speed(asked.rounds, asked.seconds, marks)
    print(marks.table())
    record("self_play_speed", {**found, "marks": marks.rows})
    return int(not marks.all_met)


if __name__ == "__main__":
    sys.exit(main())
