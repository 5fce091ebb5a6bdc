import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from storing import SPEC, small_schema

from rollmill.core.errors import StoreError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.format.schema import (
    Column,
    StoreSchema,
    create_store,
    load_schema,
    parse_schema,
    schema_text,
    store_at,
)


def test_the_schema_of_an_environment_has_all_its_columns() -> None:
    schema = small_schema()
    assert schema.names == (
        *("obs:image", "obs:vector", "obs:action_mask", "action"),
        *("reward", "global_step", "version", "log_prob", "value"),
    )
    assert [c.name for c in schema.obs_columns] == ["obs:image", "obs:vector", "obs:action_mask", "value"]
    assert schema["obs:image"].codec == "planes:1"
    assert schema["reward"].codec == "shuffle:1"
    assert schema.row_bytes == 36 + 8 + 3 + 8 + 4 + 8 + 8 + 4 + 8
    assert schema.env_id == "toy"


def test_a_schema_survives_json() -> None:
    schema = small_schema(image_codec="zstd:-3", created_by="a test", env_settings={"task": "one"})
    back = StoreSchema.from_json(json.loads(json.dumps(schema.to_json())))
    assert back == schema
    assert (back.hash, back.layout) == (schema.hash, schema.layout)


def test_infinite_bounds_survive_json() -> None:
    bounds = {"low": (-np.inf, -0.1), "high": (np.inf, 1 / 3)}
    spec = replace(SPEC, action=ActionSpec("continuous", shape=(2,), **bounds))
    schema = StoreSchema.for_env(spec)
    assert parse_schema(schema_text(schema), "here").env.action == spec.action


def test_who_made_a_schema_does_not_change_its_hash_and_codecs_not_its_layout() -> None:
    schema = small_schema()
    assert replace(schema, created_by="somebody").hash == schema.hash
    assert replace(schema, env_settings={"max_episode_steps": 9}).hash == schema.hash
    faster = small_schema(image_codec="zstd:-5")
    assert faster.hash != schema.hash
    assert faster.layout == schema.layout
    assert small_schema(image_codec="jpeg:90").layout != schema.layout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("9lives", "uint8"), "9lives"),
        (("step", "int64"), "computed by readers"),
        (("a", "complex64"), "cannot be stored"),
        (("a", "object"), "cannot be stored"),
        (("a", "uint8", (-1,)), "bad shape"),
        (("a", "uint8", (), "row"), "must be 'obs' or 'step'"),
        (("a", "uint8", (), "step", "lzma"), "unknown codec"),
        (("a", "float32", (4, 4, 3), "step", "jpeg:90"), "jpeg is for uint8 images"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Column(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (lambda c: (*c, c[0]), "appears twice"),
        (lambda c: c[1:], "observation column"),
        (lambda c: tuple(x for x in c if x.name != "reward"), "needs the column 'reward'"),
        (lambda c: tuple(x for x in c if x.name != "action"), "needs the column 'action'"),
        (lambda c: tuple(replace(x, dtype="int32") if x.name == "version" else x for x in c), "one int64 per step"),
        (lambda c: (Column("v", "bool", per="obs"), replace(c[0], per="step"), *c[1:]), "one row more"),
        (lambda c: tuple(replace(x, per="obs") if x.name == "action" else x for x in c), "per='step'"),
    ],
)
def test_incomplete_schemas_are_refused(columns: object, message: str) -> None:
    spec = EnvSpec("t", (Field("x", "uint8"),), ActionSpec("discrete", nvec=(3,), start=(0,)))
    good = StoreSchema.for_env(spec)
    with pytest.raises(StoreError, match=message):
        replace(good, columns=columns(good.columns))  # type: ignore[operator]


def test_values_that_json_lacks_are_refused() -> None:
    with pytest.raises(StoreError, match="JSON"):
        small_schema(env_kwargs={"x": object()})
    with pytest.raises(StoreError, match="JSON"):
        small_schema(env_kwargs={"x": float("nan")})


