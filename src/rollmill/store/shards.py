"""The shards of a store: their names, and what a walk over one finds.

Words
-----
shard     one file of records. ``<name>.open.tfrecord`` is being written (or was, when its writer died),
          ``<name>.tfrecord`` is sealed and never changes.
scan      the walk over all records of a shard, with checksums. It can be continued when the file has grown.
problem   one damaged place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.core.errors import StoreError
from rollmill.store import frames
from rollmill.store.episode import EpisodeEnd, EpisodeInfo
from rollmill.store.records import Block, Header, RecordError, parse
from rollmill.store.schema import INDEX_FOLDER, SHARD_FOLDER

SEALED = ".tfrecord"
OPEN = ".open.tfrecord"


@dataclass(frozen=True)
class Problem:
    """One damaged place of a store; ``record`` and ``offset`` are -1 where they mean nothing."""

    shard: str
    record: int
    offset: int
    reason: str
    episode: int | None = None

    def __str__(self) -> str:
        place = f", record {self.record} at byte {self.offset}" if self.record >= 0 else ""
        whose = "" if self.episode is None else f", episode {self.episode:016x}"
        return f"shard {self.shard}{place}{whose}: {self.reason}"


@dataclass(frozen=True)
class ShardRef:
    """Where a shard is. ``bytes`` is the size of its file when it was looked at."""

    store: Path
    name: str
    sealed: bool
    bytes: int

    @property
    def path(self) -> Path:
        return shard_path(self.store, self.name, self.sealed)

    @property
    def index_path(self) -> Path:
        return index_path(self.store, self.name)


def shard_path(store: Path, name: str, sealed: bool) -> Path:
    return store / SHARD_FOLDER / (name + (SEALED if sealed else OPEN))


def index_path(store: Path, name: str) -> Path:
    return store / INDEX_FOLDER / f"{name}.idx"


def list_shards(store: Path) -> list[ShardRef]:
    """All shards, sorted by name (that is, by the time their writers started)."""
    # A writer writes the index, then renames the shard. Indexes are listed first, so that a shard which the second
    # listing misses because it is renamed that very moment is known by its index.
    indexed = {
        entry.name.removesuffix(".idx") for entry in _entries(store / INDEX_FOLDER) if entry.name.endswith(".idx")
    }
    found: dict[str, ShardRef] = {}
    for entry in _entries(store / SHARD_FOLDER):
        sealed = not entry.name.endswith(OPEN)
        name = entry.name.removesuffix(SEALED if sealed else OPEN)
        if name == entry.name or name.startswith(".") or (not sealed and name in found):
            continue
        ref = _look(store, name, sealed)
        if ref is not None:
            found[name] = ref
    for name in indexed - set(found):
        ref = _look(store, name, True)
        if ref is not None:
            found[name] = ref
    return [found[name] for name in sorted(found)]


def _look(store: Path, name: str, sealed: bool) -> ShardRef | None:
    try:
        return ShardRef(store, name, sealed, os.stat(shard_path(store, name, sealed)).st_size)
    except FileNotFoundError:
        # renamed between the listing and here
        return None if sealed else _look(store, name, True)


def missing_shards(store: Path, known: list[ShardRef]) -> list[str]:
    """Names that have an index but no shard: files that somebody removed."""
    names = {ref.name for ref in known}
    indexed = (
        entry.name.removesuffix(".idx") for entry in _entries(store / INDEX_FOLDER) if entry.name.endswith(".idx")
    )
    lost = [name for name in indexed if name not in names and not name.startswith(".")]
    return sorted(name for name in lost if _look(store, name, False) is None)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{folder} cannot be listed: {error.strerror or error}") from error


# -------------------------------------------------------------------------------------------------- scanning


@dataclass(frozen=True)
class BlockPlace:
    """Where a block lies and which steps it holds. ``offset`` 0: it is missing."""

    offset: int
    length: int
    record: int
    first: int = 0
    steps: int = 0
    last: bool = False
    info: EpisodeInfo | None = None


@dataclass
class ScannedEpisode:
    """An acknowledged episode of a shard; ``blocks`` by position, missing ones with offset 0."""

    end: EpisodeEnd
    place: BlockPlace
    blocks: list[BlockPlace]

    @property
    def complete(self) -> bool:
        return all(block.offset for block in self.blocks)


@dataclass
class ShardScan:
    """What the records of a shard say, up to ``good_bytes``; ``advance`` continues where it stopped."""

    name: str
    header: Header | None = None
    episodes: list[ScannedEpisode] = field(default_factory=list)
    unfinished: dict[int, list[BlockPlace]] = field(default_factory=dict)
    """Blocks of episodes without an end record, by uid."""
    problems: list[Problem] = field(default_factory=list)
    records: int = 0
    good_bytes: int = 0
    """Where the last good record ends; a shard left behind by a dead writer is cut here."""
    torn: bool = False
    """The file ends within a record."""

    def advance(self, fd: int, file_bytes: int) -> None:
        """Take in what lies behind the last good record."""
        self.torn = False
        pending: list[Problem] = []
        for frame in frames.walk(fd, file_bytes, self.good_bytes, self.records):
            if frame.payload is None:
                if frame.torn:
                    self.torn = True
                    break
                pending.append(Problem(self.name, frame.number, frame.offset, frame.problem or "damaged"))
                continue
            # Damage is only counted once something good follows: at the end of a file it may be a record that is
            # being written, and the next call looks at it again.
            self.problems += pending
            pending = []
            self._take(frame, frame.payload)
            self.good_bytes, self.records = frame.end, frame.number + 1
        self.tail_problems = pending

    tail_problems: list[Problem] = field(default_factory=list)
    """Damaged records behind the last good one."""

    def _take(self, frame: frames.Frame, payload: bytes) -> None:
        try:
            record = parse(payload)
        except RecordError as error:
            self.problems.append(Problem(self.name, frame.number, frame.offset, str(error)))
            return
        place = BlockPlace(frame.offset, len(payload), frame.number)
        if isinstance(record, Block):
            which = (record.first, record.steps, record.last, record.info)
            place = BlockPlace(frame.offset, len(payload), frame.number, *which)
            self.unfinished.setdefault(record.uid, []).append(place)
        elif isinstance(record, EpisodeEnd):
            self._finish(record, place)
        elif self.header is None:
            self.header = record

    def _finish(self, end: EpisodeEnd, place: BlockPlace) -> None:
        missing = BlockPlace(0, 0, 0)
        blocks = [missing] * end.blocks
        for block in self.unfinished.pop(end.uid, []):
            position = block.first // end.block
            if block.first % end.block or position >= end.blocks or blocks[position].offset:
                reason = f"a block of steps {block.first}.. does not fit its episode"
                self.problems.append(Problem(self.name, block.record, block.offset, reason, end.uid))
            else:
                blocks[position] = block
        for position, block in enumerate(blocks):
            if not block.offset:
                first = position * end.block
                reason = f"the block of steps {first}..{min(first + end.block, end.length)} is lost"
                self.problems.append(Problem(self.name, place.record, place.offset, reason, end.uid))
        self.episodes.append(ScannedEpisode(end, place, blocks))


def usable_run(found: list[BlockPlace]) -> tuple[int, list[BlockPlace]]:
    """(steps, blocks) of an episode without an end record, as far as its blocks follow each other.

    Every episode has one observation more than steps, so the last step is given up where no final observation
    was written.
    """
    blocks: list[BlockPlace] = []
    for block in sorted(found, key=lambda b: b.first):
        if block.first != (blocks[-1].first + blocks[-1].steps if blocks else 0):
            break
        blocks.append(block)
    if not blocks:
        return 0, []
    total = blocks[-1].first + blocks[-1].steps
    return (total if blocks[-1].last else total - 1), blocks


def scan_shard(ref: ShardRef) -> ShardScan:
    """Walk a whole shard, checksums included. Damage at its end is a problem if it is sealed."""
    scan = ShardScan(ref.name)
    with open(ref.path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        scan.advance(file.fileno(), size)
    if ref.sealed:
        note_sealed_damage(scan, size)
    return scan


def note_sealed_damage(scan: ShardScan, size: int) -> None:
    """Turn what may be an unfinished write in an open shard into what it is in a sealed one: damage."""
    scan.problems += scan.tail_problems
    if scan.torn:
        reason = f"the file is cut short: {size} bytes, the last good record ends at {scan.good_bytes}"
        scan.problems.append(Problem(scan.name, scan.records, scan.good_bytes, reason))
    if scan.header is None:
        scan.problems.append(Problem(scan.name, 0, 0, "the shard's header record is missing"))
