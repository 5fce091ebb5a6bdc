from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from damaging import flip
from disks import mounted
from hypothesis import given, settings
from hypothesis import strategies as st
from storing import make_episode, same, small_schema, write_episodes

from rollmill.core.errors import BadBlock, StoreError, StoreFull
from rollmill.store import cache_parts
from rollmill.store.cache import DecodedCache
from rollmill.store.format.schema import Column
from rollmill.store.reader import Store, StoreWarning
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()
LENGTHS = [7, 1, 20, 600, 8]

BUILDER = """
import os, signal, sys
from rollmill.store import cache_parts
from rollmill.store import cache_parts
from rollmill.store.cache import DecodedCache
from rollmill.store.reader import Store

path, folder, mode = sys.argv[1:]
calls = 0

def progress(done, total):
    global calls
    calls += 1
    if mode == "pause" and calls == 3:
        print("halfway", flush=True)
        sys.stdin.readline()

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

if mode == "die before the name":
    os.rename = die
if mode == "die before the contents":
    cache_parts.atomic.write_json = die
print("opening", flush=True)
cache = DecodedCache(Store(path), folder, progress=progress)
print("built" if calls else "found", cache.covered, flush=True)
"""


def builder(store: Path, folder: Path, mode: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(store), str(folder), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert line(process) == "opening"
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def equal(cache: DecodedCache, store: Store) -> bool:
    return all(same(cache.episode(i), store.episode(i)) for i in range(len(store)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "store"
    write_episodes(path, SCHEMA, LENGTHS, block=8)
    return path


@pytest.fixture(scope="module")
def cache(path: Path) -> DecodedCache:
    return DecodedCache(Store(path), path.parent / "decoded")


@given(st.integers(0, 4), st.data(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_cache_reads_what_the_store_reads(cache: DecodedCache, i: int, data: st.DataObject, next_obs: bool) -> None:
    start = data.draw(st.integers(0, LENGTHS[i]))
    stop = data.draw(st.integers(start, LENGTHS[i]))
    names = data.draw(st.lists(st.sampled_from([*SCHEMA.names, "step", "terminated", "truncated"]), unique=True))
    expected = cache.store.read(i, start, stop, names, next_obs=next_obs)
    found = cache.read(i, start, stop, names, next_obs=next_obs)
    out = {name: np.ones_like(array) for name, array in expected.items()}
    filled = cache.read(i, start, stop, names, out=out, next_obs=next_obs)
    assert found.keys() == filled.keys() == expected.keys()
    for name, array in expected.items():
        assert filled[name] is out[name]
        for other in (found[name], filled[name]):
            assert (other.dtype, other.shape, other.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_nothing_is_decoded_that_is_in_the_cache(
    path: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("a block was read")

    monkeypatch.setattr(Store, "_read_block", fail)
    assert cache.covered == 1.0
    assert cache.read(3, 100, 200)["obs:image"].shape == (100, 4, 3, 3)
    assert not cache.read(3, 100, 200)["obs:image"].flags.writeable
    called: list[int] = []
    again = DecodedCache(Store(path), path.parent / "decoded", progress=lambda done, total: called.append(done))
    assert again.read(3, 5, 9, next_obs=True)["value"].shape == (5,)
    assert called == []
    copy = pickle.loads(pickle.dumps(again))  # noqa: S301
    assert np.array_equal(copy.read(4, 0, 8, ["reward"])["reward"], cache.read(4, 0, 8, ["reward"])["reward"])


def test_progress_is_told_in_bytes(path: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    cache = DecodedCache(Store(path), tmp_path, progress=lambda done, total: told.append((done, total)))
    files = sum(file.stat().st_size for file in cache.path.rglob("*.bin"))
    assert cache.bytes == files
    assert told[-1] == (files, files)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_wrong_reads_are_named(cache: DecodedCache) -> None:
    for start, stop in ((-1, 3), (0, 8), (4, 3)):
        with pytest.raises(StoreError, match="which has 7 steps"):
            cache.read(0, start, stop)
    with pytest.raises(StoreError, match="there is no number 5"):
        cache.read(5, 0, 1)
    with pytest.raises(StoreError, match="no column 'speed'"):
        cache.read(0, 0, 1, ["speed"])
    with pytest.raises(StoreError, match=r"out\['reward'\] is float64"):
        cache.read(0, 0, 1, ["reward"], out={"reward": np.zeros(1)})
    with pytest.raises(StoreError, match="no column 'speed'"):
        DecodedCache(cache.store, cache.path.parent, columns=["speed"])


def test_only_chosen_columns_and_episodes_are_decoded(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    cache = DecodedCache(store, tmp_path, columns=["reward", "obs:vector", "step"], episodes=[4, 0, 0])
    assert cache.bytes == 40 * 2 + 4 * 15 + 8 * 17
    assert cache.covered == 1.0
    assert equal(cache, store)
    more = DecodedCache(store, tmp_path, columns=["obs:vector", "reward"], episodes=[0, 1])
    assert len(list(more.path.glob("part-*"))) == 2, "only episode 1 is added"
    assert more.path == cache.path
    assert more.bytes == cache.bytes + 40 + 4 * 1 + 8 * 2
    assert equal(more, store)
    assert cache_paths(tmp_path) == {cache.path}
    DecodedCache(store, tmp_path, columns=["reward"], episodes=[])
    assert cache_paths(tmp_path) == {cache.path}, "an empty one writes nothing"


def cache_paths(folder: Path) -> set[Path]:
    return {part.parent for part in folder.glob("*/part-*")}


def test_the_limit_holds_and_the_rest_is_read_from_the_store(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    limit = 100 * SCHEMA.row_bytes
    with pytest.warns(StoreWarning, match=r"\d% of the selected steps fit in limit_bytes"):
        cache = DecodedCache(store, tmp_path, limit_bytes=limit)
    assert 0 < cache.bytes <= limit
    assert 0 < cache.covered < 1
    assert equal(cache, store)
    with pytest.warns(StoreWarning, match="0% of the selected"):
        nothing = DecodedCache(store, tmp_path, limit_bytes=0, episodes=[3])
    assert nothing.covered == 0
    assert equal(nothing, store)


def test_a_cache_grows_with_its_store(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "cache"
    write_episodes(path, SCHEMA, [5, 9])
    store = Store(path)
    cache = DecodedCache(store, folder)
    before = {file: file.stat().st_mtime_ns for file in cache.path.rglob("*.bin")}
    with StoreWriter(path, SCHEMA) as writer:
        writer.add_episode(make_episode(SCHEMA, 12, 2))
        assert cache.refresh() == 1  # from an open shard
        assert cache.covered == 1.0
    assert equal(cache, store)
    assert {file: file.stat().st_mtime_ns for file in before} == before, "what was there is kept"
    assert len(list(cache.path.glob("part-*"))) == 2
    called: list[int] = []
    again = DecodedCache(Store(path), folder, progress=lambda done, total: called.append(done))
    assert called == [], "a shard that was sealed in the meantime holds the same episodes"
    assert equal(again, again.store)


def test_a_store_that_was_replaced_is_not_mistaken_for_the_old_one(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "cache"
    write_episodes(path, SCHEMA, [5, 9], name="writer")
    old = DecodedCache(Store(path), folder)
    image = old.read(0, 0, 5)["obs:image"].copy()
    shutil.rmtree(path)
    other = [make_episode(SCHEMA, 5, 7), make_episode(SCHEMA, 9, 8)]
    for episode, uid in zip(other, (0, 1)):
        episode.info = make_episode(SCHEMA, 1, uid).info  # the same uids, lengths and shard name
    with StoreWriter(path, SCHEMA, name="writer") as writer:
        for episode in other:
            writer.add_episode(episode)
    cache = DecodedCache(Store(path), folder)
    assert equal(cache, Store(path))
    assert np.array_equal(old.read(0, 0, 5)["obs:image"], image), "whoever has it open keeps it"


def test_parts_of_shards_that_are_gone_are_removed(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "cache"
    write_episodes(path, SCHEMA, [5, 9])
    first = DecodedCache(Store(path), folder)
    shutil.rmtree(path)
    write_episodes(path, SCHEMA, [6])
    second = DecodedCache(Store(path), folder)
    assert second.path == first.path
    assert len(list(second.path.glob("part-*"))) == 1
    with pytest.raises(StoreError, match="was changed while it was in use"):
        pickle.loads(pickle.dumps(first))  # noqa: S301


def test_unfinished_episodes_are_never_cached(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "cache"
    writer = StoreWriter(path, SCHEMA, block=4)
    writer.add_episode(make_episode(SCHEMA, 6, 0))
    columns = make_episode(SCHEMA, 30, 1).columns
    writer.begin("open")
    writer.append("open", {name: array[:12] for name, array in columns.items()})
    store = Store(path, unfinished=True)
    assert store.table["finished"].tolist() == [True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = DecodedCache(store, folder)
    assert 0 < cache.covered < 1
    assert equal(cache, store)
    writer.append("open", {name: array[12:30] for name, array in columns.items()})
    cache.refresh()
    assert equal(cache, store)
    writer.close()


@pytest.mark.parametrize("mode", ["pause", "die before the contents", "die before the name"])
def test_a_killed_build_leaves_nothing_that_looks_complete(path: Path, tmp_path: Path, mode: str) -> None:
    process = builder(path, tmp_path, mode)
    if mode == "pause":
        assert line(process) == "halfway"
        process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("*/.*.tmp"))
    assert not list(tmp_path.glob("*/part-*"))
    cache = DecodedCache(Store(path), tmp_path)
    assert cache.covered == 1.0
    assert equal(cache, cache.store)
    cache.verify()
    assert not list(tmp_path.glob("*/.*.tmp")), "the remains are removed"


def test_of_two_builders_one_builds(path: Path, tmp_path: Path) -> None:
    first = builder(path, tmp_path, "pause")
    assert line(first) == "halfway"
    others = [builder(path, tmp_path, "go") for _ in range(2)]
    go(first)
    assert line(first) == "built 1.0"
    assert [line(other) for other in others] == ["found 1.0"] * 2
    assert [process.wait() for process in (first, *others)] == [0] * 3
    for process in (first, *others):
        process.communicate()
    assert len(list(tmp_path.glob("*/part-*"))) == 1


@pytest.mark.parametrize("how", ["read", "out", "rewards", "episode", "pickled"])
def test_a_flipped_bit_in_a_cache_is_found_when_it_is_read(path: Path, tmp_path: Path, how: str) -> None:
    (part,) = DecodedCache(Store(path), tmp_path).path.glob("part-*")
    files = json.loads((part / "part.json").read_text())["columns"]
    flip(part / files["reward"], 4 * 7 + 1, 3)  # the reward of the second episode, whose only step comes after seven
    cache = DecodedCache(Store(path), tmp_path)
    if how == "pickled":
        cache = pickle.loads(pickle.dumps(cache))  # noqa: S301
    ways = {
        "rewards": lambda: cache.rewards(1),
        "episode": lambda: cache.episode(1),
        "out": lambda: cache.read(1, 0, 1, ["reward"], out={"reward": np.zeros(1, np.float32)}),
    }
    with pytest.raises(StoreError, match=rf"{files['reward']} has changed since it was written: remove .*part-"):
        ways.get(how, lambda: cache.read(1, 0, 1))()
    assert np.array_equal(cache.read(1, 0, 1, ["action"])["action"], Store(path).read(1, 0, 1, ["action"])["action"])
    shutil.rmtree(part)
    assert equal(DecodedCache(Store(path), tmp_path), Store(path))


def test_every_row_is_covered_by_a_checksum(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_parts, "CHECKED_BYTES", 100)  # several rows in one, and several rows beyond one
    cache = DecodedCache(Store(path), tmp_path, columns=["obs:image", "reward", "value"])
    assert equal(cache, cache.store)
    (part,) = cache.path.glob("part-*")
    rng = np.random.default_rng(0)
    for file in sorted(part.glob("*.bin")):
        if file.name == "episodes.bin":
            continue
        for byte in rng.integers(0, file.stat().st_size, 40).tolist():
            flip(file, byte, byte % 8)
            again = DecodedCache(Store(path), tmp_path, columns=["obs:image", "reward", "value"])
            wrong = 0
            for i in range(len(LENGTHS)):
                try:
                    assert same(again.episode(i), again.store.episode(i))
                except StoreError:
                    wrong += 1
            assert wrong >= 1
            flip(file, byte, byte % 8)
    cache.verify()


def test_good_rows_are_checked_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DecodedCache(Store(path), tmp_path)
    cache.read(3, 0, 600)
    monkeypatch.setattr(cache_parts.CachedColumn, "_check", lambda *arguments: pytest.fail("checked again"))
    cache.read(3, 20, 500)


@pytest.mark.parametrize(
    "damage",
    ["short column", "no contents", "contents", "a bit of the contents", "older", "episodes", "no column", "checksums"],
)
def test_damaged_parts_are_built_again(path: Path, tmp_path: Path, damage: str) -> None:
    cache = DecodedCache(Store(path), tmp_path)
    (part,) = cache.path.glob("part-*")
    if damage == "short column":
        os.truncate(part / "0.bin", (part / "0.bin").stat().st_size - 1)
    elif damage == "no contents":
        (part / "part.json").unlink()
    elif damage == "contents":
        (part / "part.json").write_text(json.dumps([1, 2]))
    elif damage == "a bit of the contents":
        text = (part / "part.json").read_text()
        (part / "part.json").write_text(text.replace('"obs:image"', '"obs:imagd"'))
    elif damage == "older":
        data = {"format": 1, "columns": {}, "crcs": {}, "bytes": 0, "shards": []}
        (part / "part.json").write_text(json.dumps(data))
    elif damage == "checksums":
        flip(part / "0.crc", 1)
    elif damage == "episodes":
        flip(part / "episodes.bin", 9)
    else:
        (part / "1.bin").unlink()
    with pytest.warns(StoreWarning, match="it is built again"):
        again = DecodedCache(Store(path), tmp_path)
    assert equal(again, again.store)
    assert not part.exists()


def test_verify_finds_a_changed_byte(path: Path, tmp_path: Path) -> None:
    cache = DecodedCache(Store(path), tmp_path)
    cache.verify()
    (part,) = cache.path.glob("part-*")
    with open(part / "2.bin", "r+b") as file:
        first = file.read(1)[0]
        file.seek(0)
        file.write(bytes([first ^ 1]))
    with pytest.raises(StoreError, match=r"2\.bin has changed since it was written"):
        cache.verify()


def test_damage_in_the_store_stops_the_build(tmp_path: Path) -> None:
    path, folder = tmp_path / "store", tmp_path / "cache"
    write_episodes(path, SCHEMA, [40], block=8)
    (shard,) = (path / "shards").iterdir()
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(BadBlock):
        DecodedCache(Store(path), folder)
    assert not list(folder.glob("*/part-*"))
    assert not list(folder.glob("*/.*.tmp"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    with mounted(tmp_path / "disk", "256k") as disk:
        yield disk


def test_a_full_disk_is_said_and_cleaned_up(small_disk: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_episodes(path, SCHEMA, [4000])
    assert 4000 * SCHEMA.row_bytes > 256 * 1024
    with pytest.raises(StoreFull, match=r"no space left for the cache at .* lower limit_bytes"):
        DecodedCache(Store(path), small_disk)
    assert [entry.name for entry in small_disk.glob("*/*")] == ["lock"]


def test_a_folder_that_cannot_be_written_is_named(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        DecodedCache(Store(path), tmp_path / "file")


def test_columns_without_bytes_are_cached_too(tmp_path: Path) -> None:
    schema = small_schema(extra=(Column("nothing", "float32", (0,)),))
    write_episodes(tmp_path / "store", schema, [5, 3])
    cache = DecodedCache(Store(tmp_path / "store"), tmp_path / "cache")
    assert equal(cache, cache.store)
