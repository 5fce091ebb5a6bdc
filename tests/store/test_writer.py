from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from damaging import exchange, only_shard, places
from storing import by_uid, make_episode, same, small_schema, tiny_schema, write_episodes

from rollmill.core.errors import BadBlock, StoreError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.care.verify import verify_store
from rollmill.store.derive.merge import merge
from rollmill.store.derive.split_store import split_store
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format import open_shard
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.format.shards import list_shards
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter, automatic_block

SCHEMA = small_schema()


def rows_of(episode: Episode, start: int, stop: int) -> dict[str, object]:
    return {name: array[start:stop] for name, array in episode.columns.items()}


def final_of(episode: Episode, row: int = -1) -> dict[str, object]:
    return {c.name: episode.columns[c.name][row] for c in SCHEMA.obs_columns}


def names(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "shards").iterdir())


# -- episodes -----------------------------------------------------------------------------------------


def test_everything_about_an_episode_is_kept(tmp_path: Path) -> None:
    info = EpisodeInfo(5, 42, "other_env", "random", 3, 1, 9, uid=2**64 - 1)
    episode = make_episode(SCHEMA, 10, 7, info)
    with StoreWriter(tmp_path, SCHEMA) as writer:
        record = writer.add_episode(episode)
    store = Store(tmp_path)
    assert store.end_record(0) == record
    assert store.episode(0).info == info
    assert (record.version_min, record.version_max) == (7, 10)
    assert (record.global_step_first, record.global_step_last) == (700, 736)
    assert record.return_ == float(episode.rewards.sum(dtype=np.float64))
    assert record.stats == {"kills": 7}
    assert record.partial_start
    assert not record.partial_end
    assert np.array_equal(store.episode(0).steps, np.arange(5, 15))


def test_numbers_of_numpy_are_fine_in_infos(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, SCHEMA) as writer:
        info = EpisodeInfo(seed=np.int64(3), lane=np.int32(4), uid=np.uint64(2**63))  # type: ignore[arg-type]
        writer.add_episode(make_episode(SCHEMA, 3, 1, info))
    assert Store(tmp_path).episode(0).info == EpisodeInfo(seed=3, lane=4, uid=2**63, env_id="toy")


def test_a_number_stands_for_equal_rows_and_views_may_be_reused(tmp_path: Path) -> None:
    schema = tiny_schema()
    slot = np.zeros((4, 3, 2), np.uint8)  # [T, lanes, ...] as in a slot
    with StoreWriter(tmp_path, schema, block=3) as writer:
        writer.begin("lane")
        for t in range(3):
            slot[:] = t
            rows = {"obs:x": slot[:, 1], "action": np.full(4, t), "reward": 0.5, "global_step": t, "version": 7}
            writer.append("lane", rows)
        slot[:] = 99
        writer.end("lane", final={"obs:x": slot[0, 1]}, truncated=True)
    episode = Store(tmp_path).episode(0)
    assert episode.obs["x"][:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [99]
    assert episode.versions.tolist() == [7] * 12
    assert episode.truncateds.tolist() == [False] * 11 + [True]
    assert episode.return_ == 6.0


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_without_a_final_observation_the_last_step_is_given_up(tmp_path: Path, steps: int, chunk: int) -> None:
    episode = make_episode(SCHEMA, steps, 1)
    writer = StoreWriter(tmp_path, SCHEMA, block=4)
    writer.begin(0, episode.info)
    for start in range(0, steps, chunk):
        writer.append(0, rows_of(episode, start, min(start + chunk, steps)))
    record = writer.end(0, final=None)
    writer.close()
    store = Store(tmp_path)
    if steps == 1:
        assert record is None
        assert len(store) == 0
        assert names(tmp_path) == []  # nothing was written, so no shard is left
        return
    assert record is not None
    assert record.partial_end
    expected = {n: a[: steps - 1 + (SCHEMA[n].per == "obs")] for n, a in episode.columns.items()}
    assert same(store.episode(0), Episode(expected))
    assert store.end_record(0).return_ == pytest.approx(float(np.sum(expected["reward"], dtype=np.float64)))


def test_closing_keeps_what_is_open_as_partial(tmp_path: Path) -> None:
    episode = make_episode(SCHEMA, 6, 1)
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path, SCHEMA) as writer:  # noqa: PT012
        writer.begin("a", episode.info)
        writer.append("a", rows_of(episode, 0, 6))
        writer.begin("b")
        assert writer.open_keys() == ["a", "b"]
        assert writer.steps("a") == 6
        raise KeyboardInterrupt
    store = Store(tmp_path)
    assert store.table["length"].tolist() == [5]
    assert store.table["partial_end"].tolist() == [True]
    writer.close()  # a second time does nothing


