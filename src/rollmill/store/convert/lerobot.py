"""LeRobot datasets of version 3, which ``LeRobotDataset`` reads and the Hugging Face Hub previews.

Episodes lie one after the other in few files, cut between episodes::

    meta/info.json, meta/stats.json, meta/tasks.parquet, meta/episodes/chunk-000/file-000.parquet
    data/chunk-000/file-000.parquet                               a row per step
    videos/observation.images.screen/chunk-000/file-000.mp4       a frame per step

A row is what the agent saw and what it then did; there is no place for the observation after the last step.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.convert.arrow import GroupWriter, arrow, spans
from rollmill.store.convert.columns import env_actions
from rollmill.store.convert.h264 import VideoFile
from rollmill.store.convert.lerobot_features import (
    Feature,
    Statistics,
    arrow_array,
    arrow_schema,
    features_of,
    left_out,
    rgb,
    stats_schema,
)
from rollmill.store.convert.target import Exported, Progress, new_folder
from rollmill.store.episode import EpisodeEnd
from rollmill.store.reader import Store

VERSION = "v3.0"
CHUNK = 1000
"""Files per folder."""
VIDEO_MB = 200
MAX_SECONDS = 1000
"""Length of a video file. LeRobot looks for frames to within 0.1 ms, by times of 32 bits: that exact below 1024 s."""
KEYFRAME_EVERY = 2
"""As in LeRobot's own files: frames are read in any order."""
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


@dataclass(frozen=True)
class Options:
    """Knobs of the LeRobot export."""

    fps: float = 30.0
    """Steps per second of the task."""
    images: Literal["video", "png"] = "video"
    """Images as H.264 videos, which are small, or as PNG in the tables, which are exact."""
    task: str = ""
    """What the agent does, in words; without it, the environment's id."""
    file_mb: float = 100.0
    """Size in MB at which a new data file is begun."""


def export_episodes(
    store: Store, episodes: Array, target: Path, options: Options, progress: Progress | None = None
) -> Exported:
    """Write a folder with ``meta/``, ``data/``, ``videos/`` and a dataset card."""
    if options.images not in ("video", "png"):
        raise StoreError(f"images {options.images!r}: video or png")
    if not 0 < options.fps <= 1000:
        raise StoreError(f"fps {options.fps}: steps per second must be above 0 and at most 1000")
    if options.file_mb <= 0:
        raise StoreError(f"file_mb {options.file_mb} must be positive")
    done = Exported(Path(target), episodes=len(episodes), steps=int(store.table.length[episodes].sum()))
    with new_folder(target) as folder:
        with _Dataset(folder, store, options) as dataset:
            for number, i in enumerate(map(int, episodes)):
                dataset.add(number, i)
                if progress is not None:
                    progress(dataset.rows, done.steps)
        dataset.describe(done)
        files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    done.files = [done.path / file for file in files]
    done.notes = _notes(store, episodes)
    return done


def _notes(store: Store, episodes: Array) -> list[str]:
    notes = ["a LeRobot dataset has no place for the observation after an episode's last step: it is left out"]
    if partial := int(store.table["partial_end"][episodes].sum()):
        notes.append(f"{partial} episodes have no recorded end; their last row is not done")
    if names := ", ".join(left_out(store.schema)):
        notes.append(f"columns of unsigned 64-bit integers, which LeRobot cannot read, are left out: {names}")
    return notes


