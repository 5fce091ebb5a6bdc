"""A shard cut at every byte and with every bit flipped: never a wrong value, and nothing else is lost."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path

import pytest
from storing import by_uid, make_episode, same, tiny_schema

from rollmill.core.errors import BadBlock, StoreError
from rollmill.store.episode import Episode
from rollmill.store.format.index import IndexDamaged, build_index, read_index
from rollmill.store.format.shards import ShardRef, list_shards, scan_shard
from rollmill.store.reader import Store, StoreWarning
from rollmill.store.writer import StoreWriter

LENGTHS = {0: 3, 1: 1, 2: 4}


class Small:
    """A sealed shard of three episodes whose blocks lie among each other."""

    def __init__(self, path: Path) -> None:
        schema = tiny_schema()
        self.path = path
        self.written = {uid: make_episode(schema, steps, uid) for uid, steps in LENGTHS.items()}
        with StoreWriter(path, schema, block=2) as writer:
            for uid, episode in self.written.items():
                writer.begin(uid, episode.info)
            for t in range(max(LENGTHS.values())):
                for uid, episode in self.written.items():
                    if t < episode.length:
                        writer.append(uid, {name: array[t : t + 1] for name, array in episode.columns.items()})
            for uid, episode in self.written.items():
                final = {"obs:x": episode.columns["obs:x"][-1]}
                writer.end(uid, final=final, terminated=True, stats=episode.stats)
        (self.ref,) = list_shards(path)
        self.data = self.ref.path.read_bytes()
        scan = scan_shard(self.ref)
        places = {e.end.uid: [*e.blocks, e.place] for e in scan.episodes}
        self.body = min(place.offset for found in places.values() for place in found)
        self.ends = {uid: found[-1].offset + found[-1].length + 16 for uid, found in places.items()}
        self.blocks = {place.offset for found in places.values() for place in found[:-1]}
        self.spans = [
            (place.offset, place.offset + place.length + 16, uid) for uid, found in places.items() for place in found
        ]

    def sizes(self) -> list[int]:
        """Every size a cut file can have; the long text of the header is passed in larger steps."""
        return [*range(0, self.body, 16), *range(self.body, len(self.data))]

    def owner(self, byte: int) -> int | None:
        """Whose record lies there; None for the header's."""
        return next((uid for start, stop, uid in self.spans if start <= byte < stop), None)


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path / "store")


def readable(store: Store, written: dict[int, Episode]) -> set[int]:
    """The uids that read back right; a wrong value fails the test, an error must name the shard."""
    good = set()
    for i, uid in enumerate(store.table.uid):
        try:
            read = store.episode(i)
        except BadBlock as error:
            named = (error.episode, error.shard)
            if named != (uid, str(store.shards[0].path)):
                raise
            continue
        assert same(read, written[int(uid)])
        assert store.end_record(i).return_ == written[int(uid)].return_
        good.add(int(uid))
    return good


def open_quietly(path: Path) -> Store:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        return Store(path, cache_bytes=0)


def test_a_sealed_shard_cut_at_every_byte(small: Small) -> None:
    for size in reversed(small.sizes()):
        os.truncate(small.ref.path, size)
        store = open_quietly(small.path)
        assert store.problems, "a sealed shard that is too short is never passed over in silence"
        assert readable(store, small.written) == {uid for uid, end in small.ends.items() if end <= size}


def test_an_open_shard_cut_at_every_byte(small: Small) -> None:
    # What a kill in the middle of a write leaves behind: no problem, just less.
    small.ref.index_path.unlink()
    path = small.ref.path.rename(small.ref.path.with_name(small.ref.name + ".open.tfrecord"))
    for size in reversed(small.sizes()):
        os.truncate(path, size)
        store = Store(small.path, cache_bytes=0)
        assert store.problems == []
        assert readable(store, small.written) == {uid for uid, end in small.ends.items() if end <= size}


def test_every_flipped_bit_under_a_good_index(small: Small) -> None:
    store = Store(small.path, cache_bytes=0)
    fd = os.open(small.ref.path, os.O_WRONLY)
    numbers = by_uid(store)
    refused = 0
    for byte in range(small.body, len(small.data)):
        uid = small.owner(byte)
        assert uid is not None
        for bit in range(8):
            os.pwrite(fd, bytes([small.data[byte] ^ (1 << bit)]), byte)
            try:
                assert same(store.episode(numbers[uid]), small.written[uid])
            except BadBlock as error:
                refused += error.episode == uid
        os.pwrite(fd, small.data[byte : byte + 1], byte)
    # Reading needs no lengths and end records (the index repeats them); all of the blocks' payloads it does.
    payloads = sum(length for start, stop, _ in small.spans if (length := stop - start - 12) and start in small.blocks)
    assert refused == 8 * payloads
    os.close(fd)
    assert readable(store, small.written) == set(LENGTHS)


