"""What an index lists and its shard no longer has: named with uid, steps and shard; the index is not overwritten."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from damaging import flip, only_shard, places, records
from storing import small_schema, write_episodes

from rollmill.core.errors import StoreError
from rollmill.store.care.lost import load_witnesses, lost_episodes, rescue_index, witness_files
from rollmill.store.care.recover import recover
from rollmill.store.care.repair import repair
from rollmill.store.care.verify import verify_store
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.derive.merge import merge
from rollmill.store.format.index import build_index
from rollmill.store.format.shards import ShardRef, list_shards, scan_shard

LENGTHS = [9, 4, 1, 8]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_episodes(tmp_path / "store", small_schema(), LENGTHS, block=4)
    return tmp_path / "store"


def cut_after(ref: ShardRef, uid: int) -> None:
    """As if the shard had ended with this episode: at the end of its last record."""
    _, offset, length = places(ref)[uid][-1]
    os.truncate(ref.path, offset + length + 16)


def take_out_end(ref: ShardRef, uid: int) -> None:
    record, _, _ = places(ref)[uid][-1]
    begin, end = records(ref.path)[record]
    data = ref.path.read_bytes()
    ref.path.write_bytes(data[:begin] + data[end:])


def lost_in(folder: Path) -> dict[int, int]:
    """Steps of the lost episodes by uid, as ``lost.json`` lists them."""
    return {int(item["episode"], 16): item["steps"] for item in json.loads((folder / "lost.json").read_text())["lost"]}


def named(path: Path) -> set[int | None]:
    report = verify_store(path, workers=1)
    assert not report.good
    return {problem.episode for _, problem in report.problems}


@pytest.mark.parametrize("harm", ["cut", "emptied", "removed"])
def test_lost_episodes_are_named_by_everybody(store: Path, tmp_path: Path, harm: str) -> None:
    ref = only_shard(store)
    if harm == "cut":
        cut_after(ref, 1)
    elif harm == "emptied":
        os.truncate(ref.path, 0)
    else:
        ref.path.unlink()
    gone = {2, 3} if harm == "cut" else {0, 1, 2, 3}
    report = verify_store(store, workers=1)
    assert named(store) == {None, *gone}
    assert report.bad_episodes == len(gone)
    assert all(ref.name in line for line in report.lines())
    assert sum(f"the index lists it with {LENGTHS[3]} steps" in line for line in report.lines()) == 1
    assert not any("no data are lost" in line or "--in-place" in line for line in report.lines())
    assert {problem.episode for problem in open_quietly(store).problems} == {None, *gone}
    with pytest.raises(StoreError, match="Repair it first"):
        merge([store], tmp_path / "merged")
    repaired = repair(store, tmp_path / "repaired", workers=1)
    assert repaired.kept == 4 - len(gone)
    assert lost_in(tmp_path / "repaired") == {uid: LENGTHS[uid] for uid in gone}
    assert {lost.shard for lost in repaired.lost} == {ref.name}


@pytest.mark.parametrize("harm", [cut_after, take_out_end])
def test_tidying_up_keeps_the_only_list_of_what_was_lost(store: Path, tmp_path: Path, harm: object) -> None:
    ref = only_shard(store)
    harm(ref, 1)  # type: ignore[operator]
    gone = {2, 3} if harm is cut_after else {1}
    before = ref.index_path.read_bytes()
    for _ in range(2):
        done = recover(store)
        assert done.indexed == []
        assert {problem.episode for problem in done.problems} == gone
        assert ref.index_path.read_bytes() == before
        assert named(store) == {None, *gone}
    repaired = repair(store, tmp_path / "repaired", workers=1)
    # What only lacks its end record is whole again: the index repeats that.
    assert {int(lost.episode, 16) for lost in repaired.lost} == (gone if harm is cut_after else set())


def test_an_index_that_cannot_be_read_is_set_aside(store: Path) -> None:
    ref = only_shard(store)
    good = ref.index_path.read_bytes()
    for number in range(3):
        flip(ref.index_path, 50)
        bad = ref.index_path.read_bytes()
        assert recover(store).indexed == [ref.name]
        assert ref.index_path.read_bytes() == good
        aside = f"{ref.index_path.name}.set-aside{f'-{number + 1}' if number else ''}"
        assert (ref.index_path.parent / aside).read_bytes() == bad
    assert verify_store(store, workers=1).good


def test_an_index_under_another_name_is_heard(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for name in ("a", "b"):
        write_episodes(tmp_path / name, small_schema(), LENGTHS, block=4, name=name)
    shutil.copytree(tmp_path / "a", path)
    shutil.copytree(tmp_path / "b", path, dirs_exist_ok=True)
    a, b = list_shards(path)
    spare = path / "index" / "spare"
    os.rename(a.index_path, spare)
    os.rename(b.index_path, a.index_path)
    os.rename(spare, b.index_path)
    assert witness_files(path) == {"a-00000": (b.index_path,), "b-00000": (a.index_path,)}
    cut_after(b, 0)
    assert named(path) == {None, 1, 2, 3}
    done = recover(path)
    assert done.indexed == [a.name], "whole, so it gets its index; what lay there speaks of the other one"
    assert {problem.episode for problem in done.problems} == {1, 2, 3}
    assert named(path) == {None, 1, 2, 3}
    assert {problem.episode for problem in open_quietly(path).problems} == {None, 1, 2, 3}


def test_salvaging_without_an_end_record_lists_what_went_with_it(store: Path, tmp_path: Path) -> None:
    ref = only_shard(store)
    ref.index_path.unlink()
    flip(ref.path, places(ref)[0][-1][1] + 30)
    report = repair(store, tmp_path / "repaired", salvage=True, workers=1)
    (lost,) = report.lost
    assert (int(lost.episode, 16), lost.steps, lost.kept) == (0, 0, 9)
    assert "how it ended and its statistics" in str(lost)
    assert "0 steps lost" not in str(lost)


def test_a_discarded_episode_is_no_loss_in_a_damaged_shard(tmp_path: Path) -> None:
    from storing import make_episode

    from rollmill.store.writer import StoreWriter

    schema = small_schema()
    with StoreWriter(tmp_path / "store", schema, block=4) as writer:
        for uid in (1, 2):
            writer.add_episode(make_episode(schema, 9, uid))
        episode = make_episode(schema, 9, 3)
        writer.begin(0, episode.info)
        writer.append(0, {name: array[:9] for name, array in episode.columns.items()})
        writer.discard(0)
    ref = only_shard(tmp_path / "store")
    flip(ref.path, places(ref)[1][0][1] + 40)
    assert named(tmp_path / "store") == {None, 1}, "the index says that the third never ended"
    ref.index_path.unlink()
    assert named(tmp_path / "store") == {None, 1, 3}, "nobody can tell"


def test_an_index_that_fits_is_told_from_one_that_knows_more(store: Path) -> None:
    ref = only_shard(store)
    known = load_witnesses([ref.index_path], ref.name)
    whole = scan_shard(ref)
    assert lost_episodes(known, whole) == []
    assert rescue_index(whole, known, ref.bytes).episodes.tobytes() == build_index(whole).episodes.tobytes()
    cut_after(ref, 0)
    lost = lost_episodes(known, scan_shard(ref))
    assert [(episode.uid, episode.length) for episode in lost] == [(1, 4), (2, 1), (3, 8)]
    assert len(lost_episodes([*known, *known], None)) == 4, "each once"
