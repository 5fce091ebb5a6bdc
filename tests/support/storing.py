"""Small stores for tests: a schema with every kind of column, and episodes whose every value is known."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.records import Owner
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SPEC = EnvSpec(
    "toy",
    (Field("image", "uint8", (4, 3, 3)), Field("vector", "float32", (2,)), Field("action_mask", "int8", (3,))),
    ActionSpec("discrete", nvec=(3,), start=(0,)),
)


def small_schema(**options: object) -> StoreSchema:
    extra = (Column("log_prob", "float32"), Column("value", "float64", per="obs"))
    return StoreSchema.for_env(SPEC, **{"env_kwargs": {"size": 3}, "extra": extra, **options})  # type: ignore[arg-type]


def tiny_schema() -> StoreSchema:
    """As few bytes as possible, for tests that damage every one of them."""
    spec = EnvSpec("t", (Field("x", "uint8", (2,)),), ActionSpec("discrete", nvec=(3,), start=(0,)))
    return StoreSchema.for_env(spec)


def make_episode(
    schema: StoreSchema, steps: int, seed: int = 0, info: EpisodeInfo | None = None, terminated: bool = True
) -> Episode:
    """Random values in every column; half of the images flat, so that compression has something to do."""
    rng = np.random.default_rng(seed)
    columns = {}
    for column in schema.columns:
        rows = steps + (column.per == "obs")
        raw = rng.integers(0, 256, rows * column.row_bytes, dtype=np.uint8)
        if column.numpy.kind == "f":
            values = rng.normal(size=(rows, *column.shape)).astype(column.numpy)
        elif column.numpy.kind == "b":
            values = rng.integers(0, 2, (rows, *column.shape)).astype(np.bool_)
        else:
            values = raw.view(column.numpy).reshape(rows, *column.shape)
            values[::2] = seed % 3
        columns[column.name] = values
    columns["version"] = np.arange(steps) // 3 + seed
    columns["global_step"] = 100 * seed + 4 * np.arange(steps)
    return Episode(columns, info or EpisodeInfo(uid=seed), terminated, not terminated, {"kills": seed})


def write_episodes(path: Path, schema: StoreSchema, lengths: list[int], **options: object) -> list[Episode]:
    """Episode k has length ``lengths[k]`` and uid k."""
    episodes = [make_episode(schema, steps, seed) for seed, steps in enumerate(lengths)]
    with StoreWriter(path, schema, **options) as writer:  # type: ignore[arg-type]
        for episode in episodes:
            writer.add_episode(episode)
    return episodes


def same(read: Episode, written: Episode) -> bool:
    """Equal in every bit, NaN included."""
    return read.columns.keys() == written.columns.keys() and all(
        read.columns[name].dtype == array.dtype
        and read.columns[name].shape == array.shape
        and read.columns[name].tobytes() == array.tobytes()
        for name, array in written.columns.items()
    )


def by_uid(store: Store) -> dict[int, int]:
    """Number in the table of every uid."""
    return {int(uid): i for i, uid in enumerate(store.table.uid)}


@cache
def dead_process() -> Owner:
    """A process of this machine that has ended."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from rollmill.store.format.owner import *; print(*vars(this_process()).values(), sep='\\n')",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    host, boot, namespace, pid, started = done.stdout.split("\n")[:5]
    return Owner(host, boot, namespace, int(pid), int(started))
