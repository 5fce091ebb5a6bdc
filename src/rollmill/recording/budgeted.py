"""The writing end of a recording: writes episodes to a store that stays within a budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path

from rollmill.core.errors import StoreError
from rollmill.core.text import bytes_text
from rollmill.recording.budget import (
    DISK_BLOCK,
    FOLDER_BYTES,
    Bounds,
    BudgetReached,
    ShardFacts,
    ShardUsage,
    folder_bytes,
    oldest,
    on_disk,
    shard_size,
)
from rollmill.recording.choose import MAX_LEVEL
from rollmill.recording.settings import AtBudget
from rollmill.store.assemble import Rows
from rollmill.store.derive.thinning import note_share, share_left
from rollmill.store.episode import EpisodeInfo
from rollmill.store.format import owner
from rollmill.store.format.schema import StoreSchema, create_store
from rollmill.store.writer import StoreWriter, automatic_block

_LEVEL = re.compile(r"-level(\d+)-\d+$")


@dataclass
class BudgetedWriter:
    """Writes episodes (``EpisodeOut``), and drops others when there is no room for more.

    ``at_budget``: with ``notify`` the oldest shards go. With ``thin`` a random half of all episodes goes: they were
    drawn into levels when they began (``choose.level_of``), and each level has shards of its own.

    ``before_rotation`` is called when everything that is open has to be ended, so that it can be dropped: only where
    the open episodes alone fill the budget.
    """

    store: Path
    schema: StoreSchema
    limit: int
    at_budget: AtBudget
    block: int = 0
    expected_steps: int = 1000
    shard_bytes: int = 0

    def __post_init__(self) -> None:
        self.before_rotation: Callable[[], None] = lambda: None
        self.dropped_episodes = 0
        """Dropped to make room, by this writer."""
        self.schema = create_store(self.store, self.schema, parents=False)
        self.block = self.block or automatic_block(self.schema)
        self.shard_bytes = self.shard_bytes or shard_size(self.limit, self.at_budget)
        self.level = 0
        while self.at_budget == "thin" and self.level < MAX_LEVEL and 2.0**-self.level > share_left(self.store):
            self.level += 1
        self._bounds = Bounds(self.schema, self.block)
        self._usage = ShardUsage(self.store)
        before = self._usage.sealed()
        self.episodes = sum(shard.episodes for shard in before)
        """In the store now, those of earlier sessions included."""
        self.steps = sum(shard.steps for shard in before)
        self._start_writers()
        self._drop_below(self.level)  # a crash may have come between the note and the deed

    def _start_writers(self) -> None:
        self._base = FOLDER_BYTES + folder_bytes(self.store)
        self._freed = 0
        self._indexed = 0  # episodes of these writers, and their blocks
        self._indexed_blocks = 0
        self._writers: dict[int, StoreWriter] = {}  # by level; with thin, those of dropped levels are closed
        self._open: dict[Hashable, int] = {}  # level of each open episode

    def _writer(self, level: int) -> StoreWriter:
        if level not in self._writers:
            self._writers[level] = StoreWriter(
                self.store,
                self.schema,
                block=self.block,
                shard_bytes=self.shard_bytes,
                expected_steps=self.expected_steps,
                name=owner.writer_name() + (f"-level{level}" if self.at_budget == "thin" else ""),
                create=False,
            )
        return self._writers[level]

    # -- metrics -------------------------------------------------------------------------------

    @property
    def settled(self) -> int:
        """Steps that lie in blocks, written by the present writers."""
        return sum(writer.raw_bytes for writer in self._writers.values()) // max(1, self.schema.row_bytes)

    @property
    def _shards(self) -> list[str]:
        return [name for writer in self._writers.values() for name in writer.shards]

    @property
    def bytes(self) -> int:
        """The store's size on disk now (of indexes to come: what they will need)."""
        index = self._bounds.index(self._indexed, self._indexed_blocks)
        written = sum(writer.bytes_written for writer in self._writers.values())
        files = len(self._shards) * 2 * DISK_BLOCK
        return self._base - FOLDER_BYTES + written + index + files - self._freed

    @property
    def reserve_bytes(self) -> int:
        """What is kept free to end everything that is open."""
        shards = len(self._shards) * (self._bounds.shard_files - 2 * DISK_BLOCK)
        return FOLDER_BYTES + shards + len(self._open) * self._bounds.open_episode

    @property
    def overhead(self) -> int:
        """What one more open episode needs at most, until its first block is written."""
        return self._bounds.open_episode + self._bounds.new_shard + self._bounds.steps(1)

    # -- EpisodeOut ----------------------------------------------------------------------------

    def reserve(self, steps: int, episodes: int) -> None:
        """Make sure that there is room; raises ``BudgetReached`` if there is none."""
        if not self.limit:
            return
        need = self._bounds.steps(steps) + episodes * (self._bounds.open_episode + self._bounds.new_shard)
        if self._make_room(need, self.at_budget):
            return
        if self._shards and self.at_budget != "stop":
            self.before_rotation()
            self.close()
            self._start_writers()
            if self._make_room(need, "ring"):
                return
        raise BudgetReached(
            f"{self.store} has reached its budget of {self.limit / 1e9:g} GB "
            f"({bytes_text(self.bytes)} written, {bytes_text(self.reserve_bytes + need)} set aside for what comes)"
        )

    def begin(self, key: Hashable, info: EpisodeInfo, level: int = 0) -> None:
        """Open an episode; one of a level that was dropped is none, and its rows are passed over."""
        if self.at_budget != "thin":
            level = 0
        elif level < self.level:
            return
        if info.probability is not None:
            info = replace(info, probability=min(info.probability, 2.0**-self.level))
        self._writer(level).begin(key, info)
        self._open[key] = level

    def append(self, key: Hashable, columns: Rows) -> None:
        if key in self._open:
            self._writers[self._open[key]].append(key, columns)

    def end(self, key: Hashable, final: Rows, terminated: bool, truncated: bool) -> None:
        if key not in self._open:
            return
        writer = self._writers[self._open.pop(key)]
        record = writer.end(key, final=final, terminated=terminated, truncated=truncated)
        assert record is not None, "an episode is begun with its first step"
        self._indexed += 1
        self._indexed_blocks += record.blocks
        self.episodes += 1
        self.steps += record.length

    def close(self) -> None:
        """Seal everything; raises the first error at the end."""
        errors = []
        for writer in self._writers.values():
            try:
                writer.close()
            except StoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    # -- room ----------------------------------------------------------------------------------

    def _fits(self, need: int) -> bool:
        return self.bytes + self.reserve_bytes + need <= self.limit

    def _make_room(self, need: int, how: AtBudget) -> bool:
        while not self._fits(need):
            if how == "ring" and (shard := oldest(self._usage.sealed())) is not None:
                self._drop(shard)
            elif how == "thin" and self._more_than_half():
                self._halve()
            else:
                return False
        return True

    def _more_than_half(self) -> bool:
        """Return whether anything would be left after a halving."""
        levels = [int(found[1]) for shard in self._usage.sealed() if (found := _LEVEL.search(shard.ref.name))]
        return max([*levels, *self._open.values()], default=0) > self.level

    def _halve(self) -> None:
        """Keep the episodes above the present level only, of the past and of the future."""
        note_share(self.store, 2.0 ** -(self.level + 1))
        writer = self._writers.get(self.level)
        if writer is not None:
            for key in writer.open_keys():
                writer.discard(key)
                del self._open[key]
            writer.close()
        self.level += 1
        self._drop_below(self.level)

    def _drop_below(self, level: int) -> None:
        for shard in self._usage.sealed():
            found = _LEVEL.search(shard.ref.name)
            if found is not None and int(found[1]) < level:
                self._drop(shard)

    def _drop(self, shard: ShardFacts) -> None:
        self._usage.drop(shard)
        if shard.ref.name in self._shards:  # counted as in ``bytes``
            self._freed += shard.ref.bytes + shard.index_bytes + 2 * DISK_BLOCK
        else:
            self._freed += on_disk(shard.ref.bytes) + on_disk(shard.index_bytes)
        self.episodes -= shard.episodes
        self.steps -= shard.steps
        self.dropped_episodes += shard.episodes
