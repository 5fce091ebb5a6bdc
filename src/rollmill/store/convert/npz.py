"""npz files with the arrays that Decision Transformer code reads: one row per step, episodes one after another.

========================  =======================================================================
observations ``[N, ...]`` one observation of the store, as it is
actions ``[N, ...]``      as stored: choices counted from 0
rewards ``[N]``           float32
dones ``[N]``             bool; true in the last row of every episode, however it ended
steps ``[N, 1]``          int64, step within the episode
gblsteps ``[N, 1]``       int64, training progress at that step
========================  =======================================================================

A reader has to hold a file in memory, so there is a size limit per file; writing takes no more than a block. The
observation after an episode's last step has no place in these arrays.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.convert.columns import one_observation
from rollmill.store.convert.target import Exported, Progress, new_file, new_folder, numbered, plan_files
from rollmill.store.reader import Store

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Options:
    """Knobs of the npz export."""

    obs: str | None = None
    """The observation to take, if the store has several."""
    part_mb: float = 1000.0
    """Size limit per file, in MB of arrays in memory."""
    compress: bool = False
    """Deflate the arrays (slow; a third of the size for images)."""


def export_episodes(
    store: Store, episodes: Array, target: Path, options: Options, progress: Progress | None = None
) -> Exported:
    """Write one ``.npz`` file if the target is named so, else a folder of ``part-00000-of-00003.npz`` files."""
    if options.part_mb <= 0:
        raise StoreError(f"part_mb {options.part_mb} must be positive")
    obs = one_observation(store.schema, options.obs)
    lengths = store.table.length[episodes]
    row_bytes = obs.row_bytes + store.schema["action"].row_bytes + 4 + 1 + 8 + 8
    parts = plan_files(lengths * row_bytes, int(options.part_mb * 1e6))
    tell = _Teller(int(lengths.sum()), progress)
    done = Exported(Path(target), episodes=len(episodes), steps=int(lengths.sum()))
    if done.path.suffix == ".npz":
        if len(parts) > 1:
            raise StoreError(
                f"{done.steps} steps make {len(parts)} files of at most {options.part_mb:g} MB: "
                "name a folder as the target, or raise --part-mb"
            )
        with new_file(done.path) as draft:
            _write(draft, store, obs.name, episodes, options, tell)
        done.files = [done.path]
    else:
        names = [numbered("part", k, len(parts), ".npz") for k in range(len(parts))]
        with new_folder(done.path) as folder:
            for name, part in zip(names, parts):
                _write(folder / name, store, obs.name, episodes[part], options, tell)
        done.files = [done.path / name for name in names]
    open_ends = int(store.table["partial_end"][episodes].sum())
    if open_ends:
        done.notes.append(f"{open_ends} episodes have no recorded end; their last row says done all the same")
    return done


class _Teller:
    """Progress over passes: each array of a part is one pass over its episodes."""

    def __init__(self, steps: int, progress: Progress | None) -> None:
        self._steps = steps
        self._rows = 0
        self._progress = progress

    def __call__(self, rows: int) -> None:
        self._rows += rows
        if self._progress is not None:
            self._progress(self._rows // len(_ARRAYS), self._steps)


def _write(path: Path, store: Store, obs: str, episodes: Array, options: Options, tell: _Teller) -> None:
    kind = zipfile.ZIP_DEFLATED if options.compress else zipfile.ZIP_STORED
    count = int(store.table.length[episodes].sum())
    with zipfile.ZipFile(path, "w", kind, compresslevel=1 if options.compress else None) as archive:
        for name, (column, shape) in _ARRAYS.items():
            stored = obs if column == "obs" else column
            dtype, row = _row_type(store, stored)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(_head(dtype, (count, *(shape if shape is not None else row))))
                for rows in _rows(store, stored, episodes):
                    file.write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")
                    tell(len(rows))


_ARRAYS: dict[str, tuple[str, tuple[int, ...] | None]] = {
    "observations": ("obs", None),
    "actions": ("action", None),
    "rewards": ("reward", None),
    "dones": ("done", ()),
    "steps": ("step", (1,)),
    "gblsteps": ("global_step", (1,)),
}
"""Name in the file: column of the store, shape of a row where it is another."""


def _row_type(store: Store, column: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    if column == "done":
        return np.dtype("?"), ()
    if column == "step":
        return np.dtype("<i8"), ()
    return store.schema[column].numpy, store.schema[column].shape


def _rows(store: Store, column: str, episodes: Array) -> Iterator[Array]:
    """Yield the rows of a column, episode by episode, a few blocks at a time."""
    read: Callable[[int, int, int], Array]
    lengths = store.table.length
    if column == "done":
        read = lambda i, start, stop: np.arange(start, stop) == lengths[i] - 1  # noqa: E731
        row_bytes = 1
    else:
        read = lambda i, start, stop: store.read(i, start, stop, [column])[column]  # noqa: E731
        dtype, shape = _row_type(store, column)
        row_bytes = max(1, dtype.itemsize * math.prod(shape))
    for i in map(int, episodes):
        block = int(store.table["block"][i])
        chunk = max(1, _CHUNK_BYTES // (row_bytes * block)) * block
        for start in range(0, int(lengths[i]), chunk):
            yield read(i, start, min(start + chunk, int(lengths[i])))


def _head(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    """Return the header of an npy file."""
    buffer = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()
