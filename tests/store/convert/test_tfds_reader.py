"""TensorFlow Datasets reads what we write, where it is installed (``make consumers``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import MANY_KINDS, schema_of, write_store

from rollmill.core.fields import ActionSpec, Field
from rollmill.store.convert.columns import env_actions
from rollmill.store.convert.tfds import Options, export_episodes

tfds = pytest.importorskip("tensorflow_datasets")
LENGTHS = [9, 4, 1, 30, 12, 7]


def test_every_step_of_every_episode(tmp_path: Path) -> None:
    store, episodes = write_store(tmp_path / "store", schema_of(extra=MANY_KINDS), LENGTHS)
    export_episodes(store, np.arange(6), tmp_path / "x", Options(file_mb=0.05))
    builder = tfds.builder_from_directory(str(tmp_path / "x"))
    assert (builder.info.name, builder.info.splits["train"].num_examples) == ("toy", 6)
    assert builder.info.splits["train"].num_shards == 2
    found = list(builder.as_dataset(split="train", read_config=in_order()))
    for i, (record, episode) in enumerate(zip(found, episodes, strict=True)):
        check_metadata(record["episode_metadata"], store.end_record(i))
        rows = gathered(record["steps"])
        n = episode.length
        assert np.array_equal(rows["observation"]["image"], episode.obs["image"])
        assert np.array_equal(rows["observation"]["vector"], episode.obs["vector"])
        assert np.array_equal(rows["observation"]["flags"], episode.obs["flags"])
        assert np.array_equal(rows["action"][:n], env_actions(store.schema.env.action, episode.actions))
        for name in ("reward", "log_prob", "half", "big", "version"):
            assert rows[name].dtype == episode.columns[name].dtype
            assert np.array_equal(rows[name][:n], episode.columns[name]), name
            assert not rows[name][n].any()
        assert rows["value"].tobytes() == episode.columns["value"].tobytes()
        assert rows["is_first"].tolist() == [True] + [False] * n
        assert rows["is_last"].tolist() == [False] * n + [True]
        assert rows["is_terminal"].tolist() == [False] * n + [episode.terminated]
        assert rows["discount"].tolist() == [1.0] * (n - 1) + [1.0 - episode.terminated] * 2


def check_metadata(metadata: Any, end: Any) -> None:
    assert metadata["uid"].numpy().decode() == f"{end.uid:016x}"
    assert metadata["seed"].numpy().decode() == str(end.seed)
    assert metadata["policy"].numpy() == b"expert"
    assert metadata["return"].numpy() == end.return_
    assert [int(metadata[k]) for k in ("length", "terminated")] == [end.length, end.terminated]


def in_order() -> Any:
    return tfds.ReadConfig(interleave_cycle_length=1)


def gathered(steps: Any) -> Any:
    """A dataset of steps as one array per feature."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda *rows: np.stack([row.numpy() for row in rows]), *steps)


def test_arrays_of_any_shape_and_actions_of_any_kind(tmp_path: Path) -> None:
    fields = (Field("grid", "int16", (2, 3)), Field("grey", "uint8", (8, 6)), Field("stack", "uint8", (8, 6, 4)))
    action = ActionSpec("continuous", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    store, (episode,) = write_store(tmp_path / "store", schema_of(fields, action), [5])
    export_episodes(store, np.arange(1), tmp_path / "doom" / "1.0.0", Options(name="doom"))
    (record,) = tfds.load("doom:1.0.0", split="train", data_dir=str(tmp_path))
    rows = gathered(record["steps"])
    assert np.array_equal(rows["observation"]["grid"], episode.obs["grid"])
    assert np.array_equal(rows["observation"]["grey"][..., 0], episode.obs["grey"])
    assert np.array_equal(rows["observation"]["stack"], episode.obs["stack"])
    assert np.array_equal(rows["action"][:5], np.clip(episode.actions, -1, 1))
