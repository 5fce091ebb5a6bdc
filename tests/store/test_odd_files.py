"""Something else where a file of a store should be: it is named, nothing hangs, all the rest is read and rescued."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from damaging import dangling_link, link_to_itself
from storing import make_episode, small_schema
from unprivileged import run_unprivileged

from rollmill.core.errors import StoreError
from rollmill.store.care.recover import recover
from rollmill.store.care.repair import repair
from rollmill.store.care.verify import verify_store
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.derive.merge import merge
from rollmill.store.format.schema import load_schema
from rollmill.store.format.shards import index_path, list_files, shard_path
from rollmill.store.info import describe_store
from rollmill.store.reader import Store, StoreWarning
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()
GOOD, BAD = {1, 2}, {11, 12}
ODD: dict[str, Callable[[Path], None]] = {
    "a folder": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a link to itself": link_to_itself,
    "a link to nowhere": dangling_link,
}
CLI = ["-c", "import sys; from rollmill.cli.main import main; sys.exit(main())"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name, uids in (("good", GOOD), ("bad", BAD)):
        with StoreWriter(tmp_path / "store", SCHEMA, name=name) as writer:
            for uid in sorted(uids):
                writer.add_episode(make_episode(SCHEMA, 7, uid))
    return tmp_path / "store"


def replace(path: Path, kind: str) -> None:
    if path.is_dir():
        os.rename(path, path.with_name(path.name + "-away"))
    else:
        path.unlink()
    ODD[kind](path)


def uids(path: Path) -> set[int]:
    with open_quietly(path) as store:
        return set(store.table.uid.tolist())


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_shard_is_named_by_everybody(store: Path, tmp_path: Path, kind: str) -> None:
    path = shard_path(store, "bad-00000", sealed=True)
    replace(path, kind)
    with pytest.warns(StoreWarning, match=path.name):
        opened = Store(store)
    assert set(opened.table.uid.tolist()) == GOOD
    assert {problem.episode for problem in opened.problems} == {None, *BAD}
    assert opened.refresh() == 0
    assert any(path.name in problem for problem in describe_store(store).problems)
    report = verify_store(store, workers=1)
    assert {problem.episode for file, problem in report.problems if file == path} == {None, *BAD}
    assert (report.bad_episodes, report.total("episodes")) == (2, 2)
    done = recover(store)
    assert {problem.episode for problem in done.problems} == {None, *BAD}
    with pytest.raises(StoreError, match="Repair it first"):
        merge([store], tmp_path / "merged")
    assert merge([store], tmp_path / "rest", skip_damaged=True).copied == 2
    rescued = repair(store, tmp_path / "repaired", workers=1)
    assert {(int(lost.episode, 16), lost.steps, lost.shard) for lost in rescued.lost} == {
        (uid, 7, "bad-00000") for uid in BAD
    }
    assert uids(tmp_path / "rest") == uids(tmp_path / "repaired") == GOOD


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_shard_that_was_open_is_named(store: Path, tmp_path: Path, kind: str) -> None:
    path = shard_path(store, "left-00000", sealed=False)
    ODD[kind](path)
    assert [problem.shard for problem in open_quietly(store).problems] == ["left-00000"]
    assert [file for file, _ in verify_store(store, workers=1).problems] == [path]
    assert [problem.shard for problem in recover(store, force=True).problems] == ["left-00000"]
    assert repair(store, tmp_path / "repaired", workers=1).kept == 4


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_index_costs_nothing(store: Path, tmp_path: Path, kind: str) -> None:
    path = index_path(store, "bad-00000")
    replace(path, kind)
    assert uids(store) == GOOD | BAD
    assert len(describe_store(store).problems) == 1
    (line,) = verify_store(store, workers=1).lines()
    assert "bad-00000.tfrecord: its index is" in line
    assert repair(store, tmp_path / "repaired", workers=1).kept == 4
    assert recover(store).indexed == ["bad-00000"]
    assert os.path.lexists(path.with_name("bad-00000.idx.set-aside")), "what lay there is not deleted"
    assert verify_store(store, workers=1).good


@pytest.mark.parametrize("kind", ["a file", *ODD])
def test_an_odd_index_folder_costs_nothing(store: Path, tmp_path: Path, kind: str) -> None:
    os.rename(store / "index", store / "old-index")
    if kind == "a file":
        (store / "index").write_text("")
    elif kind != "a folder":  # a folder, but empty: every shard says that its index is missing
        ODD[kind](store / "index")
    assert uids(store) == GOOD | BAD
    report = verify_store(store, workers=1)
    assert ((store / "index") in {file for file, _ in report.problems}) == (kind != "a folder")
    assert report.total("episodes") == 4
    merge([store], tmp_path / "merged")
    assert repair(store, tmp_path / "repaired", workers=1).kept == 4
    done = recover(store)
    assert bool(done.indexed) == (kind == "a folder")
    assert bool(done.skipped) == (kind != "a folder")


@pytest.mark.parametrize("kind", ["a file", "missing", *ODD])
def test_an_odd_folder_of_shards_is_named_with_all_that_was_in_it(store: Path, tmp_path: Path, kind: str) -> None:
    os.rename(store / "shards", tmp_path / "away")
    if kind == "a file":
        (store / "shards").write_text("")
    elif kind not in ("missing", "a folder"):
        ODD[kind](store / "shards")
    if kind in ("missing", "a folder"):
        assert {problem.episode for problem in open_quietly(store).problems} == {None, *GOOD, *BAD}
    else:
        with pytest.raises(StoreError, match=r"shards: (it cannot be listed|it is missing)"):
            Store(store)
    report = verify_store(store, workers=1)
    assert report.bad_episodes == 4
    lost = repair(store, tmp_path / "repaired", workers=1).lost
    assert {int(item.episode, 16) for item in lost} == GOOD | BAD


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_store_file_is_named_and_the_shards_are_rescued(store: Path, tmp_path: Path, kind: str) -> None:
    replace(store / "store.json", kind)
    with pytest.raises(StoreError, match=r"store\.json"):
        load_schema(store)
    assert [file.name for file, _ in verify_store(store, workers=1).problems] == ["store.json"]
    assert repair(store, tmp_path / "repaired", workers=1).kept == 4
    assert uids(tmp_path / "repaired") == GOOD | BAD


def test_what_was_there_when_a_shard_turns_odd_stays_listed(store: Path) -> None:
    opened = Store(store)
    replace(shard_path(store, "bad-00000", sealed=True), "a FIFO")
    with pytest.warns(StoreWarning, match="a FIFO"):
        opened.refresh()
    assert len(opened) == 4
    opened.close()
    with pytest.raises(StoreError, match="it is a FIFO"):
        opened.episode(int((opened.table.uid == 11).argmax()))


# -- permissions -------------------------------------------------------------------------------------------


def test_a_shard_without_permission_is_named_by_everybody(store: Path, tmp_path: Path) -> None:
    shard_path(store, "bad-00000", sealed=True).chmod(0)
    for words in (["info", "store"], ["verify", "store"], ["repair", "store", "--out", "repaired"]):
        done = run_unprivileged([*CLI, "data", *words], tmp_path)
        assert done.returncode == 1, done.stderr
        assert "bad-00000" in done.stdout
        assert "Permission denied" in done.stdout
        assert f"{11:016x}" in done.stdout
        assert "Traceback" not in done.stderr
    assert uids(tmp_path / "repaired") == GOOD
    done = run_unprivileged([*CLI, "data", "merge", "store", "--out", "merged"], tmp_path)
    assert done.returncode == 1
    assert "bad-00000.tfrecord: Permission denied" in done.stderr


@pytest.mark.parametrize(
    ("folder", "verbs", "word"),
    [(".", ("info", "verify"), "Permission denied"), ("shards", ("info", "verify"), "shards"), ("index", (), "index")],
)
def test_a_folder_without_permission_is_named(
    store: Path, tmp_path: Path, folder: str, verbs: tuple[str, ...], word: str
) -> None:
    (store / folder).chmod(0)
    try:
        for verb in verbs or ("info", "verify"):
            done = run_unprivileged([*CLI, "data", verb, "store"], tmp_path)
            assert done.returncode == 1
            assert word in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
    finally:
        (store / folder).chmod(0o755)


def test_listing_raises_nothing(tmp_path: Path) -> None:
    found = list_files(tmp_path / "nothing")
    assert found.shards == []
    assert [file.path.name for file in found.odd] == ["shards"]
