from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from storing import by_uid, make_episode, same, small_schema, tiny_schema, write_episodes

from rollmill.core.errors import StoreError
from rollmill.store import catalog
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.index import ShardIndex
from rollmill.store.reader import Store, store_bytes
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()


def test_an_empty_store_has_no_episodes(tmp_path: Path) -> None:
    StoreWriter(tmp_path, SCHEMA).close()
    store = Store(tmp_path)
    assert len(store) == 0
    assert store.table["return"].tolist() == []
    assert store.table["env_id"].tolist() == []
    assert store.table.stat("kills").tolist() == []


def test_the_table_has_a_row_per_episode(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, SCHEMA, shard_bytes=4000) as writer:
        for k in range(6):
            info = EpisodeInfo(
                k % 2 * 3, k if k else None, ["", "doom"][k % 2], ["random", "p"][k // 3], k, k, k + 10, uid=k
            )
            writer.add_episode(make_episode(SCHEMA, 5 + k, k, info, terminated=k != 2))
    store = Store(tmp_path)
    table = store.table
    assert len(store.shards) > 1
    assert table.uid.tolist() == list(range(6))
    assert table.length.tolist() == [5, 6, 7, 8, 9, 10]
    assert table.steps == 45
    assert table["terminated"].tolist() == [True, True, False, True, True, True]
    assert table["truncated"].tolist() == [False, False, True, False, False, False]
    assert table["partial_start"].tolist() == [False, True] * 3
    assert table["partial_end"].tolist() == [False] * 6
    assert table["env_id"].tolist() == ["toy", "doom"] * 3
    assert table["policy"].tolist() == ["random"] * 3 + ["p"] * 3
    assert table["has_seed"].tolist() == [False] + [True] * 5
    assert table["seed"].tolist() == list(range(6))
    assert table["lane"].tolist() == list(range(10, 16))
    assert table["version_max"].tolist() == [k + (4 + k) // 3 for k in range(6)]
    assert table["global_step_first"].tolist() == [100 * k for k in range(6)]
    assert table.stat("kills").tolist() == list(range(6))
    assert np.isnan(table.stat("nothing")).all()
    assert np.allclose(table.return_, [store.episode(i).return_ for i in range(6)])
    assert table["bytes"].sum() < store_bytes(tmp_path)
    assert [store.shards[k].name for k in table["shard"]] == sorted(store.shards[k].name for k in table["shard"])
    assert not table["length"].flags.writeable
    assert {len(table[name]) for name in table.names} == {6}
    assert store.stats(3) == {"kills": 3}
    with pytest.raises(StoreError, match="no column 'size'"):
        table["size"]


def test_rows_are_read_into_given_arrays(tmp_path: Path) -> None:
    (episode,) = write_episodes(tmp_path, SCHEMA, [40], block=8)
    store = Store(tmp_path)
    batch = np.zeros((3, 10, 4, 3, 3), np.uint8)
    out = {"obs:image": batch[1], "step": np.zeros(10, np.int64)}
    result = store.read(0, 5, 15, ["obs:image", "step", "reward"], out=out)
    assert result["obs:image"] is out["obs:image"]
    assert np.array_equal(batch[1], episode.obs["image"][5:15])
    assert not batch[0].any()
    assert not batch[2].any()
    assert out["step"].tolist() == list(range(5, 15))
    wrong = [
        np.zeros((9, 4, 3, 3), np.uint8),
        np.zeros((10, 4, 3, 3), np.int8),
        np.zeros((10, 3, 3, 4), np.uint8).transpose(0, 3, 1, 2),
    ]
    for array in wrong:
        with pytest.raises(StoreError, match="C-contiguous uint8"):
            store.read(0, 5, 15, ["obs:image"], out={"obs:image": array})


def test_wrong_places_are_named(tmp_path: Path) -> None:
    write_episodes(tmp_path, SCHEMA, [5])
    store = Store(tmp_path)
    for start, stop in ((-1, 3), (0, 6), (4, 3)):
        with pytest.raises(StoreError, match="which has 5 steps"):
            store.read(0, start, stop)
    with pytest.raises(StoreError, match="has 1 episodes; there is no number 1"):
        store.episode(1)
    with pytest.raises(StoreError, match="no column 'speed'"):
        store.read(0, 0, 1, ["speed"])
    assert store.read(0, 2, 2)["action"].shape == (0,)
    assert store.read(0, 5, 5, next_obs=True)["obs:image"].shape == (1, 4, 3, 3)
    assert same(store.episode(-1), store.episode(0))


def test_an_episode_can_be_read_in_part(tmp_path: Path) -> None:
    (written,) = write_episodes(tmp_path, SCHEMA, [5])
    episode = Store(tmp_path).episode(0, ["reward", "obs:vector", "step"])
    assert set(episode.columns) == {"reward", "obs:vector"}
    assert len(episode) == 5
    assert episode.steps.tolist() == [0, 1, 2, 3, 4]
    assert episode.to_dict().keys() == {"reward", "obs:vector", "step", "terminated", "truncated"}
    with pytest.raises(StoreError, match="read without column 'action'"):
        _ = episode.actions
    with pytest.raises(StoreError, match="how many steps"):
        Episode({"reward": written.rewards})


def test_only_needed_blocks_are_read_and_cached_ones_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_episodes(tmp_path, SCHEMA, [40], block=8)
    reads: list[int] = []
    real = Store._read_block

    def counted(self: Store, i: int, k: int) -> object:
        reads.append(k)
        return real(self, i, k)

    monkeypatch.setattr(Store, "_read_block", counted)
    store = Store(tmp_path)
    store.read(0, 16, 24, ["obs:image"])
    assert reads == [2]
    store.read(0, 12, 20, ["obs:image", "action"])
    assert reads == [2, 1, 2]
    for t in range(9, 16):
        store.read(0, t, t + 1, ["obs:image"])
    assert reads == [2, 1, 2, 1], "kept when it is wanted for the second time"
    uncached = Store(tmp_path, cache_bytes=0)
    reads.clear()
    uncached.read(0, 12, 13)
    uncached.read(0, 12, 13)
    assert reads == [1, 1]


def test_the_cache_stays_within_its_bounds(tmp_path: Path) -> None:
    (written,) = write_episodes(tmp_path, SCHEMA, [64], block=8)
    store = Store(tmp_path, cache_bytes=1000)
    rng = np.random.default_rng(0)
    for _ in range(200):
        start = int(rng.integers(63))
        assert np.array_equal(
            store.read(0, start, start + 1, ["obs:image"])["obs:image"][0], written.obs["image"][start]
        )
        assert store._cache._bytes == sum(b["obs:image"].nbytes for b in store._cache._blocks.values()) <= 1000


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    written = write_episodes(tmp_path, SCHEMA, [20] * 30, shard_bytes=1000)
    store = Store(tmp_path, max_files=3)
    assert len(store.shards) == 30
    before = len(os.listdir("/proc/self/fd"))
    for i in np.random.default_rng(0).permutation(30):
        assert same(store.episode(int(i)), written[by_uid(store)[int(i)]])
        assert len(os.listdir("/proc/self/fd")) <= before + 3
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with store:
        assert same(store.episode(0), written[0])
    assert len(os.listdir("/proc/self/fd")) == before


def test_opening_reads_indexes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_episodes(tmp_path, tiny_schema(), [3] * 20, shard_bytes=1)
    monkeypatch.setattr(catalog, "scan_shard", lambda ref: pytest.fail("a shard was walked"))
    monkeypatch.setattr(catalog, "open_shard", lambda ref: pytest.fail("a shard was opened"))
    assert len(Store(tmp_path).shards) == 20


# -- while it is written ------------------------------------------------------------------------------


def test_a_store_is_read_while_it_is_written(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA, block=4, shard_bytes=30_000)
    store = Store(tmp_path)
    written: dict[int, Episode] = {}
    for k in range(12):
        episode = make_episode(SCHEMA, 30, k)
        writer.begin("other", EpisodeInfo(uid=1000 + k))  # its blocks lie between the others
        writer.append("other", {n: a[:9] for n, a in episode.columns.items()})
        writer.add_episode(episode)
        writer.discard("other")
        written[k] = episode
        order = store.table.uid.tolist()
        assert store.refresh() == 1
        assert store.table.uid.tolist()[:k] == order, "known episodes keep their numbers"
        for uid, i in by_uid(store).items():
            assert same(store.episode(i), written[uid])
    writer.close()
    assert store.refresh() == 0
    assert all(ref.sealed for ref in store.shards)
    assert len(store.shards) > 1
    assert store.problems == []
    for uid, i in by_uid(store).items():
        assert same(store.episode(i), written[uid])


def test_a_shard_sealed_after_opening_is_still_found(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA)
    episode = make_episode(SCHEMA, 5, 1)
    writer.add_episode(episode)
    store = Store(tmp_path)
    writer.close()
    assert same(store.episode(0), episode)


def test_growth_of_an_open_shard_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []
    real = catalog.ShardScan.advance

    def advance(self: catalog.ShardScan, fd: int, size: int) -> None:
        before = self.records
        real(self, fd, size)
        walked.append(self.records - before)

    monkeypatch.setattr(catalog.ShardScan, "advance", advance)
    with StoreWriter(tmp_path, SCHEMA, block=10) as writer:
        writer.add_episode(make_episode(SCHEMA, 10, 0))
        store = Store(tmp_path)
        writer.add_episode(make_episode(SCHEMA, 10, 1))
        store.refresh()
        store.refresh()
    assert walked == [3, 2]


def test_unfinished_episodes_are_listed_on_request(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA, block=4)
    writer.add_episode(make_episode(SCHEMA, 6, 1))
    growing = make_episode(SCHEMA, 30, 2, EpisodeInfo(7, 3, "doom", "random", 1, 2, 3, uid=2))
    writer.begin(0, growing.info)
    store = Store(tmp_path, unfinished=True)
    for start in range(0, 30, 6):
        writer.append(0, {n: a[: growing.length][start : start + 6] for n, a in growing.columns.items()})
        store.refresh()
        n = (start + 5) // 4 * 4 - 1  # whole blocks, the last step given up for its observation
        assert store.table["finished"].tolist() == [True, False]
        assert store.table["partial_end"].tolist() == [False, True]
        assert store.table["length"].tolist() == [6, n]
        expected = {k: a[: n + (SCHEMA[k].per == "obs")] for k, a in growing.columns.items()}
        found = store.episode(1)
        assert same(found, Episode(expected))
        assert found.info == growing.info
        assert found.steps[0] == 7
        assert np.isnan(store.table.return_[1])
    assert Store(tmp_path).table.uid.tolist() == [1]
    writer.close()
    assert store.refresh() == 0
    assert store.table["finished"].tolist() == [True, True]


# -- copies of a store object -------------------------------------------------------------------------


def test_a_pickled_store_lists_the_same_episodes(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA)
    first = make_episode(SCHEMA, 20, 1)
    writer.add_episode(first)
    store = Store(tmp_path, cache_bytes=500, max_files=2)
    store.episode(0)
    data = pickle.dumps(store)
    writer.add_episode(make_episode(SCHEMA, 5, 2))
    copy = pickle.loads(data)  # noqa: S301 - our own bytes
    assert len(copy) == 1
    assert same(copy.episode(0), first)
    assert copy.refresh() == 1
    writer.close()
    assert copy.refresh() == 0


def test_threads_share_a_store(tmp_path: Path) -> None:
    written = write_episodes(tmp_path, SCHEMA, [50] * 8, block=8, shard_bytes=4000)
    store = Store(tmp_path, max_files=2, cache_bytes=3000)
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(150):
                i, start = int(rng.integers(8)), int(rng.integers(40))
                rows = store.read(i, start, start + 10, ["obs:image", "value"])
                for name, array in rows.items():
                    assert np.array_equal(array, written[int(store.table.uid[i])].columns[name][start : start + 10])
        except BaseException as error:  # noqa: BLE001 - brought to the main thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_blocks_that_do_not_fit_the_index_are_refused(tmp_path: Path) -> None:
    write_episodes(tmp_path, SCHEMA, [40, 40], block=8)
    store = Store(tmp_path)
    index = store._indexes[0]
    swapped = index.places.copy()
    swapped[[0, 5]] = swapped[[5, 0]]
    store._indexes[0] = ShardIndex(**{**vars(index), "places": swapped})
    with pytest.raises(StoreError, match="another place"):
        store.episode(0)
