"""Datasets for TensorFlow Datasets: records parsed by protobuf. ``test_tfds_reader`` has TFDS itself read them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import MANY_KINDS, schema_of, write_store
from PIL import Image
from tf_messages import Example, records

from rollmill.core.errors import StoreError
from rollmill.store.convert.tfds import Options, export_episodes
from rollmill.store.episode import Episode

LENGTHS = [9, 4, 1, 30, 12, 7]


def test_every_episode_is_one_record(tmp_path: Path) -> None:
    store, episodes = write_store(tmp_path / "store", schema_of(extra=MANY_KINDS), LENGTHS)
    told: list[tuple[int, int]] = []
    done = export_episodes(store, np.arange(6), tmp_path / "x", Options(), lambda d, t: told.append((d, t)))
    assert told[-1] == (sum(LENGTHS),) * 2
    names = ["features.json", "dataset_info.json", "toy-train.tfrecord-00000-of-00001"]
    assert [file.name for file in done.files] == names
    described = flat(json.loads(done.files[0].read_text()))
    payloads = records(done.files[2])
    assert len(payloads) == 6
    for payload, episode in zip(payloads, episodes):
        message = Example()
        message.ParseFromString(payload)
        assert set(message.features.feature) == set(described)
        check_rows(dict(message.features.feature.items()), episode)


def flat(feature: dict[str, Any], name: str = "") -> dict[str, Any]:
    """The leaves of ``features.json`` by the names they have in a record."""
    if "sequence" in feature:
        return flat(feature["sequence"]["feature"], name)
    if "featuresDict" not in feature:
        return {name: feature}
    inner = feature["featuresDict"]["features"]
    return {key: leaf for part, sub in inner.items() for key, leaf in flat(sub, f"{name}/{part}".strip("/")).items()}


def check_rows(found: dict[str, Any], episode: Episode) -> None:
    n = episode.length
    images = [np.array(Image.open(io.BytesIO(file))) for file in found["steps/observation/image"].bytes_list.value]
    assert np.array_equal(images, episode.obs["image"])
    vectors = np.array(found["steps/observation/vector"].float_list.value, np.float32)
    assert np.array_equal(vectors.reshape(n + 1, 2), episode.obs["vector"])
    assert list(found["steps/action"].int64_list.value)[:n] == (episode.actions + 2).tolist()  # counted from the start
    big = [np.frombuffer(item, np.uint64)[0] for item in found["steps/big"].bytes_list.value]
    assert np.array_equal(big[:n], episode.columns["big"])
    assert list(found["steps/is_terminal"].int64_list.value) == [0] * n + [int(episode.terminated)]
    assert list(found["steps/discount"].float_list.value)[n - 1 :] == [1.0 - episode.terminated] * 2
    assert found["episode_metadata/length"].int64_list.value[0] == n


def test_files_of_a_size_and_what_is_said_of_them(tmp_path: Path) -> None:
    store, _ = write_store(tmp_path / "store", schema_of(env="Doom Basic-v1"), [10] * 12)
    done = export_episodes(store, np.arange(12), tmp_path / "x", Options(file_mb=0.1))
    info = json.loads((tmp_path / "x" / "dataset_info.json").read_text())
    (split,) = info["splits"]
    count = len(split["shardLengths"])
    assert count > 2
    names = [f"doom_basic_v1-train.tfrecord-{k:05d}-of-{count:05d}" for k in range(count)]
    assert [file.name for file in done.files[2:]] == names
    assert [len(records(tmp_path / "x" / name)) for name in names] == list(map(int, split["shardLengths"]))
    assert int(split["numBytes"]) == sum((tmp_path / "x" / name).stat().st_size for name in names)


def test_wishes_that_cannot_be_met(tmp_path: Path) -> None:
    store, _ = write_store(tmp_path / "store", schema_of(), [3])
    for options in (Options(file_mb=0), Options(""), Options("a-b"), Options("3d")):
        with pytest.raises(StoreError):
            export_episodes(store, np.arange(1), tmp_path / "x", options)
        assert not (tmp_path / "x").exists()
