"""Parquet: read by pyarrow, decoded by Pillow, loaded by Hugging Face datasets where it is installed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from converting import schema_of, write_store
from PIL import Image

from rollmill.core.errors import StoreError
from rollmill.core.fields import ActionSpec, Field
from rollmill.store.convert.parquet import Options, export_episodes
from rollmill.store.convert.png import encode_png
from rollmill.store.format.schema import Column

LENGTHS = [9, 4, 1, 30, 12, 7]


def test_every_observation_is_a_row(tmp_path: Path) -> None:
    schema = schema_of(extra=(Column("value", "float64", per="obs"), Column("log_prob", "float32")))
    store, episodes = write_store(tmp_path / "store", schema, LENGTHS)
    told: list[tuple[int, int]] = []
    done = export_episodes(store, np.arange(6), tmp_path / "x", Options(), lambda d, t: told.append((d, t)))
    assert told[-1] == (sum(LENGTHS),) * 2
    table = pq.read_table(tmp_path / "x" / "data")
    assert len(table) == sum(LENGTHS) + 6
    for number, episode in enumerate(episodes):
        rows = table.filter(np.array(table["episode"]) == number).to_pydict()
        n = episode.length
        assert rows["step"] == list(range(n + 1))
        assert rows["is_first"] == [True] + [False] * n
        assert rows["is_last"] == [False] * n + [True]
        assert rows["is_terminal"] == [False] * n + [episode.terminated]
        assert rows["action"] == [*episode.actions.tolist(), None]
        assert rows["reward"] == [*episode.rewards.tolist(), None]
        assert rows["log_prob"] == [*episode.columns["log_prob"].tolist(), None]
        assert rows["value"] == episode.columns["value"].tolist()
        assert rows["observation.vector"] == episode.obs["vector"].tolist()
        assert rows["observation.flags"] == episode.obs["flags"].tolist()
        images = [np.array(Image.open(io.BytesIO(item["bytes"]))) for item in rows["observation.image"]]
        assert np.array_equal(images, episode.obs["image"])
    summary = pq.read_table(tmp_path / "x" / "episodes" / "episodes.parquet").to_pydict()
    assert summary["length"] == LENGTHS
    assert summary["uid"] == [f"{1000 + k:016x}" for k in range(6)]
    assert summary["return"] == store.table.return_.tolist()
    assert [json.loads(text) for text in summary["stats"]] == [{"kills": k} for k in range(6)]
    assert all(file.exists() for file in done.files)
    assert "config_name: steps" in (tmp_path / "x" / "README.md").read_text()


def test_arrays_of_any_shape_and_actions_of_any_kind(tmp_path: Path) -> None:
    fields = (Field("grid", "int16", (2, 3)), Field("grey", "uint8", (8, 6)), Field("first", "uint8", (3, 8, 6)))
    schema = schema_of(fields, ActionSpec("continuous", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)))
    store, (episode,) = write_store(tmp_path / "store", schema, [5])
    export_episodes(store, np.arange(1), tmp_path / "x", Options())
    table = pq.read_table(tmp_path / "x" / "data")
    rows = table.to_pydict()
    assert rows["observation.grid"] == episode.obs["grid"].reshape(6, -1).tolist()
    assert rows["action"] == [*episode.actions.tolist(), None]
    shapes = json.loads(table.schema.metadata[b"rollmill"])["shapes"]
    assert (shapes["observation.grid"], shapes["action"]) == ([2, 3], [2])
    grey = [np.array(Image.open(io.BytesIO(item["bytes"]))) for item in rows["observation.grey"]]
    assert np.array_equal(grey, episode.obs["grey"])
    first = [np.array(Image.open(io.BytesIO(item["bytes"]))) for item in rows["observation.first"]]
    assert np.array_equal(first, episode.obs["first"].transpose(0, 2, 3, 1))


def test_several_files_and_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.store.convert.arrow._GROUP_BYTES", 30_000)
    store, _ = write_store(tmp_path / "store", schema_of(), [12] * 12)
    export_episodes(store, np.arange(12), tmp_path / "x", Options(file_mb=0.1))
    names = sorted(file.name for file in (tmp_path / "x" / "data").iterdir())
    assert len(names) > 2
    assert names == [f"train-{k:05d}-of-{len(names):05d}.parquet" for k in range(len(names))]
    assert pq.ParquetFile(tmp_path / "x" / "data" / names[0]).num_row_groups > 1
    assert np.array_equal(np.array(pq.read_table(tmp_path / "x" / "data")["episode"]), np.repeat(np.arange(12), 13))
    with pytest.raises(StoreError, match="must be positive"):
        export_episodes(store, np.arange(1), tmp_path / "y", Options(file_mb=0))


@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 7, 3), (33, 64, 1)])
def test_png_files_are_lossless(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    read = np.array(Image.open(io.BytesIO(encode_png(image))))
    assert np.array_equal(read.reshape(shape), image)


def test_hugging_face_loads_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    store, episodes = write_store(tmp_path / "store", schema_of(), LENGTHS)
    export_episodes(store, np.arange(6), tmp_path / "x", Options())
    steps = datasets.load_dataset(str(tmp_path / "x"), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(steps) == sum(LENGTHS) + 6
    assert np.array_equal(np.array(steps[3]["observation.image"]), episodes[0].obs["image"][3])
    assert steps[9]["action"] is None
