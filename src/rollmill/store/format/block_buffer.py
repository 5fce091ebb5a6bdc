"""The rows of one open episode that are not in a block yet: at most one block of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.episode import EpisodeInfo
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.format.shards import BlockPlace


class LaneBuffer:
    """Rows of one block, ``[block, ...]`` per column and one row more for observations."""

    def __init__(self, schema: StoreSchema, block: int) -> None:
        self._schema = schema
        self._block = block
        self.arrays: dict[str, Array] = {
            c.name: np.empty((block + (c.per == "obs"), *c.shape), c.numpy) for c in schema.columns
        }
        self.rows = 0

    @property
    def free(self) -> int:
        return self._block - self.rows

    def take(self, columns: Mapping[str, Any], start: int, count: int) -> None:
        """Copy rows ``start`` .. ``start + count`` of checked columns behind those that are here."""
        here = slice(self.rows, self.rows + count)
        for name, value in columns.items():
            self.arrays[name][here] = value if value.ndim == 0 else value[start : start + count]
        self.rows += count

    def finish(self, final: Mapping[str, Any]) -> None:
        """Put the final observation behind the rows."""
        for column in self._schema.obs_columns:
            self.arrays[column.name][self.rows] = final[column.name]


class OpenEpisode:
    """An episode between ``begin`` and ``end``: what has been seen of it, and where its blocks went."""

    def __init__(self, uid: int, info: EpisodeInfo, buffer: LaneBuffer) -> None:
        self.uid = uid
        self.info = info
        self.buffer = buffer
        self.places: list[BlockPlace] = []
        self.stored = 0  # steps in written blocks
        self.return_ = 0.0
        self.versions: tuple[int, int] | None = None
        self.global_first: int | None = None
        self.global_last = 0

    @property
    def steps(self) -> int:
        return self.stored + self.buffer.rows

    def note(self, steps: int) -> None:
        """Take the first ``steps`` rows of the buffer into the sums; called once, when they are written."""
        if steps == 0:
            return
        arrays = self.buffer.arrays
        self.return_ += float(arrays["reward"][:steps].sum(dtype=np.float64))
        version, progress = arrays["version"][:steps], arrays["global_step"][:steps]
        low, high = int(version.min()), int(version.max())
        if self.versions is not None:
            low, high = min(low, self.versions[0]), max(high, self.versions[1])
        self.versions = (low, high)
        if self.global_first is None:
            self.global_first = int(progress[0])
        self.global_last = int(progress[-1])


def check_rows(schema: StoreSchema, columns: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
    """Return the columns as arrays of the schema's dtypes, and their number of rows; StoreError names a wrong one."""
    if "action" not in columns:
        raise StoreError("rows need the column 'action'")
    count = len(columns["action"])
    checked = {}
    for column in schema.columns:
        value = columns.get(column.name)
        if value is None:
            raise StoreError(f"rows need the column {column.name!r} (the store has {', '.join(schema.names)})")
        array = np.asarray(value)
        _check_dtype(column, array)
        repeated = array.ndim == 0 and column.shape == ()
        if not repeated and array.shape != (count, *column.shape):
            raise StoreError(f"column {column.name}: shape {array.shape}, expected {(count, *column.shape)}")
        checked[column.name] = array
    if len(columns) > len(checked):
        extra = next(name for name in columns if name not in schema)
        raise StoreError(f"the store has no column {extra!r} (it has {', '.join(schema.names)})")
    return checked, count


def check_final(schema: StoreSchema, final: Mapping[str, Any]) -> dict[str, Array]:
    """Check one row of every observation column."""
    checked = {}
    for column in schema.obs_columns:
        if column.name not in final:
            raise StoreError(f"the final observation needs the column {column.name!r}")
        array = np.asarray(final[column.name])
        _check_dtype(column, array)
        if array.shape != column.shape:
            raise StoreError(f"final {column.name}: shape {array.shape}, expected {column.shape}")
        checked[column.name] = array
    return checked


def _check_dtype(column: Column, array: Array) -> None:
    if array.dtype == column.numpy:
        return
    # Python's numbers come as int64 and float64; they may fill narrower columns, arrays may not.
    if array.ndim == 0 and _number_fits(array, column.numpy):
        return
    raise StoreError(f"column {column.name}: dtype {array.dtype}, the store has {column.dtype}")


def _number_fits(number: Array, dtype: np.dtype[Any]) -> bool:
    if number.dtype.kind in "iu" and dtype.kind in "iu":
        return bool(np.iinfo(dtype).min <= number.item() <= np.iinfo(dtype).max)
    return dtype.kind == "f" and number.dtype.kind in "iuf"
