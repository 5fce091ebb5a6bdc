"""Contact sheets: a few images of a few episodes, to see what a store is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollmill.core.errors import BadBlock
from rollmill.core.fields import Array
from rollmill.reports.video.images import shrink
from rollmill.store.convert.png import encode_png
from rollmill.store.images import ImageColumn, images, read_image
from rollmill.store.reader import Store

MAX_SIDE = 256
"""Pixels of an image on the page; larger ones are made smaller."""
MAX_SHEETS = 3
"""Columns with images that are shown."""
SHOTS = 5


@dataclass(frozen=True)
class Shot:
    """One image: the step it was seen at, and a PNG file."""

    step: int
    png: bytes
    size: tuple[int, int]
    """Width and height."""


@dataclass(frozen=True)
class Strip:
    """Images of one episode from its beginning to its end."""

    rank: str
    episode: int
    return_: float
    length: int
    shots: list[Shot]


@dataclass(frozen=True)
class ContactSheet:
    """One column with images."""

    name: str
    note: str
    strips: list[Strip]


def contact_sheets(store: Store, problems: list[str]) -> list[ContactSheet]:
    """Return five images, from first to last, of the episodes with low, median and high return.

    A damaged place is added to ``problems``.
    """
    picks = pick_by_return(store)
    sheets = []
    for image in images(store.schema)[:MAX_SHEETS] if picks else []:
        note = "; ".join(text for text in (image.why_not, image.note and f"shown: {image.note}") if text)
        strips = []
        for rank, i in picks.items():
            try:
                strips.append(_strip(store, rank, i, image))
            except BadBlock as error:
                problems.append(f"image of episode {i}: {error}")
        sheets.append(ContactSheet(image.name, note, strips))
    return sheets


def pick_by_return(store: Store) -> dict[str, int]:
    """Choose the episodes with the lowest, the median and the highest return; whole ones where there are any."""
    table = store.table
    known = np.isfinite(table.return_)
    whole = known & ~(table["partial_start"] | table["partial_end"])
    among = np.flatnonzero(whole if whole.any() else known)
    order = among[np.argsort(table.return_[among], kind="stable")]
    if not len(order):
        return {}
    names = {"lowest return": 0, "median return": len(order) // 2, "highest return": len(order) - 1}
    picks: dict[str, int] = {}
    for name, place in names.items():
        if int(order[place]) not in picks.values():
            picks[name] = int(order[place])
    return picks


def _strip(store: Store, rank: str, i: int, image: ImageColumn) -> Strip:
    length = int(store.table.length[i])
    last = length if image.column.per == "obs" else length - 1
    first_step = int(store.table["first_step"][i])
    rows = dict.fromkeys(round(last * k / (SHOTS - 1)) for k in range(SHOTS))
    shots = [_shot(first_step + row, read_image(store, i, row, image)) for row in rows]
    return Strip(rank, i, float(store.table.return_[i]), length, shots)


def _shot(step: int, image: Array) -> Shot:
    small = shrink(image, MAX_SIDE)
    return Shot(step, encode_png(small, level=6), (small.shape[1], small.shape[0]))