class _Dataset:
    """The folder while it is being written."""

    def __init__(self, folder: Path, store: Store, options: Options) -> None:
        self.rows = 0
        self._folder, self._store, self._options = folder, store, options
        self._features = features_of(store.schema, options.images)
        self._columns = sorted({f.column for f in self._features if f.column})
        self._stats = {f.name: Statistics(f) for f in self._features}
        self._open = ExitStack()
        limit = options.file_mb * 1e6
        self._data = _Tables(folder, DATA_PATH, arrow_schema(self._features), limit)
        self._episodes = _Tables(folder, EPISODES_PATH, self._episode_schema(), limit)
        self._videos = [_Videos(folder, f, options.fps) for f in self._features if f.dtype == "video"]

    def __enter__(self) -> _Dataset:
        parts: list[_Tables | _Videos] = [self._data, self._episodes, *self._videos]
        for part in parts:
            self._open.enter_context(part)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def add(self, number: int, i: int) -> None:
        """Write episode ``i`` of the store as episode ``number``."""
        end = self._store.end_record(i)
        stats = {f.name: Statistics(f) for f in self._features}
        data = self._data.place()
        videos = {key: value for video in self._videos for key, value in video.begin(end.length).items()}
        for start, stop in spans(end, self._store.schema):
            columns = self._columns_of(number, i, start, stop)
            for feature in self._features:
                stats[feature.name].add(columns[feature.name])
            for video in self._videos:
                video.add(columns[video.key])
            arrays = [arrow_array(f, columns[f.name]) for f in self._features if f.dtype != "video"]
            self._data.write(arrow()[0].record_batch(arrays, schema=self._data.schema))
        for name, found in stats.items():
            self._stats[name].join(found)
        row = {
            "episode_index": number,
            "tasks": [self._task],
            "length": end.length,
            "dataset_from_index": self.rows,
            "dataset_to_index": self.rows + end.length,
            **{f"data/{key}": value for key, value in data.items()},
            **videos,
            **{f"meta/episodes/{key}": value for key, value in self._episodes.place().items()},
            **_facts(end),
            **{f"stats/{n}/{key}": value for n, found in stats.items() for key, value in found.to_json().items()},
        }
        self._episodes.write(arrow()[0].RecordBatch.from_pylist([row], schema=self._episodes.schema))
        self.rows += end.length

    def _columns_of(self, number: int, i: int, start: int, stop: int) -> dict[str, Array]:
        """Return the rows of all features, steps ``start`` to ``stop`` of an episode."""
        stored = self._store.read(i, start, stop, [*self._columns, "terminated", "truncated"])
        steps = np.arange(start, stop)
        made = {
            "next.done": stored["terminated"] | stored["truncated"],
            "next.terminated": stored["terminated"],
            "next.truncated": stored["truncated"],
            "timestamp": (steps / self._options.fps).astype(np.float32),
            "frame_index": steps,
            "episode_index": np.full(len(steps), number),
            "index": self.rows + steps,
            "task_index": np.zeros(len(steps), np.int64),
            "action": env_actions(self._store.schema.env.action, stored["action"]),
        }
        for feature in self._features:
            if feature.name not in made:
                rows = stored[feature.column]
                made[feature.name] = rgb(rows) if feature.is_image else rows
        return made

    @property
    def _task(self) -> str:
        return self._options.task or self._store.schema.env_id

    def _episode_schema(self) -> Any:
        pa, _ = arrow()
        integers = ["episode_index", "length", "dataset_from_index", "dataset_to_index"]
        integers += [f"{part}/{key}" for part in ("data", "meta/episodes") for key in ("chunk_index", "file_index")]
        fields = [(name, pa.int64()) for name in integers] + [("tasks", pa.list_(pa.string()))]
        for f in self._features:
            if f.dtype == "video":
                fields += [(f"videos/{f.name}/{key}", pa.int64()) for key in ("chunk_index", "file_index")]
                fields += [(f"videos/{f.name}/{key}", pa.float64()) for key in ("from_timestamp", "to_timestamp")]
        fields += [("uid", pa.string()), ("policy", pa.string()), ("seed", pa.int64()), ("return", pa.float64())]
        fields += [("terminated", pa.bool_()), ("truncated", pa.bool_()), ("first_step", pa.int64())]
        return pa.schema([*fields, *(field for f in self._features for field in stats_schema(f))])

    def describe(self, done: Exported) -> None:
        """Write what is known at the end: ``info.json``, ``stats.json``, ``tasks.parquet``, ``README.md``."""
        meta = self._folder / "meta"
        meta.mkdir(exist_ok=True)
        stats = {name: found.to_json() for name, found in self._stats.items()}
        (meta / "stats.json").write_text(json.dumps(stats, indent=4) + "\n", encoding="utf-8")
        info = _info(self._features, done, self._options)
        (meta / "info.json").write_text(json.dumps(info, indent=4) + "\n", encoding="utf-8")
        _write_tasks(meta / "tasks.parquet", self._task)
        card = _card(self._store.schema.env_id, self._features, done)
        (self._folder / "README.md").write_text(card, encoding="utf-8")


