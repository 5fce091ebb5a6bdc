"""The index of a shard: its episodes and where their blocks lie, so that opening a store reads no shard.

An index file is one checksummed frame (see ``store.format.framing``) around a msgpack map; tables are little-endian
numpy records (``EPISODE``, ``PLACE``). It repeats what the shard says, so it can be rebuilt from it; when the shard has
lost something, the index may be the last to know of it (see ``store.care.lost``).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from rollmill.core import atomic
from rollmill.core.fields import Array
from rollmill.core.opening import plain_file
from rollmill.store.episode import EpisodeEnd, EpisodeInfo
from rollmill.store.format import framing as frames
from rollmill.store.format.records import INDEX, RecordError, pack, split
from rollmill.store.format.shards import LOST, BlockPlace, ShardScan, usable_run

FORMAT = 2

EPISODE = np.dtype(
    [
        ("uid", "<u8"),
        ("length", "<i8"),
        ("return", "<f8"),
        ("terminated", "?"),
        ("truncated", "?"),
        ("finished", "?"),
        ("has_seed", "?"),
        ("first_step", "<i8"),
        ("seed", "<i8"),
        ("env", "<i4"),  # number in ShardIndex.strings
        ("policy", "<i4"),  # number in ShardIndex.strings
        ("policy_id", "<i8"),
        ("version_min", "<i8"),
        ("version_max", "<i8"),
        ("global_step_first", "<i8"),
        ("global_step_last", "<i8"),
        ("worker", "<i8"),
        ("lane", "<i8"),
        ("time", "<f8"),
        ("bytes", "<i8"),  # of all its frames
        ("block", "<i4"),
        ("blocks", "<i4"),
        ("block_start", "<i8"),  # of its first row in ShardIndex.places
        ("end_offset", "<i8"),  # of the end record
        ("end_length", "<i4"),
        ("end_record", "<i4"),
        ("stats_start", "<i8"),  # in ShardIndex.stats
        ("stats_bytes", "<i4"),
        ("probability", "<f8"),  # NaN: not known
    ]
)
_EPISODE_1 = np.dtype([(name, EPISODE[name]) for name in EPISODE.names or () if name != "probability"])
"""Of format 1."""
PLACE = np.dtype([("offset", "<u8"), ("length", "<u4"), ("record", "<u4")])
"""Where a block lies; length 0: it is lost."""


class IndexDamaged(Exception):
    """An index file is missing, damaged or not that of its shard as it is now; the shard itself says it all again."""


@dataclass(frozen=True)
class ShardIndex:
    """Episodes (``EPISODE`` records), their blocks (``PLACE`` records), texts and packed statistics of one shard."""

    shard: str
    layout: str
    """``StoreSchema.layout`` of its blocks; "" where the shard's header is lost."""
    shard_bytes: int
    episodes: Array
    places: Array
    strings: tuple[str, ...]
    stats: bytes


class IndexBuilder:
    """Collects an index while episodes end, in the order in which they do; unfinished ones are added last."""

    def __init__(self, shard: str, layout: str) -> None:
        self._shard = shard
        self._layout = layout
        self._episodes = bytearray()
        self._places = bytearray()
        self._stats = bytearray()
        self._strings: dict[str, int] = {}
        self.count = 0

    def add(self, end: EpisodeEnd, blocks: Sequence[BlockPlace], place: BlockPlace | None) -> None:
        """Add one more episode; ``place`` is that of its end record, None if it has none."""
        stats = msgpack.packb(dict(end.stats)) if end.stats else b""
        last = place or LOST
        stored = sum(block.length + frames.FRAME_BYTES for block in blocks if not block.lost)
        row = (
            end.uid,
            end.length,
            end.return_,
            end.terminated,
            end.truncated,
            place is not None,
            end.seed is not None,
            end.first_step,
            end.seed or 0,
            self._strings.setdefault(end.env_id, len(self._strings)),
            self._strings.setdefault(end.policy, len(self._strings)),
            end.policy_id,
            end.version_min,
            end.version_max,
            end.global_step_first,
            end.global_step_last,
            end.worker,
            end.lane,
            end.time,
            stored + (last.length + frames.FRAME_BYTES if place else 0),
            end.block,
            len(blocks),
            len(self._places) // PLACE.itemsize,
            last.offset,
            last.length,
            last.record,
            len(self._stats),
            len(stats),
            math.nan if end.probability is None else end.probability,
        )
        self._episodes += np.array(row, EPISODE).tobytes()
        self._places += np.array([(b.offset, b.length, b.record) for b in blocks], PLACE).tobytes()
        self._stats += stats
        self.count += 1

    def add_unfinished(self, uid: int, found: list[BlockPlace]) -> None:
        """Add an episode that has no end record. These come last, so that the numbers of the others never change."""
        steps, blocks = usable_run(found)
        if steps < 1:
            return
        info = blocks[0].info or EpisodeInfo()
        end = EpisodeEnd(
            uid=uid,
            length=steps,
            block=max(blocks[0].steps, 1),
            blocks=len(blocks),
            return_=math.nan,
            terminated=False,
            truncated=False,
            first_step=info.first_step,
            seed=info.seed,
            env_id=info.env_id,
            policy=info.policy,
            policy_id=info.policy_id,
            version_min=-1,
            version_max=-1,
            global_step_first=-1,
            global_step_last=-1,
            worker=info.worker,
            lane=info.lane,
            time=0.0,
            probability=info.probability,
        )
        self.add(end, blocks, None)

    def build(self, shard_bytes: int) -> ShardIndex:
        return ShardIndex(
            self._shard,
            self._layout,
            shard_bytes,
            np.frombuffer(bytes(self._episodes), EPISODE),
            np.frombuffer(bytes(self._places), PLACE),
            tuple(self._strings),
            bytes(self._stats),
        )


