"""Splitting a store: parts of even size, stable fractions, selections."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from damaging import flip, only_shard, places
from storing import by_uid, make_episode, same, small_schema, write_episodes

from rollmill.core.errors import StoreError
from rollmill.store.care.verify import verify_store
from rollmill.store.derive.split_store import by_fraction, by_number, split_store
from rollmill.store.reader import Store
from rollmill.store.split import Split
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    write_episodes(tmp_path / "all", SCHEMA, [3 + 5 * (k % 7) for k in range(30)])
    return Store(tmp_path / "all")


def uids(path: Path) -> set[int]:
    return set(Store(path).table.uid.tolist())


def test_parts_hold_everything_once_and_are_even(store: Store, tmp_path: Path) -> None:
    parts = by_number(store, np.arange(30), 4)
    assert list(parts) == [f"part-{k:05d}-of-00004" for k in range(4)]
    assert sorted(np.concatenate(list(parts.values()))) == list(range(30))
    sizes = [store.table["bytes"][part].sum() for part in parts.values()]
    assert max(sizes) - min(sizes) <= store.table["bytes"].max()
    done = split_store(store, {tmp_path / "out" / name: part for name, part in parts.items()}, how="parts=4")
    assert sum(part.episodes for part in done) == 30
    for part, numbers in zip(done, parts.values()):
        assert verify_store(part.path, workers=1).good
        made = Store(part.path)
        assert made.table.uid.tolist() == store.table.uid[numbers].tolist(), "in the order of the source"
        assert all(same(made.episode(i), store.episode(int(n))) for i, n in enumerate(numbers))


def test_parts_that_cannot_be(store: Store) -> None:
    with pytest.raises(StoreError, match="at least 1"):
        by_number(store, np.arange(30), 0)
    with pytest.raises(StoreError, match="2 episodes cannot be divided into 3"):
        by_number(store, np.arange(2), 3)
    assert all(len(part) for part in by_number(store, np.arange(30), 30).values())


def test_fractions_follow_the_uid(store: Store) -> None:
    parts = by_fraction(store, np.arange(30), {"validation": 0.3, "train": 0.7})
    assert sorted(np.concatenate(list(parts.values()))) == list(range(30))
    train, validation = Split(0.3)(store.table)
    assert parts["validation"].tolist() == validation.tolist(), "the same as readers split"
    assert parts["train"].tolist() == train.tolist()
    before = set(store.table.uid[parts["validation"]].tolist())
    with StoreWriter(store.path, SCHEMA) as writer:
        for seed in range(30, 60):
            writer.add_episode(make_episode(SCHEMA, 3, seed))
    grown = Store(store.path)
    after = grown.table.uid[by_fraction(grown, np.arange(60), {"validation": 0.3, "train": 0.7})["validation"]]
    assert before <= set(after.tolist())


def test_fractions_below_one_leave_the_rest_out(store: Store) -> None:
    parts = by_fraction(store, np.arange(30), {"a": 0.2, "b": 0.2})
    assert 0 < sum(map(len, parts.values())) < 30
    assert not set(parts["a"].tolist()) & set(parts["b"].tolist())


@pytest.mark.parametrize("fractions", [{}, {"a": 0.0}, {"a": 1.5}, {"a": 0.6, "b": 0.6}])
def test_fractions_that_cannot_be(store: Store, fractions: dict[str, float]) -> None:
    with pytest.raises(StoreError, match="fractions"):
        by_fraction(store, np.arange(30), fractions)


def test_interrupted_and_continued(store: Store, tmp_path: Path) -> None:
    targets = {tmp_path / name: part for name, part in by_number(store, np.arange(30), 3).items()}

    def stop(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split_store(store, targets, how="parts=3", progress=stop)
    assert sum(path.exists() for path in targets) == 2
    told: list[tuple[int, int]] = []
    done = split_store(store, targets, how="parts=3", resume=True, progress=lambda d, t: told.append((d, t)))
    assert [part.episodes for part in done] == [len(part) for part in targets.values()]
    assert done[0].already == done[0].episodes
    assert 0 < done[1].already < done[1].episodes
    assert done[2].already == 0
    assert told[-1] == (store.table.steps,) * 2
    found = [uids(path) for path in targets]
    assert set.union(*found) == set(range(30))
    assert sum(map(len, found)) == 30


def test_a_store_that_has_grown_is_not_continued(store: Store, tmp_path: Path) -> None:
    split_store(store, {tmp_path / "out": np.arange(10)}, how="x")
    with pytest.raises(StoreError, match="was begun with episodes="):
        split_store(store, {tmp_path / "out": np.arange(11)}, how="x", resume=True)


def test_targets_and_damage(store: Store, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(StoreError, match="exists"):
        split_store(store, {tmp_path / "new": np.arange(3), tmp_path / "there": np.arange(3)}, how="x")
    assert not (tmp_path / "new").exists(), "refused before anything is written"
    ref = only_shard(store.path)
    flip(ref.path, places(ref)[7][0][1] + 40)
    with pytest.raises(StoreError, match=r"episode 0+7.*repair the store first"):
        split_store(store, {tmp_path / "new": np.arange(30)}, how="x")
    assert set(by_uid(Store(tmp_path / "new"))) == set(range(7))
