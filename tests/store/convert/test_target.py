"""Targets appear whole or not at all; sets of files are even and their number is known beforehand."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.errors import StoreError, StoreFull
from rollmill.store.convert.target import new_file, new_folder, numbered, plan_files


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "out") as folder:
        (folder / "a").write_text("x")
        assert not (tmp_path / "deep" / "out").exists()
    assert (tmp_path / "deep" / "out" / "a").read_text() == "x"
    assert left_over(tmp_path / "deep") == ["out"]


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    with new_file(tmp_path / "deep" / "out.npz") as path:
        path.write_text("x")
        assert left_over(tmp_path / "deep") != ["out.npz"]
    assert left_over(tmp_path / "deep") == ["out.npz"]


@pytest.mark.parametrize("maker", [new_file, new_folder])
def test_nothing_stays_after_a_failure(tmp_path: Path, maker: type) -> None:
    for error, expected in (
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(errno.ENOSPC, "No space left on device"), StoreFull),
        (OSError("HDF5: write failed, No space left on device"), StoreFull),
        (OSError(errno.EIO, "Input/output error"), StoreError),
    ):
        with pytest.raises(expected), maker(tmp_path / "out") as path:  # noqa: PT012
            if path.is_dir():
                path = path / "part"
            path.write_text("half")
            raise error
        assert left_over(tmp_path) == []


@pytest.mark.parametrize("maker", [new_file, new_folder])
def test_nothing_is_overwritten(tmp_path: Path, maker: type) -> None:
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(StoreError, match="nothing is overwritten"), maker(tmp_path / "out"):
        pytest.fail("must not begin")
    # not even what came while it was written
    with pytest.raises(StoreError, match="nothing is overwritten"), maker(tmp_path / "new") as path:  # noqa: PT012
        (path / "x" if path.is_dir() else path).write_text("x")
        (tmp_path / "new").write_text("mine")
    assert (tmp_path / "new").read_text() == "mine"
    assert left_over(tmp_path) == ["new", "out"]


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"), new_folder(tmp_path / "file" / "out"):
        pytest.fail("must not begin")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(60, 500))
def test_files_are_even_and_in_order(sizes: list[int], limit: int) -> None:
    parts = plan_files(sizes, limit)
    assert np.concatenate(parts).tolist() == list(range(len(sizes)))
    total, array = sum(sizes), np.array(sizes)
    even = total / -(-total // limit)
    for part in parts:
        assert abs(array[part].sum() - even) <= max(sizes)


def test_one_hundred_to_two_hundred_megabytes() -> None:
    for total in range(100_000_000, 3_000_000_000, 49_000_000):
        sizes = np.full(1000, total // 1000)
        parts = [sizes[part].sum() for part in plan_files(sizes)]
        assert total < 200_000_000 or min(parts) > 95_000_000
        assert max(parts) < 200_000_000


def test_items_larger_than_a_file_and_no_items() -> None:
    assert [part.tolist() for part in plan_files([1000, 1, 1000], 100)] == [[0], [1], [2]]
    assert [part.tolist() for part in plan_files([])] == [[]]
    assert numbered("x.tfrecord", 3, 74) == "x.tfrecord-00003-of-00074"
    assert os.sep not in numbered("part", 0, 1, ".npz")
