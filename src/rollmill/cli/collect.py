"""``rollmill collect``."""

from __future__ import annotations

import json
import logging
import sys

from rollmill.cli.options import Configs, Json, keep_stdout
from rollmill.cli.progress import ProgressLine
from rollmill.core.errors import RollmillError
from rollmill.core.text import bytes_text
from rollmill.monitor.console import count_text, duration_text
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import Collected, Metrics
from rollmill.runs.collect.run import collect as run_collection


def collect(
    overrides: tuple[str, ...],
    /,
    options: CollectOptions,
    config: Configs = (),
    json_: Json = False,
) -> int:
    """Write whole episodes into a store: ``rollmill collect env=doom_basic --out data/doom --until 10000``.

    Any number of instances, on any number of machines, may write into one store. Settings of the environment and
    of the sampling are those of ``rollmill train``.

    Args:
        overrides: Settings, for example env=CarRacing-v3 sampling.workers=4.
        config: A YAML file with settings; may be given several times, later files win.
        json_: Print the outcome as JSON on stdout, and nothing else there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with keep_stdout(json_), CollectionLine() as line:
        try:
            done = run_collection(options, config, overrides, line.show)
        except RollmillError as error:
            line.end()
            if line.metrics is not None and line.metrics.episodes:
                print(f"{line.metrics.episodes:,} episodes had ended: they are in {options.out}", file=sys.stderr)
            raise error
    print(json.dumps(done.to_dict(), allow_nan=False) if json_ else summary(done))
    if done.signal and not json_:
        print(how_to_continue(done, options))
    return done.exit_code


class CollectionLine(ProgressLine):
    """Shows how far a collection is."""

    metrics: Metrics | None = None
    """What was shown last."""

    def show(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.draw(metrics.share, line(metrics))


def line(metrics: Metrics) -> str:
    """Say ``120 of 1,000 episodes, 3.21K steps/s, 45.0 MB, 2 min 10 s left``."""
    if metrics.wanted_steps is not None:
        amount = f"{metrics.steps:,} of {metrics.wanted_steps:,} steps"
    else:
        amount = f"{metrics.episodes:,} of {metrics.wanted:,} episodes"
    left = metrics.seconds_left
    rest = "" if left is None else f", {duration_text(left)} left"
    return f"{amount}, {count_text(metrics.steps_per_s)} steps/s, {bytes_text(metrics.bytes)}{rest}"


def summary(done: Collected) -> str:
    f = done.metrics
    mean = "" if f.mean_return is None else f", mean return {f.mean_return:.4g}"
    faults = (
        f"; {f.env_faults} env faults, {f.worker_restarts} workers replaced"
        if f.env_faults or f.worker_restarts
        else ""
    )
    shard = f", shard {done.shard}" if done.shard else ""
    return (
        f"{done.state}: {done.reason}; added {f.episodes:,} episodes ({f.steps:,} steps, {bytes_text(f.bytes)})"
        f"{mean}{faults}\n"
        f"{done.store}: {done.total_episodes:,} whole episodes; policy {done.policy}, seed {done.seed}{shard}"
    )


def how_to_continue(done: Collected, options: CollectOptions) -> str:
    """Say what to type to get the rest."""
    f = done.metrics
    seed = "" if options.seed is not None else f" and --seed {done.seed} (it plays again what was interrupted)"
    if options.until is not None:
        return f"the same command{' with' + seed.removeprefix(' and') if seed else ''} continues"
    if options.steps is not None:
        return f"to continue: the same command with --steps {max(1, options.steps - f.steps)}{seed}"
    shard = " for every shard" if done.shard else ""
    rest = max(1, (f.wanted or 0) - f.episodes)
    return f"to continue: the same command with --episodes {rest}{seed}{shard}"
