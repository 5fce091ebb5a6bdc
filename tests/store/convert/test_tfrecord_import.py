"""TFRecord files read without TensorFlow: our export comes back as it was, others by what is said about them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from converting import schema_of, write_store
from hypothesis import given
from hypothesis import strategies as st
from storing import same
from tf_messages import Example, SequenceExample

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import ActionSpec, Field
from rollmill.store.care.verify import verify_store
from rollmill.store.convert import sequence_example as wire
from rollmill.store.convert import tfrecord_records
from rollmill.store.convert.tfrecord import Options, export_episodes
from rollmill.store.convert.tfrecord_import import ImportOptions, import_episodes
from rollmill.store.format.framing import frame
from rollmill.store.format.schema import Column
from rollmill.store.reader import Store

LENGTHS = [9, 4, 1, 30, 12, 7]
EXTRA = (Column("value", "float64", per="obs"), Column("big", "uint64"), Column("half", "float16", (2, 2)))
FIELDS = ("obs=frame:uint8:16x16x3", "action=act", "reward=r", "terminated=done")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)


def export(folder: Path, **options: Any) -> tuple[Store, Path]:
    store, _ = write_store(folder / "store", schema_of(**options), LENGTHS)
    export_episodes(store, np.arange(len(LENGTHS)), folder / "x", Options())
    return store, folder / "x"


def write(path: Path, *messages: Any) -> str:
    """Records as protobuf itself writes them."""
    path.write_bytes(b"".join(b"".join(frame([message.SerializeToString()])) for message in messages))
    return str(path)


def fill(feature: Any, values: Any) -> None:
    if isinstance(values, bytes):
        feature.bytes_list.value.append(values)
    elif isinstance(values, list):
        feature.bytes_list.value.extend(values)
    elif np.asarray(values).dtype.kind == "f":
        feature.float_list.value.extend(np.ravel(values))
    else:
        feature.int64_list.value.extend(np.ravel(values).astype(int))


def sequence(context: dict[str, Any], **lists: Any) -> Any:
    message = SequenceExample()
    for name, values in context.items():
        fill(message.context.feature[name], values)
    for name, steps in lists.items():
        for values in steps:
            fill(message.feature_lists.feature_list[name].feature.add(), values)
    return message


def example(**features: Any) -> Any:
    message = Example()
    for name, values in features.items():
        fill(message.features.feature[name], values)
    return message


def load(out: Path) -> Store:
    assert verify_store(out, workers=1).good
    return Store(out)


# ---------------------------------------------------------------------------------------------------- our own export


@pytest.mark.parametrize("action", [ActionSpec("discrete", nvec=(4,), start=(2,)), None])
def test_there_and_back(tmp_path: Path, action: ActionSpec | None) -> None:
    continuous = ActionSpec("continuous", shape=(2,), low=(-1, -1), high=(1, 1))
    store, folder = export(tmp_path, action=action or continuous, extra=EXTRA)
    told: list[tuple[int, int]] = []
    done = import_episodes([str(folder)], tmp_path / "again", ImportOptions(), lambda d, t: told.append((d, t)))
    assert (done.episodes, done.steps, done.notes) == (len(LENGTHS), sum(LENGTHS), [])
    assert told[-1] == (sum(LENGTHS),) * 2
    again = load(tmp_path / "again")
    assert again.schema.to_json() == store.schema.to_json()
    for i in range(len(LENGTHS)):
        ours, theirs = store.episode(i), again.episode(i)
        assert same(theirs, ours)
        assert (theirs.info, theirs.stats) == (ours.info, ours.stats)
        assert (theirs.terminated, theirs.truncated) == (ours.terminated, ours.truncated)


def test_images_of_a_lossy_column_stay_as_they_were_exported(tmp_path: Path) -> None:
    schema = schema_of((Field("image", "uint8", (16, 16, 3)),))
    columns = tuple(
        Column("obs:image", "uint8", (16, 16, 3), "obs", "jpeg:50") if c.per == "obs" else c for c in schema.columns
    )
    store, _ = write_store(tmp_path / "store", type(schema)(schema.env, schema.env_id, columns), [5])
    export_episodes(store, np.arange(1), tmp_path / "x", Options())
    import_episodes([str(tmp_path / "x")], tmp_path / "again", ImportOptions())
    assert same(load(tmp_path / "again").episode(0), store.episode(0))


def test_files_of_different_stores_are_imported_one_by_one(tmp_path: Path) -> None:
    _, one = export(tmp_path / "one")
    _, two = export(tmp_path / "two", env="other")
    with pytest.raises(StoreError, match="different stores"):
        import_episodes([str(one), str(two)], tmp_path / "out", ImportOptions())
    (two / "schema.json").unlink()
    with pytest.raises(StoreError, match="different stores"):
        import_episodes([str(one), str(two)], tmp_path / "out", ImportOptions())


def test_a_schema_that_tells_of_other_columns_is_refused(tmp_path: Path) -> None:
    _, one = export(tmp_path / "one")
    _, two = export(tmp_path / "two", extra=EXTRA)
    (two / "schema.json").replace(one / "schema.json")
    with pytest.raises(StoreError, match=r"record 0 at byte 0 has no value \(it has action"):
        import_episodes([str(one)], tmp_path / "out", ImportOptions())
    (one / "schema.json").write_text("{}")
    with pytest.raises(StoreError, match=r"schema\.json is damaged"):
        import_episodes([str(one)], tmp_path / "out", ImportOptions())
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------------------------------- other programs


def test_a_sequence_example_with_names_of_its_own(tmp_path: Path) -> None:
    frames = [image.tobytes() for image in IMAGES]
    one = sequence({"done": 1}, frame=frames, act=np.array([0, 2, 1]), r=np.array([0.5, 1, 2], np.float32))
    two = sequence({"done": 0}, frame=frames[:2], act=np.array([1, 1]), r=np.array([1, 1], np.float32))
    file = write(tmp_path / "x.tfrecord", one, two)
    done = import_episodes([file], tmp_path / "out", ImportOptions("CarRacing-v3", 3, FIELDS))
    assert (done.episodes, done.steps) == (2, 5)
    store = load(tmp_path / "out")
    assert (store.schema.env_id, store.schema.env.action.nvec) == ("CarRacing-v3", (3,))
    assert np.array_equal(store.episode(0).obs["obs"], IMAGES)
    assert store.episode(0).actions.tolist() == [0, 2, 1]
    assert store.episode(0).rewards.tolist() == [0.5, 1, 2]
    assert store.table["terminated"].tolist() == [True, False]
    assert store.stats(1) == {"final_observation": "repeated"}


def test_an_example_holds_all_steps_of_an_episode(tmp_path: Path) -> None:
    rows = RNG.normal(size=(4, 5)).astype(np.float32)
    acts = RNG.normal(size=(3, 2)).astype(np.float32)
    message = example(state=rows.tobytes(), actions=acts, rewards=np.ones(3, np.float32), dones=np.array([0, 0, 1]))
    file = write(tmp_path / "x.tfrecords", message)
    import_episodes([file], tmp_path / "out", ImportOptions(fields=("obs:vector=state:float32:5",)))
    episode = load(tmp_path / "out").episode(0)
    assert np.array_equal(episode.obs["vector"], rows)
    assert np.array_equal(episode.actions, acts)
    assert episode.terminated
    with pytest.raises(StoreError, match="say what a row is"):
        import_episodes([file], tmp_path / "no", ImportOptions(fields=("obs=state",)))


@pytest.mark.parametrize("ending", [".png", ".jpg"])
def test_a_record_per_step_with_encoded_images(tmp_path: Path, ending: str) -> None:
    encoded = [cv2.imencode(ending, image[..., ::-1])[1].tobytes() for image in IMAGES]
    flags = [0, 1, 0, 0]
    steps = [
        example(frame=data, act=np.array([0.1 * k, 1], np.float32), r=np.float32(k), done=flag)
        for k, (data, flag) in enumerate(zip(encoded, flags))
    ]
    file = write(tmp_path / "x.tfrecord", *steps)
    import_episodes([file], tmp_path / "out", ImportOptions(fields=FIELDS, per_step=True))
    store = load(tmp_path / "out")
    assert store.table.length.tolist() == [2, 1], "the last observation of an episode without an end is its final one"
    assert store.table["terminated"].tolist() == [True, False]
    seen = np.concatenate([store.episode(0).obs["obs"][:2], store.episode(1).obs["obs"]])
    expected = [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1] for data in encoded]
    assert np.array_equal(seen, expected)
    assert ending == ".jpg" or np.array_equal(seen, IMAGES)
    assert store.episode(0).rewards.tolist() == [0, 1]


def test_what_a_feature_is_must_be_said_well(tmp_path: Path) -> None:
    file = write(tmp_path / "x.tfrecord", sequence({}, frame=[b"abc"], act=[1], r=[1.0]))
    with pytest.raises(
        StoreError, match=r"record 0 at byte 0 has no reward \(it has act, frame, r\).*--fields reward="
    ):
        import_episodes([file], tmp_path / "out", ImportOptions())
    with pytest.raises(StoreError, match="has no image"):
        import_episodes([file], tmp_path / "out", ImportOptions(fields=("obs=image", "action=act", "reward=r")))
    with pytest.raises(ConfigError, match="ROLE=FEATURE:DTYPE:SHAPE is expected"):
        import_episodes([file], tmp_path / "out", ImportOptions(fields=("picture=frame",)))


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"frame": [b"abc"]}, r"frame: step 0 has 3 numbers, where \[16, 16, 3\] are expected"),
        ({"frame": [IMAGES[0].tobytes()] * 4}, "4 observations for 2 steps"),
        ({"act": [1]}, "1 actions, 2 rewards"),
        ({"act": [b"ab", 1]}, "step 1 has 1 numbers"),
        ({"act": [1, np.float32(1)]}, "step 1 is float32, those before it are int64"),
        ({"r": []}, "has no r "),
        ({"frame": [b"\x89PNG\r\n\x1a\n"] * 3}, "cut short"),
        (
            {"frame": [b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 11, 8, 60000, 60000, 3)] * 3},
            "image of 60000 x 60000",
        ),
    ],
)
def test_wrong_episodes_are_named(tmp_path: Path, lists: dict[str, Any], message: str) -> None:
    frames = [image.tobytes() for image in IMAGES[:3]]
    whole = {"frame": frames, "act": [1, 2], "r": np.ones(2, np.float32), **lists}
    file = write(tmp_path / "x.tfrecord", sequence({"done": 1}, **whole))
    with pytest.raises(StoreError, match=message) as error:
        import_episodes([file], tmp_path / "out", ImportOptions(fields=FIELDS))
    assert "x.tfrecord" in str(error.value)
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------- hostile files


def damaged(data: bytes, how: str) -> bytes:
    changed = bytearray(data)
    if how == "cut":
        return data[:-5]
    if how == "payload":
        changed[len(data) // 2] ^= 1
    elif how == "length":
        changed[0] ^= 1
    else:
        from rollmill.store.format.framing import masked_crc

        changed[:8] = struct.pack("<Q", 1 << 62)
        changed[8:12] = struct.pack("<I", masked_crc(bytes(changed[:8])))
    return bytes(changed)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "the file ends before it does"),
        ("payload", "the record's checksum does not match"),
        ("length", "the checksum of the record's length does not match"),
        ("huge", "4611686018427387904 bytes, the file ends before it does"),
    ],
)
def test_damaged_records_are_named(tmp_path: Path, how: str, message: str) -> None:
    good = write(tmp_path / "good", example(a=1))
    bad = write(tmp_path / "bad", example(rewards=np.ones(3)))
    file = tmp_path / "x.tfrecord"
    file.write_bytes(Path(good).read_bytes() + damaged(Path(bad).read_bytes(), how))
    place = len(Path(good).read_bytes())
    with pytest.raises(StoreError, match=rf"x\.tfrecord, record 1 at byte {place}: .*{message}"):
        list(tfrecord_records.read_records([file]))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"\x0a\xff\xff\xff\xff\x7f", "a field of 34,359,738,367 bytes, where 0 are left"),
        (b"\x0a" + b"\xff" * 11, "an integer has no end"),
        (b"\x0b", "a field of kind 3"),
        (b"hello", "neither a SequenceExample nor an Example"),
        (b"".join(wire.example({str(k): [] for k in range(10_001)})), "more than 10,000 features"),
        (b"RMB1", "is a shard of a store"),
    ],
)
def test_messages_that_are_none_are_refused(tmp_path: Path, payload: bytes, message: str) -> None:
    file = tmp_path / "x.tfrecord"
    file.write_bytes(b"".join(frame([payload])))
    with pytest.raises(StoreError, match=message):
        list(tfrecord_records.read_records([file]))


def test_what_is_no_tfrecord(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(gzip.compress(bytes(100)))
    with pytest.raises(StoreError, match="is compressed: gunzip"):
        import_episodes([str(tmp_path / "x.tfrecord")], tmp_path / "out", ImportOptions())
    long = b"\x0a\x00" * 17807 + b"\x0a"  # as many bytes as gzip's magic says, read as a length
    (tmp_path / "x.tfrecord").write_bytes(b"".join(frame([long])))
    with pytest.raises(StoreError, match="neither a SequenceExample"):
        import_episodes([str(tmp_path / "x.tfrecord")], tmp_path / "out", ImportOptions())
    with pytest.raises(StoreError, match=r"none\.tfrecord cannot be read"):
        import_episodes([str(tmp_path / "none.tfrecord")], tmp_path / "out", ImportOptions())
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no TFRecord file in this folder"):
        import_episodes([str(tmp_path / "empty")], tmp_path / "out", ImportOptions())
    (tmp_path / "y.tfrecord").touch()
    with pytest.raises(StoreError, match="no episode"):
        import_episodes([str(tmp_path / "y.tfrecord")], tmp_path / "out", ImportOptions())


def test_no_more_memory_is_taken_than_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [image.tobytes() for image in IMAGES]
    file = write(tmp_path / "x.tfrecord", sequence({}, frame=frames, act=[1] * 4, r=[1.0] * 4))
    monkeypatch.setattr(tfrecord_records, "available_memory", lambda: 10_000.0)
    with pytest.raises(StoreError, match=r"record 0 at byte 0: the record has 0\.00 GB, more than the memory"):
        import_episodes([file], tmp_path / "out", ImportOptions(fields=FIELDS))
    black = cv2.imencode(".png", np.zeros((16, 16, 3), np.uint8))[1].tobytes()
    assert len(black) < 100
    file = write(tmp_path / "bomb.tfrecord", sequence({}, frame=[black] * 20, act=[1] * 20, r=[1.0] * 20))
    monkeypatch.setattr(tfrecord_records, "available_memory", lambda: 60_000.0)
    with pytest.raises(StoreError, match="frame: its images take more than the memory"):
        import_episodes([file], tmp_path / "out", ImportOptions(fields=FIELDS))
    steps = [example(frame=frames[0], act=1, r=1.0) for _ in range(40)]
    file = write(tmp_path / "y.tfrecord", *steps)
    monkeypatch.setattr(tfrecord_records, "available_memory", lambda: 100_000.0)
    with pytest.raises(StoreError, match="no record says that the episode of 16 steps has ended"):
        import_episodes([file], tmp_path / "out", ImportOptions(fields=FIELDS[:3], per_step=True))


# ---------------------------------------------------------------------------------------------------------- the format


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    st.lists(st.floats(width=32), max_size=20),
    st.lists(st.binary(max_size=300), max_size=5),
)
def test_what_protobuf_writes_is_read(ints: list[int], floats: list[float], texts: list[bytes]) -> None:
    message = example(ints=np.array(ints, np.int64), floats=np.array(floats, np.float32), texts=texts)
    features, _ = wire.read_message(memoryview(message.SerializeToString()))
    assert wire.read_feature(features["ints"]).numbers().tolist() == ints
    written = np.array(floats, np.float32).tobytes()
    assert wire.read_feature(features["floats"]).numbers().tobytes() == written
    if texts:
        assert list(map(bytes, wire.read_feature(features["texts"]).texts())) == texts


def test_numbers_may_stand_one_by_one() -> None:
    """Older writers do not pack them."""
    floats = b"".join(b"\x0d" + struct.pack("<f", value) for value in (1.5, -2))
    ints = b"\x08\x05\x08" + wire.varint(-3)
    assert wire.Feature(2, memoryview(floats)).numbers().tolist() == [1.5, -2]
    assert wire.Feature(3, memoryview(ints)).numbers().tolist() == [5, -3]


def test_many_integers_are_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_PIECE_BYTES", 16)
    values = RNG.integers(-(2**62), 2**62, 500)
    values[::2] %= 100
    body = b"".join(wire.int64_feature(values))
    assert np.array_equal(wire.read_feature(memoryview(body)).numbers(), values)


@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_make_it_stumble(noise: bytes, place: int) -> None:
    """Whatever is put into a message, an error of ours is the worst that happens."""
    good = sequence({"done": 1}, frame=[b"abc"] * 3, act=[1, 2], r=[0.5, 1.0]).SerializeToString()
    data = good[:place] + noise + good[place + len(noise) :]
    try:
        record = tfrecord_records.Record("here", *wire.read_message(memoryview(data)))
        for name in (*record.features, *record.lists):
            record.rows(tfrecord_records.Wanted(name), 1)
    except (wire.WireError, StoreError):
        pass
