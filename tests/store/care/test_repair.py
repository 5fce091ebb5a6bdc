"""Repair: every good episode survives bit for bit, what is lost is listed, the damaged store is not touched."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from damaging import exchange, flip, only_shard, places, rewrite
from running import SUPPORT
from storing import by_uid, make_episode, same, small_schema, tiny_schema, write_episodes

from rollmill.core.errors import StoreError
from rollmill.store.care.repair import RepairReport, repair
from rollmill.store.care.verify import verify_store
from rollmill.store.episode import Episode, EpisodeEnd
from rollmill.store.format.codec import RAW
from rollmill.store.format.records import Block, encode_block, encode_end, parse
from rollmill.store.format.shards import list_shards
from rollmill.store.reader import Store

LENGTHS = [9, 4, 1, 8]


class Damaged:
    """A store of four episodes that is about to be damaged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store"
        self.out = folder / "repaired"
        self.written = write_episodes(self.path, small_schema(), LENGTHS, block=4)
        self.ref = only_shard(self.path)
        self.places = places(self.ref)

    def hit(self, uid: int, block: int, byte: int = 40) -> None:
        flip(self.ref.path, self.places[uid][block][1] + byte)

    def repair(self, **options: object) -> RepairReport:
        before = contents(self.path)
        report = repair(self.path, self.out, workers=1, **options)  # type: ignore[arg-type]
        assert contents(self.path) == before, "the damaged store is only read"
        assert verify_store(self.out, workers=1).good
        listed = json.loads((self.out / "lost.json").read_text())["lost"]
        assert [item["episode"] for item in listed] == [lost.episode for lost in report.lost]
        return report

    def whole(self) -> set[int]:
        """Uids in the repaired store that are what was written."""
        store = Store(self.out)
        return {uid for uid, i in by_uid(store).items() if same(store.episode(i), self.written[uid])}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path)


def test_a_good_store_is_copied(damaged: Damaged) -> None:
    report = damaged.repair()
    assert (report.kept, report.lost, report.places) == (4, [], [])
    assert damaged.whole() == {0, 1, 2, 3}
    source, copy = Store(damaged.path), Store(damaged.out)
    assert [source.end_record(i) for i in range(4)] == [copy.end_record(i) for i in range(4)]


@pytest.mark.parametrize("index", [True, False])
def test_a_bad_block_costs_its_episode_alone(damaged: Damaged, index: bool) -> None:
    damaged.hit(0, 1)
    if not index:
        damaged.ref.index_path.unlink()
    report = damaged.repair()
    assert report.kept == 3
    assert damaged.whole() == {1, 2, 3}
    (lost,) = report.lost
    assert (lost.episode, lost.shard, lost.steps, lost.kept) == (f"{0:016x}", damaged.ref.name, 9, 0)
    assert "9 steps lost" in str(lost)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(("block", "kept"), [(0, 0), (1, 3), (2, 7)])
def test_salvage_keeps_the_steps_before_the_bad_block(damaged: Damaged, index: bool, block: int, kept: int) -> None:
    damaged.hit(0, block)
    if not index:
        damaged.ref.index_path.unlink()
    report = damaged.repair(salvage=True)
    assert damaged.whole() == {1, 2, 3}
    assert [(lost.steps, lost.kept) for lost in report.lost] == [(9 - kept, kept)]
    assert report.salvaged == (kept > 0)
    store = Store(damaged.out)
    if not kept:
        assert 0 not in by_uid(store)
        return
    i = by_uid(store)[0]
    end = store.end_record(i)
    assert (end.length, end.partial_end, end.stats["salvaged_from"], end.stats["kills"]) == (kept, True, 9, 0)
    read, written = store.episode(i), damaged.written[0]
    for column in store.schema.columns:
        rows = kept + (column.per == "obs")
        assert read.columns[column.name].tobytes() == written.columns[column.name][:rows].tobytes()


@pytest.mark.parametrize("byte", [2, 9])
def test_the_index_rescues_what_the_shard_lost(damaged: Damaged, byte: int) -> None:
    damaged.hit(0, 1, byte)  # the length of a block: the shard alone cannot be walked over it
    damaged.hit(1, -1)  # an end record: the index repeats it
    report = damaged.repair()
    assert (report.kept, report.rescued, report.lost) == (4, 2, [])
    assert damaged.whole() == {0, 1, 2, 3}
    source, copy = Store(damaged.path), Store(damaged.out)
    for uid in (0, 1):
        before, after = source.end_record(by_uid(source)[uid]), copy.end_record(by_uid(copy)[uid])
        assert (before.stats, before.return_, before.terminated) == (after.stats, after.return_, after.terminated)