def test_an_equal_schema_joins_a_store_and_another_is_told_the_differences(tmp_path: Path) -> None:
    created = create_store(tmp_path / "s", small_schema(created_by="the first"))
    joined = create_store(tmp_path / "s", small_schema(created_by="the second", env_kwargs={"size": 3}))
    assert joined == created
    other = replace(
        small_schema(env_kwargs={"size": 4}, extra=(Column("value", "float32", per="obs"),)), env_id="another"
    )
    with pytest.raises(StoreError) as caught:
        create_store(tmp_path / "s", other)
    text = str(caught.value)
    for part in (
        *(
            "env_id: 'another' here, 'toy' there",
            '{"size": 4} here, {"size": 3} there',
            "column log_prob: missing here",
        ),
        "column value: float32 scalar per obs (shuffle:1) here, float64",
    ):
        assert part in text
    assert load_schema(tmp_path / "s").created_by == "the first"


def test_the_order_of_columns_matters_and_is_named(tmp_path: Path) -> None:
    schema = small_schema()
    create_store(tmp_path, schema)
    with pytest.raises(StoreError, match="order of columns"):
        create_store(tmp_path, replace(schema, columns=schema.columns[::-1]))


def _create(path: str, size: int, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    try:
        create_store(Path(path), small_schema(env_kwargs={"size": size}, created_by=f"process {size}"))
        results.put("ok")  # type: ignore[attr-defined]
    except StoreError as error:
        results.put(str(error))  # type: ignore[attr-defined]


@pytest.mark.parametrize("sizes", [[3, 3, 3, 3], [3, 4]])
def test_processes_that_create_a_store_at_once(tmp_path: Path, sizes: list[int]) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        path = tmp_path / str(attempt)
        barrier, results = context.Barrier(len(sizes)), context.Queue()
        processes = [context.Process(target=_create, args=(str(path), n, barrier, results)) for n in sizes]
        for process in processes:
            process.start()
        answers = sorted(results.get(timeout=60) for _ in processes)
        for process in processes:
            process.join()
        if len(set(sizes)) == 1:
            assert answers == ["ok"] * len(sizes)
        else:
            assert answers[1] == "ok"
            assert "env_kwargs" in answers[0]
        assert sorted(p.name for p in path.iterdir()) == ["index", "shards", "store.json"]


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is not a store: store\.json is missing"):
        load_schema(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is not a store"):
        load_schema(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be created"):
        create_store(tmp_path / "file", small_schema())


def test_a_run_folder_means_the_recording_in_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(StoreError, match="is not a store: there is no such folder"):
        load_schema(tmp_path / "nowhere")
    (run / "config.yaml").touch()
    assert store_at(run) == run
    with pytest.raises(StoreError, match="it is a run that has recorded nothing"):
        load_schema(store_at(run))
    create_store(run / "data", small_schema())
    assert store_at(run) == store_at(str(run / "data")) == run / "data"
    (run / "data/store.json").unlink()
    assert store_at(run) == run / "data"  # damaged, and still what is meant
    create_store(run, small_schema())
    assert store_at(run) == run  # a store itself


def test_every_flipped_bit_of_the_schema_file_is_noticed(tmp_path: Path) -> None:
    create_store(tmp_path, small_schema())
    good = (tmp_path / "store.json").read_bytes()
    schema, refused = load_schema(tmp_path), 0
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        try:
            assert parse_schema(bad.decode(), "here") == schema  # white space may change
        except (StoreError, UnicodeDecodeError):
            refused += 1
    assert refused > 0.8 * len(good)
    (tmp_path / "store.json").write_bytes(b"\xff" + good)
    with pytest.raises(StoreError, match="cannot be read"):
        load_schema(tmp_path)


def test_a_store_of_a_newer_version_is_named() -> None:
    data = small_schema().to_json()
    with pytest.raises(StoreError, match="newer version of rollmill"):
        StoreSchema.from_json({**data, "version": 99})
    with pytest.raises(StoreError, match="makes no sense"):
        StoreSchema.from_json({"version": 1})


def test_unknown_columns_are_named() -> None:
    with pytest.raises(StoreError, match="no column 'nothing'"):
        small_schema()["nothing"]