def test_discarded_episodes_are_not_listed(tmp_path: Path) -> None:
    episode = make_episode(SCHEMA, 6, 1)
    with StoreWriter(tmp_path, SCHEMA, block=2) as writer:
        writer.begin("a", episode.info)
        writer.append("a", rows_of(episode, 0, 6))
        writer.discard("a")
        writer.begin("a", replace(episode.info, uid=2))
        writer.append("a", rows_of(episode, 0, 6))
        writer.end("a", final=final_of(episode), terminated=True)
        assert writer.acknowledged == 1
    assert Store(tmp_path).table.uid.tolist() == [2]
    found = Store(tmp_path, unfinished=True)
    assert found.table.uid.tolist() == [2, 1]
    assert found.table["finished"].tolist() == [True, False]


# -- mistakes -----------------------------------------------------------------------------------------


def test_wrong_rows_are_named_and_change_nothing(tmp_path: Path) -> None:
    good = make_episode(SCHEMA, 5, 1)
    rows = rows_of(good, 0, 5)
    cases: list[tuple[dict[str, object], str]] = [
        ({k: v for k, v in rows.items() if k != "action"}, "need the column 'action'"),
        ({k: v for k, v in rows.items() if k != "value"}, "need the column 'value'"),
        ({**rows, "speed": np.zeros(5)}, "no column 'speed'"),
        ({**rows, "reward": np.zeros(5)}, "column reward: dtype float64, the store has float32"),
        ({**rows, "reward": np.zeros(4, np.float32)}, r"column reward: shape \(4,\), expected \(5,\)"),
        ({**rows, "obs:vector": np.zeros((5, 3), np.float32)}, "column obs:vector: shape"),
        ({**rows, "obs:vector": np.float32(0)}, "column obs:vector: shape"),
        ({**rows, "version": 0.5}, "column version: dtype float64"),
        ({**rows, "version": 2**63}, "column version: dtype"),
    ]
    with StoreWriter(tmp_path, SCHEMA) as writer:
        writer.begin(0, good.info)
        for bad, message in cases:
            with pytest.raises(StoreError, match=message):
                writer.append(0, bad)
        assert writer.steps(0) == 0
        writer.append(0, rows)
        final = final_of(good)
        for bad, message in (
            ({k: v for k, v in final.items() if k != "value"}, "needs the column 'value'"),
            ({**final, "obs:vector": np.zeros(3, np.float32)}, "final obs:vector: shape"),
            ({**final, "obs:vector": np.zeros(2, np.float64)}, "dtype float64"),
        ):
            with pytest.raises(StoreError, match=message):
                writer.end(0, final=bad, terminated=True)
        with pytest.raises(StoreError, match="needs its final observation"):
            writer.end(0, final=None, terminated=True)
        with pytest.raises(StoreError, match="statistic 'x'"):
            writer.end(0, final=final, terminated=True, stats={"x": [1]})  # type: ignore[dict-item]
        writer.end(0, final=final, terminated=True)
    assert same(Store(tmp_path).episode(0), good)