def test_without_the_index_a_lost_end_is_listed_and_can_be_salvaged(damaged: Damaged, tmp_path: Path) -> None:
    damaged.hit(0, -1)
    damaged.ref.index_path.unlink()
    report = damaged.repair()
    (lost,) = report.lost
    assert (lost.episode, lost.steps, lost.kept) == (f"{0:016x}", 9, 0)
    assert "it has no end record" in lost.reason
    report = repair(damaged.path, tmp_path / "second", salvage=True, workers=1)
    assert (report.kept, report.salvaged) == (3, 1)
    assert [(lost.steps, lost.kept) for lost in report.lost] == [(0, 9)], "how it ended is lost all the same"
    store = Store(tmp_path / "second")
    assert store.table.length[by_uid(store)[0]] == 9


def test_a_shard_that_is_cut_short(damaged: Damaged) -> None:
    os.truncate(damaged.ref.path, damaged.places[3][1][1] + 5)
    report = damaged.repair()
    assert damaged.whole() == {0, 1, 2}
    assert any("cut short" in place for place in report.places)
    assert [lost.episode for lost in report.lost] == [f"{3:016x}"]


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_the_schema_is_taken_from_the_shards(damaged: Damaged, how: str) -> None:
    if how == "damaged":
        flip(damaged.path / "store.json", 60, 1)
    else:
        (damaged.path / "store.json").unlink()
    report = damaged.repair()
    assert (report.kept, report.lost) == (4, [])
    assert damaged.whole() == {0, 1, 2, 3}
    assert Store(damaged.out).schema == small_schema()


def test_without_any_schema_there_is_nothing_to_repair(damaged: Damaged) -> None:
    (damaged.path / "store.json").unlink()
    flip(damaged.ref.path, 30)
    with pytest.raises(StoreError, match="no shard has a header"):
        repair(damaged.path, damaged.out, workers=1)
    assert not damaged.out.exists()


def test_a_block_that_does_not_decode_is_not_copied(damaged: Damaged) -> None:
    record = damaged.places[3][1][0]

    def spoil(number: int, payload: bytes) -> bytes:
        block = parse(payload)
        if number != record or not isinstance(block, Block):
            return payload
        buffers = [(RAW, bytes(5)) for _ in block.sizes]
        return b"".join(encode_block(block.uid, block.first, block.steps, block.obs_rows, buffers, block.info))

    rewrite(damaged.ref, spoil)
    report = damaged.repair()
    assert damaged.whole() == {0, 1, 2}
    assert [lost.episode for lost in report.lost] == [f"{3:016x}"]


def test_a_wrong_end_record_is_made_anew_from_the_rows(damaged: Damaged) -> None:
    def spoil(number: int, payload: bytes) -> bytes:
        record = parse(payload)
        if not isinstance(record, EpisodeEnd) or record.uid != 0:
            return payload
        return b"".join(encode_end(dataclasses.replace(record, return_=1e6, version_max=77)))

    rewrite(damaged.ref, spoil)
    report = damaged.repair()
    assert (report.kept, report.rescued, report.lost) == (4, 1, [])
    store = Store(damaged.out)
    assert store.end_record(by_uid(store)[0]).return_ == damaged.written[0].return_


def test_an_index_of_other_places_is_not_used(damaged: Damaged) -> None:
    from rollmill.store.format.index import build_index, write_index
    from rollmill.store.format.shards import scan_shard

    scan = scan_shard(damaged.ref)
    scan.episodes.pop()
    write_index(damaged.ref.index_path, build_index(scan))
    assert damaged.repair().kept == 4
    assert damaged.whole() == {0, 1, 2, 3}


def test_a_good_copy_wins_over_a_damaged_one(damaged: Damaged, tmp_path: Path) -> None:
    write_episodes(tmp_path / "twin", small_schema(), LENGTHS, block=4)
    twin = only_shard(tmp_path / "twin")
    shutil.copy(twin.path, damaged.path / "shards")
    shutil.copy(twin.index_path, damaged.path / "index")
    first = list_shards(damaged.path)[0]  # the damaged copy is met before the good one
    flip(first.path, places(first)[0][1][1] + 40)
    report = damaged.repair()
    assert (report.kept, report.duplicates, report.lost) == (4, 4, [])
    assert damaged.whole() == {0, 1, 2, 3}


def test_every_flipped_byte_costs_one_episode_at_most(tmp_path: Path) -> None:
    written = write_episodes(tmp_path / "store", tiny_schema(), [3, 2], block=2)
    ref = only_shard(tmp_path / "store")
    good = ref.path.read_bytes()
    body = min(offset for found in places(ref).values() for _, offset, _ in found)
    for byte in range(body, len(good), 13):
        flip(ref.path, byte)
        out = tmp_path / f"out-{byte}"
        report = repair(tmp_path / "store", out, workers=1)
        assert report.kept + len(report.lost) == 2
        assert len(report.lost) <= 1
        store = Store(out)
        assert len(store) == report.kept
        assert all(same(store.episode(i), written[uid]) for uid, i in by_uid(store).items())
        flip(ref.path, byte)
        shutil.rmtree(out)


