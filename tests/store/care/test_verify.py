"""Verify: names every kind of damage by shard, record, offset and episode, and nothing that is no damage."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from damaging import flip, only_shard, places, records, rewrite
from storing import dead_process, make_episode, same, small_schema, tiny_schema, write_episodes

from rollmill.core.errors import StoreError
from rollmill.store.care.verify import VerifyReport, expand, verify, verify_store
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.episode import EpisodeEnd
from rollmill.store.format import framing as frames
from rollmill.store.format import owner
from rollmill.store.format.codec import RAW
from rollmill.store.format.records import Block, encode_block, encode_end, parse
from rollmill.store.format.shards import ShardRef, list_shards
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()
LENGTHS = [9, 4, 1, 8]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_episodes(tmp_path / "store", small_schema(), LENGTHS, block=4)
    return tmp_path / "store"


def look(path: Path) -> VerifyReport:
    return verify_store(path, workers=1)


def only_line(report: VerifyReport) -> str:
    (line,) = report.lines()
    return line


def test_a_good_store_is_good(store: Path) -> None:
    told: list[tuple[int, int]] = []
    report = verify_store(store, workers=1, progress=lambda done, total: told.append((done, total)))
    assert report.good
    assert report.lines() == report.notes == []
    assert (report.total("episodes"), report.total("steps"), report.total("blocks")) == (4, sum(LENGTHS), 3 + 1 + 1 + 2)
    assert report.total("records") == 1 + 7 + 4
    assert told[0][0] == 0
    assert told[-1] == (only_shard(store).bytes,) * 2


@pytest.mark.parametrize("uid", [0, 3])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("part", ["length", "checksum", "payload", "tail"])
def test_a_flipped_bit_is_named(store: Path, uid: int, which: int, part: str) -> None:
    ref = only_shard(store)
    record, offset, length = places(ref)[uid][which]
    flip(ref.path, {"length": 2, "checksum": 9, "payload": 12 + length // 2, "tail": 12 + length + 1}[part] + offset, 3)
    report = look(store)
    assert any(line.startswith(f"{ref.path}, record {record} at byte {offset}: ") for line in report.lines())
    assert any(problem.episode == uid for _, problem in report.problems), report.lines()
    assert report.bad_episodes == 1
    assert report.total("episodes") == len(LENGTHS) - 1


def test_every_flipped_byte_of_a_shard_is_noticed(tmp_path: Path) -> None:
    write_episodes(tmp_path, tiny_schema(), [3, 1], block=2)
    ref = only_shard(tmp_path)
    good = ref.path.read_bytes()
    body = min(offset for found in places(ref).values() for _, offset, _ in found)
    fd = os.open(ref.path, os.O_WRONLY)
    for byte in [*range(0, body, 97), *range(body, len(good))]:
        os.pwrite(fd, bytes([good[byte] ^ (1 << byte % 8)]), byte)
        assert not look(tmp_path).good, byte
        os.pwrite(fd, good[byte : byte + 1], byte)
    os.close(fd)
    assert look(tmp_path).good


def test_a_sealed_shard_that_is_cut_short(store: Path) -> None:
    ref = only_shard(store)
    record, offset, _ = places(ref)[3][1]
    os.truncate(ref.path, offset + 30)
    report = look(store)
    assert f"record {record} at byte {offset}: the file is cut short" in report.lines()[0]
    assert any("index was written for" in line for line in report.lines())
    assert report.total("episodes") == 3


def test_an_empty_shard(store: Path) -> None:
    os.truncate(only_shard(store).path, 0)
    assert any("header record is missing" in line for line in look(store).lines())


# -- under good checksums: what a faulty writer would leave ---------------------------------------------


def test_a_block_that_does_not_decode(store: Path) -> None:
    ref = only_shard(store)
    record, offset, _ = places(ref)[0][1]

    def spoil(number: int, payload: bytes) -> bytes:
        block = parse(payload)
        if number != record or not isinstance(block, Block):
            return payload
        buffers = [(RAW, bytes(5)) for _ in block.sizes]
        return b"".join(encode_block(block.uid, block.first, block.steps, block.obs_rows, buffers, block.info))

    rewrite(ref, spoil)
    report = look(store)
    line = report.lines()[0]
    assert line.startswith(f"{ref.path}, record {record} at byte {offset}, episode {0:016x}: column ")
    assert "5 bytes where" in line
    assert report.bad_episodes == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"return_": 1e6}, "its rewards sum to"),
        ({"version_max": 77}, "policy versions"),
        ({"global_step_first": 77}, "global steps"),
        ({"length": 10}, "blocks hold 9 steps"),
    ],
)
def test_an_end_record_that_disagrees_with_the_rows(store: Path, change: dict[str, float], reason: str) -> None:
    ref = only_shard(store)

    def spoil(number: int, payload: bytes) -> bytes:
        record = parse(payload)
        if not isinstance(record, EpisodeEnd) or record.uid != 0:
            return payload
        return b"".join(encode_end(dataclasses.replace(record, **change)))  # type: ignore[arg-type]

    rewrite(ref, spoil)
    lines = look(store).lines()
    assert reason in lines[0]
    assert f"episode {0:016x}" in lines[0]


def test_a_missing_final_observation(store: Path) -> None:
    def spoil(number: int, payload: bytes) -> bytes:
        record = parse(payload)
        if isinstance(record, Block) and record.uid == 1:
            payload = payload.replace(b"\xa1o\x05", b"\xa1o\x04")  # obs rows 5 -> 4
            assert parse(payload).obs_rows == 4  # type: ignore[union-attr]
        return payload

    rewrite(only_shard(store), spoil)
    assert any("episode 0000000000000001" in line for line in look(store).lines())


def test_a_shard_of_other_columns(store: Path, tmp_path: Path) -> None:
    write_episodes(tmp_path / "other", tiny_schema(), [3])
    foreign = only_shard(tmp_path / "other")
    shutil.copy(foreign.path, store / "shards")
    shutil.copy(foreign.index_path, store / "index")
    report = look(store)
    assert "other columns" in only_line(report)
    assert report.total("episodes") == len(LENGTHS) + 1, "it was decoded with its own schema"


# -- around the shards -----------------------------------------------------------------------------------


def test_missing_files_are_named(store: Path) -> None:
    ref = only_shard(store)
    index = ref.index_path.read_bytes()
    ref.index_path.unlink()
    assert "index is missing (`rollmill data repair --in-place`" in only_line(look(store))
    ref.index_path.write_bytes(index[:-3])
    assert "index is damaged" in only_line(look(store))
    ref.index_path.write_bytes(index)
    ref.path.unlink()
    first, *episodes = look(store).lines()
    assert "the shard's file is missing" in first
    assert ref.name in first
    assert len(episodes) == len(LENGTHS), "each of them is named"


def test_a_damaged_store_file_does_not_hide_the_shards(store: Path) -> None:
    (store / "store.json").write_text("{")
    report = look(store)
    assert "store.json is damaged" in only_line(report)
    assert report.total("episodes") == len(LENGTHS)


def test_an_index_that_lists_other_places(tmp_path: Path) -> None:
    from rollmill.store.format.index import build_index, write_index
    from rollmill.store.format.shards import scan_shard

    write_episodes(tmp_path, small_schema(), LENGTHS, block=4)
    ref = only_shard(tmp_path)
    scan = scan_shard(ref)
    scan.episodes.pop()
    write_index(ref.index_path, build_index(scan))
    assert "lists other episodes than it has" in only_line(look(tmp_path))


def test_an_open_shard_is_no_damage(tmp_path: Path) -> None:
    schema = small_schema()
    with StoreWriter(tmp_path, schema, block=4) as writer:
        writer.add_episode(make_episode(schema, 9, 1))
        (path,) = (tmp_path / "shards").iterdir()
        with open(path, "ab") as file:
            file.write(b"half a record")
        report = look(tmp_path)
        assert report.good
        assert "the last 13 bytes are no whole record" in report.notes[0]
        assert report.total("episodes") == 1
        os.truncate(path, path.stat().st_size - 13)


def test_unfinished_episodes_are_counted(tmp_path: Path) -> None:
    schema = small_schema()
    with StoreWriter(tmp_path, schema, block=4) as writer:
        writer.add_episode(make_episode(schema, 9, 1))
        writer.begin(0)
        episode = make_episode(schema, 9, 2)
        writer.append(0, {name: array[:9] for name, array in episode.columns.items()})
        writer.discard(0)
    report = look(tmp_path)
    assert report.good
    assert (report.total("episodes"), report.total("unfinished")) == (1, 1)


def test_a_column_whose_own_checksum_is_wrong(store: Path) -> None:
    def spoil(number: int, payload: bytes) -> bytes:
        record = parse(payload)
        if isinstance(record, Block) and record.uid == 1:
            assert record.sums in payload
            payload = payload.replace(record.sums, bytes(len(record.sums)))
        return payload

    rewrite(only_shard(store), spoil)
    assert any("checksum of column 0 does not match" in line for line in look(store).lines())


def test_a_shard_without_its_header_loses_nothing_else(store: Path) -> None:
    ref = only_shard(store)
    data = ref.path.read_bytes()
    ref.path.write_bytes(data[records(ref.path)[0][1] :])
    report = look(store)
    assert "the shard's header record is missing" in report.lines()[0]
    assert (report.bad_episodes, report.total("episodes")) == (0, len(LENGTHS)), "the first block lies at byte 0 now"
    with open_quietly(store) as opened:
        assert all(same(opened.episode(i), make_episode(SCHEMA, n, i)) for i, n in enumerate(LENGTHS))


@pytest.mark.parametrize("harm", ["flip", "length", "cut"])
def test_the_end_of_a_shard_that_a_dead_writer_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    ref = leave_open(tmp_path, monkeypatch)
    _, offset, length = places(ref)[2][-1]
    if harm == "cut":
        os.truncate(ref.path, offset + length - 3)
    else:
        flip(ref.path, offset + (40 if harm == "flip" else 3))
    report, store = look(tmp_path), open_quietly(tmp_path)
    assert store.table.uid.tolist() == [1]
    if harm == "cut":  # as any write that a kill has cut short
        assert report.good
        assert store.problems == []
        assert "are no whole record (its writer is dead)" in report.notes[0]
    else:
        assert {problem.episode for _, problem in report.problems} == {None, 2}
        assert [problem.offset for problem in store.problems] == [offset]
        assert report.notes == []


def test_an_empty_shard_that_a_dead_writer_left_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = leave_open(tmp_path, monkeypatch)
    os.truncate(ref.path, 0)
    report = look(tmp_path)
    assert report.good
    assert "it is empty" in report.notes[0]


def leave_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardRef:
    """A shard with episodes 1 and 2 whose writer has died."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, "this_process", dead_process)
        writer = StoreWriter(path, SCHEMA, block=4)
    for uid in (1, 2):
        writer.add_episode(make_episode(SCHEMA, 9, uid))
    return only_shard(path)


