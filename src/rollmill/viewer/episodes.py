"""Recorded episodes as the viewer shows them: tables of stores, what happened step by step, and frames."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.core.opening import check_within, read_json
from rollmill.core.run_kind import FOLDERS
from rollmill.core.slots import OBS
from rollmill.reports.store.checks import checks
from rollmill.store.convert.png import encode_png
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.filters import Filter
from rollmill.store.format.schema import STORE_FILE
from rollmill.store.images import ImageColumn, choose_image, images
from rollmill.store.reader import Store
from rollmill.viewer.facts import written

OPEN = 4
"""Stores that are kept open."""
MOST_ROWS = 500
"""Of the table of episodes at a time."""
MOST_POINTS = 100_000
"""Episodes that are drawn at a time: browsers draw so many within a second."""
MOST_STEPS = 200_000
"""Of an episode whose tracks are drawn."""
PIXELS = 1_000_000
"""Of the frames that are sent at a time."""
MOST_FRAMES = 16
COLUMNS = (
    *("return", "length", "global_step_first", "global_step_last", "version_min", "version_max"),
    *(
        "terminated",
        "truncated",
        "partial_start",
        "partial_end",
        "seed",
        "has_seed",
        "policy",
        "env_id",
        "time",
        "bytes",
    ),
)
"""Of the table of episodes."""


BLANKS = " \t\r\n"
VALUE = "value"
"""What the policy expected of an observation, the final one included."""


def store_folders(run: Path) -> list[Path]:
    """Return the stores in a run's folder: what it recorded, its evaluations, and the stages of a world model."""
    places = [run / "data", *sorted((run / "eval").glob("*")), *(run / name for name in FOLDERS.values())]
    return [place for place in dict.fromkeys(places) if (place / STORE_FILE).is_file()]


class Stores:
    """Opens stores and keeps some of them open. Usable by several threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, Store] = OrderedDict()

    def __call__(self, folder: Path) -> Store:
        """Return the store with what was written since; raises OSError if a link leads a file of it out of the root."""
        with self._lock:
            store = self._open.pop(folder, None)
            check_within(folder / STORE_FILE, self._root)
            if store is None:
                store = open_quietly(folder)
            else:
                store.refresh()
            for shard in store.shards:
                check_within(shard.path, self._root)
            self._open[folder] = store
            while len(self._open) > OPEN:
                self._open.pop(next(iter(self._open)))
            return store


def words_in(text: str) -> list[str]:
    """Split the words of a filter box as ``filter.js`` does: at blanks, but for those between double quotes.

    The quotes go; between them a backslash takes the next character as it is.
    """
    words: list[str] = []
    inside, taken, begun = False, False, False
    for character in text:
        if not inside and character in BLANKS:
            begun = False
            continue
        if not begun:
            words.append("")
            begun = True
        if inside and character == "\\" and not taken:
            taken = True
        elif character == '"' and not taken:
            inside = not inside
        else:
            words[-1] += character
            taken = False
    if inside:
        raise ConfigError(f"{text}: a quotation mark is not closed")
    return words


@dataclass(frozen=True)
class Question:
    """What is asked of the table of episodes. ``sort``: a column, with a hyphen in front for the highest first."""

    words: str = ""
    sort: str = ""
    start: int = 0
    count: int = MOST_ROWS
    near: float | None = None
    """A global step: the episodes that were under way there, the others by their distance."""

    def select(self, store: Store) -> Array:
        """Return the numbers of all episodes that fit, in the order that is asked for."""
        found = Filter.parse(words_in(self.words)).select(store.table)
        if self.near is not None:
            names = ("global_step_first", "global_step_last")
            first, last = (store.table[name][found].astype(np.float64) for name in names)
            distance = np.maximum(0, np.maximum(first - self.near, self.near - last))
            return np.asarray(found[np.argsort(distance, kind="stable")])
        column = self.sort.removeprefix("-")
        if column:
            if column not in COLUMNS:
                raise ConfigError(f"sort: no column {column!r}")
            values = store.table[column][found]
            order = np.argsort(values, kind="stable")
            if self.sort.startswith("-"):
                order = order[::-1]
                known = values[order] == values[order]  # what is not known comes last, in either order
                order = np.concatenate([order[known], order[~known]])
            return np.asarray(found[order])
        return found


def table(store: Store, question: Question) -> dict[str, Any]:
    """Return a part of the table of episodes, and what is wrong with the store."""
    found = question.select(store)
    start = max(0, question.start)
    shown = found[start : start + max(0, min(question.count, MOST_ROWS))]
    columns = {name: store.table[name][shown] for name in COLUMNS}
    columns["seed"] = columns["seed"].astype(str)  # browsers round integers of 64 bits
    return {
        "episodes": len(store),
        "fitting": len(found),
        "start": start,
        "numbers": shown.tolist(),
        "columns": {name: written(values.tolist()) for name, values in columns.items()},
        "problems": [str(problem) for problem in store.problems[:20]],
        "damaged": len(store.problems),
        "images": [image.name for image in images(store.schema)],
    }


def report_of(folder: Path, root: Path) -> dict[str, Any]:
    """Return what a store's report says about its soundness, and when it was made; no checks where there is none."""
    for place in (folder / "report.json", folder.parent / f"{folder.name}_report.json"):
        try:
            metrics = read_json(place, within=root)
            return {"made": str(metrics["made_at"]), "checks": [list(check) for check in checks(metrics)]}
        except FileNotFoundError:
            continue
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError(f"{place.name} cannot be read: {error!r}") from error
    return {"made": "", "checks": []}