def test_wrong_calls_are_named(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA)
    writer.begin("a", EpisodeInfo(uid=5))
    for call, message in (
        (lambda: writer.begin("a"), "already open under 'a'"),
        (lambda: writer.begin("b", EpisodeInfo(uid=5)), "is already open"),
        (lambda: writer.append("c", {}), "no episode is open under 'c'"),
        (lambda: writer.end("c", final=None), "no episode is open"),
        (lambda: writer.begin("d", EpisodeInfo(first_step=-1)), "negative"),
        (lambda: writer.begin("d", EpisodeInfo(seed=2**63)), "64 bits"),
        (lambda: writer.begin("d", EpisodeInfo(uid=2**64)), "64 bits"),
        (lambda: writer.begin("d", EpisodeInfo(lane=0.5)), "lane 0.5 is not an integer"),  # type: ignore[arg-type]
    ):
        with pytest.raises(StoreError, match=message):
            call()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.begin("a")


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    for options, message in (
        ({"sync": "hourly"}, "'episode', 'seconds:N' or 'seal'"),
        ({"sync": "seconds:0"}, "is expected"),
        ({"block": -1}, "block must be"),
        ({"shard_bytes": 0}, "positive"),
        ({"name": "a/b"}, "writer name"),
        ({"block": 1 << 30}, "too much for one block"),
    ):
        with pytest.raises(StoreError, match=message):
            StoreWriter(tmp_path / "s", SCHEMA, **options)  # type: ignore[arg-type]


def test_a_store_that_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a store"):
        StoreWriter(tmp_path / "store", tiny_schema(), create=False)
    assert not (tmp_path / "store").exists()
    StoreWriter(tmp_path / "store", tiny_schema()).close()
    StoreWriter(tmp_path / "store", tiny_schema(), create=False).close()


def test_incomplete_episodes_are_refused_whole(tmp_path: Path) -> None:
    good = make_episode(SCHEMA, 5, 1)
    with StoreWriter(tmp_path, SCHEMA) as writer:
        short = Episode({**good.columns, "value": good.columns["value"][:5]}, good.info, True)
        with pytest.raises(StoreError, match="5 steps needs one more"):
            writer.add_episode(short)
        with pytest.raises(StoreError, match="at least one step"):
            writer.add_episode(make_episode(SCHEMA, 0))
        wrong = Episode({**good.columns, "reward": np.zeros(4, np.float32)}, good.info, True)
        with pytest.raises(StoreError, match="reward"):
            writer.add_episode(wrong)
        assert writer.open_keys() == []
        writer.add_episode(good)
    assert len(Store(tmp_path)) == 1


# -- shards -------------------------------------------------------------------------------------------


def test_shards_end_just_below_their_budget(tmp_path: Path) -> None:
    schema = StoreSchema.for_env(
        EnvSpec("noise", (Field("image", "uint8", (8, 8, 3)),), ActionSpec("discrete", nvec=(3,), start=(0,)))
    )
    rng = np.random.default_rng(0)
    budget, lanes = 400_000, range(8)
    rest = {"action": np.zeros(20, np.int64), "reward": 0.0, "global_step": 0, "version": 0}
    with StoreWriter(tmp_path, schema, shard_bytes=budget, sync="seal", block=16) as writer:
        for lane in lanes:
            writer.begin(lane)
        while writer.bytes_written < 15 * budget:
            for lane in lanes:
                image = rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
                writer.append(lane, {"obs:image": image, **rest})
                if rng.random() < 0.2:
                    writer.end(lane, final={"obs:image": image[0]}, terminated=True)
                    writer.begin(lane)
    sizes = [ref.bytes for ref in list_shards(tmp_path)]
    assert len(sizes) > 10
    full = sorted(sizes)[2:]  # the last ones are closed before they are full
    assert min(full) > 0.8 * budget
    assert max(full) < 1.6 * budget
    assert writer.bytes_written == sum(sizes)


