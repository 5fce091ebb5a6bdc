"""Pickles of strangers: numbers, containers and arrays come out as they went in, everything else is refused by name."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rollmill.store.convert import safe_pickle


def reread(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return safe_pickle.load(io.BytesIO(pickle.dumps(value, protocol)))


KINDS = st.one_of(arrays.boolean_dtypes(), arrays.integer_dtypes(), arrays.floating_dtypes(sizes=(16, 32, 64)))


@given(arrays.arrays(KINDS, arrays.array_shapes(min_dims=0, min_side=0)), st.integers(0, 5), st.booleans())
def test_arrays_come_out_as_they_went_in(array: np.ndarray[Any, Any], protocol: int, fortran: bool) -> None:
    array = np.asfortranarray(array) if fortran else array
    found = reread({"a": [array, array[..., :1] if array.ndim else array]}, protocol)["a"]
    assert found[0].dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found[0], array)
    found[0][...] = 0  # it is the reader's own


@pytest.mark.parametrize("protocol", range(6))
def test_plain_things_and_numbers_of_numpy(protocol: int) -> None:
    grouped = defaultdict(list, {"a": [1]})
    plain = {"x": [1, 2.5, None, True, "é", b"\xff"], "t": (1, (2,)), "o": OrderedDict(a=1), "d": grouped, "c": 1 + 2j}
    assert reread(plain, protocol) == plain
    assert reread([np.float32(1.5), np.int64(3), np.bool_(True)], protocol) == [1.5, 3, True]


class Call:
    def __init__(self, *what: Any) -> None:
        self.what = what

    def __reduce__(self) -> Any:
        return self.what


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Call(os.system, ("touch exploded",)), r"it names posix\.system"),
        (Call(eval, ("1",)), r"it names builtins\.eval"),
        (Call(getattr, ([], "append")), r"it names builtins\.getattr"),
        (Call(np.load, ("x",)), r"it names numpy\.load"),
        (Path("x"), r"it names pathlib"),
        (np.array([1, "x", None], object), "an array of objects"),
        (np.zeros(2, [("a", "f4")]), "an array of records|dtype V4"),
        (np.array(["text"]), "an array of dtype U4"),
    ],
)
def test_everything_else_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 4, 5):
        with pytest.raises(pickle.UnpicklingError, match=message):
            reread([value], protocol)
    assert list(tmp_path.iterdir()) == []


def test_an_array_says_how_many_bytes_it_has() -> None:
    good = pickle.dumps(np.arange(4, dtype=np.int32), 2)
    forged = good.replace(b"K\x04\x85", b"K\x44\x85")
    assert forged != good
    with pytest.raises(pickle.UnpicklingError, match=r"an array \[68\] of int32 with 16 bytes"):
        safe_pickle.load(io.BytesIO(forged))


def test_attributes_of_what_stays_cannot_be_set() -> None:
    """``BUILD`` sets attributes of whatever is on the stack: of a function that the next file calls, too."""
    forged = b"\x80\x02c_codecs\nencode\n(N}X\x0c\x00\x00\x00__defaults__K\x01\x85stb."
    with pytest.raises(pickle.UnpicklingError):
        safe_pickle.load(io.BytesIO(forged))
    assert reread(b"\xff", 2) == b"\xff"


def test_cycles_and_depth_end() -> None:
    ring: list[Any] = []
    ring.append(ring)
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    for value in (ring, deep):
        with pytest.raises(pickle.UnpicklingError, match="nested deeper"):
            reread(value)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes) -> None:
    for begin in (b"", b"\x80\x04", b"\x80\x02cnumpy\ndtype\n", b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n"):
        with contextlib.suppress(pickle.UnpicklingError):
            safe_pickle.load(io.BytesIO(begin + data))
