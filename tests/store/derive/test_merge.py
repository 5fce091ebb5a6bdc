"""Merge: all episodes once, schemas agree or the difference is named, any interruption can be continued."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from damaging import flip, only_shard, places
from storing import SPEC, by_uid, make_episode, same, small_schema, write_episodes

from rollmill.core.errors import StoreError, StoreFull
from rollmill.store.care.verify import verify_store
from rollmill.store.derive import derivation as derive
from rollmill.store.derive.merge import merge
from rollmill.store.format import open_shard
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.format.shards import list_shards
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()


def write(path: Path, seeds: range, steps: int = 6, schema: StoreSchema = SCHEMA, **options: object) -> Path:
    with StoreWriter(path, schema, **options) as writer:  # type: ignore[arg-type]
        for seed in seeds:
            writer.add_episode(make_episode(schema, steps, seed))
    return path


def check(path: Path, uids: set[int], steps: int = 6) -> None:
    assert verify_store(path, workers=1).good
    store = Store(path)
    assert store.problems == []
    assert sorted(store.table.uid.tolist()) == sorted(uids)
    assert all(same(store.episode(i), make_episode(SCHEMA, steps, uid)) for uid, i in by_uid(store).items())


def test_everything_is_there_once(tmp_path: Path) -> None:
    sources = [
        write(tmp_path / "a", range(5)),
        write(tmp_path / "b", range(3, 9)),
        write(tmp_path / "c", range(20, 21)),
    ]
    told: list[tuple[int, int]] = []
    report = merge(sources, tmp_path / "all", progress=lambda done, total: told.append((done, total)))
    assert (report.copied, report.duplicates, report.shortened, report.damaged) == (10, 2, [], [])
    assert report.steps == 60
    check(tmp_path / "all", {*range(9), 20})
    assert told[-1] == (60, 60)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    recipe = json.loads((tmp_path / "all" / "made_by.json").read_text())
    assert (recipe["tool"], recipe["finished"], recipe["duplicates"]) == ("merge", True, 2)
    assert recipe["sources"] == [str(source) for source in sources]


def test_records_are_copied_as_they_are(tmp_path: Path) -> None:
    source = write(tmp_path / "a", range(3), block=3)
    merge([source], tmp_path / "all")
    one, two = Store(source), Store(tmp_path / "all")
    assert [list(one.records(i)) for i in range(3)] == [list(two.records(i)) for i in range(3)]


def test_of_unlike_duplicates_the_longest_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "a", range(1), steps=4)
    write(tmp_path / "b", range(1), steps=6)
    report = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert (report.copied, report.duplicates, report.shortened) == (1, 1, [0])
    check(tmp_path / "all", {0})


def test_shards_have_the_size_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "a", range(40))
    merge([tmp_path / "a"], tmp_path / "all", shard_bytes=20_000)
    sizes = [ref.bytes for ref in list_shards(tmp_path / "all")]
    assert len(sizes) > 1
    assert max(sizes) <= 20_000
    check(tmp_path / "all", set(range(40)))


# -- schemas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"extra": (Column("log_prob", "float32"),)}, "column value: float64 scalar per obs (shuffle:1) here, missing"),
        ({"env_kwargs": {"size": 4}}, 'env_kwargs: {"size": 3} here, {"size": 4} there'),
        ({"env_id": "elsewhere"}, "env_id: 'toy' here, 'elsewhere' there"),
    ],
)
def test_differences_are_named(tmp_path: Path, other: dict[str, object], named: str) -> None:
    write(tmp_path / "a", range(1))
    write(tmp_path / "b", range(1, 2), schema=small_schema(**other))
    with pytest.raises(StoreError) as caught:
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert named in str(caught.value)
    assert ("--any-env" in str(caught.value)) == ("extra" not in other)
    assert not (tmp_path / "all").exists()


def test_environments_may_differ_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "a", range(1))
    write(tmp_path / "b", range(1, 2), schema=small_schema(env_id="elsewhere"))
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all", any_env=True)
    store = Store(tmp_path / "all")
    assert store.table["env_id"].tolist() == ["toy", "elsewhere"], "every episode keeps its own"


def test_other_codecs_are_no_difference(tmp_path: Path) -> None:
    write(tmp_path / "a", range(2))
    write(tmp_path / "b", range(2, 4), schema=small_schema(image_codec="zstd:-3"))
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    check(tmp_path / "all", set(range(4)))
    lossy = StoreSchema.for_env(SPEC, image_codec="jpeg:90", env_kwargs={"size": 3}, extra=SCHEMA.columns[-2:])
    write(tmp_path / "c", range(4, 5), schema=lossy)
    with pytest.raises(StoreError, match="column obs:image"):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "no")


# -- damage ----------------------------------------------------------------------------------------------


def test_damage_stops_the_merge_or_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3))
    write(tmp_path / "b", range(3, 6))
    bad = only_shard(tmp_path / "b")
    flip(bad.path, places(bad)[4][0][1] + 40)
    sources, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "all"
    with pytest.raises(StoreError, match=r"episode 0+4: .*--resume --skip-damaged") as caught:
        merge(sources, out)
    assert str(bad.path) in str(caught.value)
    report = merge(sources, out, resume=True, skip_damaged=True)
    assert (report.already, report.copied) == (4, 1)
    assert len(report.damaged) == 1
    check(out, {0, 1, 2, 3, 5})
    assert json.loads((out / "made_by.json").read_text())["damaged"] == report.damaged


def test_a_store_that_has_lost_data_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3))
    ref = only_shard(tmp_path / "a")
    os.truncate(ref.path, ref.bytes - 5)
    with pytest.raises(StoreError, match=r"cut short.*Repair it first"):
        merge([tmp_path / "a"], tmp_path / "all")
    assert not (tmp_path / "all").exists()
    report = merge([tmp_path / "a"], tmp_path / "all", skip_damaged=True)
    assert report.copied == 2
    assert any("cut short" in line for line in report.damaged)


def test_a_missing_index_loses_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3))
    only_shard(tmp_path / "a").index_path.unlink()
    assert merge([tmp_path / "a"], tmp_path / "all").copied == 3


# -- the target ------------------------------------------------------------------------------------------


def test_targets_that_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", range(1))
    write(tmp_path / "b", range(1))
    with pytest.raises(StoreError, match="nothing to merge"):
        merge([], tmp_path / "all")
    with pytest.raises(StoreError, match="exists; choose another"):
        merge([tmp_path / "a"], tmp_path / "b")
    with pytest.raises(StoreError, match=r"nothing to resume: .* does not exist"):
        merge([tmp_path / "a"], tmp_path / "all", resume=True)
    with pytest.raises(StoreError, match="was not begun by this command"):
        merge([tmp_path / "a"], tmp_path / "b", resume=True)
    with pytest.raises(StoreError, match="is not a store"):
        merge([tmp_path / "nothing"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_target_is_never_there_without_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", range(1))

    def fail(*names: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(derive.os, "rename", fail)
        with pytest.raises(StoreError, match="cannot be created: Input/output error"):
            merge([tmp_path / "a"], tmp_path / "all")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_resume_refuses_another_job(tmp_path: Path) -> None:
    write(tmp_path / "a", range(1))
    write(tmp_path / "b", range(1, 2))
    merge([tmp_path / "a"], tmp_path / "all")
    with pytest.raises(StoreError, match="was begun with sources="):
        merge([tmp_path / "b"], tmp_path / "all", resume=True)
    (tmp_path / "all" / "made_by.json").write_text("[]")
    with pytest.raises(StoreError, match="makes no sense"):
        merge([tmp_path / "a"], tmp_path / "all", resume=True)


def test_a_target_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "a", range(2))
    merge([tmp_path / "a"], tmp_path / "all")
    with StoreWriter(tmp_path / "all", SCHEMA) as other:
        other.add_episode(make_episode(SCHEMA, 6, 77))
        with pytest.raises(StoreError, match=r"is not free: its writer, process .* is alive"):
            merge([tmp_path / "a"], tmp_path / "all", resume=True)


def test_an_interrupted_merge_is_continued(tmp_path: Path) -> None:
    sources = [write(tmp_path / "a", range(4)), write(tmp_path / "b", range(4, 8))]

    def stop(done: int, total: int) -> None:
        if done >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(sources, tmp_path / "all", progress=stop)
    check(tmp_path / "all", set(range(5)))
    report = merge(sources, tmp_path / "all", resume=True)
    assert (report.already, report.copied) == (5, 3)
    check(tmp_path / "all", set(range(8)))
    assert merge(sources, tmp_path / "all", resume=True).already == 8


def test_a_full_disk_is_named_and_the_merge_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a", range(6), block=3)
    real, left = open_shard._write_all, [9]

    def fill(fd: int, pieces: list[bytes], size: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.write(fd, b"".join(pieces)[: size // 2])
            raise OSError(28, os.strerror(28))
        real(fd, pieces, size)

    with monkeypatch.context() as patch:
        patch.setattr(open_shard, "_write_all", fill)
        with pytest.raises(StoreFull, match="No space left"):
            merge([source], tmp_path / "all")
    report = merge([source], tmp_path / "all", resume=True)
    assert report.already > 0
    assert report.already + report.copied == 6
    check(tmp_path / "all", set(range(6)))


KILLED = """
import sys
from rollmill.store.derive.merge import merge
count = int(sys.argv[1])
def tell(done, total):
    if done >= count:
        print("there", flush=True)
        sys.stdin.readline()
merge(sys.argv[3:], sys.argv[2], progress=tell, shard_bytes=20_000)
"""


def test_a_killed_merge_is_continued(tmp_path: Path) -> None:
    sources = [write(tmp_path / "a", range(20)), write(tmp_path / "b", range(20, 40))]
    for count in (0, 30, 150):
        out = tmp_path / f"all-{count}"
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(count), str(out), *map(str, sources)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = len(Store(out))
        assert before == count // 6
        report = merge(sources, out, resume=True)
        assert (report.already, report.copied) == (before, 40 - before)
        check(out, set(range(40)))
        assert not [ref for ref in list_shards(out) if not ref.sealed]


def test_many_small_stores(tmp_path: Path) -> None:
    for k in range(12):
        write_episodes(tmp_path / "sources" / str(k), SCHEMA, [])
        write(tmp_path / "sources" / str(k), range(10 * k, 10 * k + 2))
    report = merge(sorted((tmp_path / "sources").iterdir()), tmp_path / "all")
    assert report.copied == 24
    assert len(list_shards(tmp_path / "all")) == 1