def test_blocks_that_changed_places_are_not_taken_for_each_other(tmp_path: Path) -> None:
    written = write_episodes(tmp_path / "store", tiny_schema(), [4] * 5, block=2)
    ref = only_shard(tmp_path / "store")
    one, other = ((offset, offset + length + 16) for _, offset, length in (places(ref)[3][0], places(ref)[4][0]))
    assert one[1] - one[0] == other[1] - other[0], "so every place that the index knows holds a good record"
    exchange(ref.path, one, other)
    report = repair(tmp_path / "store", tmp_path / "repaired", workers=1)
    assert [int(lost.episode, 16) for lost in report.lost] == [3], "its block lies behind its end now"
    assert (report.kept, report.duplicates) == (4, 0), "its strayed block is no second episode"
    assert verify_store(tmp_path / "repaired", workers=1).good
    store = Store(tmp_path / "repaired")
    assert all(same(store.episode(i), written[uid]) for uid, i in by_uid(store).items())


@pytest.mark.parametrize("part", ["payload", "length"])
def test_a_bad_sector_costs_one_episode(damaged: Damaged, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    _, offset, _ = damaged.places[1][0]
    bad, real = offset + (40 if part == "payload" else 3), os.pread

    def pread(fd: int, size: int, start: int) -> bytes:
        if start <= bad < start + size and os.fstat(fd).st_size == damaged.ref.bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, size, start)

    monkeypatch.setattr(os, "pread", pread)
    assert any("cannot be read: Input/output error" in line for line in verify_store(damaged.path, workers=1).lines())
    report = repair(damaged.path, damaged.out, workers=1)
    # Where the length alone is bad, the index leads to the payload.
    assert {int(lost.episode, 16) for lost in report.lost} == ({1} if part == "payload" else set())
    assert damaged.whole() == {0, 2, 3} | (set() if part == "payload" else {1})


# -- the target, interruptions ---------------------------------------------------------------------------


def test_nothing_is_overwritten(damaged: Damaged) -> None:
    damaged.out.mkdir()
    with pytest.raises(StoreError, match="exists; choose another target"):
        repair(damaged.path, damaged.out, workers=1)


def test_an_interrupted_repair_is_continued(damaged: Damaged) -> None:
    damaged.hit(0, 1)

    def stop(done: int, total: int) -> None:
        if done > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(damaged.path, damaged.out, salvage=True, workers=1, progress=stop)
    some = len(Store(damaged.out))
    assert 0 < some < 4
    with pytest.raises(StoreError, match="begun with salvage=True"):
        repair(damaged.path, damaged.out, workers=1, resume=True)
    report = damaged.repair(salvage=True, resume=True)
    assert (report.kept, report.salvaged) == (3, 1)
    assert damaged.whole() == {1, 2, 3}
    assert len(Store(damaged.out)) == 4
    again = damaged.repair(salvage=True, resume=True)
    assert (again.kept, again.salvaged, again.lost) == (report.kept, report.salvaged, report.lost)
    assert len(Store(damaged.out)) == 4


def test_what_a_killed_writer_left_is_repaired(tmp_path: Path) -> None:
    code = """
import sys
from rollmill.store.episode import EpisodeInfo
from rollmill.store.writer import StoreWriter
from storing import make_episode, small_schema
schema = small_schema()
writer = StoreWriter(sys.argv[1], schema, block=4)
writer.add_episode(make_episode(schema, 9, 1))
episode = make_episode(schema, 9, 2)
writer.begin(0, EpisodeInfo(uid=2))
writer.append(0, {name: array[:9] for name, array in episode.columns.items()})
print("ready", flush=True)
sys.stdin.readline()
"""
    path = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        cwd=SUPPORT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    # As long as it lives, its unfinished episode is under way and none of our business.
    alive = repair(path, tmp_path / "alive", salvage=True, workers=1)
    assert (alive.kept, alive.salvaged, alive.lost) == (1, 0, [])
    process.send_signal(signal.SIGKILL)
    process.wait()
    plain = repair(path, tmp_path / "plain", workers=1)
    assert (plain.kept, plain.salvaged, plain.lost) == (1, 0, [])
    report = repair(path, tmp_path / "salvaged", salvage=True, workers=1)
    assert (report.kept, report.salvaged) == (1, 1)
    store = Store(tmp_path / "salvaged")
    read = store.episode(by_uid(store)[2])
    assert_start(read, make_episode(small_schema(), 9, 2))


def assert_start(read: Episode, written: Episode) -> None:
    assert read.length == 7  # two blocks of four are written, the last step gives the final observation
    assert np.array_equal(read.columns["obs:image"], written.columns["obs:image"][:8])
    assert np.array_equal(read.actions, written.actions[:7])
