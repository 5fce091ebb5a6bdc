"""A store that version 0.1 wrote (``written_by_0_1/store``, never to be written again) is read as it was meant."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from damaging import flip, places
from storing import by_uid, same

from rollmill.core.errors import BadBlock
from rollmill.store import reader
from rollmill.store.care.recover import recover
from rollmill.store.care.verify import verify_store
from rollmill.store.derive.merge import merge
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.index import read_index
from rollmill.store.format.schema import StoreSchema
from rollmill.store.format.shards import list_shards
from rollmill.store.reader import Store

LENGTHS = {0: 9, 1: 4, 2: 1, 3: 5}
"""Steps by uid; the last one is in a shard that its writer left open."""
UNFINISHED = {7: 3, 8: 7}
"""A discarded episode and one that was under way: what is left of them without an end record."""


def counted(schema: StoreSchema, steps: int, seed: int) -> Episode:
    """What was written: numbers that count up."""
    columns = {}
    for column in schema.columns:
        rows = steps + (column.per == "obs")
        numbers = np.arange(rows * int(np.prod(column.shape))) * (seed + 1) // 7 % 251
        columns[column.name] = numbers.astype(column.numpy).reshape(rows, *column.shape)
    columns["action"] = np.arange(steps) % 3
    columns["reward"] = (np.arange(steps) * 0.5 - seed).astype(np.float32)
    columns["global_step"] = 100 * seed + 4 * np.arange(steps)
    columns["version"] = np.arange(steps) // 3 + seed
    info = EpisodeInfo(uid=seed, seed=seed, policy="counting", worker=1, lane=seed)
    return Episode(columns, info, True, False, {"kills": seed})


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(Path(__file__).parents[1] / "written_by_0_1/store", tmp_path / "store")


def check(store: Store) -> None:
    assert {uid: int(store.table.length[i]) for uid, i in by_uid(store).items()} == LENGTHS
    for uid, i in by_uid(store).items():
        written, end = counted(store.schema, LENGTHS[uid], uid), store.end_record(i)
        assert same(store.episode(i), written)
        assert np.array_equal(store.rewards(i), written.rewards)
        assert (end.return_, end.stats, end.terminated) == (written.return_, {"kills": uid}, True)
        assert (end.seed, end.policy, end.worker, end.lane, end.env_id) == (uid, "counting", 1, uid, "toy")


def test_every_value_is_there(old: Path, recwarn: pytest.WarningsRecorder) -> None:
    store = Store(old)
    check(store)
    assert store.problems == []
    assert not recwarn
    everything = Store(old, unfinished=True)
    lengths = {uid: int(everything.table.length[i]) for uid, i in by_uid(everything).items()}
    assert lengths == LENGTHS | UNFINISHED


def test_its_indexes_are_used(old: Path) -> None:
    (sealed,) = [ref for ref in list_shards(old) if ref.sealed]
    assert read_index(sealed.index_path, sealed.name, sealed.bytes).episodes["uid"].tolist() == [0, 1, 2, 7]


def test_it_is_verified(old: Path) -> None:
    report = verify_store(old, workers=1)
    assert report.good
    assert (report.total("episodes"), report.total("steps"), report.total("unfinished")) == (4, 19, 2)


def test_it_is_merged_and_tidied_up(old: Path, tmp_path: Path) -> None:
    assert len(recover(old, force=True).sealed) == 1
    check(Store(old))
    merge([old], tmp_path / "merged")
    check(Store(tmp_path / "merged"))
    assert verify_store(tmp_path / "merged", workers=1).good


def test_damaged_rewards_are_found_without_checksums_of_columns(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "COLUMN_READ_BYTES", 0)
    (sealed,) = [ref for ref in list_shards(old) if ref.sealed]
    _, offset, length = places(sealed)[0][0]
    rewards = counted(Store(old).schema, 9, 0).rewards[:4].tobytes()
    at = sealed.path.read_bytes().index(rewards, offset, offset + length)
    number = by_uid(Store(old))[0]
    for bit in range(8 * len(rewards)):
        flip(sealed.path, at + bit // 8, bit % 8)
        with pytest.raises(BadBlock, match="checksum"):
            Store(old).rewards(number)
        flip(sealed.path, at + bit // 8, bit % 8)
    check(Store(old))