# -- several stores and files ----------------------------------------------------------------------------


def test_patterns_of_stores(tmp_path: Path) -> None:
    for name in "ab":
        write_episodes(tmp_path / "runs" / name / "data", small_schema(), [5])
    (tmp_path / "runs" / "c" / "data").mkdir(parents=True)  # no store: passed over in a pattern
    bad = only_shard(tmp_path / "runs" / "b" / "data")
    flip(bad.path, bad.bytes - 20)
    report = verify([str(tmp_path / "runs/*/data")], workers=1)
    assert len(report.shards) == 2
    assert {path for path, _ in report.problems} == {bad.path}


def test_processes_find_the_same(tmp_path: Path) -> None:
    for k in range(3):
        write_episodes(tmp_path / str(k), small_schema(), [5, 6])
    bad = only_shard(tmp_path / "1")
    flip(bad.path, bad.bytes // 2)
    one, two = (verify([str(tmp_path / "*")], workers=workers) for workers in (1, 2))
    assert one.lines() == two.lines() != []
    assert one.shards == two.shards


def test_single_shards(store: Path, tmp_path: Path) -> None:
    ref = only_shard(store)
    assert verify([ref.path], workers=1).total("episodes") == len(LENGTHS)
    copy = shutil.copy(ref.path, tmp_path / "copy.tfrecord")
    assert verify([copy], workers=1).total("episodes") == len(LENGTHS), "a shard explains itself"
    flip(Path(copy), ref.bytes - 20)
    record, block = verify([copy], workers=1).lines()
    assert record.startswith(f"{copy}, record ")
    assert f"episode {3:016x}: it has no end record; a damaged record may have been it" in block


def test_any_tfrecord_file_and_sets_with_a_hole(tmp_path: Path) -> None:
    for number in (0, 2):
        with open(tmp_path / f"x.tfrecord-{number:05d}-of-00003", "wb") as file:
            for payload in (b"one", b"two", b"three"):
                file.writelines(frames.frame([payload]))
    flip(tmp_path / "x.tfrecord-00002-of-00003", 16 + 3 + 12)
    report = verify([str(tmp_path / "x.tfrecord-*")], workers=1)
    missing, damaged = sorted(report.lines())
    assert "x.tfrecord-00001-of-00003: the file is missing: 3 belong together" in missing
    assert "x.tfrecord-00002-of-00003, record 1 at byte 19: the record's checksum" in damaged
    assert report.total("records") == 6


def test_what_is_not_there_or_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such store or file"):
        verify([tmp_path / "nothing"])
    with pytest.raises(StoreError, match="is not a store"):
        verify([tmp_path])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(StoreError, match="no store or file among"):
        expand([str(tmp_path / "*")])


def test_a_file_that_cannot_be_read_is_a_problem(store: Path) -> None:
    ref = only_shard(store)
    ref.path.unlink()
    ref.path.mkdir()
    assert any("cannot be read" in line or "missing" in line for line in look(store).lines())


def test_stopping_in_the_middle(store: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_store(store, workers=1, progress=stop)


def test_shards_by_name(store: Path) -> None:
    assert [ShardRef(store, s.shard, s.sealed, s.bytes) for s in look(store).shards] == list_shards(store)
