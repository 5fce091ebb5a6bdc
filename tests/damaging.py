"""Ways to hurt a store on purpose."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rollmill.store import frames
from rollmill.store.shards import ShardRef, list_shards, scan_shard


def only_shard(store: Path) -> ShardRef:
    (ref,) = list_shards(store)
    return ref


def flip(path: Path, byte: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ (1 << bit)]))


def places(ref: ShardRef) -> dict[int, list[tuple[int, int, int]]]:
    """(record, offset, payload bytes) of every episode's blocks and, last, of its end record, by uid."""
    return {e.end.uid: [(p.record, p.offset, p.length) for p in (*e.blocks, e.place)] for e in scan_shard(ref).episodes}


def rewrite(ref: ShardRef, change: Callable[[int, bytes], bytes]) -> None:
    """Replace payloads under good checksums: what a faulty writer would leave. The index goes."""
    with open(ref.path, "rb", buffering=0) as file:
        found = list(frames.walk(file.fileno(), os.fstat(file.fileno()).st_size))
    with open(ref.path, "wb") as out:
        for frame in found:
            assert frame.payload is not None
            out.writelines(frames.frame([change(frame.number, frame.payload)]))
    ref.index_path.unlink()
