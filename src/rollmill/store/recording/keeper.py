"""The writing end of a recording: a ``StoreWriter`` that stays within a budget."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path

from rollmill.store.episode import EpisodeInfo
from rollmill.store.recording.assemble import Rows
from rollmill.store.recording.budget import (
    DISK_BLOCK,
    FOLDER_BYTES,
    VICTIMS,
    Bounds,
    BudgetReached,
    ShardFacts,
    Shelf,
    folder_bytes,
    on_disk,
    shard_size,
)
from rollmill.store.recording.settings import AtBudget
from rollmill.store.schema import StoreSchema
from rollmill.store.writer import StoreWriter, automatic_block


class Keeper:
    """Writes episodes (``EpisodeOut``), and drops shards when there is no room for more.

    ``before_rotation`` is called when everything that is open has to be ended, so that it can be dropped: only where
    the open episodes alone fill the budget.
    """

    def __init__(
        self,
        store: Path,
        schema: StoreSchema,
        limit: int,
        at_budget: AtBudget,
        block: int = 0,
        expected_steps: int = 1000,
        shard_bytes: int = 0,
    ) -> None:
        self.before_rotation: Callable[[], None] = lambda: None
        self.limit = limit
        self.dropped_episodes = 0
        """Dropped to make room, by this keeper."""
        self._store, self._schema = store, schema
        self._victim = VICTIMS[at_budget]
        self._block = block or automatic_block(schema)
        self._bounds = Bounds(schema, self._block)
        self._shard_bytes = shard_bytes or shard_size(limit, at_budget)
        self._expected_steps = expected_steps
        self._shelf = Shelf(store)
        before = self._shelf.sealed()
        self._episodes = sum(shard.episodes for shard in before)
        self._steps = sum(shard.steps for shard in before)
        self._start_writer()

    def _start_writer(self) -> None:
        self._base = FOLDER_BYTES + folder_bytes(self._store)
        self._freed = 0
        self._open = 0
        self._indexed = 0  # episodes of this writer, and their blocks
        self._indexed_blocks = 0
        self._writer = StoreWriter(
            self._store,
            self._schema,
            block=self._block,
            shard_bytes=self._shard_bytes,
            expected_steps=self._expected_steps,
        )

    # -- figures -------------------------------------------------------------------------------

    @property
    def episodes(self) -> int:
        """In the store now, those of earlier sessions included."""
        return self._episodes

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def bytes(self) -> int:
        """The store's size on disk now (of indexes to come: what they will need)."""
        index = self._bounds.index(self._indexed, self._indexed_blocks)
        files = len(self._writer.shards) * 2 * DISK_BLOCK
        return self._base - FOLDER_BYTES + self._writer.bytes_written + index + files - self._freed

    @property
    def reserve_bytes(self) -> int:
        """What is kept free to end everything that is open."""
        shards = len(self._writer.shards) * (self._bounds.shard_files - 2 * DISK_BLOCK)
        return FOLDER_BYTES + shards + self._open * self._bounds.open_episode

    # -- EpisodeOut ----------------------------------------------------------------------------

    def reserve(self, steps: int, episodes: int) -> None:
        """Make sure that there is room; ``BudgetReached`` where there is none to be had."""
        if not self.limit:
            return
        need = self._bounds.steps(steps) + episodes * (self._bounds.open_episode + self._bounds.new_shard)
        if self._make_room(need):
            return
        if self._writer.shards and self._victim is not VICTIMS["stop"]:
            self.before_rotation()
            self._writer.close()
            self._start_writer()
            if self._make_room(need):
                return
        raise BudgetReached(
            f"{self._store} has reached its budget of {self.limit / 1e9:g} GB "
            f"({self.bytes / 1e9:.3g} GB written, {(self.reserve_bytes + need) / 1e9:.3g} GB set aside for what comes)"
        )

    def begin(self, key: Hashable, info: EpisodeInfo) -> None:
        self._writer.begin(key, info)
        self._open += 1

    def append(self, key: Hashable, columns: Rows) -> None:
        self._writer.append(key, columns)

    def end(self, key: Hashable, final: Rows, terminated: bool, truncated: bool) -> None:
        record = self._writer.end(key, final=final, terminated=terminated, truncated=truncated)
        assert record is not None, "an episode is begun with its first step"
        self._open -= 1
        self._indexed += 1
        self._indexed_blocks += record.blocks
        self._episodes += 1
        self._steps += record.length

    def close(self) -> None:
        """Seal everything."""
        self._writer.close()

    # -- room ----------------------------------------------------------------------------------

    def _fits(self, need: int) -> bool:
        return self.bytes + self.reserve_bytes + need <= self.limit

    def _make_room(self, need: int) -> bool:
        while not self._fits(need):
            shard = self._victim(self._shelf.sealed())
            if shard is None:
                return False
            self._drop(shard)
        return True

    def _drop(self, shard: ShardFacts) -> None:
        self._shelf.drop(shard)
        if shard.ref.name in self._writer.shards:  # counted as in ``bytes``
            self._freed += shard.ref.bytes + shard.index_bytes + 2 * DISK_BLOCK
        else:
            self._freed += on_disk(shard.ref.bytes) + on_disk(shard.index_bytes)
        self._episodes -= shard.episodes
        self._steps -= shard.steps
        self.dropped_episodes += shard.episodes