def build_index(scan: ShardScan) -> ShardIndex:
    """Return the index of a scanned shard."""
    builder = IndexBuilder(scan.name, scan.header.layout if scan.header else "")
    for episode in scan.episodes:
        builder.add(episode.end, episode.blocks, episode.place)
    for uid, blocks in scan.unfinished.items():
        builder.add_unfinished(uid, blocks)
    return builder.build(scan.good_bytes)


def empty_index(shard: str) -> ShardIndex:
    return IndexBuilder(shard, "").build(0)


def write_index(path: Path, index: ShardIndex) -> None:
    """Write an index file atomically; an error of the disk is raised as OSError."""
    header = {
        "format": FORMAT,
        "shard": index.shard,
        "layout": index.layout,
        "shard_bytes": index.shard_bytes,
        "strings": list(index.strings),
        "sizes": [index.episodes.nbytes, index.places.nbytes, len(index.stats)],
    }
    payload = [*pack(INDEX, header), index.episodes.tobytes(), index.places.tobytes(), index.stats]
    atomic.write_bytes(path, frames.frame(payload))


def read_index(path: Path, shard: str, shard_bytes: int) -> ShardIndex:
    """Read the index of a sealed shard of that name and size; raises IndexDamaged if it cannot be trusted."""
    index = load_index(path)
    if index.shard != shard:
        raise IndexDamaged(f"its index is that of {index.shard}")
    if index.shard_bytes != shard_bytes:
        raise IndexDamaged(f"it has {shard_bytes} bytes, its index was written for {index.shard_bytes}")
    return index


def load_index(path: Path) -> ShardIndex:
    """Read an index file, whatever shard it speaks of; raises IndexDamaged if it is not whole."""
    try:
        with open(path, "rb", buffering=0, opener=plain_file) as file:
            size = os.fstat(file.fileno()).st_size
            payload = frames.read_frame(file.fileno(), 0, size)
    except FileNotFoundError:
        raise IndexDamaged("its index is missing") from None
    except (OSError, frames.FrameError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise IndexDamaged(f"its index is damaged ({reason})") from error
    try:
        return _parse(payload)
    except (RecordError, KeyError, TypeError, ValueError) as error:
        raise IndexDamaged(f"its index makes no sense ({error})") from error


def _parse(payload: bytes) -> ShardIndex:
    tag, header, data = split(payload)
    if tag != INDEX or header["format"] not in (1, FORMAT):
        raise RecordError(f"tag {tag!r}, format {header.get('format')}")
    episode_bytes, place_bytes, stats_bytes = header["sizes"]
    if episode_bytes + place_bytes + stats_bytes != len(data):
        raise RecordError("the sizes do not add up")
    return ShardIndex(
        header["shard"],
        header["layout"],
        header["shard_bytes"],
        _episodes(data[:episode_bytes], header["format"]),
        np.frombuffer(data[episode_bytes : episode_bytes + place_bytes], PLACE),
        tuple(header["strings"]),
        bytes(data[episode_bytes + place_bytes :]),
    )


def _episodes(data: memoryview, version: int) -> Array:
    if version == FORMAT:
        return np.frombuffer(data, EPISODE)
    old = np.frombuffer(data, _EPISODE_1)
    rows = np.zeros(len(old), EPISODE)
    for name in _EPISODE_1.names or ():
        rows[name] = old[name]
    rows["probability"] = math.nan
    return rows


def end_from_row(row: Any, index: ShardIndex) -> EpisodeEnd:
    """Return the end record as the index repeats it."""
    values = {name: row[name].item() for name in EPISODE.names or ()}
    start = values["stats_start"]
    stats = index.stats[start : start + values["stats_bytes"]]
    names = {f.name for f in dataclasses.fields(EpisodeEnd)}
    return EpisodeEnd(
        **{
            name: value
            for name, value in values.items()
            if name in names and name not in ("seed", "policy", "probability")
        },
        probability=None if math.isnan(values["probability"]) else values["probability"],
        return_=values["return"],
        seed=values["seed"] if values["has_seed"] else None,
        env_id=index.strings[values["env"]],
        policy=index.strings[values["policy"]],
        stats=msgpack.unpackb(stats) if stats else {},
    )
