from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from damaging import flip
from storing import dead_process, make_episode, same, small_schema, write_episodes

from rollmill.core.errors import StoreError
from rollmill.core.identity import start_ticks
from rollmill.store.care.recover import recover
from rollmill.store.format import owner
from rollmill.store.format.records import Header, encode_header
from rollmill.store.format.shards import list_shards, scan_shard
from rollmill.store.reader import Store, StoreWarning
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()


def abandoned(path: Path, monkeypatch: pytest.MonkeyPatch, who: owner.Owner) -> StoreWriter:
    """A writer that claims to be somebody else, with two episodes done and one begun."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, "this_process", lambda: who)
        writer = StoreWriter(path, SCHEMA, block=4)
    for seed in (1, 2):
        writer.add_episode(make_episode(SCHEMA, 10, seed))
    episode = make_episode(SCHEMA, 10, 3)
    writer.begin(0, episode.info)
    writer.append(0, {name: array[:10] for name, array in episode.columns.items()})
    return writer


def tear(path: Path, size: int = 11) -> None:
    with open(path, "ab") as file:
        file.write(os.urandom(size))


# -- owners -------------------------------------------------------------------------------------------


def test_a_process_knows_itself_and_the_dead() -> None:
    here = owner.this_process()
    assert owner.state_of(here) == "alive"
    assert owner.state_of(dead_process()) == "dead"
    assert owner.state_of(replace(here, started=here.started + 1)) == "dead", "the pid was given to another process"
    assert owner.state_of(replace(here, boot="another")) == "unknown"
    assert owner.state_of(replace(here, namespace="pid:[7]")) == "unknown"


def test_a_zombie_writes_no_more() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner.state_of(replace(owner.this_process(), pid=child.pid, started=0)) == "dead"
    assert start_ticks(child.pid) is None
    child.wait()


def test_where_nothing_is_known_nobody_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "boot_id", lambda: "")
    assert owner.state_of(replace(owner.this_process(), pid=2**22 + 1)) == "unknown"


# -- recovery -----------------------------------------------------------------------------------------


def test_a_dead_writers_shard_is_cut_and_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = abandoned(tmp_path, monkeypatch, dead_process())
    (ref,) = list_shards(tmp_path)
    good = ref.bytes
    tear(ref.path)
    before = Store(tmp_path)
    done = recover(tmp_path)
    assert done.sealed == [ref.name] == writer.shards
    assert (done.skipped, done.problems) == ([], [])
    (sealed,) = list_shards(tmp_path)
    assert sealed.sealed
    assert sealed.bytes == good
    store = Store(tmp_path)
    assert store.problems == []
    assert store.table.uid.tolist() == before.table.uid.tolist() == [1, 2]
    assert same(store.episode(1), before.episode(1))
    assert Store(tmp_path, unfinished=True).table["length"].tolist() == [10, 10, 7]
    assert recover(tmp_path).sealed == []


def test_a_living_writers_shard_is_never_touched(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA)
    writer.add_episode(make_episode(SCHEMA, 10, 1))
    for force in (False, True):
        done = recover(tmp_path, force=force)
        assert done.sealed == []
        ((name, why),) = done.skipped
        assert name == writer.shards[0]
        assert f"process {os.getpid()}" in why
        assert "is alive" in why
    writer.add_episode(make_episode(SCHEMA, 10, 2))
    writer.close()
    assert len(Store(tmp_path)) == 2


def test_a_writer_elsewhere_is_left_alone_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned(tmp_path, monkeypatch, replace(owner.this_process(), boot="another machine", host="far"))
    done = recover(tmp_path)
    assert done.sealed == []
    assert "on far" in done.skipped[0][1]
    assert len(recover(tmp_path, force=True).sealed) == 1
    assert len(Store(tmp_path)) == 2


def test_a_shard_without_a_header_needs_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = abandoned(tmp_path, monkeypatch, dead_process())
    (ref,) = list_shards(tmp_path)
    os.truncate(ref.path, 40)
    assert "no header" in recover(tmp_path).skipped[0][1]
    assert recover(tmp_path, force=True).removed == writer.shards
    assert list_shards(tmp_path) == []


def test_damage_within_a_dead_writers_shard_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned(tmp_path, monkeypatch, dead_process())
    (ref,) = list_shards(tmp_path)
    data = bytearray(ref.path.read_bytes())
    place = scan_shard(ref).episodes[0].blocks[1]
    data[place.offset + 50] ^= 1
    ref.path.write_bytes(data)
    done = recover(tmp_path)
    assert done.sealed == [ref.name]
    assert [p.episode for p in done.problems] == [None, 1]
    assert done.problems[0].offset == place.offset
    store = Store(tmp_path)
    assert same(store.episode(1), make_episode(SCHEMA, 10, 2))
    with pytest.raises(StoreError, match="is lost"):
        store.episode(0)


def test_missing_indexes_are_written_again(tmp_path: Path) -> None:
    write_episodes(tmp_path, SCHEMA, [5] * 6, shard_bytes=1000)
    refs = list_shards(tmp_path)
    good = [ref.index_path.read_bytes() for ref in refs]
    refs[0].index_path.unlink()
    refs[1].index_path.write_bytes(good[2])
    assert recover(tmp_path).indexed == [refs[0].name, refs[1].name]
    assert [ref.index_path.read_bytes() for ref in refs] == good
    os.truncate(refs[2].path, refs[2].bytes - 5)
    done = recover(tmp_path)
    assert done.indexed == [], "a damaged shard keeps saying so until it is repaired"
    assert done.problems


def test_what_is_no_store_is_not_recovered(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a store"):
        recover(tmp_path)


def test_an_open_shard_of_a_newer_format_is_named(tmp_path: Path) -> None:
    from rollmill.store.format import framing as frames

    StoreWriter(tmp_path, SCHEMA).close()
    header = Header("h", SCHEMA.layout, "", "w", 0, owner.this_process(), 0.0, format=99)
    path = tmp_path / "shards" / "w-00000.open.tfrecord"
    path.write_bytes(b"".join(frames.frame(encode_header(header))))
    (ref,) = list_shards(tmp_path)
    (problem,) = scan_shard(ref).problems
    assert "newer version" in str(problem)


def test_damage_at_the_end_of_a_dead_writers_shard_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned(tmp_path, monkeypatch, dead_process())
    (ref,) = list_shards(tmp_path)
    end = scan_shard(ref).episodes[1].place
    os.truncate(ref.path, end.offset + end.length + 16)  # the second episode's end record is the last one
    flip(ref.path, end.offset + 30)
    data = ref.path.read_bytes()
    done = recover(tmp_path)
    assert done.sealed == [ref.name]
    assert [problem.offset for problem in done.problems] == [end.offset]
    (sealed,) = list_shards(tmp_path)
    assert sealed.path.read_bytes() == data, "it may be the last trace of an episode"
    for _ in range(2):
        with pytest.warns(StoreWarning, match="checksum does not match"):
            assert Store(tmp_path).table.uid.tolist() == [1]
        recover(tmp_path)
    assert not sealed.index_path.exists(), "a damaged shard keeps saying so until it is repaired"


def test_rubbish_alone_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned(tmp_path, monkeypatch, dead_process())
    (ref,) = list_shards(tmp_path)
    ref.path.write_bytes(os.urandom(500))
    done = recover(tmp_path, force=True)
    assert done.skipped == [(ref.name, "no record in it is good")]
    assert len(done.problems) == 1
    assert list_shards(tmp_path) == [replace(ref, bytes=500)]


def test_one_shard_that_cannot_be_sealed_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        abandoned(tmp_path, monkeypatch, dead_process())
    first, second = list_shards(tmp_path)
    (tmp_path / "index" / f".{first.index_path.name}.{os.getpid()}.tmp").mkdir()  # its index cannot be written
    done = recover(tmp_path)
    assert done.sealed == [second.name]
    ((name, why),) = done.skipped
    assert name == first.name
    assert "cannot be tidied up: Is a directory" in why
