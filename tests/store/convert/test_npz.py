"""npz files: the very arrays, in files of limited size, and back; files made elsewhere; wrong ones refused by name."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import DISCRETE, schema_of, write_store

from rollmill.core.errors import StoreError
from rollmill.core.fields import ActionSpec, Field
from rollmill.store.care.verify import verify_store
from rollmill.store.convert import npz_import
from rollmill.store.convert.npz import Options, export_episodes
from rollmill.store.convert.npz_import import ImportOptions, import_episodes
from rollmill.store.reader import Store

LENGTHS = [9, 4, 1, 30, 12, 7]
PLAIN = schema_of((Field("obs", "float32", (3,)),))


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def rows(count: int, dones: list[int], **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    flags = np.zeros(count, bool)
    flags[dones] = True
    return {
        "observations": rng.integers(0, 255, (count, 4), dtype=np.uint8),
        "actions": rng.integers(0, 3, count),
        "rewards": rng.normal(size=count).astype(np.float32),
        "dones": flags,
        **more,
    }


def load(out: Path) -> Store:
    assert verify_store(out, workers=1).good
    return Store(out)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("obs", ["image", "vector"])
def test_the_arrays_are_those_of_the_episodes(tmp_path: Path, compress: bool, obs: str) -> None:
    store, episodes = write_store(tmp_path / "store", schema_of(), LENGTHS)
    told: list[tuple[int, int]] = []
    done = export_episodes(
        store, np.arange(6), tmp_path / "x.npz", Options(obs, compress=compress), lambda d, t: told.append((d, t))
    )
    assert done.files == [tmp_path / "x.npz"]
    assert told[-1] == (sum(LENGTHS),) * 2
    with np.load(tmp_path / "x.npz") as data:
        assert set(data.files) == {"observations", "actions", "rewards", "dones", "steps", "gblsteps"}
        n = sum(LENGTHS)
        assert data["steps"].shape == data["gblsteps"].shape == (n, 1)
        assert data["rewards"].shape == data["dones"].shape == data["actions"].shape == (n,)
        assert data["dones"].dtype == bool
        for name, parts in {
            "observations": [e.columns[f"obs:{obs}"][:-1] for e in episodes],
            "actions": [e.actions for e in episodes],
            "rewards": [e.rewards for e in episodes],
            "steps": [e.steps[:, None] for e in episodes],
            "gblsteps": [e.global_steps[:, None] for e in episodes],
            "dones": [np.arange(e.length) == e.length - 1 for e in episodes],
        }.items():
            expected = np.concatenate(parts)
            assert data[name].dtype == expected.dtype
            assert np.array_equal(data[name], expected), name
    assert "1 episodes have no recorded end" in done.notes[0]


def test_parts_of_limited_size(tmp_path: Path) -> None:
    store, episodes = write_store(tmp_path / "store", schema_of(), LENGTHS)
    limit = 0.1  # MB
    done = export_episodes(store, np.arange(6), tmp_path / "x", Options("image", part_mb=limit))
    count = len(done.files)
    assert [file.name for file in done.files] == [f"part-{k:05d}-of-{count:05d}.npz" for k in range(count)]
    assert count > 1
    parts = [np.load(file) for file in done.files]
    longest = 30 * (36 * 40 * 3 + 33)
    assert all(sum(part[name].nbytes for name in part.files) <= limit * 1e6 + longest for part in parts)
    assert all(part["dones"][-1] and part["steps"][0, 0] == 0 for part in parts), "no episode is torn apart"
    joined = np.concatenate([part["observations"] for part in parts])
    assert np.array_equal(joined, np.concatenate([e.columns["obs:image"][:-1] for e in episodes]))


def test_wishes_that_cannot_be_met(tmp_path: Path) -> None:
    store, _ = write_store(tmp_path / "store", schema_of(), LENGTHS)
    for options, name, message in (
        (Options(), "x.npz", "image, vector, flags: choose one with --obs"),
        (Options("imag"), "x.npz", "no observation 'imag'"),
        (Options("image", part_mb=0.1), "x.npz", "name a folder as the target, or raise --part-mb"),
        (Options("image", part_mb=0), "x.npz", "must be positive"),
    ):
        with pytest.raises(StoreError, match=message):
            export_episodes(store, np.arange(6), tmp_path / name, options)
        assert not (tmp_path / name).exists()


def test_there_and_back(tmp_path: Path) -> None:
    store, episodes = write_store(tmp_path / "store", PLAIN, LENGTHS[:5])
    export_episodes(store, np.arange(5), tmp_path / "x", Options(part_mb=0.001))
    files = sorted(map(str, (tmp_path / "x").iterdir()))
    assert len(files) > 1
    done = import_episodes(files, tmp_path / "back", ImportOptions("toy", 4))
    assert (done.episodes, done.steps) == (5, sum(LENGTHS[:5]))
    back = load(tmp_path / "back")
    assert back.schema.env.action == ActionSpec("discrete", nvec=(4,), start=(0,))
    assert back.schema.env_id == "toy"
    for i, written in enumerate(episodes):
        read = back.episode(i)
        for name in ("action", "reward", "global_step"):
            assert np.array_equal(read.columns[name], written.columns[name]), name
        assert np.array_equal(read.columns["obs:obs"][:-1], written.columns["obs:obs"][:-1])
        assert np.array_equal(read.columns["obs:obs"][-1], read.columns["obs:obs"][-2])
        assert read.terminated
        assert read.stats == {"final_observation": "repeated"}


def test_the_same_files_give_the_same_uids(tmp_path: Path) -> None:
    file = save(tmp_path / "x.npz", **rows(9, [3, 8]))
    for name in "ab":
        import_episodes([file], tmp_path / name, ImportOptions())
    one, two = load(tmp_path / "a").table.uid, load(tmp_path / "b").table.uid
    assert one.tolist() == two.tolist()
    assert len(set(one.tolist())) == 2


@pytest.mark.parametrize("chunk", [16 << 20, 40, 1])
def test_episodes_are_cut_by_dones(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_import, "_CHUNK_BYTES", chunk)
    arrays = rows(20, [4, 5, 15])
    done = import_episodes([save(tmp_path / "x.npz", **arrays)], tmp_path / "out", ImportOptions())
    store = load(tmp_path / "out")
    assert store.table.length.tolist() == [5, 1, 10, 3]
    assert store.table["terminated"].tolist() == [True, True, True, False]
    assert store.table["partial_end"].tolist() == [False, False, False, True]
    last = store.episode(3)  # breaks off: its last observation is the final one
    assert np.array_equal(last.columns["obs:obs"], arrays["observations"][16:])
    assert np.array_equal(last.rewards, arrays["rewards"][16:19])
    assert np.array_equal(store.episode(2).actions, arrays["actions"][6:16])
    assert store.episode(2).global_steps.tolist() == list(range(6, 16)), "counted where there are no gblsteps"
    assert any("no steps and no gblsteps" in note for note in done.notes)
    assert any("1 episodes break off" in note for note in done.notes)


@pytest.mark.parametrize("chunk", [16 << 20, 1])
def test_episodes_are_cut_where_steps_fall(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_import, "_CHUNK_BYTES", chunk)
    steps = [7, 8, 9, 0, 1, 2, 3, 0, 1, 2]
    file = save(tmp_path / "x.npz", **rows(10, [2, 9], steps=np.array(steps)[:, None]))
    import_episodes([file], tmp_path / "out", ImportOptions())
    table = load(tmp_path / "out").table
    assert table.length.tolist() == [3, 3, 3]
    assert table["first_step"].tolist() == [7, 0, 0]
    assert table["partial_end"].tolist() == [False, True, False]


def test_a_step_that_does_not_rise_begins_an_episode(tmp_path: Path) -> None:
    file = save(tmp_path / "x.npz", **rows(7, [6], steps=np.array([0, 1, 2, 2, 3, 4, 5])))
    import_episodes([file], tmp_path / "out", ImportOptions())
    assert load(tmp_path / "out").table.length.tolist() == [2, 4]


def test_steps_counted_from_one_and_in_frames(tmp_path: Path) -> None:
    ones = save(tmp_path / "ones.npz", **rows(6, [2, 5], steps=np.array([1.0, 2, 3, 1, 2, 3])))
    import_episodes([ones], tmp_path / "a", ImportOptions())
    assert load(tmp_path / "a").table["first_step"].tolist() == [0, 0]
    frames = save(tmp_path / "frames.npz", **rows(6, [2, 5], steps=np.array([0, 4, 8, 0, 4, 8])))
    import_episodes([frames], tmp_path / "b", ImportOptions())
    table = load(tmp_path / "b").table
    assert (table.length.tolist(), table["partial_start"].tolist()) == ([3, 3], [False, False])


@pytest.mark.parametrize(
    ("actions", "kind", "shape"),
    [
        (np.arange(6) % 3, "discrete", ()),
        ((np.arange(6) % 3)[:, None], "discrete", ()),
        (np.arange(12).reshape(6, 2) % 3, "multi_discrete", (2,)),
        (np.linspace(-1, 1, 6), "continuous", (1,)),
        (np.linspace(-1, 1, 12).reshape(6, 2).astype(np.float32), "continuous", (2,)),
        (np.array([True, False] * 3), "discrete", ()),
    ],
)
def test_kinds_of_actions(tmp_path: Path, actions: Any, kind: str, shape: tuple[int, ...]) -> None:
    file = save(tmp_path / "x.npz", **{**rows(6, [5]), "actions": actions})
    import_episodes([file], tmp_path / "out", ImportOptions())
    store = load(tmp_path / "out")
    assert store.schema.env.action.kind == kind
    read = store.episode(0).actions
    assert read.shape == (6, *shape)
    assert np.array_equal(read.reshape(-1), actions.reshape(-1).astype(read.dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dones": None}, "has no array 'dones'"),
        ({"rewards": np.zeros(8)}, r"rewards has shape \[8\], observations have 9 rows"),
        ({"rewards": np.zeros((9, 2))}, r"rewards has shape \[9, 2\], expected \[9\] or \[9, 1\]"),
        ({"dones": np.arange(9)}, "dones holds other than 0 and 1"),
        ({"dones": np.full(9, 0.5)}, "dones holds other than whole numbers"),
        ({"steps": np.full(9, np.nan)}, "steps holds other than whole numbers"),
        ({"actions": np.full(9, -1)}, "an action is -1"),
        ({"actions": np.array(["a"] * 9)}, "integers .* or floats"),
        ({"actions": np.zeros((9, 2, 2))}, "integers .* or floats"),
        ({"observations": np.array([{}] * 9, object)}, "holds pickled objects, which are not read"),
        ({"observations": np.array(["a"] * 9)}, "cannot be stored"),
        ({"observations": np.asfortranarray(np.zeros((9, 2)))}, "Fortran order"),
        ({"observations": np.float32(3)}, "actions has shape|observations has shape"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_wrong_files_are_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {name: array for name, array in {**rows(9, [8]), **change}.items() if array is not None}
    file = save(tmp_path / "x.npz", **arrays)
    with pytest.raises(StoreError, match=message) as caught:
        import_episodes([file], tmp_path / "out", ImportOptions())
    assert file in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_other_wrong_sources(tmp_path: Path) -> None:
    good = save(tmp_path / "good.npz", **rows(9, [8]))
    other = save(tmp_path / "other.npz", **{**rows(9, [8]), "observations": np.zeros((9, 5))})
    floats = save(tmp_path / "floats.npz", **{**rows(9, [8]), "actions": np.zeros(9)})
    empty = save(tmp_path / "empty.npz", **rows(0, []))
    (tmp_path / "text.npz").write_text("text")
    data = Path(good).read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    os.mkfifo(tmp_path / "fifo.npz")
    for sources, options, message in (
        ([str(tmp_path / "none.npz")], ImportOptions(), "no such file"),
        ([str(tmp_path / "fifo.npz")], ImportOptions(), "it is a FIFO, not a file"),
        ([str(tmp_path / "text.npz")], ImportOptions(), "cannot be read as npz"),
        ([str(tmp_path / "cut.npz")], ImportOptions(), "cannot be read as npz"),
        ([empty], ImportOptions(), "has no rows"),
        ([good, other], ImportOptions(), r"observations are \('float64', \(5,\)\), in"),
        ([good, floats], ImportOptions(), "of another kind or shape"),
        ([good], ImportOptions(choices=2), "an action is 2, there are said to be 2"),
        ([floats], ImportOptions(choices=2), "no number of choices"),
    ):
        with pytest.raises(StoreError, match=message):
            import_episodes(sources, tmp_path / "out", options)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("count", [900, 90_000])  # noticed at the head of a small array, while reading a large one
def test_a_damaged_array_is_named(tmp_path: Path, count: int) -> None:
    path = Path(save(tmp_path / "x.npz", **rows(count, [count - 1])))
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("observations.npy").header_offset
    data = bytearray(path.read_bytes())
    data[start + 500] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="observations is damaged: Bad CRC-32"):
        import_episodes([str(path)], tmp_path / "out", ImportOptions())
    assert not (tmp_path / "out").exists()


def test_big_endian_arrays(tmp_path: Path) -> None:
    arrays = rows(4, [3])
    arrays["observations"] = arrays["observations"].astype(">f4")
    import_episodes([save(tmp_path / "x.npz", **arrays)], tmp_path / "out", ImportOptions())
    assert np.array_equal(load(tmp_path / "out").episode(0).columns["obs:obs"][:4], arrays["observations"])


def test_neither_way_holds_the_data_in_memory(tmp_path: Path) -> None:
    schema = schema_of((Field("obs", "uint8", (100, 100, 3)),), DISCRETE)
    store, _ = write_store(tmp_path / "store", schema, [40] * 40)  # 48 MB
    tracemalloc.start()
    export_episodes(store, np.arange(40), tmp_path / "x.npz", Options())
    written = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    import_episodes([str(tmp_path / "x.npz")], tmp_path / "out", ImportOptions())
    read = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = 40 * 40 * 30_000
    assert written < size / 4
    assert read < size  # chunks of 16 MB, twice or three times


def test_an_episode_that_does_not_fit_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = {"actions": np.zeros(4000, int), "rewards": np.zeros(4000), "dones": np.zeros(4000, bool)}
    np.savez_compressed(tmp_path / "x.npz", observations=np.zeros((4000, 20_000), np.uint8), **zeros)
    assert (tmp_path / "x.npz").stat().st_size < 200_000, "80 MB of zeros"
    monkeypatch.setattr(npz_import, "available_memory", lambda: 80e6)
    tracemalloc.start()
    with pytest.raises(StoreError, match=r"x\.npz: no row says done for \d+ rows, 0\.\d+ GB so far"):
        import_episodes([str(tmp_path / "x.npz")], tmp_path / "out", ImportOptions())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 70e6
    assert not (tmp_path / "out").exists()


def test_a_row_that_no_store_takes_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_import, "_MAX_ROW_BYTES", 1000)
    for name in ("observations", "actions"):
        path = save(tmp_path / f"{name}.npz", **{**rows(3, [2]), name: np.zeros((3, 1001), np.int8)})
        with pytest.raises(StoreError, match=f"a row of {name} has 1,001 bytes, too many"):
            import_episodes([path], tmp_path / "out", ImportOptions())


def test_a_file_for_each_array_as_other_recorders_write_them(tmp_path: Path) -> None:
    arrays = [rows(6, [2, 5], steps=np.array([0, 1, 2, 0, 1, 2])), rows(4, [3], steps=np.arange(4))]
    files = []
    for number, found in enumerate(arrays):
        for name, array in found.items():
            files.append(tmp_path / f"{name}_{number}.npz")
            np.savez(files[-1], array)
    whole = [save(tmp_path / f"whole{k}.npz", **found) for k, found in enumerate(arrays)]
    import_episodes(whole, tmp_path / "whole", ImportOptions())
    expected = load(tmp_path / "whole")
    for sources in (sorted(map(str, files)), [str(tmp_path / f"observations_{k}.npz") for k in range(2)]):
        out = tmp_path / f"out{len(sources)}"
        done = import_episodes(sources, out, ImportOptions())
        assert (done.episodes, done.steps) == (3, 10)
        found_store = load(out)
        for k in range(3):
            for name, column in expected.episode(k).columns.items():
                np.testing.assert_array_equal(found_store.episode(k).columns[name], column, err_msg=name)
    (tmp_path / "rewards_1.npz").unlink()
    with pytest.raises(StoreError, match="has no array 'rewards'"):
        import_episodes([str(tmp_path / "observations_1.npz")], tmp_path / "x", ImportOptions())
    np.savez(tmp_path / "rewards_1.npz", a=np.zeros(4), b=np.zeros(4))
    with pytest.raises(StoreError, match=r"rewards_1.npz: a file of one array is expected, this one has 2"):
        import_episodes([str(tmp_path / "observations_1.npz")], tmp_path / "x", ImportOptions())
