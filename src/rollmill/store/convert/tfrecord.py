"""TFRecord files of ``tf.train.SequenceExample``: one record per episode, readable by ``tf.data``.

Context features: ``length``, ``return``, ``terminated``, ``truncated``, ``first_step``, ``seed``, ``uid`` (16 digits),
``env_id``, ``policy``, ``policy_id``, ``version_min``, ``version_max``, ``worker``, ``lane``, ``probability``,
``stats`` (JSON). Feature lists: one per column and ``step``; observations have one entry more than actions. How each
column is written:

- uint8 arrays: bytes, row-major (``tf.io.decode_raw``)
- float32, float16: float list
- bool and integers up to int64: int64 list
- float64 and uint64: bytes, little-endian, so that nothing is rounded

``features.json`` beside the files says the same for each column, with dtype and shape, and ``schema.json`` is that of
the store, for ``tfrecord_import``. Files are 100 to 200 MB, their number follows from the data and stands in their
names: ``name.tfrecord-00003-of-00074``. One episode at a time is held in memory.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.convert import sequence_example as wire
from rollmill.store.convert.target import MAX_FILE_BYTES, Exported, Progress, new_folder, numbered, plan_files
from rollmill.store.episode import Episode, EpisodeEnd
from rollmill.store.format.framing import frame
from rollmill.store.format.schema import Column, StoreSchema, schema_text
from rollmill.store.reader import Store

FEATURES_FILE = "features.json"
SCHEMA_FILE = "schema.json"


@dataclass(frozen=True)
class Options:
    """Knobs of the TFRecord export."""

    name: str = "episodes"
    """What the files are called: ``<name>.tfrecord-00003-of-00074``."""
    file_mb: float = MAX_FILE_BYTES / 1e6
    """Size limit per file in MB; several files are between half of it and it."""


def export_episodes(
    store: Store, episodes: Array, target: Path, options: Options, progress: Progress | None = None
) -> Exported:
    """Write a folder of TFRecord files, ``features.json`` and ``schema.json``."""
    if options.file_mb <= 0:
        raise StoreError(f"file_mb {options.file_mb} must be positive")
    if not options.name or "/" in options.name:
        raise StoreError(f"name {options.name!r}: a plain file name is expected")
    lengths = store.table.length[episodes]
    files = plan_files(_sizes(store.schema, lengths), int(options.file_mb * 1e6))
    names = [numbered(f"{options.name}.tfrecord", k, len(files)) for k in range(len(files))]
    done = Exported(Path(target), episodes=len(episodes), steps=int(lengths.sum()))
    steps = 0
    with new_folder(target) as folder:
        (folder / FEATURES_FILE).write_text(json.dumps(describe(store.schema), indent=2) + "\n", encoding="utf-8")
        (folder / SCHEMA_FILE).write_text(schema_text(store.schema, indent=2), encoding="utf-8")
        for name, positions in zip(names, files):
            with open(folder / name, "wb") as file:
                for i in map(int, episodes[positions]):
                    pieces = frame(encode_episode(store.schema, store.episode(i), store.end_record(i)))
                    file.writelines(pieces)
                    steps += int(store.table.length[i])
                    if progress is not None:
                        progress(steps, done.steps)
    done.files = [done.path / name for name in (FEATURES_FILE, *names, SCHEMA_FILE)]
    return done


def describe(schema: StoreSchema) -> dict[str, dict[str, object]]:
    """Return how every feature list is written: the contents of ``features.json``."""
    return {
        column.name: {
            "list": list_kind(column),
            "dtype": column.dtype,
            "shape": list(column.shape),
            "rows": "length + 1" if column.per == "obs" else "length",
        }
        for column in _lists(schema)
    }


@dataclass(frozen=True)
class _Step:
    """The column ``step``, which readers compute, in the form of a stored one."""

    name: str = "step"
    dtype: str = "int64"
    shape: tuple[int, ...] = ()
    per: str = "step"


STEP = _Step()


def _lists(schema: StoreSchema) -> list[Column | _Step]:
    return [*schema.columns, STEP]


def list_kind(column: Column | _Step) -> str:
    """Return in which of the three lists of a feature a column's numbers go, so that none is rounded."""
    if column.dtype in ("float64", "uint64") or (column.dtype == "uint8" and column.shape):
        return "bytes"
    return "float" if np.dtype(column.dtype).kind == "f" else "int64"


def _sizes(schema: StoreSchema, lengths: Array) -> Array:
    """Estimate the bytes of each episode's record: integers take 3 bytes on average, every entry a few more."""
    row = 0
    for column in _lists(schema):
        numbers = math.prod(column.shape)
        size = numbers * {"bytes": np.dtype(column.dtype).itemsize, "float": 4, "int64": 3}[list_kind(column)]
        row += size + 6 + (4 if size > 127 else 0)
    sizes: Array = (lengths + 1) * row + 400
    return sizes


def encode_episode(schema: StoreSchema, episode: Episode, end: EpisodeEnd) -> wire.Pieces:
    """Return the SequenceExample of an episode, in pieces."""
    lists = {column.name: _features(column, episode.columns[column.name]) for column in schema.columns}
    lists["step"] = _features(STEP, episode.steps)
    return wire.sequence_example(_context(end), lists)


def _features(column: Column | _Step, rows: Array) -> Iterator[wire.Pieces]:
    kind = list_kind(column)
    if kind == "bytes":
        return (wire.bytes_feature([row.tobytes()]) for row in rows)
    if kind == "float":
        return (wire.float_feature(np.atleast_1d(row)) for row in rows)
    return (wire.int64_feature(row) for row in rows.reshape(len(rows), -1).tolist())


def _context(end: EpisodeEnd) -> dict[str, wire.Pieces]:
    numbers = {
        "length": end.length,
        "terminated": int(end.terminated),
        "truncated": int(end.truncated),
        "first_step": end.first_step,
        "policy_id": end.policy_id,
        "version_min": end.version_min,
        "version_max": end.version_max,
        "worker": end.worker,
        "lane": end.lane,
    }
    context = {name: wire.int64_feature([value]) for name, value in numbers.items()}
    context["seed"] = wire.int64_feature([] if end.seed is None else [end.seed])
    context["return"] = wire.float_feature(np.array([end.return_]))
    texts = {"uid": f"{end.uid:016x}", "env_id": end.env_id, "policy": end.policy, "stats": json.dumps(dict(end.stats))}
    for name, text in texts.items():
        context[name] = wire.bytes_feature([text.encode("utf-8")])
    context["probability"] = wire.bytes_feature([] if end.probability is None else [struct.pack("<d", end.probability)])
    return context
