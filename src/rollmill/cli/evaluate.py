"""``rollmill eval`` says what policies are worth."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

from rollmill.cli.options import Json, keep_stdout
from rollmill.cli.progress import EvaluationLine
from rollmill.core.errors import ConfigError
from rollmill.reports.html.document import place_for
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.results import document, table
from rollmill.runs.evaluate.run import evaluate_all


def evaluate(
    policies: tuple[str, ...],
    /,
    options: EvalOptions,
    record: tuple[Path, ...] | None = None,
    report_videos: bool = False,
    json_: Json = False,
) -> int:
    """Evaluate policies over whole episodes, side by side: ``rollmill eval runs/default/doom_basic-s0 --random``.

    A policy is a run folder (online, offline, world model), a checkpoint or controller file, RUN@FRAMES (a past version
    of a run), random, or your own as module:callable.

    Args:
        policies: Run folders, files, RUN@FRAMES, patterns ("runs/default/doom*"), random, module:callable.
        record: Write the episodes into a store as they end: in this folder, or in the run's eval/<checkpoint>.
        report_videos: Show a video of a typical episode of every policy on the page (needs --report).
        json_: Print the result as JSON on stdout, and nothing else there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if record is not None and len(record) > 1:
        raise ConfigError(f"--record takes one folder, not {len(record)}: {', '.join(map(str, record))}")
    report = options.report
    page = None if report is None else place_for(report, "comparison")
    options = replace(
        options,
        record=record is not None,
        record_dir=record[0] if record else None,
        video=_beside(page) if report_videos and options.video is None else options.video,
        report=page,
    )
    with keep_stdout(json_), EvaluationLine() as line:
        results = evaluate_all(policies, options, line.show)
    if json_:
        print(json.dumps(document(results, page), allow_nan=False, default=str))
    else:
        print(table(results))
        _say_where(page, report)
    # Metrics are good without a video, but whoever asked for one must notice.
    return 1 if any(made.problem for result in results for made in result.videos) else 0


def _beside(page: Path | None) -> Path:
    """Return the folder for the videos of a page."""
    if page is None:
        raise ConfigError("--report-videos: which page? give --report page.html; or --video FOLDER for files alone")
    return page.with_suffix("")


def _say_where(page: Path | None, report: Path | None) -> None:
    if page is not None:
        print(page)
    if page != report:
        print(f"{report} is another page and stays as it is; this one is {page}", file=sys.stderr)