def test_an_episode_larger_than_the_budget_stays_whole(tmp_path: Path) -> None:
    episodes = write_episodes(tmp_path, SCHEMA, [50, 60], shard_bytes=1000)
    store = Store(tmp_path)
    assert len(store.shards) == 2
    assert [same(store.episode(i), e) for i, e in enumerate(episodes)] == [True, True]


def test_shards_are_renamed_when_they_are_sealed(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA, name="me", shard_bytes=10_000)
    writer.add_episode(make_episode(SCHEMA, 5))
    assert names(tmp_path) == ["me-00000.open.tfrecord"]
    assert list((tmp_path / "index").iterdir()) == []
    writer.add_episode(make_episode(SCHEMA, 200))
    assert names(tmp_path) == ["me-00000.tfrecord"]
    writer.add_episode(make_episode(SCHEMA, 5))
    writer.close()
    assert names(tmp_path) == ["me-00000.tfrecord", "me-00001.tfrecord"]
    assert sorted(p.name for p in (tmp_path / "index").iterdir()) == ["me-00000.idx", "me-00001.idx"]
    assert writer.shards == ["me-00000", "me-00001"]


def test_writers_never_share_a_name(tmp_path: Path) -> None:
    writers = [StoreWriter(tmp_path, SCHEMA) for _ in range(20)]
    assert len({w.name for w in writers}) == 20
    a, b = StoreWriter(tmp_path, SCHEMA, name="x"), StoreWriter(tmp_path, SCHEMA, name="x")
    a.begin(0)
    with pytest.raises(StoreError, match="cannot be created: File exists"):
        b.begin(0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("episode", [1, 2, 3]), ("seal", [0, 0, 0]), ("seconds:10", [0, 0, 2]), ("seconds:1", [0, 1, 2])],
)
def test_the_sync_policy_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, expected: list[int]
) -> None:
    # Within an episode it is the append that comes too late, so the sync makes the episodes before it durable.
    now, synced = [0.0], [0]
    real = os.fsync

    def fsync(fd: int) -> None:
        synced[0] += 1
        real(fd)

    monkeypatch.setattr("rollmill.store.format.shard_set.time.monotonic", lambda: now[0])
    writer = StoreWriter(tmp_path, SCHEMA, sync=policy)
    monkeypatch.setattr(open_shard.os, "fsync", fsync)
    durable = []
    for seed in range(3):
        now[0] += 4.0
        writer.add_episode(make_episode(SCHEMA, 5, seed))
        durable.append(writer.durable)
    assert durable == expected
    assert writer.acknowledged == 3
    assert (synced[0] > 1) == (policy != "seal")  # the folder is synced once, for the new name
    writer.sync()
    assert writer.durable == 3
    writer.close()


def test_blocks_are_longer_for_small_rows() -> None:
    def block_of(size: int) -> int:
        spec = EnvSpec("t", (Field("x", "uint8", (size,)),), ActionSpec("discrete", nvec=(3,), start=(0,)))
        return automatic_block(StoreSchema.for_env(spec))

    assert [block_of(n) for n in (1, 1500, 3000, 72 * 128 * 3, 10**6)] == [256, 128, 64, 16, 16]


def test_memory_is_one_block_per_open_episode(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA, block=4)
    episode = make_episode(SCHEMA, 300, 1)
    writer.begin(0, episode.info)
    for start in range(0, 300, 50):
        writer.append(0, rows_of(episode, start, start + 50))
        assert writer._episodes[0][0].buffer.rows <= 4
    assert writer.bytes_written > 0.5 * 280 * SCHEMA.row_bytes, "the rest is on its way to the disk"
    writer.close()


# -- copies -------------------------------------------------------------------------------------------


