"""A disk that is full while a shard is written: a real, small file system where the system allows mounting one."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import mounted
from storing import by_uid, make_episode, same, small_schema

from rollmill.core.errors import StoreError, StoreFull
from rollmill.store.care.recover import recover
from rollmill.store.episode import EpisodeInfo
from rollmill.store.format import open_shard
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    with mounted(tmp_path / "disk", "256k") as disk:
        yield disk


def fill(writer: StoreWriter) -> list[int]:
    """Write until the disk is full, one more episode always open; returns the uids acknowledged."""
    uids = []
    with pytest.raises(StoreFull, match="No space left on device"):  # noqa: PT012
        for uid in range(10_000):
            episode = make_episode(SCHEMA, 30, uid)
            writer.begin("open", EpisodeInfo(uid=10**6 + uid))
            writer.append("open", {name: array[:9] for name, array in episode.columns.items()})
            writer.add_episode(episode)
            uids.append(uid)
            writer.discard("open")
    return uids


@pytest.mark.parametrize("shard_bytes", [40_000, 1 << 30])
@pytest.mark.parametrize("padding", [0, 1500, 3000])
def test_a_full_disk_costs_no_acknowledged_episode(small_disk: Path, shard_bytes: int, padding: int) -> None:
    (small_disk / "padding").write_bytes(bytes(padding))  # the disk is full at another place of a record
    path = small_disk / "store"
    writer = StoreWriter(path, SCHEMA, block=4, shard_bytes=shard_bytes)
    uids = fill(writer)
    assert uids
    assert writer.acknowledged == len(uids)
    with pytest.raises(StoreError, match="earlier write failed"):
        writer.begin("more")
    for reading in ("open", "closed", "recovered"):
        if reading == "closed":
            writer.close()
            assert not [p for p in path.rglob("*") if "open" in p.name or p.name.endswith(".tmp")]
        if reading == "recovered":
            (small_disk / "padding").unlink()
        store = quiet_store(path)
        numbers = by_uid(store)
        assert sorted(numbers) == uids
        assert all(same(store.episode(i), make_episode(SCHEMA, 30, uid)) for uid, i in numbers.items())


def quiet_store(path: Path) -> Store:
    # The index of the last shard may not have found room; the shard says it all again.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = Store(path)
    assert all("index is missing" in str(problem) for problem in store.problems)
    return store


def test_a_new_writer_continues_when_there_is_room_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    path = small_disk / "store"
    writer = StoreWriter(path, SCHEMA, block=4)
    uids = fill(writer)
    writer.close()
    ballast.unlink()
    recover(path)
    assert Store(path).problems == []
    with StoreWriter(path, SCHEMA) as second:
        second.add_episode(make_episode(SCHEMA, 30, 5000))
    assert sorted(by_uid(Store(path))) == [*uids, 5000]


def test_a_store_that_has_no_room_at_all_is_named(small_disk: Path) -> None:
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize))
    with pytest.raises(StoreError, match="No space left"):
        StoreWriter(small_disk / "store", SCHEMA).begin(0)


# -- the same where nothing can be mounted: failures put in by hand -----------------------------------


def test_half_a_record_is_taken_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StoreWriter(tmp_path, SCHEMA, block=4)
    writer.add_episode(make_episode(SCHEMA, 10, 1))
    size = next((tmp_path / "shards").iterdir()).stat().st_size

    def half(fd: int, pieces: list[bytes], size: int) -> None:
        os.write(fd, b"".join(pieces)[: size // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(open_shard, "_write_all", half)
        with pytest.raises(StoreFull, match="stay readable"):
            writer.add_episode(make_episode(SCHEMA, 10, 2))
    assert next((tmp_path / "shards").iterdir()).stat().st_size == size
    writer.close()
    store = Store(tmp_path)
    assert store.problems == []
    assert store.table.uid.tolist() == [1]


def test_other_failures_are_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StoreWriter(tmp_path, SCHEMA, sync="episode")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer.begin(0)  # makes the shard
    writer.discard(0)
    with monkeypatch.context() as patch:
        patch.setattr(open_shard.os, "fsync", fail)
        with pytest.raises(StoreError, match="cannot be synced: Input/output error") as caught:
            writer.add_episode(make_episode(SCHEMA, 10, 1))
    assert not isinstance(caught.value, StoreFull)
    assert writer.durable == 0
    with pytest.raises(StoreError, match="earlier write failed"):
        writer.sync()
    writer.close()
    assert len(Store(tmp_path)) == 1
    assert len(Store(tmp_path, unfinished=True)) == 1, "acknowledged before the sync failed, so it is listed once"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_writev, real_write = os.writev, os.write
    monkeypatch.setattr(open_shard.os, "writev", lambda fd, pieces: real_write(fd, b"".join(pieces)[:7]))
    monkeypatch.setattr(open_shard.os, "write", lambda fd, data: real_write(fd, bytes(data)[:100]))
    with StoreWriter(tmp_path, SCHEMA) as writer:
        writer.add_episode(make_episode(SCHEMA, 30, 1))
    monkeypatch.undo()
    assert os.writev is real_writev
    assert same(Store(tmp_path).episode(0), make_episode(SCHEMA, 30, 1))
