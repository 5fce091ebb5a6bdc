"""``rollmill eval`` says what policies are worth."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from rollmill.cli.options import Json, keep_stdout
from rollmill.cli.progress import ProgressLine
from rollmill.core.errors import ConfigError
from rollmill.reports.html.document import place_for
from rollmill.runs.evaluate.options import ENVS, EvalOptions
from rollmill.runs.evaluate.results import document, table
from rollmill.runs.evaluate.run import evaluate_all


def evaluate(
    overrides: tuple[str, ...],
    policies: tuple[str, ...],
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
    behaviour: str | None = None,
    targets: tuple[float, ...] = (),
    last: bool = False,
    device: str | None = None,
    encoder: Path | None = None,
    dynamics: Path | None = None,
    record: tuple[Path, ...] | None = None,
    out: Path | None = None,
    csv: Path | None = None,
    video: Path | None = None,
    video_count: int | None = None,
    grid: str = "",
    fps: float | None = None,
    no_captions: bool = False,
    report: Path | None = None,
    videos: bool = False,
    trust_code: bool = False,
    json_: Json = False,
) -> int:
    """Evaluate policies over whole episodes, side by side: ``rollmill eval runs/default/doom_basic-s0 --random``.

    A policy is a run folder (online, offline, world model), a checkpoint or controller file, RUN@FRAMES (a past version
    of a run), random, or your own as module:callable.

    Args:
        overrides: Settings that differ from the run's own.
        policies: Run folders, files, RUN@FRAMES, patterns ("runs/default/doom*"), random, module:callable.
        episodes: How many episodes to play, for every policy and target (unset: 100).
        steps: Instead of --episodes: play episodes 0, 1, 2 ... until they have so many steps together.
        deterministic: Take the most likely action instead of sampling one.
        seed: Seed of environments and actions; the same seed gives the same metrics, with any number of workers.
        workers: Worker processes; 0 takes one per core.
        envs: Environments that play side by side; sampled actions depend on it.
        best: Take a run's checkpoint with the highest training return instead of the newest.
        all_checkpoints: Evaluate every checkpoint of a run.
        random: Evaluate a random policy beside it, on the same episodes.
        behaviour: The policy that made the data, or any other that shall count as 100 %: it plays beside them.
        targets: Returns to ask Decision Transformers for; none: those of each run.
        last: Of offline runs, take the last weights instead of those with the lowest held-out loss.
        device: cpu, cuda, cuda:N or auto (unset: as each was trained; offline runs take a GPU where there is one).
        encoder: The encoder of a controller, where it is no longer where it was.
        dynamics: The dynamics model of a controller, where it is no longer where it was.
        record: Write the episodes into a store as they end: in this folder, or in the run's eval/<checkpoint>.
        out: Write the result as JSON into this file.
        csv: Write a row for each episode into this file, as they end.
        video: Make videos of episodes in this folder (mp4), from the environment's RGB render.
        video_count: How many episodes to show, each in a video of its own (unset: 3; for a report a typical one).
        grid: ROWSxCOLUMNS: as many episodes in one video, for example 3x3.
        fps: Images per second (unset: the simulator's own speed, frame skip included).
        no_captions: Leave out the line with step and return.
        report: Write a page with table, plot and videos here; another kind of page of that name stays, this one gets a
            name beside it.
        videos: Show a video of a typical episode of every policy on the page (needs --report).
        trust_code: Run the code that checkpoints name; else your own words have to name it (env=my_env.py:MyEnv).
        json_: Print the result as JSON on stdout, and nothing else there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if record is not None and len(record) > 1:
        raise ConfigError(f"--record takes one folder, not {len(record)}: {', '.join(map(str, record))}")
    page = None if report is None else place_for(report, "comparison")
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
        behaviour=behaviour,
        targets=targets,
        last=last,
        device=device,
        encoder=encoder,
        dynamics=dynamics,
        overrides=overrides,
        record=record is not None,
        record_dir=record[0] if record else None,
        out=out,
        csv=csv,
        video=_beside(page) if videos and video is None else video,
        video_count=video_count,
        grid=grid,
        fps=fps,
        no_captions=no_captions,
        report=page,
        trust_code=trust_code,
    )
    with keep_stdout(json_), ProgressLine() as line:
        results = evaluate_all(policies, options, line.show)
    if json_:
        print(json.dumps(document(results, page), allow_nan=False, default=str))
    else:
        print(table(results))
        _say_where(page, report)
    # Metrics are good without a video, but whoever asked for one must notice.
    return 1 if any(made.problem for result in results for made in result.videos) else 0


def _beside(page: Path | None) -> Path:
    """The folder for the videos of a page."""
    if page is None:
        raise ConfigError("--videos are shown on the page: give --report page.html; or --video FOLDER for files alone")
    return page.with_suffix("")


def _say_where(page: Path | None, report: Path | None) -> None:
    if page is not None:
        print(page)
    if page != report:
        print(f"{report} is another page and stays as it is; this one is {page}", file=sys.stderr)
