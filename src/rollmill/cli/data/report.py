"""``rollmill data report`` and ``play``."""

from __future__ import annotations

import json
from pathlib import Path

from rollmill.cli.data.progress import progress
from rollmill.cli.options import Json
from rollmill.core.errors import ConfigError
from rollmill.core.text import bytes_text
from rollmill.reports.store.checks import checks
from rollmill.reports.store.report import write_report
from rollmill.reports.store.statistics import MAX_EPISODES
from rollmill.reports.video.stored_episodes import VideoOptions, choose_episodes, write_videos
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.filters import Filter


def report(
    store: Path,
    /,
    out: Path | None = None,
    max_episodes: int = MAX_EPISODES,
    json_: Json = False,
) -> int:
    """Write a page about a store, and the same metrics as JSON: ``rollmill data report runs/x/data --out x.html``.

    Returns and lengths, returns over time, ends, actions, rewards, duplicates, images, policy versions, workers,
    sizes, problems. Exit code 1 if something is damaged; the page is written all the same.

    Args:
        store: The store's folder.
        out: The page (.html); the metrics go beside it. Default: report.html in the store.
        max_episodes: Episodes whose rows are read (actions, sizes, duplicates), spread evenly; 0 takes all.
        json_: Print the metrics on stdout too.
    """
    source = open_quietly(store)
    with progress("report") as tell:
        done = write_report(source, out, max_episodes=max_episodes, progress=tell)
    if json_:
        print(json.dumps(done.metrics, allow_nan=False))
    else:
        words = {"good": "good", "warn": "LOOK", "bad": "BAD", "unknown": "-"}
        for level, text in checks(done.metrics):
            print(f"{words[level]:5} {text}")
        print(f"{done.html} ({bytes_text(done.html.stat().st_size)}), metrics in {done.json}")
    return 1 if done.metrics["problems"] else 0


def play(
    filters: tuple[str, ...],
    store: Path,
    /,
    out: Path,
    options: VideoOptions,
    episodes: tuple[str, ...] = ("best",),
    seed: int = 0,
    json_: Json = False,
) -> int:
    """Turn episodes into videos with action and reward drawn on: ``rollmill data play x/data --episodes best --out v``.

    Args:
        filters: Conditions on the episodes that best, worst and random choose from: partial=no and so on.
        store: The store's folder.
        out: Folder for the videos; made where there is none.
        episodes: Numbers (7, -1, 3..9), best, worst or random; best:5 takes five.
        seed: Seed of random.
        json_: Print JSON on stdout.
    """
    source = open_quietly(store)
    if not len(source):
        raise ConfigError(f"{store} has no episodes")
    chosen = choose_episodes(source, episodes, Filter.parse(filters).select(source.table), seed)
    with progress("play") as tell:
        files = write_videos(source, chosen, out, options, tell)
    if json_:
        print(json.dumps([{"episode": i, "file": str(file)} for i, file in zip(chosen, files)]))
        return 0
    for i, file in zip(chosen, files):
        end = source.end_record(i)
        print(f"{file}: episode {i}, {end.length:,} steps, return {end.return_:.6g}")
    return 0
