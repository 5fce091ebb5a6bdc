"""A store at a glance: what ``rollmill data info`` shows. Reads indexes only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.fields import Array
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.reader import Store, store_bytes


@dataclass(frozen=True)
class Spread:
    """How the values of a quantity are spread; None where there are none."""

    mean: float | None = None
    std: float | None = None
    min: float | None = None
    median: float | None = None
    max: float | None = None

    @staticmethod
    def of(values: Array) -> Spread:
        good = values[np.isfinite(values)].astype(np.float64)
        if not len(good):
            return Spread()
        return Spread(*(float(f(good)) for f in (np.mean, np.std, np.min, np.median, np.max)))


@dataclass
class StoreInfo:
    """Metrics of a store; ``to_dict`` is what ``--json`` prints."""

    path: Path
    env_id: str
    env_kwargs: dict[str, Any]
    created_by: str
    made: dict[str, Any] = field(default_factory=dict)
    """``command``, ``policy`` and ``seed`` of the first writer, as far as known."""
    episodes: int = 0
    rows: int = 0
    """Steps of all episodes."""
    bytes: int = 0
    """On disk, indexes included."""
    raw_bytes: int = 0
    """The same rows without compression."""
    shards_sealed: int = 0
    shards_open: int = 0
    unfinished: int = 0
    """Episodes without an end record."""
    terminated: int = 0
    truncated: int = 0
    partial_start: int = 0
    partial_end: int = 0
    duplicates: int = 0
    """Episodes whose uid appears before."""
    returns: Spread = field(default_factory=Spread)
    lengths: Spread = field(default_factory=Spread)
    version_min: int | None = None
    version_max: int | None = None
    global_step_first: int | None = None
    global_step_last: int | None = None
    policies: list[str] = field(default_factory=list)
    columns: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Raw bytes per byte on disk."""
        return self.raw_bytes / self.bytes if self.bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "ratio": self.ratio}


def describe_store(path: Path | str) -> StoreInfo:
    """Look at a store without reading its data."""
    with open_quietly(path) as store:
        schema = store.schema
        info = StoreInfo(store.path, schema.env_id, dict(schema.env_kwargs), schema.created_by, dict(schema.made))
        info.columns = [column.to_json() for column in store.schema.columns]
        info.problems = [str(problem) for problem in store.problems]
        info.bytes = store_bytes(store.path)
        _count(store, info)
    with open_quietly(path, unfinished=True) as everything:
        info.unfinished = int((~everything.table["finished"]).sum())
    return info


def _count(store: Store, info: StoreInfo) -> None:
    table = store.table
    info.episodes, info.rows = len(table), table.steps
    info.raw_bytes = table.steps * store.schema.row_bytes + len(table) * sum(
        column.row_bytes for column in store.schema.obs_columns
    )
    info.shards_sealed = sum(ref.sealed for ref in store.shards)
    info.shards_open = len(store.shards) - info.shards_sealed
    for name in ("terminated", "truncated", "partial_start", "partial_end"):
        setattr(info, name, int(table[name].sum()))
    info.duplicates = len(table) - len(np.unique(table.uid))
    info.returns, info.lengths = Spread.of(table.return_), Spread.of(table.length)
    if len(table):
        info.version_min, info.version_max = int(table["version_min"].min()), int(table["version_max"].max())
        info.global_step_first = int(table["global_step_first"].min())
        info.global_step_last = int(table["global_step_last"].max())
        info.policies = sorted(set(table["policy"].tolist()) - {""})
