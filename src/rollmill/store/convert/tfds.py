"""Datasets that TensorFlow Datasets opens with ``builder_from_directory``, laid out as RLDS has it.

One ``tf.train.Example`` per episode: ``episode_metadata``, and ``steps``, a dataset of ``observation``, ``action``,
``reward``, ``discount``, ``is_first``, ``is_last``, ``is_terminal`` and the other columns. An episode of n steps has
n + 1 of them: the last one holds the final observation, and what was not done there is zero.

Images are PNG files, numbers of 64 bits that TensorFlow's lists would round are bytes; readers get arrays of the dtypes
of the store. ``features.json`` and ``dataset_info.json`` describe it all, in TensorFlow Datasets' own words.
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.convert import sequence_example as wire
from rollmill.store.convert.columns import as_image, env_actions, field_name, is_image, observation_columns
from rollmill.store.convert.png import encode_png
from rollmill.store.convert.target import MAX_FILE_BYTES, Exported, Progress, new_folder, numbered
from rollmill.store.convert.tfrecord import list_kind
from rollmill.store.episode import Episode, EpisodeEnd
from rollmill.store.format.framing import frame
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import Store

SPLIT = "train"
VERSION = "1.0.0"
_FEATURES = "tensorflow_datasets.core.features"
_TEXTS, _FLAGS, _NUMBERS = ("uid", "env_id", "policy", "seed"), ("terminated", "truncated"), ("length", "first_step")


@dataclass(frozen=True)
class Options:
    """Knobs of the export to TensorFlow Datasets."""

    name: str | None = None
    """The dataset's name, which begins the names of the files; without it, the environment's id."""
    file_mb: float = MAX_FILE_BYTES / 1e6
    """Size in MB at which a new file is begun."""


def export_episodes(
    store: Store, episodes: Array, target: Path, options: Options, progress: Progress | None = None
) -> Exported:
    """Write a folder of TFRecord files, ``features.json`` and ``dataset_info.json``."""
    if options.file_mb <= 0:
        raise StoreError(f"file_mb {options.file_mb} must be positive")
    name = options.name if options.name is not None else re.sub(r"\W+", "_", store.schema.env_id).lower()
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise StoreError(f"name {name!r}: letters, digits and _ are expected, a letter first; choose one with --name")
    done = Exported(Path(target), episodes=len(episodes), steps=int(store.table.length[episodes].sum()))
    with new_folder(target) as folder:
        shards = _write_shards(store, episodes, folder, options.file_mb * 1e6, done.steps, progress)
        names = [numbered(f"{name}-{SPLIT}.tfrecord", k, len(shards)) for k in range(len(shards))]
        for (draft, _), final in zip(shards, names):
            draft.rename(folder / final)
        sizes = [(folder / final).stat().st_size for final in names]
        info = _info(name, store.schema, [count for _, count in shards], sum(sizes))
        for file, content in (("features.json", features(store.schema)), ("dataset_info.json", info)):
            (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    done.files = [done.path / file for file in ("features.json", "dataset_info.json", *names)]
    return done


def _write_shards(
    store: Store, episodes: Array, folder: Path, limit: float, total: int, progress: Progress | None
) -> list[tuple[Path, int]]:
    """Write the files under draft names, as their number is not known yet; returns each with its number of episodes."""
    shards: list[tuple[Path, int]] = []
    left, steps = deque(int(i) for i in episodes), 0
    while left:
        draft, count = folder / f"draft-{len(shards)}", 0
        with open(draft, "wb") as file:
            while left and file.tell() < limit:
                i = left.popleft()
                file.writelines(frame(encode_episode(store.schema, store.episode(i), store.end_record(i))))
                count, steps = count + 1, steps + int(store.table.length[i])
                if progress is not None:
                    progress(steps, total)
        shards.append((draft, count))
    return shards


# -------------------------------------------------------------------------------------------------- one episode


def encode_episode(schema: StoreSchema, episode: Episode, end: EpisodeEnd) -> wire.Pieces:
    """Return the Example of an episode, in pieces."""
    n = episode.length
    found = {f"steps/{name}": _rows(column, episode, schema) for name, column in _names(schema).items()}
    steps = np.arange(n + 1)
    found["steps/is_first"] = wire.int64_feature((steps == 0) & (end.first_step == 0))
    found["steps/is_last"] = wire.int64_feature(steps == n)
    found["steps/is_terminal"] = wire.int64_feature((steps == n) & end.terminated)
    found["steps/discount"] = wire.float_feature(np.where((steps >= n - 1) & end.terminated, 0.0, 1.0))
    seed = "" if end.seed is None else str(end.seed)
    texts = {"uid": f"{end.uid:016x}", "env_id": end.env_id, "policy": end.policy, "seed": seed}
    for name in _TEXTS:
        found[f"episode_metadata/{name}"] = wire.bytes_feature([texts[name].encode("utf-8")])
    for name in (*_FLAGS, *_NUMBERS):
        found[f"episode_metadata/{name}"] = wire.int64_feature([int(getattr(end, name))])
    found["episode_metadata/return"] = wire.bytes_feature([np.float64(end.return_).tobytes()])
    return wire.example(found)


def _rows(column: Column, episode: Episode, schema: StoreSchema) -> wire.Pieces:
    """Encode all n + 1 rows of a column, one after the other."""
    rows = episode.columns[column.name]
    if column.name == "action":
        rows = env_actions(schema.env.action, rows)
    if column.per == "step":
        rows = np.concatenate([rows, np.zeros((1, *column.shape), rows.dtype)])
    if _shown(column):
        return wire.bytes_feature([encode_png(image) for image in as_image(rows)])
    kind = list_kind(column)
    if kind == "bytes":
        return wire.bytes_feature([row.tobytes() for row in rows])
    return wire.float_feature(rows) if kind == "float" else wire.int64_feature(rows)


def _shown(column: Column) -> bool:
    return column.name.startswith("obs:") and is_image(column)


def _names(schema: StoreSchema) -> dict[str, Column]:
    """Return the columns by their names among the steps."""
    names = {column.name: f"observation/{field_name(column)}" for column in observation_columns(schema)}
    return {names.get(column.name, column.name.replace("/", ".")): column for column in schema.columns}


# -------------------------------------------------------------------------------------------------- descriptions


def features(schema: StoreSchema) -> dict[str, Any]:
    """Return what every feature is: the contents of ``features.json``."""
    steps: dict[str, Any] = {"discount": _tensor("float32")}
    steps |= {name: _tensor("bool") for name in ("is_first", "is_last", "is_terminal")}
    observation: dict[str, Any] = {}
    for name, column in _names(schema).items():
        short = name.removeprefix("observation/")
        (steps if short == name else observation)[short] = _feature(column)
    steps["observation"] = _dict(observation)
    metadata: dict[str, Any] = {name: _class("text_feature.Text", text={}) for name in _TEXTS}
    metadata |= {name: _tensor("bool") for name in _FLAGS} | {name: _tensor("int64") for name in _NUMBERS}
    metadata["return"] = _tensor("float64", (), "bytes")
    every_step = {"feature": _dict(steps), "length": "-1"}
    return _dict(
        {
            "steps": _class("dataset_feature.Dataset", sequence=every_step),
            "episode_metadata": _dict(metadata),
        }
    )


def _feature(column: Column) -> dict[str, Any]:
    if _shown(column):
        shape = as_image(np.zeros((1, *column.shape), np.uint8)).shape[1:]
        return _class("image_feature.Image", image={"dtype": "uint8", "encodingFormat": "png", "shape": _shape(shape)})
    return _tensor(column.dtype, column.shape, "bytes" if list_kind(column) == "bytes" else "none")


def _tensor(dtype: str, shape: tuple[int, ...] = (), encoding: str = "none") -> dict[str, Any]:
    return _class("tensor_feature.Tensor", tensor={"dtype": dtype, "encoding": encoding, "shape": _shape(shape)})


def _shape(shape: tuple[int, ...]) -> dict[str, list[str]]:
    return {"dimensions": [str(n) for n in shape]} if shape else {}


def _dict(features: dict[str, Any]) -> dict[str, Any]:
    return _class("features_dict.FeaturesDict", featuresDict={"features": features})


def _class(name: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{_FEATURES}.{name}", **content}


def _info(name: str, schema: StoreSchema, lengths: list[int], size: int) -> dict[str, Any]:
    return {
        "name": name,
        "version": VERSION,
        "description": f"Episodes of {schema.env_id}, recorded with {schema.created_by}.",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": SPLIT,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "numBytes": str(size),
                "shardLengths": [str(count) for count in lengths],
            }
        ],
    }
