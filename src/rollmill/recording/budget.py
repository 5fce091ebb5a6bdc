"""How many bytes a store takes, at most.

Room is reserved before anything is written, so the folder never grows beyond its limit, not even for a moment: open
shards, indexes that are still to be written, and the last blocks and end records of all open episodes are
counted with the largest size they can have.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rollmill.core.errors import StoreError
from rollmill.store.format import framing as frames
from rollmill.store.format.index import EPISODE, PLACE, IndexDamaged, read_index
from rollmill.store.format.schema import StoreSchema, schema_text
from rollmill.store.format.shards import ShardRef, list_shards, scan_shard

DISK_BLOCK = 4096
"""File systems give out space in such units."""
RECORD_BYTES = 1024
"""Upper bound of a record's own header: numbers, and the names in an episode's info."""
FOLDER_BYTES = 128 << 10
"""For the folders themselves, small files beside the shards, and files that are being replaced."""

SHARDS_PER_BUDGET = {"stop": 8, "thin": 16, "ring": 32}
"""As many as this fill the budget: ``notify`` drops one at a time, ``thin`` all of a level."""


class BudgetReached(StoreError):
    """There is no room left, and nothing that may be dropped."""


def on_disk(size: int) -> int:
    return -(-size // DISK_BLOCK) * DISK_BLOCK


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder, in whole disk blocks."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # sealed meanwhile
                total += on_disk(os.lstat(os.path.join(parent, name)).st_size)
    return total


def shard_size(limit: int, at_budget: str, largest: int = 128 << 20) -> int:
    """Return the bytes of a shard for a budget of ``limit`` bytes (0: none)."""
    return max(1 << 16, min(largest, limit // SHARDS_PER_BUDGET[at_budget])) if limit else largest


@dataclass(frozen=True)
class Bounds:
    """The most bytes that parts of a store can take."""

    schema: StoreSchema
    block: int

    @cached_property
    def row(self) -> int:
        """Bytes of one step. A buffer that does not shrink is stored raw; a lossy one may grow, if images are noise."""
        return sum((2 if c.lossy else 1) * c.row_bytes for c in self.schema.columns)

    @cached_property
    def overhead(self) -> int:
        """Bytes of one record beyond its rows."""
        return frames.FRAME_BYTES + RECORD_BYTES + 10 * len(self.schema.columns)

    @cached_property
    def open_episode(self) -> int:
        """Bytes to end an episode: its last block with the final observation, end record, place in the index."""
        return (self.block + 1) * self.row + 2 * self.overhead + EPISODE.itemsize + PLACE.itemsize

    @cached_property
    def new_shard(self) -> int:
        return self.overhead + len(schema_text(self.schema)) + self.shard_files

    @property
    def shard_files(self) -> int:
        """Bytes of a shard's two files beyond their records."""
        return 2 * DISK_BLOCK + RECORD_BYTES

    def steps(self, steps: int) -> int:
        """Return the bytes for appending so many steps, beyond the last block that ``open_episode`` counts."""
        blocks = steps // self.block + 1
        return steps * self.row + blocks * (self.overhead + PLACE.itemsize)

    def index(self, episodes: int, blocks: int) -> int:
        return episodes * EPISODE.itemsize + blocks * PLACE.itemsize


@dataclass(frozen=True)
class ShardFacts:
    """What is known of a sealed shard."""

    ref: ShardRef
    index_bytes: int
    episodes: int
    steps: int


def look_at(ref: ShardRef) -> ShardFacts:
    """Return the facts from a shard's index; if that did not find room on the disk, from the shard itself."""
    try:
        found = read_index(ref.index_path, ref.name, ref.bytes).episodes
        lengths, size = found["length"][found["finished"]].tolist(), ref.index_path.stat().st_size
    except IndexDamaged:
        lengths, size = [episode.end.length for episode in scan_shard(ref).episodes], 0
    return ShardFacts(ref, size, len(lengths), sum(lengths))


def oldest(shards: Sequence[ShardFacts]) -> ShardFacts | None:
    """Return the shard that was begun first."""
    return min(shards, key=lambda s: s.ref.name, default=None)


class ShardUsage:
    """The sealed shards of a store, as far as they matter here; looks at each of them once."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._known: dict[str, ShardFacts] = {}

    def sealed(self) -> list[ShardFacts]:
        refs = [ref for ref in list_shards(self._store) if ref.sealed]
        for ref in refs:
            if ref.name not in self._known:
                self._known[ref.name] = look_at(ref)
        return [self._known[ref.name] for ref in refs]

    def drop(self, shard: ShardFacts) -> None:
        """Delete a shard. The index goes first: a shard without index is whole, an index without shard is damage."""
        shard.ref.index_path.unlink(missing_ok=True)
        shard.ref.path.unlink(missing_ok=True)
        self._known.pop(shard.ref.name, None)