def _facts(end: EpisodeEnd) -> dict[str, Any]:
    """Return what we know of an episode and LeRobot does not ask for."""
    known = dataclasses.asdict(end)
    kept = ("policy", "seed", "terminated", "truncated", "first_step")
    return {"uid": f"{end.uid:016x}", "return": end.return_, **{name: known[name] for name in kept}}


class _Series:
    """Files of one kind, numbered by folder and by file."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._count = 0

    def next_path(self) -> Path:
        self._count += 1
        path = self._folder / self._pattern.format(**self.numbers)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the file that is being written."""
        chunk, file = divmod(self._count - 1, CHUNK)
        return {"chunk_index": chunk, "file_index": file}


class _Tables:
    """A series of Parquet files, cut between episodes."""

    def __init__(self, folder: Path, pattern: str, schema: Any, limit: float) -> None:
        self.schema = schema
        self._series, self._limit = _Series(folder, pattern), limit
        self._file: GroupWriter | None = None

    def __enter__(self) -> None:
        self._file = GroupWriter(self._series.next_path(), self.schema)

    def __exit__(self, *error: Any) -> None:
        if self._file is not None:
            self._file.close()

    def place(self) -> dict[str, int]:
        """Return where the next episode goes: its folder and file."""
        if self._file is not None and self._file.bytes >= self._limit:
            self._file.close()
            self._file = None
            self._file = GroupWriter(self._series.next_path(), self.schema)
        return self._series.numbers

    def write(self, batch: Any) -> None:
        assert self._file is not None
        self._file.write(batch)


class _Videos:
    """The videos of one image, with episodes one after the other in each."""

    def __init__(self, folder: Path, feature: Feature, fps: float) -> None:
        self.key = feature.name
        self._series = _Series(folder, VIDEO_PATH.replace("{video_key}", feature.name))
        self._fps, self._frames = fps, 0
        self._file: VideoFile | None = None
        self._open = ExitStack()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def begin(self, length: int) -> dict[str, float]:
        """Begin an episode of so many frames; returns where it lies."""
        file = self._file
        full = file is not None and (file.bytes >= VIDEO_MB * 1e6 or (self._frames + length) / self._fps > MAX_SECONDS)
        if file is None or full:
            self._open.close()
            self._file = self._open.enter_context(VideoFile(self._series.next_path(), self._fps, KEYFRAME_EVERY))
            self._frames = 0
        first, self._frames = self._frames, self._frames + length
        times = {"from_timestamp": first / self._fps, "to_timestamp": self._frames / self._fps}
        return {f"videos/{self.key}/{key}": value for key, value in {**self._series.numbers, **times}.items()}

    def add(self, images: Array) -> None:
        assert self._file is not None
        for image in images:
            self._file.add(image)


def _info(features: list[Feature], done: Exported, options: Options) -> Mapping[str, Any]:
    fps = int(options.fps) if options.fps == int(options.fps) else options.fps
    return {
        "codebase_version": VERSION,
        "robot_type": None,
        "total_episodes": done.episodes,
        "total_frames": done.steps,
        "total_tasks": 1,
        "chunks_size": CHUNK,
        "data_files_size_in_mb": options.file_mb,
        "video_files_size_in_mb": VIDEO_MB,
        "fps": fps,
        "splits": {"train": f"0:{done.episodes}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if any(f.dtype == "video" for f in features) else None,
        "features": {f.name: f.to_json(fps) for f in features},
    }


def _write_tasks(path: Path, task: str) -> None:
    """Write a table that pandas opens with the tasks as its index."""
    pa, parquet = arrow()
    column = {"metadata": None}
    columns = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64", **column},
        {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", **column},
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    table = pa.table({"task_index": pa.array([0], pa.int64()), "task": [task]})
    parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)


def _card(env_id: str, features: list[Feature], done: Exported) -> str:
    def rows() -> Iterator[str]:
        for f in features:
            yield f"| `{f.name}` | {f.dtype} | {'x'.join(map(str, f.shape))} |"

    return f"""---
tags:
- LeRobot
- reinforcement-learning
task_categories:
- reinforcement-learning
configs:
- config_name: default
  data_files: data/*/*.parquet
---

# {env_id}

A LeRobot dataset ({VERSION}): {done.episodes} episodes, {done.steps} steps. A row holds what the agent saw and what it
then did; `next.` columns are what came of it.

| feature | dtype | shape |
|---|---|---|
{chr(10).join(rows())}
"""
