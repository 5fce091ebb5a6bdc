"""A folder of Parquet files that pyarrow, pandas and Hugging Face ``datasets`` read.

``data/train-00000-of-00003.parquet`` has one row per observation, ``episodes/episodes.parquet`` one row per episode,
``README.md`` is the dataset card that names both. Rows follow the convention of RLDS: an episode of n steps has n + 1
rows, and the row with ``is_last`` holds the final observation; its action, reward and other step columns are null.
``is_terminal`` marks that row where the episode terminated.

Images are PNG files inside the table (an ``Image`` to Hugging Face), other arrays flat lists of fixed length; shapes
are in the schema's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.convert.arrow import GroupWriter, arrow, png_array, png_type, spans
from rollmill.store.convert.columns import as_image, field_name, is_image, observation_columns
from rollmill.store.convert.target import Exported, Progress, new_folder, numbered
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import Store


@dataclass(frozen=True)
class Options:
    """Knobs of the Parquet export."""

    file_mb: float = 150.0
    """Size in MB at which a new file is begun."""


def export_episodes(
    store: Store, episodes: Array, target: Path, options: Options, progress: Progress | None = None
) -> Exported:
    """Write a folder with ``data/``, ``episodes/`` and ``README.md``."""
    if options.file_mb <= 0:
        raise StoreError(f"file_mb {options.file_mb} must be positive")
    steps = int(store.table.length[episodes].sum())
    done = Exported(Path(target), episodes=len(episodes), steps=steps)
    with new_folder(target) as folder:
        (folder / "data").mkdir()
        (folder / "episodes").mkdir()
        files = _write_steps(store, episodes, folder / "data", options, steps, progress)
        _write_episodes(store, episodes, folder / "episodes" / "episodes.parquet")
        (folder / "README.md").write_text(_card(store, done), encoding="utf-8")
    names = [f"data/{name}" for name in files]
    done.files = [done.path / name for name in (*names, "episodes/episodes.parquet", "README.md")]
    return done


def _write_steps(
    store: Store, episodes: Array, folder: Path, options: Options, total: int, progress: Progress | None
) -> list[str]:
    """Write the rows; returns the names of the files. Their number is known at the end, so they are renamed then."""
    table = _Rows(store)
    drafts: list[Path] = []
    writer, done = None, 0
    try:
        for number, i in enumerate(map(int, episodes)):
            for batch in table.batches(i, number):
                if writer is None:
                    drafts.append(folder / f"draft-{len(drafts)}")
                    writer = GroupWriter(drafts[-1], table.schema)
                writer.write(batch)
                if writer.bytes >= options.file_mb * 1e6:
                    writer.close()
                    writer = None
            done += int(store.table.length[i])
            if progress is not None:
                progress(done, total)
    finally:
        if writer is not None:
            writer.close()
    if not drafts:
        drafts.append(folder / "draft-0")
        GroupWriter(drafts[0], table.schema).close()
    names = [numbered("train", k, len(drafts), ".parquet") for k in range(len(drafts))]
    for draft, name in zip(drafts, names):
        draft.rename(folder / name)
    return names


class _Rows:
    """Episodes as record batches."""

    def __init__(self, store: Store) -> None:
        self._arrow = arrow()[0]
        self._store = store
        self._names = _column_names(store.schema)
        fixed = [(name, self._arrow.int64()) for name in ("episode", "step")]
        fixed += [(name, self._arrow.bool_()) for name in ("is_first", "is_last", "is_terminal")]
        columns = [(self._names[c.name], self._type(c)) for c in store.schema.columns]
        fields = [self._arrow.field(name, kind) for name, kind in (*fixed, *columns)]
        self.schema = self._arrow.schema(fields, metadata=self._metadata())

    def _type(self, column: Column) -> Any:
        if is_image(column):
            return png_type()
        scalar = self._arrow.from_numpy_dtype(column.numpy)
        return self._arrow.list_(scalar, int(np.prod(column.shape))) if column.shape else scalar

    def _metadata(self) -> dict[str, str]:
        features: dict[str, Any] = {}
        for name in ("episode", "step"):
            features[name] = {"dtype": "int64", "_type": "Value"}
        for name in ("is_first", "is_last", "is_terminal"):
            features[name] = {"dtype": "bool", "_type": "Value"}
        for column in self._store.schema.columns:
            value = {"dtype": column.dtype, "_type": "Value"}
            if is_image(column):
                feature: dict[str, Any] = {"_type": "Image"}
            elif column.shape:
                feature = {"feature": value, "length": int(np.prod(column.shape)), "_type": "Sequence"}
            else:
                feature = value
            features[self._names[column.name]] = feature
        shapes = {self._names[c.name]: list(c.shape) for c in self._store.schema.columns}
        return {
            "huggingface": json.dumps({"info": {"features": features}}),
            "rollmill": json.dumps({"shapes": shapes, "schema": self._store.schema.to_json()}),
        }

    def batches(self, i: int, number: int) -> Iterator[Any]:
        """Return the n + 1 rows of episode ``i``, block by block."""
        end = self._store.end_record(i)
        for start, stop in spans(end, self._store.schema):
            last = stop == end.length
            rows = self._store.read(i, start, stop, next_obs=last)
            count = stop - start + last
            steps = np.arange(start, start + count)
            ends = steps == end.length
            arrays = [
                self._arrow.array(np.full(count, number, np.int64)),
                self._arrow.array(end.first_step + steps),
                self._arrow.array((steps == 0) & (end.first_step == 0)),
                self._arrow.array(ends),
                self._arrow.array(ends & end.terminated),
            ]
            arrays += [self._array(c, rows[c.name], count) for c in self._store.schema.columns]
            yield self._arrow.record_batch(arrays, schema=self.schema)

    def _array(self, column: Column, rows: Array, count: int) -> Any:
        """Return one column; step columns get a null where the episode's final observation stands."""
        missing = np.arange(count) >= len(rows)
        if is_image(column):
            return png_array(as_image(rows), nulls=count - len(rows))
        padded = rows if not missing.any() else np.concatenate([rows, np.zeros((1, *column.shape), rows.dtype)])
        if not column.shape:
            return self._arrow.array(padded, mask=missing)
        flat = self._arrow.array(np.ascontiguousarray(padded).reshape(-1))
        mask = self._arrow.array(missing) if missing.any() else None
        return self._arrow.FixedSizeListArray.from_arrays(flat, type=self._type(column), mask=mask)


