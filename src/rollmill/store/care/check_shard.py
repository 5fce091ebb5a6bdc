"""Looking at one shard: what it holds, and every bad place in it.

From outside in: the checksums of frames; that records parse and that blocks and ends add up to episodes; that every
buffer decodes to what the schema says; that an end record agrees with its rows; that the index agrees with the shard.
Whatever an index lists and the shard no longer has is named, whether the shard can be read or not.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rollmill.core.errors import RollmillError, StoreError
from rollmill.core.fields import Array
from rollmill.core.opening import plain_file
from rollmill.store.care.lost import load_witnesses, lost_episodes, unfinished_uids
from rollmill.store.episode import EpisodeEnd
from rollmill.store.format import framing as frames
from rollmill.store.format import owner
from rollmill.store.format.blocks import decode_block
from rollmill.store.format.codec import CodecError
from rollmill.store.format.index import IndexDamaged, ShardIndex, build_index, read_index
from rollmill.store.format.records import HEADER, Block, RecordError, buffer_is_good, parse_block
from rollmill.store.format.schema import StoreSchema, load_schema, parse_schema
from rollmill.store.format.shards import OPEN, SEALED, BlockPlace, Problem, ScannedEpisode, ShardScan, index_path
from rollmill.store.returns import sums_to

OTHER_EPISODES = "its index lists other episodes than it has"


@dataclass(frozen=True)
class Place:
    """One file to look at. ``store`` is the store it belongs to, None for a file on its own.

    ``witnesses``: index files that speak of this shard.
    """

    path: Path
    store: Path | None = None
    witnesses: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def sealed(self) -> bool:
        return not self.path.name.endswith(OPEN)

    @property
    def name(self) -> str:
        """The shard's name within its store, the file's name elsewhere."""
        if self.store is None:
            return self.path.name
        return self.path.name.removesuffix(OPEN if not self.sealed else SEALED)


@dataclass
class ShardReport:
    """What a file holds and what is wrong with it."""

    path: Path
    shard: str
    native: bool = True
    """False for a TFRecord file that is none of ours: only its frames were checked."""
    sealed: bool = True
    bytes: int = 0
    records: int = 0
    blocks: int = 0
    """Blocks that were decoded."""
    episodes: int = 0
    """Acknowledged and whole."""
    steps: int = 0
    bad_episodes: set[int] = field(default_factory=set)
    """Uids of acknowledged episodes that are not whole, those that are lost among them."""
    lost: dict[int, int] = field(default_factory=dict)
    """Steps of episodes that only an index still knows, by uid."""
    unfinished: int = 0
    """Episodes without an end record."""
    writer: owner.State = "dead"
    """Whether its writer may still be at it; that of a sealed shard is not."""
    index_good: bool = False
    """The shard is whole and its index lists just what it has."""
    schema_text: str = ""
    """The schema as the shard's header holds it."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and no damage: the unfinished tail of a shard that is being written."""


def check_shard(place: Place) -> ShardReport:
    """Look at one file; an unreadable one is a problem, not an error."""
    report = ShardReport(place.path, place.name, sealed=place.sealed)
    try:
        with _open(place) as file:
            report.bytes = os.fstat(file.fileno()).st_size
            if _is_native(file.fileno(), place):
                _check_native(place, report, file.fileno())
            else:
                report.native = False
                _check_frames(report, file.fileno())
    except OSError as error:
        _name_unreadable(place, error, report)
    return report


def _name_unreadable(place: Place, error: OSError, report: ShardReport) -> None:
    known = load_witnesses(place.witnesses, place.name)
    gone = isinstance(error, FileNotFoundError) and not place.path.is_symlink()
    if gone and not known:  # whoever drops a shard removes its index first
        report.notes.append(f"{place.path}: it was removed while it was being looked at")
        return
    missing = "the shard's file is missing, only its index is there"
    reason = missing if gone else f"cannot be read: {error.strerror or error}"
    report.problems.append(Problem(place.name, -1, -1, reason))
    _name_lost(known, None, report)


def _open(place: Place) -> io.FileIO:
    try:
        return open(place.path, "rb", buffering=0, opener=plain_file)
    except FileNotFoundError:
        if place.sealed:
            raise
        # sealed by its writer since it was listed
        return open(place.path.with_name(place.name + SEALED), "rb", buffering=0, opener=plain_file)


