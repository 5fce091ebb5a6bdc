"""Which columns of a store can be looked at, and how a row becomes an RGB image.

An image is a uint8 column ``[height, width]``, ``[height, width, channels]`` or ``[channels, height, width]``. One
with 1 or 3 channels is shown as it is. More channels are several images in one row (a stack): the last, newest one
is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.slots import OBS
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import Store

SMALLEST = 8
"""Pixels of the shorter side below which an array is a map or a vector, not an image."""
_NOT_SEEN = ("depth", "label", "segment", "mask", "automap")
"""Words in names of one-channel fields that hold no view: H x W numbers of another kind."""


@dataclass(frozen=True)
class ImageColumn:
    """A column that can be shown."""

    column: Column
    channels: int
    channel_first: bool

    @property
    def name(self) -> str:
        return self.column.name.removeprefix(OBS)

    @property
    def shown(self) -> int:
        """Channels that are shown: 1 or 3."""
        return _shown(self.channels)

    @property
    def why_not(self) -> str:
        """Why nobody should take this for what the agent saw, unless told to; "" if it can be."""
        if self.channels not in (1, 3):
            return f"{self.channels} channels are several images stacked, not a view"
        if self.channels == 1 and any(word in self.name.lower() for word in _NOT_SEEN):
            return "by its name it holds depth or labels, not a view"
        return ""

    @property
    def note(self) -> str:
        if self.channels == self.shown:
            return ""
        part = "channel" if self.shown == 1 else "three channels"
        return f"the last {part} of {self.channels}"

    def rgb(self, rows: Array) -> Array:
        """Return the rows ``[n, ...]`` of the column as ``[n, height, width, 3]`` uint8."""
        if rows.ndim == 3:
            rows = rows[..., None]
        elif self.channel_first:
            rows = rows.transpose(0, 2, 3, 1)
        return to_rgb(rows)


def to_rgb(images: Array) -> Array:
    """Turn images ``[..., height, width, channels]`` into RGB; of a stack the last one is shown."""
    newest = images[..., -_shown(images.shape[-1]) :]
    return np.ascontiguousarray(np.broadcast_to(newest, (*newest.shape[:-1], 3)))


def _shown(channels: int) -> int:
    return 3 if channels % 3 == 0 else 1


def image_of(column: Column) -> ImageColumn | None:
    """Return how to show a column; None if it is no image."""
    shape = column.shape
    if column.dtype != "uint8" or len(shape) not in (2, 3):
        return None
    if len(shape) == 2:
        return ImageColumn(column, 1, False) if min(shape) >= SMALLEST else None
    # The channels are the short axis; in doubt the last one.
    first = shape[0] < shape[2]
    height, width = shape[1:] if first else shape[:2]
    if min(height, width) < SMALLEST:
        return None
    return ImageColumn(column, shape[0] if first else shape[2], first)


def images(schema: StoreSchema) -> list[ImageColumn]:
    found = (image_of(column) for column in schema.columns)
    return [image for image in found if image is not None]


def choose_image(schema: StoreSchema, field: str | None) -> ImageColumn:
    """Choose the image to show in a video: the one asked for, else the only view, colours before grey.

    Depth and stacked images are taken only when they are asked for.
    """
    known = {image.name: image for image in images(schema)}
    names = ", ".join(known) or "none"
    if field is not None:
        if field.removeprefix(OBS) not in known:
            raise StoreError(f"there is no image {field!r} in this store (images: {names})")
        return known[field.removeprefix(OBS)]
    if not known:
        columns = ", ".join(column.name.removeprefix(OBS) for column in schema.obs_columns)
        raise StoreError(f"this store holds no images (observations: {columns}); there is nothing to show in a video")
    views = [image for image in known.values() if not image.why_not]
    if not views:
        reasons = "; ".join(f"{image.name}: {image.why_not}" for image in known.values())
        raise StoreError(
            f"no image of this store is a view ({reasons}); name one with --field to show it in a video anyway"
        )
    best = [image for image in views if image.shown == 3] or views
    if len(best) > 1:
        raise StoreError(f"several images can be shown, choose one with --field: {', '.join(p.name for p in best)}")
    return best[0]


def read_images(store: Store, i: int, image: ImageColumn) -> Iterator[Array]:
    """Yield all images of episode ``i`` in pieces ``[k, height, width, 3]``: one more than steps if they are
    observations. Memory is that of one block.
    """
    name, length = image.column.name, int(store.table.length[i])
    block = int(store.table["block"][i])
    for start in range(0, length, block):
        stop = min(start + block, length)
        yield image.rgb(store.read(i, start, stop, [name], next_obs=stop == length)[name])


def read_image(store: Store, i: int, row: int, image: ImageColumn) -> Array:
    """Read image ``row`` of episode ``i``, ``[height, width, 3]``; row ``length`` is the final observation."""
    name, length = image.column.name, int(store.table.length[i])
    stop = min(row + 1, length)
    rows = store.read(i, min(row, stop), stop, [name], next_obs=row == length)[name]
    return np.asarray(image.rgb(rows)[-1])
