"""How columns of a store appear in a LeRobot dataset: names, types, arrow arrays, statistics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.core.fields import Array
from rollmill.store.convert.arrow import arrow, png_array, png_type
from rollmill.store.convert.columns import as_image, field_name, is_image, observation_columns
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.played import Moments


@dataclass(frozen=True)
class Feature:
    """One feature; numbers for themselves have the shape (1,) in LeRobot."""

    name: str
    dtype: str
    """``video``, ``image``, or numpy's name."""
    shape: tuple[int, ...] = (1,)
    column: str = ""
    """Of the store; "" for those that are computed."""

    @property
    def is_image(self) -> bool:
        return self.dtype in ("video", "image")

    def to_json(self, fps: float) -> dict[str, Any]:
        """Return the feature's entry in ``info.json``."""
        if not self.is_image:
            return {"dtype": self.dtype, "shape": list(self.shape), "names": None}
        names = ["height", "width", "channels"]
        entry: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "names": names}
        if self.dtype == "video":
            entry["info"] = {
                "video.height": self.shape[0],
                "video.width": self.shape[1],
                "video.channels": 3,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": fps,
                "has_audio": False,
            }
        return entry


COMPUTED = (
    Feature("next.done", "bool"),
    Feature("next.terminated", "bool"),
    Feature("next.truncated", "bool"),
    Feature("timestamp", "float32"),
    Feature("frame_index", "int64"),
    Feature("episode_index", "int64"),
    Feature("index", "int64"),
    Feature("task_index", "int64"),
)


def features_of(schema: StoreSchema, images: str) -> list[Feature]:
    """Return all features: observations, action, reward, other columns as ``info.``, then those that are computed."""
    vectors = [c for c in observation_columns(schema) if c.numpy.kind == "f" and len(c.shape) == 1]
    names = {"action": "action", "reward": "next.reward"}
    for column in observation_columns(schema):
        names[column.name] = f"observation.{'images.' * is_image(column)}{_plain(field_name(column))}"
    if len(vectors) == 1:
        names[vectors[0].name] = "observation.state"  # the name that LeRobot's policies look for
    features = []
    for column in schema.columns:
        name = names.get(column.name, f"info.{_plain(column.name)}")
        if column.name.startswith("obs:") and is_image(column):
            features.append(Feature(name, *_image(column, images), column.name))
        elif column.name not in left_out(schema):
            features.append(Feature(name, column.dtype, column.shape or (1,), column.name))
    return [*features, *COMPUTED]


def left_out(schema: StoreSchema) -> list[str]:
    """Return the columns that torch has no numbers for."""
    return [column.name for column in schema.columns if column.dtype == "uint64"]


def _plain(name: str) -> str:
    return name.replace("/", ".")


def _image(column: Column, images: str) -> tuple[str, tuple[int, ...]]:
    height, width = as_image(np.zeros((1, *column.shape), np.uint8)).shape[1:3]
    if images == "png":
        return "image", (height, width, 3)
    return "video", (height + height % 2, width + width % 2, 3)  # the codec takes even sides only


def rgb(rows: Array) -> Array:
    """Return the rows of an image column as ``[n, height, width, 3]``: LeRobot knows no grey images."""
    images = as_image(rows)
    return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images


# -------------------------------------------------------------------------------------------------- tables


def arrow_schema(features: list[Feature]) -> Any:
    """Return the schema of the data files; Hugging Face datasets find their types in its metadata."""
    pa, _ = arrow()
    kept = [f for f in features if f.dtype != "video"]
    metadata = {"huggingface": json.dumps({"info": {"features": {f.name: _hugging_face(f) for f in kept}}})}
    return pa.schema([pa.field(f.name, _type(f)) for f in kept], metadata=metadata)


def _type(feature: Feature) -> Any:
    pa, _ = arrow()
    if feature.dtype == "image":
        return png_type()
    kind = pa.from_numpy_dtype(np.dtype(feature.dtype))
    if feature.shape == (1,):
        return kind
    if len(feature.shape) == 1:
        return pa.list_(kind, feature.shape[0])
    for _ in feature.shape:
        kind = pa.list_(kind)
    return kind


def _hugging_face(feature: Feature) -> dict[str, Any]:
    if feature.dtype == "image":
        return {"_type": "Image"}
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "Sequence"}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}


def arrow_array(feature: Feature, rows: Array) -> Any:
    """Turn rows ``[n, ...]`` of a feature into a column of the data files."""
    pa, _ = arrow()
    if feature.dtype == "image":
        return png_array(rows)
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    if feature.shape == (1,):
        return flat
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, type=_type(feature))
    for size in reversed(feature.shape):
        flat = pa.ListArray.from_arrays(pa.array(np.arange(0, len(flat) + 1, size, dtype=np.int32)), flat)
    return flat


# -------------------------------------------------------------------------------------------------- statistics


class Statistics:
    """Least, greatest, mean and deviation of a feature; of images per channel, from 0 to 1."""

    def __init__(self, feature: Feature) -> None:
        self._image = feature.is_image
        shape = (3,) if feature.is_image else feature.shape
        self._least, self._greatest = np.full(shape, np.inf), np.full(shape, -np.inf)
        self._moments = Moments(0, np.zeros(shape), np.zeros(shape))

    def add(self, rows: Array) -> None:
        """Take in rows ``[n, ...]``, n above 0."""
        count = len(rows)
        values = rows.reshape(count, -1, *self._least.shape).astype(np.float64)  # [rows, pixels of a row, ...]
        if self._image:
            values /= 255
        mean = values.mean((0, 1))
        self._least = np.minimum(self._least, values.min((0, 1)))
        self._greatest = np.maximum(self._greatest, values.max((0, 1)))
        self._moments.add(count, mean, ((values - mean) ** 2).sum((0, 1)) / values.shape[1])

    def join(self, other: Statistics) -> None:
        self._least = np.minimum(self._least, other._least)
        self._greatest = np.maximum(self._greatest, other._greatest)
        self._moments.add(other._moments.count, other._moments.mean, other._moments.squares)

    def to_json(self) -> dict[str, Any]:
        found = {
            "min": self._least,
            "max": self._greatest,
            "mean": self._moments.mean,
            "std": np.sqrt(self._moments.variance),
        }
        shaped = {key: value.reshape(3, 1, 1) if self._image else value for key, value in found.items()}
        return {**{key: value.tolist() for key, value in shaped.items()}, "count": [self._moments.count]}


def stats_schema(feature: Feature) -> list[Any]:
    """Return the columns of a feature's statistics in the table of episodes."""
    pa, _ = arrow()
    kind = pa.float64()
    for _ in (3, 1, 1) if feature.is_image else feature.shape:
        kind = pa.list_(kind)
    fields = [pa.field(f"stats/{feature.name}/{key}", kind) for key in ("min", "max", "mean", "std")]
    return [*fields, pa.field(f"stats/{feature.name}/count", pa.list_(pa.int64()))]
