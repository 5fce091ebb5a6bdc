"""The shards a writer has open: which one takes an episode, when they are synced, when they are sealed.

An episode lives whole in one shard. A new one goes to the oldest open shard where it fits beside what the
open ones are still expected to need, else into a new shard. A shard without room is sealed when its last episode
ends. So shards end near their budget, unless single episodes are larger.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path

from rollmill.core.errors import StoreError
from rollmill.store.episode import EpisodeEnd
from rollmill.store.format import owner
from rollmill.store.format.open_shard import OpenShard
from rollmill.store.format.schema import StoreSchema
from rollmill.store.format.shards import BlockPlace


class ShardSet:
    """Open shards of one writer. After an error ``failed`` is set: a record is missing, only ``close`` is left."""

    def __init__(
        self, store: Path, schema: StoreSchema, writer: str, *, budget: int, sync: str, expected_bytes: float
    ) -> None:
        self.names: list[str] = []
        self.bytes_written = 0
        self.acknowledged = 0
        self.durable = 0
        self.failed = False
        self._store = store
        self._schema = schema
        self._writer = writer
        self._owner = owner.this_process()
        self._budget = budget
        self._expected_bytes = expected_bytes
        self._open: list[OpenShard] = []
        self._sync_seconds = parse_sync(sync)
        self._synced_at = time.monotonic()

    def place(self, uid: int) -> OpenShard:
        """Return the shard for a new episode, which is open in it from now on."""
        if any(uid in shard.episodes for shard in self._open):
            raise StoreError(f"episode {uid:016x} is already open")
        shard = next((shard for shard in self._open if self._has_room(shard)), None) or self._add_shard()
        shard.episodes.add(uid)
        return shard

    def _add_shard(self) -> OpenShard:
        number = len(self.names)
        name = f"{self._writer}-{number:05d}"
        try:
            shard = OpenShard(self._store, name, self._schema, self._writer, number, self._owner)
        except StoreError:
            self.failed = True
            raise
        self._open.append(shard)
        self.names.append(name)
        self.bytes_written += shard.bytes
        return shard

    def _has_room(self, shard: OpenShard) -> bool:
        if not shard.episodes and shard.records == 1:
            return True  # an episode larger than the budget has to go somewhere
        # However much of an open episode is written, it may go on as long as any: long ones are often still open.
        to_come = (len(shard.episodes) + 1) * self._expected_bytes
        return shard.bytes + to_come <= self._budget

    def write(self, shard: OpenShard, payload: Sequence[bytes]) -> BlockPlace:
        """Append one record."""
        before = shard.bytes
        try:
            place = shard.append(payload)
        except StoreError:
            self.failed = True
            raise
        self.bytes_written += shard.bytes - before
        return place

    def acknowledge(
        self, shard: OpenShard, end: EpisodeEnd, blocks: list[BlockPlace], payload: Sequence[bytes]
    ) -> None:
        """Write an episode's end record; then sync and seal as is due."""
        try:
            place = self.write(shard, payload)
        except StoreError:
            shard.abandon(end.uid, blocks)
            raise
        shard.index.add(end, blocks, place)
        shard.episodes.discard(end.uid)
        shard.unsynced += 1
        self.acknowledged += 1
        size = sum(block.length for block in blocks) + place.length
        # The mean of all at first, later leaning towards recent ones: episodes grow as agents learn.
        self._expected_bytes += (size - self._expected_bytes) / min(self.acknowledged, 64)
        if self._sync_seconds == 0:
            self._sync(shard)
        else:
            self.sync_if_due()
        self._seal_if_full(shard)

    def abandon(self, shard: OpenShard, uid: int, blocks: list[BlockPlace]) -> None:
        """Note that an open episode will get no end record."""
        shard.abandon(uid, blocks)
        if not self.failed:
            self._seal_if_full(shard)

    def _seal_if_full(self, shard: OpenShard) -> None:
        if shard.episodes or shard.records == 1 or self._has_room(shard):
            return
        self._open.remove(shard)
        try:
            self.durable += shard.seal()
        except StoreError:
            self.failed = True
            raise

    def sync(self) -> None:
        """Bring everything to the disk."""
        for shard in self._open:
            self._sync(shard)
        self._synced_at = time.monotonic()

    def sync_if_due(self) -> None:
        if time.monotonic() - self._synced_at >= self._sync_seconds > 0:
            self.sync()

    def _sync(self, shard: OpenShard) -> None:
        try:
            self.durable += shard.sync()
        except StoreError:
            self.failed = True
            raise

    def close(self) -> None:
        """Seal all shards (those that hold nothing but a header are removed); raises the first error at the end."""
        first_error: StoreError | None = None
        for shard in self._open:
            try:
                if shard.records == 1:
                    shard.remove()
                    self.bytes_written -= shard.bytes
                    self.names.remove(shard.name)
                else:
                    self.durable += shard.seal()
            except StoreError as error:
                first_error = first_error or error
        self._open.clear()
        if first_error is not None:
            raise first_error


def parse_sync(text: str) -> float:
    """Return the seconds between syncs: 0 for every episode, infinity for sealing only."""
    if text == "episode":
        return 0.0
    if text == "seal":
        return math.inf
    match = re.fullmatch(r"seconds:(\d+(?:\.\d+)?)", text)
    if match is None or float(match.group(1)) <= 0:
        raise StoreError(f"sync {text!r}: 'episode', 'seconds:N' or 'seal' is expected")
    return float(match.group(1))
