"""Videos of stored episodes: each image with the action that was taken there and the reward it brought.

Image t shows what was seen, the panel below it what was done and what came of it; the last image is the final
observation and says how the episode ended. An episode of n steps has n + 1 images.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.reports.video.images import MAX_SCALE, enlarge
from rollmill.reports.video.panel import Panel
from rollmill.store.convert.h264 import VideoFile
from rollmill.store.images import ImageColumn, choose_image, read_images
from rollmill.store.reader import Store

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) between episodes; may raise to stop the work."""

_RANKED = re.compile(r"(best|worst|random)(?::(\d+))?")
_NUMBERS = re.compile(r"(-?\d+)(?:\.\.(-?\d+))?")


@dataclass(frozen=True)
class VideoOptions:
    """Knobs of a video."""

    field: str | None = None
    """The observation to show; needed for depth and stacked images, and where there are several."""
    fps: float = 30.0
    """Images per second: one per step."""
    scale: int = 0
    """Each pixel becomes a square of this many; 0 makes images at least 320 x 240."""
    plain: bool = False
    """Leave out the panel with step, action, reward and return below the image."""

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= MAX_SCALE:
            raise ConfigError(f"scale {self.scale}: 0 (automatic) to {MAX_SCALE} is expected")
        if not 0 < self.fps <= 1000:
            raise ConfigError(f"fps {self.fps}: images per second must be above 0 and at most 1000")


def choose_episodes(store: Store, words: Sequence[str], among: Array | None = None, seed: int = 0) -> list[int]:
    """Choose episode numbers by words: ``7``, ``-1`` (the last), ``3..9``, ``best``, ``worst:5``, ``random:3``.

    ``among``: the episodes that ranks and chance choose from (default: all). Each episode once, in the order asked for.
    """
    candidates = np.arange(len(store)) if among is None else np.asarray(among)
    chosen: dict[int, None] = {}
    for word in words:
        chosen.update(dict.fromkeys(_chosen_by(store, word, candidates, seed)))
    if not chosen:
        raise ConfigError("no episode was chosen; name numbers, best, worst or random")
    return list(chosen)


def _chosen_by(store: Store, word: str, candidates: Array, seed: int) -> list[int]:
    ranked, numbers = _RANKED.fullmatch(word), _NUMBERS.fullmatch(word)
    if ranked is not None:
        return _ranked(store, ranked.group(1), int(ranked.group(2) or 1), candidates, seed)
    if numbers is None:
        raise ConfigError(f"episodes {word!r}: a number, FIRST..LAST, best, worst or random (best:5 for five of them)")
    first, last = (_number(store, int(text)) for text in (numbers.group(1), numbers.group(2) or numbers.group(1)))
    if last < first:
        raise ConfigError(f"episodes {word!r}: the last one comes before the first")
    return list(range(first, last + 1))


def _number(store: Store, i: int) -> int:
    if not -len(store) <= i < len(store):
        raise ConfigError(f"there is no episode {i} in {store.path}, it has {len(store):,}")
    return i % len(store)


def _ranked(store: Store, how: str, count: int, candidates: Array, seed: int) -> list[int]:
    if not len(candidates):
        raise ConfigError(f"there is no episode to choose the {how} of")
    if how == "random":
        rng = np.random.default_rng(seed)
        return [int(i) for i in rng.permutation(candidates)[:count]]
    known = candidates[np.isfinite(store.table.return_[candidates])]
    if not len(known):
        raise ConfigError(f"no episode has a return to choose the {how} by")
    returns = store.table.return_[known]
    order = known[np.argsort(-returns if how == "best" else returns, kind="stable")]
    return [int(i) for i in order[:count]]


def write_videos(
    store: Store,
    episodes: Sequence[int],
    out: Path,
    options: VideoOptions | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write ``episode-<number>-<uid>.mp4`` into the folder ``out`` for every episode; returns the files.

    A file appears when it is complete, and replaces an earlier video of the same episode.
    """
    options = options or VideoOptions()
    image = choose_image(store.schema, options.field)
    done, total = 0, int(store.table.length[list(episodes)].sum())
    files = []
    for i in episodes:
        if progress is not None:
            progress(done, total)
        path = Path(out) / f"episode-{i:06d}-{int(store.table.uid[i]):016x}.mp4"
        _video(store, i, path, image, options)
        files.append(path)
        done += int(store.table.length[i])
    if progress is not None:
        progress(total, total)
    return files


def _video(store: Store, i: int, path: Path, image: ImageColumn, options: VideoOptions) -> None:
    panel: Panel | None = None
    row = 0
    with VideoFile(path, options.fps) as video:
        for part in read_images(store, i, image):
            for shown in part:
                large = enlarge(shown, options.scale, fit=not options.plain)
                if not options.plain:
                    panel = panel or Panel(store, i, large.shape[1])
                    large = np.concatenate([large, panel.draw(row)])
                video.add(large)
                row += 1
