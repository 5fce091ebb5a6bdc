"""The shards of a store: their names, and what a walk over one finds.

Words
-----
shard     one file of records. ``<name>.open.tfrecord`` is being written (or was, when its writer died),
          ``<name>.tfrecord`` is sealed and never changes.
scan      the walk over all records of a shard, with checksums. It can be continued when the file has grown.
problem   one damaged place.
odd       a name under which there should be a file or folder that can be read, and is none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.core.errors import StoreError
from rollmill.core.opening import plain_file, why_not_readable
from rollmill.store.episode import EpisodeEnd, EpisodeInfo
from rollmill.store.format import framing as frames
from rollmill.store.format.records import Block, Header, RecordError, parse
from rollmill.store.format.schema import INDEX_FOLDER, SHARD_FOLDER

SEALED = ".tfrecord"
OPEN = ".open.tfrecord"
INDEX = ".idx"


@dataclass(frozen=True)
class Problem:
    """One damaged place of a store; ``record`` and ``offset`` are -1 where they mean nothing."""

    shard: str
    record: int
    offset: int
    reason: str
    episode: int | None = None
    harmless: bool = False
    """No data are lost by it: an index that the shard itself says again."""

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
    return store / INDEX_FOLDER / (name + INDEX)


@dataclass(frozen=True)
class OddFile:
    """A place of a store where something should be read and cannot; ``shard`` is "" for a folder."""

    shard: str
    path: Path
    reason: str

    @property
    def problem(self) -> Problem:
        """What is wrong, harmless where only indexes are missing: the shards say it all again."""
        harmless = not self.shard and self.path.name == INDEX_FOLDER
        return Problem(self.shard or self.path.name, -1, -1, f"{self.path.name}: {self.reason}", harmless=harmless)


@dataclass(frozen=True)
class Listing:
    """What the folders of a store hold: shards that can be read, by name, and what is odd."""

    shards: list[ShardRef]
    odd: list[OddFile]

    def check(self) -> None:
        """Raise StoreError if the shards are there and cannot even be listed."""
        for file in self.odd:
            if not file.shard and file.path.name == SHARD_FOLDER and os.path.lexists(file.path):
                raise StoreError(f"{file.path}: {file.reason}")


def list_shards(store: Path) -> list[ShardRef]:
    """Return all shards that can be read, sorted by name (that is, by the time their writers started)."""
    found = list_files(store)
    found.check()
    return found.shards


def list_files(store: Path) -> Listing:
    """Return all shards, and everything that should be one and is not: missing, a folder, a FIFO, without permission.

    Raises nothing: a folder that cannot be listed is odd, too.
    """
    odd: list[OddFile] = []
    # A writer writes the index, then renames the shard. Indexes are listed first, so that a shard which the second
    # listing misses because it is renamed that very moment is known by its index.
    indexes = [name for name in _names(store / INDEX_FOLDER, odd) if name.endswith(INDEX) and name[0] != "."]
    indexed = {name.removesuffix(INDEX) for name in indexes}
    found: dict[str, ShardRef] = {}
    for entry in _names(store / SHARD_FOLDER, odd, needed=True):
        sealed = not entry.endswith(OPEN)
        name = entry.removesuffix(SEALED if sealed else OPEN)
        if name != entry and not name.startswith(".") and (sealed or name not in found):
            _take(_look(store, name, sealed), found, odd)
    for name in sorted(indexed - set(found) - {file.shard for file in odd}):
        known = _look(store, name, True)
        if known is None and os.path.lexists(index_path(store, name)):  # whoever drops a shard removes its index first
            known = OddFile(name, shard_path(store, name, True), "the shard's file is missing, only its index is there")
        _take(known, found, odd)
    return Listing([found[name] for name in sorted(found)], odd)


def _take(seen: ShardRef | OddFile | None, found: dict[str, ShardRef], odd: list[OddFile]) -> None:
    if isinstance(seen, ShardRef):
        found[seen.name] = seen
    elif seen is not None:
        odd.append(seen)


def _look(store: Path, name: str, sealed: bool) -> ShardRef | OddFile | None:
    path = shard_path(store, name, sealed)
    try:
        fault = why_not_readable(path)
        return OddFile(name, path, fault) if fault else ShardRef(store, name, sealed, os.stat(path).st_size)
    except FileNotFoundError:
        # renamed between the listing and here
        return None if sealed else _look(store, name, True)


def _names(folder: Path, odd: list[OddFile], needed: bool = False) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        if needed or folder.is_symlink():
            odd.append(OddFile("", folder, "it is missing"))
    except OSError as error:
        odd.append(OddFile("", folder, f"it cannot be listed: {error.strerror or error}"))
    return []


# -------------------------------------------------------------------------------------------------- scanning


@dataclass(frozen=True)
class BlockPlace:
    """Where a record lies, and which steps a block holds. ``length`` 0: it is lost (no record is empty)."""

    offset: int
    length: int
    record: int
    first: int = 0
    steps: int = 0
    last: bool = False
    info: EpisodeInfo | None = None

    @property
    def lost(self) -> bool:
        return self.length == 0


LOST = BlockPlace(0, 0, 0)


@dataclass
class ScannedEpisode:
    """An acknowledged episode of a shard; ``blocks`` by position, ``LOST`` where one is missing."""

    end: EpisodeEnd
    place: BlockPlace
    blocks: list[BlockPlace]

    @property
    def complete(self) -> bool:
        return not any(block.lost for block in self.blocks)


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
    """The file ends within a record, as it does after a kill."""
    tail_problems: list[Problem] = field(default_factory=list)
    """Damaged records behind the last good one."""

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

    def close(self, file_bytes: int, torn_is_damage: bool = True) -> None:
        """Count what might have been a record under way as damage, for nobody writes this shard any more.

        The exception is a write that a kill has cut short, of which one record's beginning is left; not in a sealed
        shard (``torn_is_damage``).
        """
        self.problems += self.tail_problems
        self.tail_problems = []
        if self.torn and torn_is_damage:
            reason = f"the file is cut short: {file_bytes} bytes, the last good record ends at {self.good_bytes}"
            self.problems.append(Problem(self.name, self.records, self.good_bytes, reason))
        if self.header is None and (torn_is_damage or self.records):
            self.problems.append(Problem(self.name, 0, 0, "the shard's header record is missing"))

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
        blocks = [LOST] * end.blocks
        for block in self.unfinished.pop(end.uid, []):
            position = block.first // end.block
            if block.first % end.block or position >= end.blocks or not blocks[position].lost:
                reason = f"a block of steps {block.first}.. does not fit its episode"
                self.problems.append(Problem(self.name, block.record, block.offset, reason, end.uid))
            else:
                blocks[position] = block
        for position, block in enumerate(blocks):
            if block.lost:
                first = position * end.block
                reason = f"the block of steps {first}..{min(first + end.block, end.length)} is lost"
                self.problems.append(Problem(self.name, place.record, place.offset, reason, end.uid))
        self.episodes.append(ScannedEpisode(end, place, blocks))


def usable_run(found: list[BlockPlace]) -> tuple[int, list[BlockPlace]]:
    """Return (steps, blocks) of an episode without an end record, as far as its blocks follow each other.

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
    with open(ref.path, "rb", buffering=0, opener=plain_file) as file:
        size = os.fstat(file.fileno()).st_size
        scan.advance(file.fileno(), size)
    if ref.sealed:
        scan.close(size)
    return scan