def _is_native(fd: int, place: Place) -> bool:
    """Return whether this is one of our shards: by where it lies, or by its header."""
    return place.store is not None or os.pread(fd, 4, frames.HEAD_BYTES) == HEADER


def _check_frames(report: ShardReport, fd: int) -> None:
    for frame in frames.walk(fd, report.bytes):
        report.records += 1
        if frame.payload is None:
            report.problems.append(Problem(report.shard, frame.number, frame.offset, frame.problem or "damaged"))


def _check_native(place: Place, report: ShardReport, fd: int) -> None:
    scan = ShardScan(place.name)
    scan.advance(fd, report.bytes)
    if place.sealed:
        scan.close(report.bytes)
    else:
        _close_open(scan, report)
    report.records = scan.records
    report.problems += scan.problems
    report.bad_episodes |= {p.episode for p in scan.problems if p.episode is not None}
    report.unfinished = len(scan.unfinished)
    schema = _schema_of(place, scan, report)
    if schema is not None:
        for episode in scan.episodes:
            _check_episode(fd, schema, episode, report)
        for uid, blocks in scan.unfinished.items():
            _decode(fd, schema, uid, blocks, report)
    known = load_witnesses(place.witnesses, place.name)
    if place.store is not None and place.sealed:
        _check_index(place.store, scan, known, report)
    else:
        _name_lost(known, scan, report)
    _name_unended(scan, known, report)


def _close_open(scan: ShardScan, report: ShardReport) -> None:
    """Judge the end of an open shard: it may be anything while it is written, else one write that was cut short."""
    report.writer = "unknown" if scan.header is None else owner.state_of(scan.header.owner)
    rest = report.bytes - scan.good_bytes
    if report.writer != "alive":
        rest = 0 if scan.tail_problems else rest
        scan.close(report.bytes, torn_is_damage=False)
    if rest:
        state = "its writer is dead" if report.writer == "dead" else "a record under way, or one when its writer died"
        report.notes.append(f"{report.path}: the last {rest} bytes are no whole record ({state}); nothing else is hurt")
    elif report.bytes == 0:
        report.notes.append(f"{report.path}: it is empty; its writer died at once, or something has emptied it")


def _name_lost(known: Sequence[ShardIndex], scan: ShardScan | None, report: ShardReport) -> None:
    """Report what indexes list and the shard has no end record of."""
    for episode in lost_episodes(known, scan):
        report.problems.append(episode.problem)
        report.bad_episodes.add(episode.uid)
        report.lost[episode.uid] = episode.length


def _name_unended(scan: ShardScan, known: Sequence[ShardIndex], report: ShardReport) -> None:
    """Report episodes without an end record in a damaged shard: they may have had one."""
    if not scan.problems or report.writer == "alive":
        return
    ended = {episode.end.uid for episode in scan.episodes}
    for uid in sorted(scan.unfinished.keys() - ended - report.lost.keys() - unfinished_uids(known)):
        block = scan.unfinished[uid][0]
        reason = "it has no end record; a damaged record may have been it"
        report.problems.append(Problem(report.shard, block.record, block.offset, reason, uid))
        report.bad_episodes.add(uid)


def _schema_of(place: Place, scan: ShardScan, report: ShardReport) -> StoreSchema | None:
    """Return what the blocks are decoded with: the header's schema, or the store's where the header is lost."""
    own: StoreSchema | None = None
    ours: StoreSchema | None = None
    if place.store is not None:
        try:
            ours = load_schema(place.store)
        except StoreError:
            ours = None  # named once for the whole store
    if scan.header is not None:
        try:
            own = parse_schema(scan.header.schema_json, "the schema in the shard's header")
            report.schema_text = scan.header.schema_json
        except StoreError as error:
            report.problems.append(Problem(scan.name, 0, 0, str(error)))
    if own is not None and ours is not None and own.layout != ours.layout:
        report.problems.append(Problem(scan.name, 0, 0, "it holds other columns than its store and is not read there"))
    if own is None and ours is None and scan.records:
        report.problems.append(Problem(scan.name, -1, -1, "no schema is left to decode its blocks with"))
    return own or ours


def _check_episode(fd: int, schema: StoreSchema, episode: ScannedEpisode, report: ShardReport) -> None:
    end = episode.end
    present = [block for block in episode.blocks if not block.lost]
    rows = _decode(fd, schema, end.uid, present, report)
    if end.uid not in report.bad_episodes:
        for reason in (*_shape_faults(episode), *_end_faults(end, rows)):
            report.problems.append(Problem(report.shard, episode.place.record, episode.place.offset, reason, end.uid))
            report.bad_episodes.add(end.uid)
    if end.uid not in report.bad_episodes:
        report.episodes += 1
        report.steps += end.length