def _column_names(schema: StoreSchema) -> dict[str, str]:
    """Name the columns: ``obs:image`` becomes ``observation.image``, the rest keeps its name."""
    observations = {column.name: f"observation.{field_name(column)}" for column in observation_columns(schema)}
    return {column.name: observations.get(column.name, column.name) for column in schema.columns}


def _write_episodes(store: Store, episodes: Array, path: Path) -> None:
    pa, parquet = arrow()
    hidden = ("block", "blocks", "shard", "bytes", "finished")
    columns: dict[str, Any] = {"episode": np.arange(len(episodes))}
    for name in store.table.names:
        if name not in hidden:
            values = store.table[name][episodes]
            columns[name] = values.tolist() if values.dtype.kind == "U" else values
    columns["uid"] = [f"{uid:016x}" for uid in store.table.uid[episodes].tolist()]
    # Statistics are free-form: kept as JSON text.
    columns["stats"] = [json.dumps(store.stats(int(i))) for i in episodes]
    parquet.write_table(pa.table(columns), path, compression="zstd")


def _card(store: Store, done: Exported) -> str:
    schema = store.schema
    rows = "\n".join(
        f"| `{_column_names(schema)[c.name]}` | {c.dtype} | {'x'.join(map(str, c.shape)) or 'scalar'} |"
        for c in schema.columns
    )
    return f"""---
tags:
- reinforcement-learning
configs:
- config_name: steps
  default: true
  data_files: data/*.parquet
- config_name: episodes
  data_files: episodes/*.parquet
---

# {schema.env_id}

{done.episodes} episodes, {done.steps} steps; one row per observation. The row with `is_last` holds an episode's final
observation: action, reward and other step columns are null there.

| column | dtype | shape |
|---|---|---|
{rows}
"""
