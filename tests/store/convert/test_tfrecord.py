"""TFRecord files: checked by protobuf itself, by a TFRecord walk, and by TensorFlow where it is installed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import schema_of, write_store
from hypothesis import given
from hypothesis import strategies as st
from tf_messages import SequenceExample, records

from rollmill.core.errors import StoreError
from rollmill.core.fields import Field
from rollmill.store.care.verify import verify
from rollmill.store.convert import sequence_example as wire
from rollmill.store.convert.tfrecord import Options, export_episodes
from rollmill.store.format.schema import Column

LENGTHS = [9, 4, 1, 30, 12, 7]
EXTRA = (Column("value", "float64", per="obs"), Column("big", "uint64"), Column("half", "float16", (2, 2)))


def parse(pieces: list[bytes]) -> Any:
    message = SequenceExample()
    message.ParseFromString(b"".join(pieces))
    return message


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    st.lists(st.floats(width=32), max_size=20),
    st.lists(st.binary(max_size=300), max_size=5),
    st.text(max_size=10),
)
def test_protobuf_reads_what_was_written(ints: list[int], floats: list[float], texts: list[bytes], name: str) -> None:
    context = {name: wire.int64_feature(ints), name + "f": wire.float_feature(np.array(floats, np.float32))}
    message = parse(wire.sequence_example(context, {"x": [wire.bytes_feature([text]) for text in texts]}))
    assert list(message.context.feature[name].int64_list.value) == ints
    written = struct.pack(f"<{len(floats)}f", *floats)
    assert struct.pack(f"<{len(floats)}f", *message.context.feature[name + "f"].float_list.value) == written
    assert [feature.bytes_list.value[0] for feature in message.feature_lists.feature_list["x"].feature] == texts


def test_every_episode_is_one_record(tmp_path: Path) -> None:
    store, episodes = write_store(tmp_path / "store", schema_of(extra=EXTRA), LENGTHS)
    told: list[tuple[int, int]] = []
    done = export_episodes(store, np.arange(6), tmp_path / "x", Options("doom"), lambda d, t: told.append((d, t)))
    assert [file.name for file in done.files] == ["features.json", "doom.tfrecord-00000-of-00001", "schema.json"]
    assert told[-1] == (sum(LENGTHS),) * 2
    features = json.loads((tmp_path / "x" / "features.json").read_text())
    payloads = records(done.files[1])
    assert len(payloads) == 6
    for i, (payload, episode) in enumerate(zip(payloads, episodes)):
        message = SequenceExample()
        message.ParseFromString(payload)
        check_context(message.context.feature, store.end_record(i))
        lists = message.feature_lists.feature_list
        assert set(lists) == set(features) == {*store.schema.names, "step"}
        for name, feature in features.items():
            rows = [values_of(item, feature) for item in lists[name].feature]
            expected = episode.column(name)
            assert len(rows) == episode.length + (feature["rows"] == "length + 1")
            assert np.array(rows).astype(expected.dtype).tobytes() == expected.tobytes(), name


def values_of(item: Any, feature: dict[str, Any]) -> Any:
    if feature["list"] == "bytes":
        return np.frombuffer(item.bytes_list.value[0], feature["dtype"]).reshape(feature["shape"])
    values = item.float_list.value if feature["list"] == "float" else item.int64_list.value
    return np.array(values).reshape(feature["shape"])


def check_context(context: Any, end: Any) -> None:
    for name in ("length", "first_step", "policy_id", "version_min", "version_max", "worker", "lane", "seed"):
        assert list(context[name].int64_list.value) == [getattr(end, name)], name
    assert bool(context["terminated"].int64_list.value[0]) == end.terminated
    assert bool(context["truncated"].int64_list.value[0]) == end.truncated
    assert context["uid"].bytes_list.value[0].decode() == f"{end.uid:016x}"
    assert context["policy"].bytes_list.value[0] == b"expert"
    assert context["return"].float_list.value[0] == np.float32(end.return_)


def test_files_of_even_size_with_their_number_in_the_name(tmp_path: Path) -> None:
    store, _ = write_store(tmp_path / "store", schema_of(), [10] * 40)
    done = export_episodes(store, np.arange(40), tmp_path / "x", Options(file_mb=0.4))
    names = sorted(file.name for file in (tmp_path / "x").glob("*.tfrecord-*"))
    count = len(names)
    assert names == [f"episodes.tfrecord-{k:05d}-of-{count:05d}" for k in range(count)]
    sizes = [(tmp_path / "x" / name).stat().st_size for name in names]
    assert count > 3
    assert max(sizes) < 400_000 * 1.05
    assert min(sizes) > 200_000 * 0.95
    assert sum(len(records(tmp_path / "x" / name)) for name in names) == 40
    assert verify([str(tmp_path / "x" / "*.tfrecord-*")], workers=1).good
    assert done.bytes > sum(sizes)
    (tmp_path / "x" / names[1]).unlink()
    assert "missing" in verify([str(tmp_path / "x" / "*.tfrecord-*")], workers=1).lines()[0]


def test_the_forecast_of_sizes_is_close(tmp_path: Path) -> None:
    from rollmill.store.convert.tfrecord import _sizes

    for number, fields in enumerate([(Field("obs", "float32", (4,)),), (Field("image", "uint8", (72, 128, 3)),)]):
        store, _ = write_store(tmp_path / str(number), schema_of(fields), [50] * 4)
        done = export_episodes(store, np.arange(4), tmp_path / f"x{number}", Options())
        assert done.files[1].stat().st_size == pytest.approx(_sizes(store.schema, store.table.length).sum(), rel=0.3)


def test_wishes_that_cannot_be_met(tmp_path: Path) -> None:
    store, _ = write_store(tmp_path / "store", schema_of(), [3])
    for options in (Options(file_mb=0), Options(""), Options("a/b")):
        with pytest.raises(StoreError):
            export_episodes(store, np.arange(1), tmp_path / "x", options)
        assert not (tmp_path / "x").exists()


def test_tensorflow_reads_it(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    store, episodes = write_store(tmp_path / "store", schema_of(), LENGTHS)
    done = export_episodes(store, np.arange(6), tmp_path / "x", Options())
    for record, episode in zip(tf.data.TFRecordDataset([str(done.files[1])]), episodes):
        context, lists = tf.io.parse_single_sequence_example(
            record,
            {"length": tf.io.FixedLenFeature([], tf.int64)},
            {
                "obs:image": tf.io.FixedLenSequenceFeature([], tf.string),
                "obs:vector": tf.io.FixedLenSequenceFeature([2], tf.float32),
                "action": tf.io.FixedLenSequenceFeature([], tf.int64),
            },
        )
        assert int(context["length"]) == episode.length
        assert np.array_equal(lists["action"], episode.actions)
        assert np.array_equal(lists["obs:vector"], episode.obs["vector"])
        images = tf.io.decode_raw(lists["obs:image"], tf.uint8)
        assert np.array_equal(np.reshape(images, (-1, 36, 40, 3)), episode.obs["image"])
