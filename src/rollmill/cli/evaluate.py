"""``rollmill eval``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import tyro

from rollmill.cli.options import Json
from rollmill.core.errors import ConfigError
from rollmill.runs.evaluate import EvalOptions, table
from rollmill.runs.evaluate import evaluate as run_evaluation


def evaluate(
    overrides: tuple[str, ...],
    target: tyro.conf.Positional[Path],
    /,
    episodes: int = 100,
    deterministic: bool = False,
    seed: int = 1,
    workers: int = 0,
    envs_per_worker: int = 8,
    best: bool = False,
    random: bool = False,
    record: tuple[Path, ...] | None = None,
    json_: Json = False,
) -> int:
    """Evaluate a run or a checkpoint over whole episodes: ``rollmill eval runs/default/doom_basic-s0 --random``.

    Args:
        overrides: KEY=VALUE words: settings that differ from the run's own.
        target: A run folder, or a checkpoint file.
        episodes: How many episodes to play.
        deterministic: Take the most likely action instead of sampling one.
        seed: Seed of environments and actions; the same seed gives the same figures.
        workers: Worker processes; 0 takes one per core.
        envs_per_worker: Environments of each worker.
        best: Take the checkpoint with the highest training return instead of the newest.
        random: Evaluate a random policy beside it.
        record: Write the episodes into a store as they end: in this folder, or in the run's eval/<checkpoint>.
        json_: Print the result as JSON on stdout, and nothing else there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if record is not None and len(record) > 1:
        raise ConfigError(f"--record takes one folder, not {len(record)}: {', '.join(map(str, record))}")
    options = EvalOptions(
        episodes,
        deterministic,
        seed,
        workers,
        envs_per_worker,
        best,
        random,
        overrides,
        record is not None,
        record[0] if record else None,
    )
    result = run_evaluation(target, options, _progress if sys.stderr.isatty() else None)
    print(json.dumps(result.to_dict(), allow_nan=False, default=str) if json_ else table(result))
    return 0


def _progress(done: int, wanted: int) -> None:
    print(f"\r{done}/{wanted} episodes", end="\n" if done == wanted else "", file=sys.stderr, flush=True)
