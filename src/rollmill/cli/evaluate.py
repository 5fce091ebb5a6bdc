"""``rollmill eval``."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import tyro

from rollmill.cli.options import Json, keep_stdout
from rollmill.cli.progress import ProgressLine
from rollmill.core.errors import ConfigError
from rollmill.runs.evaluate.options import ENVS, EvalOptions
from rollmill.runs.evaluate.results import document, table
from rollmill.runs.evaluate.run import evaluate_all


def evaluate(
    overrides: tuple[str, ...],
    targets: tyro.conf.Positional[tuple[str, ...]],
    /,
    episodes: int | None = None,
    steps: int | None = None,
    deterministic: bool = False,
    seed: int = 1,
    workers: int = 0,
    envs: int = ENVS,
    best: bool = False,
    all_checkpoints: bool = False,
    random: bool = False,
    record: tuple[Path, ...] | None = None,
    out: Path | None = None,
    csv: Path | None = None,
    video: Path | None = None,
    video_count: int | None = None,
    grid: str = "",
    fps: float | None = None,
    no_captions: bool = False,
    trust_code: bool = False,
    json_: Json = False,
) -> int:
    """Evaluate runs or checkpoints over whole episodes: ``rollmill eval runs/default/doom_basic-s0 --random``.

    Args:
        overrides: Settings that differ from the run's own.
        targets: Run folders, checkpoint files, or patterns of them ("runs/default/doom*").
        episodes: How many episodes to play (unset: 100).
        steps: Instead of --episodes: play episodes 0, 1, 2 ... until they have so many steps together.
        deterministic: Take the most likely action instead of sampling one.
        seed: Seed of environments and actions; the same seed gives the same metrics, with any number of workers.
        workers: Worker processes; 0 takes one per core.
        envs: Environments that play side by side; sampled actions depend on it.
        best: Take a run's checkpoint with the highest training return instead of the newest.
        all_checkpoints: Evaluate every checkpoint of a run.
        random: Evaluate a random policy beside it, on the same episodes.
        record: Write the episodes into a store as they end: in this folder, or in the run's eval/<checkpoint>.
        out: Write the result as JSON into this file.
        csv: Write a row for each episode into this file, as they end.
        video: Make a video of episodes into this folder (mp4), from the environment's RGB render.
        video_count: How many episodes to show in a video, each by itself (unset: 3).
        grid: ROWSxCOLUMNS: as many episodes in one video, for example 3x3.
        fps: Images per second (unset: the simulator's own speed, frame skip included).
        no_captions: Leave out the line with step and return.
        trust_code: Run the code that checkpoints name; else your own words have to name it (env=my_env.py:MyEnv).
        json_: Print the result as JSON on stdout, and nothing else there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if not targets:
        raise ConfigError("what is to be evaluated? Give a run folder, a checkpoint file or a pattern; see --help")
    if record is not None and len(record) > 1:
        raise ConfigError(f"--record takes one folder, not {len(record)}: {', '.join(map(str, record))}")
    options = EvalOptions(
        episodes=episodes,
        steps=steps,
        deterministic=deterministic,
        seed=seed,
        workers=workers,
        envs=envs,
        best=best,
        all_checkpoints=all_checkpoints,
        random=random,
        overrides=overrides,
        record=record is not None,
        record_dir=record[0] if record else None,
        out=out,
        csv=csv,
        video=video,
        video_count=video_count,
        grid=grid,
        fps=fps,
        no_captions=no_captions,
        trust_code=trust_code,
    )
    with keep_stdout(json_), ProgressLine() as line:
        results = evaluate_all(targets, options, line.show)
    print(json.dumps(document(results), allow_nan=False, default=str) if json_ else table(results))
    # Metrics are good without a video, but whoever asked for one must notice.
    return 1 if any(made.problem for result in results for made in result.videos) else 0