def _decode(
    fd: int, schema: StoreSchema, uid: int, places: Sequence[BlockPlace], report: ShardReport
) -> dict[str, Array]:
    """Decode every block; returns the small columns that the end record is checked against."""
    kept: dict[str, list[Array]] = {"reward": [], "version": [], "global_step": []}
    for place in places:
        try:
            # Its checksum was good a moment ago, when the shard was walked.
            block = parse_block(frames.read_payload(fd, place.offset, place.length, verify=False))
            arrays = decode_block(schema, block)
            _check_sums(block)
        except (frames.FrameError, RecordError, CodecError) as error:
            report.problems.append(Problem(report.shard, place.record, place.offset, str(error), uid))
            report.bad_episodes.add(uid)
            continue
        except RollmillError as error:  # an optional decoder is missing
            raise StoreError(f"{report.path} cannot be decoded here: {error}") from error
        report.blocks += 1
        for name, arrays_so_far in kept.items():
            arrays_so_far.append(arrays[name])
    return {name: np.concatenate(arrays) if arrays else np.zeros(0) for name, arrays in kept.items()}


def _check_sums(block: Block) -> None:
    start = 0
    for position, size in enumerate(block.sizes if block.sums else ()):
        if not buffer_is_good(block, position, bytes(block.data[start : start + size])):
            raise RecordError(f"the checksum of column {position} does not match")
        start += size


def _shape_faults(episode: ScannedEpisode) -> list[str]:
    end, blocks = episode.end, episode.blocks
    faults = []
    steps = sum(block.steps for block in blocks)
    if steps != end.length:
        faults.append(f"its blocks hold {steps} steps, its end record says {end.length}")
    if any(block.steps != end.block for block in blocks[:-1]):
        faults.append(f"a block before the last has other than {end.block} steps")
    if [block.last for block in blocks] != [False] * (len(blocks) - 1) + [True]:
        faults.append("the final observation is missing or not in the last block")
    return faults


def _end_faults(end: EpisodeEnd, rows: dict[str, Array]) -> list[str]:
    """Return a line for each thing in which the end record disagrees with the rows."""
    if len(rows["reward"]) != end.length:
        return []  # said already
    total = float(rows["reward"].sum(dtype=np.float64))
    version, progress = rows["version"], rows["global_step"]
    faults = []
    if not sums_to(rows["reward"], end.return_):
        faults.append(f"its rewards sum to {total}, its end record says {end.return_}")
    if (int(version.min()), int(version.max())) != (end.version_min, end.version_max):
        faults.append("its policy versions are not those of its end record")
    if (int(progress[0]), int(progress[-1])) != (end.global_step_first, end.global_step_last):
        faults.append("its global steps are not those of its end record")
    return faults


def _check_index(store: Path, scan: ShardScan, known: Sequence[ShardIndex], report: ShardReport) -> None:
    whole, before = not report.problems, len(report.problems)
    fault = _index_fault(store, scan, report)
    _name_lost(known, scan, report)
    if report.lost:
        hint = "keep it, it is the last to know of lost episodes; `rollmill data repair --out NEW` lists them"
    elif fault == OTHER_EPISODES:
        hint = "remove it: it is built again from the shard"
    elif whole:
        hint = "`rollmill data repair --in-place` writes it again"
    else:
        hint = "nothing more is lost by that"
    if fault:
        report.problems.insert(before, Problem(scan.name, -1, -1, f"{fault} ({hint})"))
    report.index_good = not report.problems


def _index_fault(store: Path, scan: ShardScan, report: ShardReport) -> str:
    try:
        index = read_index(index_path(store, scan.name), scan.name, report.bytes)
    except IndexDamaged as damage:
        return str(damage)
    same = scan.problems or _listed(index) == _listed(build_index(scan))
    return "" if same else OTHER_EPISODES


def _listed(index: ShardIndex) -> list[tuple[object, ...]]:
    rows = index.episodes[index.episodes["finished"]]
    listed: list[tuple[object, ...]] = []
    for row in rows:
        start = int(row["block_start"])
        places = index.places[start : start + int(row["blocks"])]
        listed.append((row["uid"].item(), row["length"].item(), row["end_offset"].item(), places.tobytes()))
    return listed
