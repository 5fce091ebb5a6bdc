from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storing import make_episode, tiny_schema

from rollmill.core.errors import ConfigError
from rollmill.core.seeds import Seeds
from rollmill.store.reader import Store
from rollmill.store.shuffle import Shuffle
from rollmill.store.split import Split, mix, position
from rollmill.store.writer import StoreWriter

UIDS = st.lists(st.integers(0, 2**64 - 1), max_size=50)


def test_a_split_stays_when_the_store_grows(tmp_path: Path) -> None:
    schema = tiny_schema()

    def add(uids: range) -> None:
        with StoreWriter(tmp_path, schema) as writer:
            for uid in uids:
                writer.add_episode(make_episode(schema, 1 + uid % 3, uid))

    split = Split(0.3, seed=5)
    add(range(40))
    store = Store(tmp_path)
    train, validation = split(store.table)
    before = {int(uid) for uid in store.table.uid[validation]}
    assert 0 < len(before) < 40
    assert sorted([*train, *validation]) == list(range(40))
    add(range(40, 60))
    store.refresh()
    grown = split(store.table)
    assert set(grown[0]) >= set(train)
    assert set(grown[1]) >= set(validation)
    assert sorted(np.concatenate(grown)) == list(range(60))
    # Another reader, who finds the episodes in another order or a part of them only, agrees.
    chosen = np.array([7, 3, 50, 11])
    train, validation = split(store.table, chosen)
    assert [i for i in chosen if i in set(grown[1])] == validation.tolist()
    assert [i for i in chosen if i in set(grown[0])] == train.tolist()


@given(UIDS, st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**70))
@settings(deadline=None)
def test_sides_depend_on_uid_and_seed_alone(uids: list[int], one: float, other: float, seed: int) -> None:
    small, large = Split(min(one, other), seed), Split(max(one, other), seed)
    together = small.is_validation(np.array(uids, np.uint64))
    assert together.tolist() == [bool(small.is_validation([np.uint64(uid)])[0]) for uid in uids]
    assert not (together & ~large.is_validation(np.array(uids, np.uint64))).any(), (
        "a larger share keeps the smaller one"
    )


def test_shares_are_met_and_seeds_differ() -> None:
    uids = np.arange(100_000, dtype=np.uint64)  # as regular as uids can be
    for share in (0.0, 0.01, 0.1, 0.5, 1.0):
        assert abs(Split(share).is_validation(uids).mean() - share) < 0.005
    first, second = Split(0.5, 0).is_validation(uids), Split(0.5, 1).is_validation(uids)
    assert abs((first == second).mean() - 0.5) < 0.01


def test_the_hash_never_changes() -> None:
    """Written down: a split made today must hold next year, on another machine."""
    assert [f"{value:016x}" for value in mix(np.array([0, 1, 2**64 - 1], np.uint64)).tolist()] == [
        "e220a8397b1dcdaf",
        "910a2dec89025cc1",
        "e4d971771b652c20",
    ]
    assert position(np.array([0, 1], np.uint64), 0).tolist() == [0.6524484863740322, 0.03401170130434639]


@pytest.mark.parametrize(("share", "seed"), [(-0.1, 0), (1.5, 0), (float("nan"), 0), (0.1, -1)])
def test_wrong_splits_are_refused(share: float, seed: int) -> None:
    with pytest.raises(ConfigError, match="split"):
        Split(share, seed)


@given(st.integers(1, 3000), st.integers(0, 10))
@settings(max_examples=50, deadline=None)
def test_a_shuffle_has_every_number_once(n: int, seed: int) -> None:
    shuffle = Shuffle(n, Seeds(seed))
    order = shuffle(np.arange(n))
    assert np.array_equal(np.sort(order), np.arange(n))
    assert shuffle([n // 2]).tolist() == [order[n // 2]]


def test_shuffles_are_mixed_and_differ_by_seed() -> None:
    n = 10_000
    orders = [Shuffle(n, Seeds(seed))(np.arange(n)) for seed in range(2)]
    for order in orders:
        assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.05
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert (orders[0] == orders[1]).mean() < 0.01
    with pytest.raises(IndexError, match="order of 10000"):
        Shuffle(n, Seeds(0))([n])
    with pytest.raises(IndexError):
        Shuffle(n, Seeds(0))([-1])
