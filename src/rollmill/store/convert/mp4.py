"""One video per episode, from an image among the observations; needs PyAV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.convert.columns import as_image, image_column
from rollmill.store.convert.h264 import VideoFile
from rollmill.store.convert.target import Exported, Progress, new_folder
from rollmill.store.reader import Store


@dataclass(frozen=True)
class Options:
    """Knobs of the video export."""

    obs: str | None = None
    """The image to show, if there are several."""
    fps: float = 30.0
    """Images per second: one per step."""
    scale: int = 0
    """Each pixel becomes a square of this many; 0 makes images at least 240 lines high."""


def export_episodes(
    store: Store, episodes: Array, target: Path, options: Options, progress: Progress | None = None
) -> Exported:
    """Write a folder of ``00000-<uid>.mp4`` files, numbered in the order of the episodes."""
    if options.fps <= 0 or options.scale < 0:
        raise StoreError("fps must be positive, scale 0 (automatic) or positive")
    column = image_column(store.schema, options.obs)
    done = Exported(Path(target), episodes=len(episodes), steps=int(store.table.length[episodes].sum()))
    names, steps = [], 0
    with new_folder(target) as folder:
        for number, i in enumerate(map(int, episodes)):
            names.append(f"{number:05d}-{int(store.table.uid[i]):016x}.mp4")
            _write(folder / names[-1], store, i, column.name, options)
            steps += int(store.table.length[i])
            if progress is not None:
                progress(steps, done.steps)
    done.files = [done.path / name for name in names]
    return done


def _write(path: Path, store: Store, i: int, column: str, options: Options) -> None:
    length, block = int(store.table.length[i]), int(store.table["block"][i])
    with VideoFile(path, options.fps) as video:
        for start in range(0, length, block):
            stop = min(start + block, length)
            rows = store.read(i, start, stop, [column], next_obs=stop == length)[column]
            for image in _enlarged(as_image(rows), options.scale):
                video.add(image)


def _enlarged(images: Array, scale: int) -> Array:
    """Return RGB images, each pixel a square of ``scale`` (0: as large as needed for 240 lines)."""
    factor = scale or max(1, -(-240 // images.shape[1]))
    if images.shape[-1] == 1:
        images = np.repeat(images, 3, axis=-1)
    large: Array = images.repeat(factor, axis=1).repeat(factor, axis=2)
    return large
