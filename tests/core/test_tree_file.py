import hashlib
import math
import os
import struct
import subprocess
import sys
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollmill.core.errors import CheckpointError
from rollmill.core.tree_file import (
    MAX_DEPTH,
    ArrayRef,
    check_tree,
    load_tree,
    pack_tree,
    read_header,
    save_tree,
    stored_checksum,
    tree_file_bytes,
    unpack_tree,
)

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]

SMALL = {"a": np.arange(3, dtype=np.int16), "b": [1, "x", float("nan")], "c": np.float32([[0.5]])}


def same(a: Any, b: Any) -> bool:
    """Equal in type, value and bits (NaN equals NaN, -0.0 differs from 0.0)."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    return bool(a == b)


def small_arrays() -> st.SearchStrategy[np.ndarray]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(np.dtype(d), shapes))


scalars = (
    st.none() | st.booleans() | st.integers(-(2**128), 2**128) | st.floats() | st.text(st.characters(), max_size=8)
)
keys = st.text(max_size=5) | st.sampled_from(["$array", "$float", "$", "$$array", ""])
trees = st.recursive(
    scalars | small_arrays(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(tree=trees)
@settings(max_examples=150, deadline=None)
def test_every_tree_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.tree"
    save_tree(path, tree)
    assert same(load_tree(path), tree)
    check_tree(path)
    assert path.stat().st_size == tree_file_bytes(tree)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_every_dtype_and_shape(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    save_tree(tmp_path / "a", array)
    loaded = load_tree(tmp_path / "a")
    assert same(loaded, array)
    assert loaded.flags.writeable
    assert loaded.flags.owndata


def test_the_states_of_random_generators_survive(tmp_path: Path) -> None:
    for generator in (np.random.PCG64(3), np.random.PCG64DXSM(3), np.random.MT19937(3), np.random.Philox(3)):
        state = generator.state
        save_tree(tmp_path / "rng", state)
        expected = generator.random_raw(5)
        generator.state = load_tree(tmp_path / "rng")
        np.testing.assert_array_equal(generator.random_raw(5), expected)


def test_arrays_that_are_not_contiguous_or_big_endian_are_stored_by_value(tmp_path: Path) -> None:
    base = np.arange(600_000, dtype=np.float64).reshape(1000, 600)  # larger than one piece
    tree = {
        "transposed": base.T,
        "strided": base[::3, ::-2],
        "broadcast": np.broadcast_to(np.float32(2.5), (700, 500)),
        "big": base.astype(">f8"),
        "big scalar": np.array(7, dtype=">i4"),
    }
    save_tree(tmp_path / "a", tree)
    loaded = load_tree(tmp_path / "a")
    for name, array in tree.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype.isnative
        assert loaded[name].flags.c_contiguous


def test_numpy_numbers_become_python_numbers_and_ordered_dicts_become_dicts(tmp_path: Path) -> None:
    tree = OrderedDict(a=np.float32(0.1), b=np.int64(-3), c=np.bool_(True), d=np.float64("inf"))
    save_tree(tmp_path / "a", tree)
    assert same(load_tree(tmp_path / "a"), {"a": float(np.float32(0.1)), "b": -3, "c": True, "d": math.inf})


def test_a_memory_map_is_stored_as_an_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "m", dtype=np.int32, mode="w+", shape=(5,))
    mapped[:] = range(5)
    save_tree(tmp_path / "a", mapped)
    assert same(load_tree(tmp_path / "a"), np.arange(5, dtype=np.int32))


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({"opt": [{"x": (1, 2)}]}, r"tree\['opt'\]\[0\]\['x'\] is a builtins.tuple"),
        ({"a": object()}, r"tree\['a'\] is a builtins.object"),
        ({1: 2}, "the key 1, which is not a str"),
        ({"a": np.array(["x"])}, "dtype <U1"),
        ({"a": np.array([None])}, "dtype object"),
        ({"a": np.array([(1, 2)], dtype="i4,i4")}, "dtype"),
        ({"a": np.zeros(1, "M8[s]")}, "datetime64"),
        ({"a": np.zeros(1, np.longdouble)}, "dtype float128"),
        ({"a": np.longdouble(1)}, "numpy"),
        ({"a": np.ma.masked_array([1], [True])}, "MaskedArray"),
        ({"a": b"bytes"}, "builtins.bytes"),
        ({"a": 1 << 5000}, "an int of more than"),
        (cyclic(), f"nested more than {MAX_DEPTH} deep"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_place_in_the_tree(tmp_path: Path, tree: Any, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        save_tree(tmp_path / "a", tree)
    assert list(tmp_path.iterdir()) == []


def test_the_deepest_allowed_tree_can_be_read_back(tmp_path: Path) -> None:
    tree: Any = 1
    for _ in range(MAX_DEPTH):
        tree = [tree]
    save_tree(tmp_path / "a", tree)
    assert load_tree(tmp_path / "a") == tree


def test_the_header_is_readable_without_the_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_tree(path, {"frames": 7, "w": np.zeros((2, 3), np.float32), "v": [np.zeros(5, np.uint8)]})
    outline = read_header(path)
    assert outline == {"frames": 7, "w": ArrayRef("<f4", (2, 3), 0), "v": [ArrayRef("|u1", (5,), 64)]}
    assert outline["w"].nbytes == 24


def test_arrays_lie_on_64_byte_boundaries_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    pattern = np.frombuffer(b"0123456789abcdef", np.uint8)
    save_tree(path, [np.zeros(3, np.uint8), pattern])
    assert path.read_bytes().index(pattern.tobytes()) % 64 == 0


# ------------------------------------------------------------------------------------------------ damage


def test_truncation_at_every_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_tree(path, SMALL)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        expected = f"{length} of at least" if length < 32 else f"{length} of {len(data)} bytes"
        for read in (load_tree, read_header, check_tree):
            with pytest.raises(CheckpointError, match=f"a: cut short: {expected}"):
                read(path)


def test_a_flip_of_every_bit_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_tree(path, SMALL)
    data = path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        for position, byte in enumerate(data):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ (1 << bit)]), position)
                with pytest.raises(CheckpointError):
                    load_tree(path)
                with pytest.raises(CheckpointError):
                    check_tree(path)
            os.pwrite(file.fileno(), bytes([byte]), position)
    assert same(load_tree(path), SMALL)


def test_a_flip_in_the_header_is_detected_by_reading_the_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_tree(path, SMALL)
    data = path.read_bytes()
    end = 32 + struct.unpack_from("<Q", data, 16)[0] + 32
    for position in range(end):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(CheckpointError):
            read_header(path)


def test_messages_name_file_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    save_tree(path, SMALL)
    data = bytearray(path.read_bytes())

    def reason(contents: bytes) -> str:
        path.write_bytes(contents)
        with pytest.raises(CheckpointError) as caught:
            load_tree(path)
        assert str(caught.value).startswith(f"{path}: ")
        return str(caught.value).removeprefix(f"{path}: ")

    assert reason(b"PK\x03\x04" + bytes(500)) == "not a rollmill checkpoint"
    assert reason(b"x") == "not a rollmill checkpoint"
    assert reason(b"") == "cut short: 0 of at least 97 bytes"
    assert reason(bytes(data) + b"!") == f"damaged: {len(data) + 1} bytes, but {len(data)} were written"
    newer = data.copy()
    newer[8] = 2
    assert reason(newer) == "written by a newer version of rollmill (format 2; this one reads up to 1)"
    older = data.copy()
    older[8] = 0
    assert "checksum does not match" in reason(older)
    payload = data.copy()
    payload[-40] ^= 1
    assert reason(payload) == "checksum does not match"


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none: cannot be read: No such file"):
        load_tree(tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot be read: it is a folder, not a file"):
        load_tree(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        save_tree(tmp_path / "none" / "a", 1)


def forge(path: Path, header: bytes, payload: bytes = b"", version: int = 1) -> None:
    """A file with correct checksums around a header that ``save_tree`` would not write."""
    start = -(-(32 + len(header) + 32) // 64) * 64
    head = struct.pack("<8sQQQ", b"rollmill", version, len(header), start + len(payload) + 32) + header
    head += hashlib.sha256(head).digest()
    body = head.ljust(start, b"\0") + payload
    path.write_bytes(body + hashlib.sha256(body).digest())


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"$array": 3}',
        b'{"$array": ["|u1", [4]]}',
        b'{"$array": ["|u1", [-4], 0]}',
        b'{"$array": ["|u1", [4.5], 0]}',
        b'{"$array": ["|O8", [1], 0]}',
        b'{"$array": [[], [1], 0]}',
        b'{"$array": ["|u1", [1000000000000], 0]}',
        b'{"$array": ["|u1", [0, 1180591620717411303424], 0]}',
        b'{"$array": ["|u1", [64], 64]}',
        b'[{"$array": ["|u1", [4], 0]}, {"$array": ["|u1", [4], 0]}]',
        b'{"$float": "x"}',
        b"1",  # leaves the payload unread
    ],
)
def test_a_forged_header_is_refused_without_damage(tmp_path: Path, header: bytes) -> None:
    forge(tmp_path / "a", header, bytes(64))
    with pytest.raises(CheckpointError, match="the header makes no sense"):
        load_tree(tmp_path / "a")


def test_a_version_that_never_was_is_refused(tmp_path: Path) -> None:
    forge(tmp_path / "a", b"1", version=0)
    with pytest.raises(CheckpointError, match="start of the file"):
        load_tree(tmp_path / "a")


def test_the_forger_of_these_tests_can_write_a_good_file(tmp_path: Path) -> None:
    forge(tmp_path / "a", b'{"$array": ["|u1", [64], 0]}', bytes(range(64)))
    assert same(load_tree(tmp_path / "a"), np.arange(64, dtype=np.uint8))


def test_a_file_that_shrinks_while_it_is_read_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    save_tree(path, np.zeros(1000))
    size, real = path.stat().st_size, os.fstat

    def fstat_then_truncate(descriptor: int) -> os.stat_result:
        result = real(descriptor)
        if result.st_size == size:
            os.truncate(path, 500)
        return result

    monkeypatch.setattr("rollmill.core.tree_file.os.fstat", fstat_then_truncate)
    with pytest.raises(CheckpointError, match=f"cut short: 500 of {size} bytes"):
        load_tree(path)


# ---------------------------------------------------------------------------------------------- the rest


def test_bytes_without_a_file_are_those_of_the_file(tmp_path: Path) -> None:
    tree = {"weights": np.arange(6.0).reshape(2, 3), "steps": 7}
    save_tree(tmp_path / "tree", tree)
    data = pack_tree(tree)
    assert data == (tmp_path / "tree").read_bytes()
    found = unpack_tree(data, "a message")
    assert found["steps"] == 7
    assert np.array_equal(found["weights"], tree["weights"])
    with pytest.raises(CheckpointError, match=r"^a message: cut short"):
        unpack_tree(data[:-1], "a message")
    with pytest.raises(CheckpointError, match=r"^a message: checksum"):
        unpack_tree(data[:-40] + b"?" + data[-39:], "a message")


def test_the_stored_checksum_names_the_contents(tmp_path: Path) -> None:
    save_tree(tmp_path / "a", {"x": 1})
    save_tree(tmp_path / "b", {"x": 1})
    save_tree(tmp_path / "c", {"x": 2})
    a, b, c = (stored_checksum(tmp_path / name) for name in "abc")
    assert len(a) == 64
    assert a == b
    assert a != c


def test_saving_and_checking_need_no_second_copy_of_an_array(tmp_path: Path) -> None:
    array = np.ones((8, 1 << 20), np.float32)  # 32 MiB
    tree = {"contiguous": array, "transposed": array.T}
    path = tmp_path / "a"
    tracemalloc.start()
    try:
        save_tree(path, tree)
        check_tree(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < array.nbytes / 4


def test_loading_does_not_import_pickle_users(tmp_path: Path) -> None:
    """Neither torch nor an unpickler is involved: loading works where ``pickle`` cannot be used."""
    save_tree(tmp_path / "a", SMALL)
    program = (
        "import sys, pathlib, pickle\n"
        "from rollmill.core.tree_file import load_tree, save_tree\n"
        "def refuse(*a, **k): raise SystemExit('pickle was used')\n"
        "for name in ('load', 'loads', 'dump', 'dumps', 'Unpickler', 'Pickler'):\n"
        "    setattr(pickle, name, refuse)\n"
        f"path = pathlib.Path({str(tmp_path / 'a')!r})\n"
        "save_tree(path, load_tree(path))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, kind in (("fifo", "a FIFO"), ("device", "a device"), ("folder", "a folder")):
        for read in (load_tree, read_header, check_tree, stored_checksum):
            with pytest.raises(CheckpointError, match=f"{name}: cannot be read: it is {kind}, not a file"):
                read(tmp_path / name)