def scatter(store: Store, question: Question) -> tuple[dict[str, Any], list[Array]]:
    """Return columns ``[rows]`` of all episodes that fit: number, where they ended, return, length, whole.

    The head has their names, and how many episodes fit: of too many, some at even distances are taken.
    """
    found = question.select(store)
    fitting = len(found)
    if fitting > MOST_POINTS:
        found = found[np.linspace(0, fitting - 1, MOST_POINTS).round().astype(np.int64)]
    known = store.table
    taken = [found, *(known[name][found] for name in ("global_step_last", "return", "length"))]
    whole = ~(known["partial_start"][found].astype(bool) | known["partial_end"][found].astype(bool))
    columns = [np.asarray(column, np.float64) for column in (*taken, whole)]
    names = ["number", "global_step", "return", "length", "whole"]
    return {"names": names, "rows": len(found), "fitting": fitting}, columns


def episode(store: Store, number: int) -> tuple[dict[str, Any], list[Array]]:
    """Return what is known of an episode, and its tracks as float64, ``rows`` of each.

    That is one for each step, and one more for ``value`` where that of the final observation was recorded, too.
    """
    end = store.end_record(number)
    if end.length > MOST_STEPS:
        raise StoreError(f"the episode has {end.length:,} steps; at most {MOST_STEPS:,} are drawn")
    names = [name for name in store.schema.names if not name.startswith(OBS) and _is_track(store, name)]
    read = store.read(number, 0, end.length, names, next_obs=True)
    tracks = {f"{name}{part}": column for name in names for part, column in _split(read[name])}
    shown, known = shown_image(store), images(store.schema)
    head = {
        "number": number,
        "length": end.length,
        "return": written(end.return_),
        "seed": None if end.seed is None else str(end.seed),
        "env": end.env_id,
        "policy": end.policy,
        "first_step": end.first_step,
        "ended": "terminated" if end.terminated else "truncated" if end.truncated else "cut",
        "stats": written(dict(end.stats)),
        "tracks": list(tracks),
        "rows": [len(column) for column in tracks.values()],
        "image": None if shown is None else _image_dict(shown),
        "images": [_image_dict(image) for image in known],
    }
    return head, [np.asarray(column, np.float64) for column in tracks.values()]


def _is_track(store: Store, name: str) -> bool:
    column = store.schema[name]
    return (column.per == "step" or name == VALUE) and int(np.prod(column.shape, dtype=np.int64)) <= 8


def _split(column: Array) -> list[tuple[str, Array]]:
    """Split a column of vectors into one column for each of its numbers."""
    if column.ndim == 1:
        return [("", column)]
    flat = column.reshape(len(column), -1)
    return [(f"[{k}]", flat[:, k]) for k in range(flat.shape[1])]


# -- frames ---------------------------------------------------------------------------------------------------------


def shown_image(store: Store, name: str = "") -> ImageColumn | None:
    """Return the images that are shown: those asked for, else the only view; None where there are none."""
    known = images(store.schema)
    if not known:
        return None
    try:
        return choose_image(store.schema, name or None)
    except StoreError:
        if name:
            raise
        return known[0]  # several views, or none that is what the agent saw: the page says which it is


def portion(image: ImageColumn) -> int:
    """Return how many frames are sent at a time."""
    height, width = _size(image)
    return max(1, min(MOST_FRAMES, PIXELS // (height * width)))


def frames(store: Store, number: int, image: ImageColumn, part: int) -> bytes:
    """Return the frames of a part of an episode, one below the other, as a lossless PNG file."""
    length, count = int(store.table.length[number]), portion(image)
    start = part * count
    if not 0 <= start <= length:
        raise StoreError(f"the episode has no part {part}")
    stop = min(start + count, length)
    last = stop == length and stop - start < count
    rows = store.read(number, start, stop, [image.column.name], next_obs=last)[image.column.name]
    rgb = image.rgb(rows)
    return encode_png(rgb.reshape(-1, *rgb.shape[2:]))


def _size(image: ImageColumn) -> tuple[int, int]:
    shape: Sequence[int] = image.column.shape
    height, width = shape[1:] if image.channel_first else shape[:2]
    return int(height), int(width)


def _image_dict(image: ImageColumn) -> dict[str, Any]:
    height, width = _size(image)
    return {
        "name": image.name,
        "note": image.note or image.why_not,
        "height": height,
        "width": width,
        "portion": portion(image),
    }
