"""Retrieval: what followed the nearest stored steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from dreaming import line_model, open_line

from rollmill.core.errors import StoreError
from rollmill.store.reader import Store
from rollmill.worldmodel.controller.settings import RetrievalSettings
from rollmill.worldmodel.dynamics.retrieval import RetrievalIndex, build_index


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_line(tmp_path_factory.mktemp("line") / "store", 20) as opened:
        yield opened


def settings(**values: object) -> RetrievalSettings:
    return RetrievalSettings(**{"neighbours": 3, "store": Path("x"), "size": 50, "horizon": 2, **values})  # type: ignore[arg-type]


def test_the_nearest_are_found_and_weighted_by_nearness() -> None:
    keys = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    values = torch.tensor([[1.0], [3.0], [100.0]])
    index = RetrievalIndex(keys, values, torch.ones(2), 2)
    said = index.recall(torch.tensor([[0.25, 0.0], [9.0, 9.0]]), None)
    weight = 1 / (1 + np.exp(-(0.75 - 0.25)))
    assert said[0].item() == pytest.approx(weight * 1 + (1 - weight) * 3, abs=1e-5)
    assert said[1].item() == pytest.approx(100.0, abs=0.01)


def test_values_are_what_followed(store: Store) -> None:
    index = build_index(store, None, settings(size=10_000), seed=0)
    read = store.read(0, 0, int(store.table.length[0]), ["obs:mean", "reward"], next_obs=True)
    z, reward = read["obs:mean"], read["reward"]
    change = np.array([z[2, 0] - z[0, 0], z[2, 1] - z[0, 1], reward[:2].sum()])
    row = int(torch.cdist(torch.from_numpy(z[:1]) / index.scale, index.keys).argmin())
    scaled = index.values[row].numpy()
    assert np.sign(scaled[np.abs(change) > 1e-6]).tolist() == np.sign(change[np.abs(change) > 1e-6]).tolist()


def test_memory_is_part_of_the_key_where_there_is_one(store: Store) -> None:
    model = line_model()
    index = build_index(store, model, settings(), seed=0)
    assert index.keys.shape == (50, 2 + 8)
    assert index.recall(torch.zeros(4, 2), torch.zeros(4, 8)).shape == (4, 3)
    assert build_index(store, line_model(memory="none"), settings(), seed=0).keys.shape == (50, 2)
    again = build_index(store, model, settings(), seed=0)
    assert torch.equal(index.keys, again.keys)


def test_too_little_experience_is_said(store: Store) -> None:
    with pytest.raises(StoreError, match="no episode has the 500 steps"):
        build_index(store, None, settings(horizon=500), seed=0)
    with pytest.raises(StoreError, match=r"steps to remember, but retrieval\.neighbours=3000"):
        build_index(store, None, settings(neighbours=3000, size=4000), seed=0)
