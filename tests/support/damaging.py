"""Ways to hurt a store on purpose."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from rollmill.store.format import framing as frames
from rollmill.store.format.shards import ShardRef, list_shards, scan_shard


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


def exchange(path: Path, one: tuple[int, int], other: tuple[int, int]) -> None:
    """Let two stretches (begin, end) of a file change places."""
    data, (a, b) = path.read_bytes(), sorted((one, other))
    between = data[a[1] : b[0]]
    path.write_bytes(data[: a[0]] + data[b[0] : b[1]] + between + data[a[0] : a[1]] + data[b[1] :])


def rewrite(ref: ShardRef, change: Callable[[int, bytes], bytes]) -> None:
    """Replace payloads under good checksums: what a faulty writer would leave. The index goes."""
    with open(ref.path, "rb", buffering=0) as file:
        found = list(frames.walk(file.fileno(), os.fstat(file.fileno()).st_size))
    with open(ref.path, "wb") as out:
        for frame in found:
            assert frame.payload is not None
            out.writelines(frames.frame([change(frame.number, frame.payload)]))
    ref.index_path.unlink()


# -- random mutations -------------------------------------------------------------------------------------

Mutation = Callable[[Path, random.Random], None]
"""Hurts the store at a path somewhere."""


def records(path: Path) -> list[tuple[int, int]]:
    """(begin, end) of every record of a good shard."""
    with open(path, "rb", buffering=0) as file:
        return [(f.offset, f.end) for f in frames.walk(file.fileno(), os.fstat(file.fileno()).st_size)]


def _files(store: Path, folder: str) -> list[Path]:
    return sorted((store / folder).iterdir())


def _sealed(store: Path, rng: random.Random) -> Path:
    return rng.choice([ref.path for ref in list_shards(store) if ref.sealed])


def _open(store: Path, rng: random.Random) -> Path:
    return rng.choice([ref.path for ref in list_shards(store) if not ref.sealed])


def _index(store: Path, rng: random.Random) -> Path:
    return rng.choice(_files(store, "index"))


Choice = Callable[[Path, random.Random], Path]


def _cut(choose: Choice) -> Mutation:
    def cut(store: Path, rng: random.Random) -> None:
        path = choose(store, rng)
        os.truncate(path, rng.randrange(path.stat().st_size))

    return cut


def _emptied(choose: Choice) -> Mutation:
    return lambda store, rng: os.truncate(choose(store, rng), 0)


def _deleted(choose: Choice) -> Mutation:
    return lambda store, rng: choose(store, rng).unlink()


def _flipped(choose: Choice) -> Mutation:
    def flipped(store: Path, rng: random.Random) -> None:
        path = choose(store, rng)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            flip(path, rng.randrange(path.stat().st_size), rng.randrange(8))

    return flipped


def _a_record(path: Path, rng: random.Random, change: Callable[[bytes], bytes]) -> None:
    data = path.read_bytes()
    begin, end = rng.choice(records(path)[1:])
    path.write_bytes(data[:begin] + change(data[begin:end]) + data[end:])


def _zeroed_record(choose: Choice) -> Mutation:
    def zeroed(store: Path, rng: random.Random) -> None:
        path = choose(store, rng)
        _a_record(path, rng, lambda record: record[:12] + bytes(len(record) - 12))

    return zeroed


def _record_removed(store: Path, rng: random.Random) -> None:
    _a_record(_sealed(store, rng), rng, lambda record: b"")


def _header_removed(choose: Choice) -> Mutation:
    def removed(store: Path, rng: random.Random) -> None:
        path = choose(store, rng)
        path.write_bytes(path.read_bytes()[records(path)[0][1] :])

    return removed


def _cut_at_a_border(store: Path, rng: random.Random) -> None:
    path = _sealed(store, rng)
    os.truncate(path, rng.choice(records(path)[:-1])[1])


def _records_swapped(choose: Choice) -> Mutation:
    """Two records of one shard, of equal size if there are such: then every place in the index holds a good record."""

    def swapped(store: Path, rng: random.Random) -> None:
        path = choose(store, rng)
        found = records(path)[1:]
        pairs = [(a, b) for a in found for b in found if a < b]
        alike = [(a, b) for a, b in pairs if a[1] - a[0] == b[1] - b[0]]
        exchange(path, *rng.choice(alike if alike and rng.random() < 0.8 else pairs))

    return swapped


def _files_swapped(folder: str) -> Mutation:
    def swapped(store: Path, rng: random.Random) -> None:
        files = [path for path in _files(store, folder) if not path.name.endswith(".open.tfrecord")]
        one, other = rng.sample(files, 2)
        data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(data)

    return swapped


def _replaced(choose: Choice, how: Callable[[Path], None]) -> Mutation:
    def replaced(store: Path, rng: random.Random) -> None:
        path = choose(store, rng)
        path.unlink()
        how(path)

    return replaced


def _store_file(store: Path, rng: random.Random) -> Path:
    return store / "store.json"


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


MUTATIONS: dict[str, Mutation] = {
    "shard cut": _cut(_sealed),
    "shard cut between records": _cut_at_a_border,
    "shard emptied": _emptied(_sealed),
    "shard deleted": _deleted(_sealed),
    "shard flipped": _flipped(_sealed),
    "shard: record zeroed": _zeroed_record(_sealed),
    "shard: record removed": _record_removed,
    "shard: header removed": _header_removed(_sealed),
    "shard: records swapped": _records_swapped(_sealed),
    "shards swapped": _files_swapped("shards"),
    "shard a folder": _replaced(_sealed, Path.mkdir),
    "shard a FIFO": _replaced(_sealed, os.mkfifo),
    "shard a link to itself": _replaced(_sealed, link_to_itself),
    "shard a dangling link": _replaced(_sealed, dangling_link),
    "open shard flipped": _flipped(_open),
    "open shard: record zeroed": _zeroed_record(_open),
    "open shard: header removed": _header_removed(_open),
    "open shard: records swapped": _records_swapped(_open),
    "index cut": _cut(_index),
    "index emptied": _emptied(_index),
    "index deleted": _deleted(_index),
    "index flipped": _flipped(_index),
    "indexes swapped": _files_swapped("index"),
    "index a folder": _replaced(_index, Path.mkdir),
    "index a FIFO": _replaced(_index, os.mkfifo),
    "index a link to itself": _replaced(_index, link_to_itself),
    "store.json flipped": _flipped(_store_file),
    "store.json cut": _cut(_store_file),
    "store.json deleted": _deleted(_store_file),
    "store.json a FIFO": _replaced(_store_file, os.mkfifo),
}
"""Everything but what leaves no trace: a shard that is being written has no index that would miss what is cut off."""
