"""Acknowledged episodes that are gone: an index lists them, and their shard no longer has them.

An index repeats what every end record of its shard says. When a shard is cut, emptied, replaced or removed, its index
is the last witness of what was there: it is never overwritten, and everything it knows is named. A witness is found by
the shard that it speaks of, under whatever name it lies in the index folder.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.store.episode import EpisodeEnd
from rollmill.store.format.index import IndexBuilder, IndexDamaged, ShardIndex, end_from_row, load_index
from rollmill.store.format.schema import INDEX_FOLDER
from rollmill.store.format.shards import BlockPlace, Problem, ShardScan

_Key = tuple[int, int, float]
"""Uid, length and time of the end: an episode of a shard, wherever its records lie in it."""


@dataclass(frozen=True)
class Known:
    """An acknowledged episode as an index lists it."""

    uid: int
    length: int
    end: BlockPlace
    """Where its end record is, or was."""
    row: Any
    index: ShardIndex

    @property
    def key(self) -> _Key:
        return self.uid, self.length, float(self.row["time"])

    @property
    def problem(self) -> Problem:
        reason = f"lost: the index lists it with {self.length} steps, the shard has no end record of it"
        return Problem(self.index.shard, self.end.record, self.end.offset, reason, self.uid)


def witnesses(store: Path) -> dict[str, list[ShardIndex]]:
    """Return the index files of a store that are whole, by the shard they speak of."""
    found: dict[str, list[ShardIndex]] = {}
    for _, index in _whole_indexes(store):
        found.setdefault(index.shard, []).append(index)
    return found


def witness_files(store: Path) -> dict[str, tuple[Path, ...]]:
    """Return where the whole index files of a store lie, by shard; ``load_witnesses`` reads them."""
    found: dict[str, tuple[Path, ...]] = {}
    for path, index in _whole_indexes(store):
        found[index.shard] = (*found.get(index.shard, ()), path)
    return found


def load_witnesses(paths: Iterable[Path], shard: str) -> list[ShardIndex]:
    """Read those of the files that are (still) whole and speak of this shard."""
    return [index for path in paths for index in _load(path) if index.shard == shard]


def _whole_indexes(store: Path) -> Iterator[tuple[Path, ShardIndex]]:
    folder = store / INDEX_FOLDER
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return  # named where the store's folders are listed
    for path in (folder / name for name in names if not name.startswith(".")):
        for index in _load(path):
            yield path, index


def _load(path: Path) -> list[ShardIndex]:
    try:
        return [load_index(path)]
    except IndexDamaged:
        return []


def lost_episodes(known: Sequence[ShardIndex], scan: ShardScan | None) -> list[Known]:
    """Return what the indexes list and the shard (None: it cannot be read) has no end record of, each once."""
    there = Counter(_key(episode.end) for episode in scan.episodes) if scan is not None else Counter[_Key]()
    lost: dict[_Key, Known] = {}
    for index in known:
        left = there.copy()
        for episode in _listed(index):
            if left[episode.key]:
                left[episode.key] -= 1
            else:
                lost.setdefault(episode.key, episode)
    return list(lost.values())


def unfinished_uids(known: Sequence[ShardIndex]) -> set[int]:
    """Return the uids of episodes of which an index says that they were never acknowledged."""
    return {int(uid) for index in known for uid in index.episodes["uid"][~index.episodes["finished"]]}


def rescue_index(scan: ShardScan, known: Sequence[ShardIndex], shard_bytes: int) -> ShardIndex:
    """Build the index of a damaged shard: what a walk over it found, and what older indexes know beyond that.

    They know where blocks lie that the walk could not reach, and end records that are lost.
    """
    builder = IndexBuilder(scan.name, scan.header.layout if scan.header else "")
    listed = {episode.key: episode for index in reversed(known) for episode in _listed(index)}
    for episode in scan.episodes:
        blocks, same = episode.blocks, listed.get(_key(episode.end))
        theirs = _blocks(same) if same is not None else []
        if len(theirs) == len(blocks):
            blocks = [other if mine.lost else mine for mine, other in zip(blocks, theirs)]
        builder.add(episode.end, blocks, episode.place)
    gone = lost_episodes(known, scan)
    for lost in gone:
        builder.add(end_from_row(lost.row, lost.index), _blocks(lost), lost.end)
    for uid in sorted(scan.unfinished.keys() - {lost.uid for lost in gone}):
        builder.add_unfinished(uid, scan.unfinished[uid])
    return replace(builder.build(scan.good_bytes), shard_bytes=shard_bytes)


def _key(end: EpisodeEnd) -> _Key:
    return end.uid, end.length, end.time


def _listed(index: ShardIndex) -> Iterator[Known]:
    for row in index.episodes[index.episodes["finished"]]:
        end = BlockPlace(int(row["end_offset"]), int(row["end_length"]), int(row["end_record"]))
        yield Known(int(row["uid"]), int(row["length"]), end, row, index)


def _blocks(known: Known) -> list[BlockPlace]:
    start = int(known.row["block_start"])
    rows = known.index.places[start : start + int(known.row["blocks"])]
    return [BlockPlace(*row) for row in rows.tolist()]