def test_every_flipped_bit_without_an_index(small: Small) -> None:
    small.ref.index_path.unlink()
    fd = os.open(small.ref.path, os.O_WRONLY)
    for byte in range(len(small.data)):
        for bit in range(8) if byte >= small.body else range(byte % 16 == 0):
            os.pwrite(fd, bytes([small.data[byte] ^ (1 << bit)]), byte)
            scan = scan_shard(small.ref)
            # Everything but the hit record is found, and the damage is named.
            whole = {e.end.uid for e in scan.episodes if e.complete}
            assert whole == set(LENGTHS) - {small.owner(byte)}
            assert scan.problems
            index = build_index(scan)
            assert [int(uid) for uid in index.episodes["uid"][index.episodes["finished"]]] == [
                e.end.uid for e in scan.episodes
            ]
        if byte % 16 == 0:  # opening a store thousands of times takes long
            store = open_quietly(small.path)
            assert store.problems
            assert readable(store, small.written) == set(LENGTHS) - {small.owner(byte)}
        os.pwrite(fd, small.data[byte : byte + 1], byte)
    os.close(fd)


def test_every_flipped_or_missing_byte_of_the_index(small: Small) -> None:
    good = small.ref.index_path.read_bytes()
    fd = os.open(small.ref.index_path, os.O_WRONLY)
    for byte in range(len(good)):
        os.pwrite(fd, bytes([good[byte] ^ (1 << byte % 8)]), byte)
        check_bad_index(small, byte)
        os.pwrite(fd, good[byte : byte + 1], byte)
    for size in reversed(range(len(good))):
        os.ftruncate(fd, size)
        check_bad_index(small, size)
    os.close(fd)


def check_bad_index(small: Small, byte: int) -> None:
    with pytest.raises(IndexDamaged):
        read_index(small.ref.index_path, small.ref.name, small.ref.bytes)
    if byte % 64 == 0:  # opening a store thousands of times takes long
        store = open_quietly(small.path)
        assert len(store.problems) == 1
        assert readable(store, small.written) == set(LENGTHS)


def test_opening_warns_of_damage(small: Small) -> None:
    os.truncate(small.ref.path, len(small.data) - 1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        store = Store(small.path)
    assert any("cut short" in str(w.message) and w.category is StoreWarning for w in warned)
    assert [str(w.message).partition(": ")[2] for w in warned] == [str(p) for p in store.problems]


def test_a_lost_block_is_named_and_the_rest_of_its_episode_is_readable(small: Small) -> None:
    start = next(start for start, _, uid in sorted(small.spans) if uid == 2)
    bad = bytearray(small.data)
    bad[start + 30] ^= 1
    small.ref.path.write_bytes(bad)
    for delete_index in (False, True):
        if delete_index:
            small.ref.index_path.unlink()
        store = open_quietly(small.path)
        i = by_uid(store)[2]
        with pytest.raises(BadBlock) as caught:
            store.episode(i)
        assert caught.value.episode == 2
        assert caught.value.shard == str(small.ref.path)
        assert (caught.value.offset == start) == (not delete_index)
        rest = store.read(i, 2, 4, next_obs=True)
        assert rest["obs:x"].tobytes() == small.written[2].columns["obs:x"][2:].tobytes()


def test_checks_can_be_left_out(small: Small) -> None:
    _, stop, uid = next(span for span in small.spans if span[2] == 1)
    bad = bytearray(small.data)
    bad[stop - 1] ^= 1  # the checksum itself
    small.ref.path.write_bytes(bad)
    store = Store(small.path, verify=False)
    assert same(store.episode(by_uid(store)[uid]), small.written[uid])
    with pytest.raises(BadBlock, match="checksum"):
        Store(small.path).episode(by_uid(store)[uid])


def test_a_missing_shard_is_named(small: Small) -> None:
    small.ref.path.unlink()
    store = open_quietly(small.path)
    assert len(store) == 0
    assert "missing" in str(store.problems[0])
    assert small.ref.name in str(store.problems[0])


def test_a_shard_that_vanishes_while_reading_is_an_error(small: Small) -> None:
    store = Store(small.path)
    small.ref.path.unlink()
    with pytest.raises(StoreError, match="cannot be opened"):
        store.episode(0)


def test_a_shard_of_another_store_is_not_read(small: Small, tmp_path: Path) -> None:
    from storing import small_schema, write_episodes

    write_episodes(tmp_path / "other", small_schema(), [5])
    (foreign,) = list_shards(tmp_path / "other")
    moved = ShardRef(small.path, foreign.name, True, foreign.bytes)
    os.rename(foreign.path, moved.path)
    os.rename(foreign.index_path, moved.index_path)
    store = open_quietly(small.path)
    assert len(store) == len(LENGTHS)
    assert ["other columns" in str(p) for p in store.problems] == [True]


def test_an_index_of_another_shard_is_not_believed(small: Small, tmp_path: Path) -> None:
    other = Small(tmp_path / "other")
    os.replace(other.ref.index_path, small.ref.index_path)
    store = open_quietly(small.path)
    assert "that of" in str(store.problems[0])
    assert readable(store, small.written) == set(LENGTHS)


def test_a_bad_block_comes_home_from_another_process() -> None:
    error = BadBlock("checksum differs", shard="a-00001", record=3, offset=99, episode=7)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert str(again) == str(error)
    assert (again.reason, again.shard, again.record, again.offset, again.episode) == (
        "checksum differs",
        "a-00001",
        3,
        99,
        7,
    )