def test_episodes_are_copied_record_by_record(tmp_path: Path) -> None:
    episodes = write_episodes(tmp_path / "a", SCHEMA, [3, 40, 17], block=4)
    source = Store(tmp_path / "a")
    target = small_schema(image_codec="raw")  # the codec of new blocks may differ, copies keep theirs
    with StoreWriter(tmp_path / "b", target, shard_bytes=5000) as writer:
        for i in (2, 0):
            assert writer.copy_episode(source, i) == source.end_record(i)
        writer.add_episode(make_episode(SCHEMA, 5, 9))
        assert writer.acknowledged == 3
        assert writer.steps_written == 25
    store = Store(tmp_path / "b")
    numbers = by_uid(store)
    for uid in (0, 2):
        assert same(store.episode(numbers[uid]), episodes[uid])
        assert list(store.records(numbers[uid])) == list(source.records(uid))


def test_copies_between_other_columns_are_refused(tmp_path: Path) -> None:
    write_episodes(tmp_path / "a", SCHEMA, [3])
    other = small_schema(extra=(Column("log_prob", "float16"), Column("value", "float64", per="obs")))
    with StoreWriter(tmp_path / "b", other) as writer, pytest.raises(StoreError, match="column log_prob: float16"):
        writer.copy_episode(Store(tmp_path / "a"), 0)


def test_damaged_and_unfinished_episodes_are_not_copied(tmp_path: Path) -> None:
    write_episodes(tmp_path / "a", SCHEMA, [30, 20])
    (ref,) = list_shards(tmp_path / "a")
    source = Store(tmp_path / "a")
    data = bytearray(ref.path.read_bytes())
    place = source._indexes[0].places[0]
    data[int(place["offset"]) + 100] ^= 1
    ref.path.write_bytes(data)
    with StoreWriter(tmp_path / "b", SCHEMA, block=2) as writer:
        with pytest.raises(StoreError, match="record 1 at byte"):
            writer.copy_episode(source, 0)
        writer.copy_episode(source, 1)
        writer.begin(0)
        writer.append(0, rows_of(make_episode(SCHEMA, 9), 0, 9))
        live = Store(tmp_path / "b", unfinished=True)
        assert live.table["finished"].tolist() == [True, False]
        with StoreWriter(tmp_path / "c", SCHEMA) as third, pytest.raises(StoreError, match="unfinished"):
            third.copy_episode(live, 1)
    assert len(Store(tmp_path / "b")) == 2


@pytest.mark.parametrize("which", ["block", "end record"])
def test_the_records_of_another_episode_are_not_copied(tmp_path: Path, which: str) -> None:
    schema = tiny_schema()
    write_episodes(tmp_path / "a", schema, [4, 4, 4, 4, 4], block=2)
    ref = only_shard(tmp_path / "a")
    k = 0 if which == "block" else -1
    one, other = ((offset, offset + length + 16) for _, offset, length in (places(ref)[3][k], places(ref)[4][k]))
    assert one[1] - one[0] == other[1] - other[0], "so every place that the index knows holds a good record"
    exchange(ref.path, one, other)
    source = Store(tmp_path / "a")
    with StoreWriter(tmp_path / "b", schema) as writer:
        writer.copy_episode(source, 0)
        for i in (3, 4):
            with pytest.raises(BadBlock, match="another") as caught:
                writer.copy_episode(source, i)
            assert caught.value.episode == i
    assert Store(tmp_path / "b").table.uid.tolist() == [0]
    with pytest.raises(StoreError, match=r"another (place|episode)\. What was copied so far"):
        merge([tmp_path / "a"], tmp_path / "merged")
    with pytest.raises(StoreError, match="repair the store first"):
        split_store(source, {tmp_path / "part": np.arange(5)}, how="x")
    report = merge([tmp_path / "a"], tmp_path / "rest", skip_damaged=True)
    assert (report.copied, len(report.damaged)) == (3, 2)
    for name in ("b", "merged", "part", "rest"):
        assert verify_store(tmp_path / name, workers=1).good
