"""Metrics of a store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from damaging import only_shard
from storing import make_episode, small_schema, write_episodes

from rollmill.store.episode import EpisodeInfo
from rollmill.store.info import Spread, describe_store
from rollmill.store.reader import store_bytes
from rollmill.store.writer import StoreWriter


def test_metrics_are_those_of_the_episodes(tmp_path: Path) -> None:
    lengths = [9, 4, 20]
    written = write_episodes(tmp_path, small_schema(), lengths)
    info = describe_store(tmp_path)
    assert (info.episodes, info.rows, info.terminated, info.truncated) == (3, 33, 3, 0)
    assert info.bytes == store_bytes(tmp_path)
    assert info.raw_bytes == sum(array.nbytes for episode in written for array in episode.columns.values())
    assert info.ratio == info.raw_bytes / info.bytes
    assert info.lengths == Spread(11.0, float(np.std(lengths)), 4.0, 9.0, 20.0)
    assert info.returns.mean == pytest.approx(np.mean([episode.return_ for episode in written]))
    assert (info.version_min, info.version_max) == (0, 2 + 19 // 3)
    assert (info.global_step_first, info.global_step_last) == (0, 200 + 4 * 19)
    assert (info.shards_sealed, info.shards_open, info.unfinished, info.duplicates) == (1, 0, 0, 0)
    assert info.problems == []
    assert [column["name"] for column in info.columns] == list(small_schema().names)
    json.dumps(info.to_dict(), allow_nan=False)


def test_what_is_odd_is_counted(tmp_path: Path) -> None:
    schema = small_schema()
    with StoreWriter(tmp_path, schema, block=4) as writer:
        for _ in range(2):
            writer.add_episode(make_episode(schema, 5, 1))
        episode = make_episode(schema, 9, 2, EpisodeInfo(uid=2, first_step=3, policy="expert"))
        writer.begin(0, episode.info)
        writer.append(0, {name: array[:9] for name, array in episode.columns.items()})
        writer.end(0, final=None)
        writer.begin(1)
        writer.append(1, {name: array[:9] for name, array in episode.columns.items()})
        info = describe_store(tmp_path)
        assert (info.shards_open, info.shards_sealed) == (1, 0)
        assert (info.episodes, info.duplicates, info.unfinished) == (3, 1, 1)
        assert (info.partial_start, info.partial_end, info.policies) == (1, 1, ["expert"])
        writer.discard(1)


def test_an_empty_store(tmp_path: Path) -> None:
    write_episodes(tmp_path, small_schema(), [])
    info = describe_store(tmp_path)
    assert (info.episodes, info.rows, info.returns.mean, info.version_min) == (0, 0, None, None)
    json.dumps(info.to_dict(), allow_nan=False)


def test_problems_are_told(tmp_path: Path) -> None:
    write_episodes(tmp_path, small_schema(), [5])
    only_shard(tmp_path).index_path.unlink()
    assert "index is missing" in describe_store(tmp_path).problems[0]
