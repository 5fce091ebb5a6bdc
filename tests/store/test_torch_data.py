from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from storing import small_schema, write_episodes
from torch.utils.data import DataLoader

from rollmill.core.errors import ConfigError
from rollmill.store.cache import DecodedCache
from rollmill.store.reader import Store
from rollmill.store.streams import Order, stream_windows
from rollmill.store.torch_data import Batches, ObservationStream, ViewDataset, WindowStream
from rollmill.store.views import Observations, Transitions, Windows

LENGTHS = [7, 1, 20, 33, 8, 16, 5]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("torch") / "store"
    write_episodes(path, small_schema(), LENGTHS, block=4)
    return Store(path)


def rows(batches: Any) -> list[bytes]:
    """Every entry of every batch as bytes, in order."""
    found = []
    for batch in batches:
        arrays = {name: value.numpy() for name, value in batch.items()}
        count = len(next(iter(arrays.values())))
        found += [b"".join(arrays[name][k].tobytes() for name in sorted(arrays)) for k in range(count)]
    return found


def test_entries_are_tensors_of_the_view(store: Store) -> None:
    view = Windows(store, 6, pad="left")
    data = ViewDataset(view)
    assert len(data) == len(view)
    batch = data[[3, 50]]
    for name, array in view.batch([3, 50]).items():
        assert torch.equal(batch[name], torch.from_numpy(array))
        assert torch.equal(data[50][name], batch[name][1])
    single = ViewDataset(Transitions(store))[4]
    assert single["reward"].shape == ()
    assert single["next_obs:image"].dtype == torch.uint8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_works_too(store: Store, workers: int) -> None:
    for view in (Windows(store, 6), Transitions(store)):
        loader = DataLoader(ViewDataset(view), batch_size=16, num_workers=workers)
        assert rows(loader) == rows([ViewDataset(view)[list(range(len(view)))]])


def load(view: Any, workers: int, epoch: int = 0, **options: Any) -> list[bytes]:
    order = Batches(view, 8, **options)
    order.set_epoch(epoch)
    return rows(DataLoader(ViewDataset(view), sampler=order, batch_size=None, num_workers=workers))


def test_the_order_follows_from_seed_and_epoch_whatever_the_workers(store: Store) -> None:
    view = Windows(store, 6)
    base = load(view, 0, seed=1)
    assert base == load(view, 1, seed=1) == load(view, 2, seed=1)
    everything = sorted(rows([ViewDataset(view)[list(range(len(view)))]]))
    for other in (load(view, 0, seed=2), load(view, 0, seed=1, epoch=1)):
        assert other != base
        assert sorted(other) == sorted(base) == everything
    drawn = load(view, 0, weights="length", seed=3)
    assert drawn == load(view, 2, weights="length", seed=3)
    assert len(drawn) == len(view)
    assert drawn != load(view, 0, weights="length", seed=3, epoch=1)


@given(st.integers(1, 7), st.integers(1, 20), st.booleans(), st.booleans(), st.lists(st.integers(0, 6), max_size=3))
@settings(max_examples=60, deadline=None)
def test_ranks_share_an_epoch_in_equal_batches(
    store: Store, world: int, size: int, drop_last: bool, shuffle: bool, episodes: list[int]
) -> None:
    view = Windows(store, 4, episodes=episodes)
    orders = [
        Batches(view, size, seed=5, rank=rank, world=world, drop_last=drop_last, shuffle=shuffle)
        for rank in range(world)
    ]
    lists = [list(order) for order in orders]
    assert [len(some) for some in lists] == [len(order) for order in orders]
    assert len({tuple(len(batch) for batch in some) for some in lists}) == 1, "all ranks take equal batches"
    flat = [index for some in lists for batch in some for index in batch]
    counts = np.bincount(np.array(flat, np.int64), minlength=len(view))
    if drop_last:
        assert counts.max(initial=0) <= 1
        assert len(view) - len(flat) < size * world
    else:
        assert counts.min(initial=1) >= 1
        assert len(flat) - len(view) < world
    if not shuffle and world == 1:
        assert flat == list(range(len(flat)))


def test_drawing_differs_between_ranks(store: Store) -> None:
    view = Windows(store, 4)
    lists = [list(Batches(view, 8, rank=rank, world=2, weights="episodes")) for rank in range(2)]
    assert lists[0] != lists[1]


@pytest.mark.parametrize(("workers", "world"), [(0, 1), (2, 1), (2, 3)])
def test_streams_are_shared_out_over_workers_and_ranks(store: Store, workers: int, world: int) -> None:
    view = Windows(store, 6)

    def run(**options: Any) -> list[list[bytes]]:
        found = []
        for rank in range(world):
            stream = WindowStream(view, 8, rank=rank, world=world, pool_bytes=3000, **options)
            found.append(rows(DataLoader(stream, batch_size=None, num_workers=workers)))
        return found

    base = run(seed=4)
    assert base == run(seed=4)
    assert base != run(seed=5)
    assert sorted(itertools.chain(*base)) == sorted(rows([ViewDataset(view)[list(range(len(view)))]]))
    if workers == 0:
        plain = stream_windows(view, 8, Order(4), pool_bytes=3000)
        assert base[0] == rows({name: torch.from_numpy(a) for name, a in batch.items()} for batch in plain)


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_see_a_new_epoch(store: Store, persistent: bool) -> None:
    stream = ObservationStream(Observations(store, per_episode=5), 8, buffer=10)
    loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=persistent)
    passes = []
    for epoch in (0, 0, 1):
        stream.set_epoch(epoch)
        passes.append(rows(loader))
    assert passes[0] == passes[1]
    assert passes[0] != passes[2]
    assert len(passes[0]) == len(set(passes[0])) == len(stream.view)


def test_streams_of_transitions_and_without_end(store: Store) -> None:
    view = Transitions(store)
    everything = sorted(rows([ViewDataset(view)[list(range(len(view)))]]))
    stream = WindowStream(view, 16, repeat=True, drop_last=False, seed=2)
    batches = iter(stream)
    count = -(-len(view) // 16)
    first, second = (rows(next(batches) for _ in range(count)) for _ in range(2))
    assert sorted(first) == sorted(second) == everything
    assert first != second
    nothing = WindowStream(Windows(store, 4, episodes=[]), 4, repeat=True)
    assert list(nothing) == [], "an empty selection ends, repeated or not"


def test_loaders_that_spawn_their_workers(store: Store, tmp_path: Path) -> None:
    cache = DecodedCache(store, tmp_path)
    view = Windows(cache, 6, columns=["obs:vector", "action"])
    options: dict[str, Any] = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "spawn"}
    loader = DataLoader(ViewDataset(view), sampler=Batches(view, 64, seed=1), **options)
    assert rows(loader) == rows(ViewDataset(view)[batch] for batch in Batches(view, 64, seed=1))


def test_wrong_options_are_refused(store: Store) -> None:
    view = Windows(store, 4)
    with pytest.raises(ConfigError, match="batch_size 0"):
        Batches(view, 0)
    with pytest.raises(ConfigError, match="shuffle=False contradicts"):
        Batches(view, 4, weights="length", shuffle=False)
    for make in (lambda: Batches(view, 4, rank=2, world=2), lambda: WindowStream(view, 4, rank=2, world=2)):
        with pytest.raises(ConfigError, match="part"):
            make()
