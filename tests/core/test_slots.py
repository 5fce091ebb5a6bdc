"""Arenas and their views, and the shared memory under them."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.slots import (
    OBS,
    OPENING,
    OUTCOME,
    OUTCOME_BYTES,
    RECORD,
    RECORD_BYTES,
    WORKER_FIELDS,
    Arena,
    RowOut,
    SegmentLayout,
    SharedBlock,
    layout_arrays,
)

SPEC = EnvSpec(
    "x",
    observation=(Field("image", "uint8", (3, 5, 3)), Field("speed", "float32")),
    action=ActionSpec("multi_discrete", nvec=(3, 2), start=(0, 0)),
)
STEPS, LANES, SLOTS = 6, 4, 3


def layout(state_every: int = 2) -> SegmentLayout:
    return SegmentLayout(SPEC, STEPS, LANES, state_size=7, state_every=state_every)


def numbered() -> Arena:
    """An arena in which every number differs from its neighbours."""
    arena = Arena(layout(), SLOTS)
    for array in arena.fields.values():
        array[...] = (np.arange(array.size) % 127).reshape(array.shape)
    return arena


def mapped_bytes() -> int:
    """Bytes of our shared memory that this process maps."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:rollmill" in line:
            begin, end = line.split()[0].split("-")
            total += int(end, 16) - int(begin, 16)
    return total


# -- layout ----------------------------------------------------------------------------------------------


def test_arrays_are_aligned_and_do_not_overlap() -> None:
    fields = [(Field("a", "bool"), (3,)), (Field("b", "float64"), (5, 5)), (Field("c", "int16", (2,)), (7,))]
    offsets, total = layout_arrays(fields)
    assert offsets == {"a": 0, "b": 64, "c": 64 + 256}
    assert total == 64 + 256 + 64


def test_every_field_has_its_place_and_shape() -> None:
    arena = Arena(layout(), SLOTS)
    assert arena[OBS + "image"].shape == (SLOTS, STEPS + 1, LANES, 3, 5, 3)
    assert arena[OBS + "image"].dtype == np.uint8
    assert arena.obs["image"] is arena[OBS + "image"]
    assert arena.obs["speed"].shape == arena["reward"].shape == (SLOTS, STEPS + 1, LANES)
    assert arena["action"].shape == (SLOTS, STEPS + 1, LANES, 2)
    assert arena["action"].dtype == np.int64
    assert arena["state"].shape == (SLOTS, STEPS // 2, LANES, 7)
    assert [arena[name].dtype for name in ("first", "step", "episode")] == [np.bool_, np.int32, np.int64]
    for i, (name, array) in enumerate(arena.fields.items()):
        array[...] = i % 2
        others = [other for other in arena.fields if other != name]
        assert not any(np.shares_memory(array, arena[other]) for other in others)
    for i, array in enumerate(arena.fields.values()):
        assert (array == i % 2).all(), "another field was written over this one"


@pytest.mark.parametrize(("every", "rows"), [(0, 1), (1, 6), (2, 3), (6, 1)])
def test_states_are_stored_once_per_piece(every: int, rows: int) -> None:
    assert layout(every).state_rows == rows
    assert Arena(layout(every), 1)["state"].shape[1] == rows


def test_policies_without_memory_have_no_state() -> None:
    assert "state" not in Arena(SegmentLayout(SPEC, STEPS, LANES), 1).fields


def test_slot_bytes_are_those_of_the_arrays() -> None:
    arena = Arena(layout(), SLOTS)
    assert layout().slot_bytes * SLOTS == sum(array.nbytes for array in arena.fields.values())
    assert arena.block.nbytes >= layout().slot_bytes * SLOTS


# -- views and copies ------------------------------------------------------------------------------------


def test_a_segment_is_a_view() -> None:
    arena = numbered()
    segment = arena.segment(1)
    for name, array in arena.fields.items():
        np.testing.assert_array_equal(segment[name], array[1])
        assert np.shares_memory(segment[name], array)


@pytest.mark.parametrize(("row", "states"), [(-1, 0), (0, 1), (1, 1), (2, 2), (5, 3)])
def test_the_head_of_a_slot_is_what_is_written_so_far(row: int, states: int) -> None:
    head = numbered().head(2, row)
    for name, array in head.items():
        assert len(array) == (states if name == "state" else row + 1), name


def test_the_head_holds_one_state_where_states_are_stored_once() -> None:
    assert len(Arena(layout(0), 1).head(0, STEPS - 1)["state"]) == 1


def test_gather_puts_segments_side_by_side() -> None:
    arena = numbered()
    columns = arena.gather([2, 0])
    for name, array in arena.fields.items():
        np.testing.assert_array_equal(columns[name], np.concatenate([array[2], array[0]], axis=1))
        assert not np.shares_memory(columns[name], array)


def test_gather_fills_given_arrays_again_and_leaves_out_what_is_skipped() -> None:
    arena = numbered()
    first = arena.gather([0, 1], skip=("frames", OBS + "image"))
    assert arena.fields.keys() - first.keys() == {"frames", OBS + "image"}
    addresses = {name: array.ctypes.data for name, array in first.items()}
    again = arena.gather([1, 2], out=first)
    assert {name: array.ctypes.data for name, array in again.items()} == addresses
    np.testing.assert_array_equal(again["reward"], np.concatenate([arena["reward"][1], arena["reward"][2]], axis=1))


def test_poison_looks_like_no_data_and_stays_in_its_slot() -> None:
    arena = numbered()
    before = arena.gather([0, 2])
    arena.poison(1)
    for name, array in arena.segment(1).items():
        if array.dtype.kind == "f":
            assert np.isnan(array).all(), name
        elif array.dtype.kind == "i":
            assert (array == np.iinfo(array.dtype).min).all(), name
        else:
            assert (array == 1).all(), name
    for name, array in arena.gather([0, 2]).items():
        np.testing.assert_array_equal(array, before[name])


# -- two rows, as a batch env writes them ----------------------------------------------------------------

AFTER_AN_ACTION = ("reward", "terminated", "truncated", "valid", "episode_return")
WITH_AN_OBSERVATION = ("first", "step", "episode")


@pytest.mark.parametrize("row", [0, 3, STEPS - 1])
def test_row_out_is_the_outcome_of_a_row_and_the_opening_of_the_next(row: int) -> None:
    arena = numbered()
    out = RowOut(arena, 1, row).arrays()
    for name in AFTER_AN_ACTION:
        assert getattr(out, name).ctypes.data == arena[name][1, row].ctypes.data
    for name in WITH_AN_OBSERVATION:
        assert getattr(out, name).ctypes.data == arena[name][1, row + 1].ctypes.data
    for name, array in out.obs.items():
        assert array.ctypes.data == arena.obs[name][1, row + 1].ctypes.data
        assert array.shape == arena.obs[name].shape[2:]


def test_the_reset_before_the_first_decision_opens_row_zero() -> None:
    arena = numbered()
    out = RowOut(arena, 2, -1)
    assert out.arrays().first.ctypes.data == arena["first"][2, 0].ctypes.data
    assert out.obs["image"].ctypes.data == arena.obs["image"][2, 0].ctypes.data
    assert out.arrays().reward.ctypes.data == arena["reward"][2, 0].ctypes.data, "not the last row of the slot"
    assert out.openings_at - out.outcomes_at == OUTCOME_BYTES, "both in row 0"


def test_a_record_has_no_gaps_and_every_number_is_aligned() -> None:
    assert RECORD_BYTES == OUTCOME.size + OPENING.size == sum(field.nbytes for field in WORKER_FIELDS)
    for name in RECORD.names or ():
        dtype, offset = RECORD.fields[name][:2]  # type: ignore[index]
        assert offset % dtype.itemsize == RECORD_BYTES % dtype.itemsize == 0, name


@pytest.mark.parametrize("row", [-1, 0, STEPS - 1])
def test_records_are_the_memory_of_the_arrays(row: int) -> None:
    """What is packed into them stands in the fields of that slot, row and lane, and nowhere else."""
    arena = numbered()
    before = arena.gather(list(range(SLOTS)))
    out = RowOut(arena, 1, row)
    for lane in range(LANES):
        OUTCOME.pack_into(out.records, out.outcomes_at + lane * RECORD_BYTES, -1.5, lane, True, False, True)
        OPENING.pack_into(out.records, out.openings_at + lane * RECORD_BYTES, lane == 2, -lane, 1 << 40)
    lanes = list(range(LANES))
    expected = {
        "reward": [-1.5] * LANES,
        "episode_return": lanes,
        "terminated": [True] * LANES,
        "truncated": [False] * LANES,
        "valid": [True] * LANES,
        "first": [lane == 2 for lane in lanes],
        "step": [-lane for lane in lanes],
        "episode": [1 << 40] * LANES,
    }
    for name, values in expected.items():
        at = max(row, 0) if name in AFTER_AN_ACTION else row + 1
        assert arena[name][1, at].tolist() == values, name
        before[name][at, LANES : 2 * LANES] = values
    for name, array in arena.gather(list(range(SLOTS))).items():
        np.testing.assert_array_equal(array, before[name], name)


def test_observations_of_some_lanes_are_views() -> None:
    arena = numbered()
    found = RowOut(arena, 2, 3).obs_of(1, 3)
    assert list(found) == ["image", "speed"]
    for name, array in found.items():
        expected = arena.obs[name][2, 4, 1:3]
        assert (array.ctypes.data, array.shape, array.dtype) == (expected.ctypes.data, expected.shape, expected.dtype)


# -- shared memory ---------------------------------------------------------------------------------------

CHILD = """
import sys
from rollmill.core.fields import EnvSpec
from rollmill.core.slots import Arena, SegmentLayout, SharedBlock
import json
setup = json.loads(sys.argv[1])
layout = SegmentLayout(EnvSpec.from_dict(setup["spec"]), *setup["shape"])
arena = Arena(layout, setup["slots"], SharedBlock(setup["fd"], setup["nbytes"]))
arena["reward"][1, 2] = arena["reward"][1, 1] * 2
arena.obs["image"][2, -1, -1] = 9
"""


def test_a_child_process_writes_into_the_same_memory() -> None:
    arena = Arena(SegmentLayout(SPEC, STEPS, LANES), SLOTS)
    arena["reward"][1, 1] = np.arange(LANES)
    block = arena.block
    setup = {
        "spec": SPEC.to_dict(),
        "shape": [STEPS, LANES],
        "slots": SLOTS,
        "fd": block.fd,
        "nbytes": block.nbytes,
    }
    subprocess.run([sys.executable, "-c", CHILD, json.dumps(setup)], pass_fds=(block.fd,), check=True)
    assert arena["reward"][1, 2].tolist() == [0, 2, 4, 6]
    assert (arena.obs["image"][2, -1, -1] == 9).all()
    assert arena.obs["image"][:2].sum() == 0
    block.close_fd()


def test_it_is_not_inherited_by_accident() -> None:
    block = SharedBlock.create(64)
    assert not os.get_inheritable(block.fd)
    block.close_fd()


def test_fresh_memory_is_zero_and_never_smaller_than_a_page() -> None:
    block = SharedBlock.create(1)
    assert block.nbytes >= 4096
    assert not block.array("uint8", (block.nbytes,), 0).any()
    block.close_fd()


def test_nothing_is_left_behind() -> None:
    """No name in any file system, and the memory goes with the last array."""
    gc.collect()  # what earlier tests left to the collector must not go in between
    before, names = mapped_bytes(), set(os.listdir("/dev/shm"))
    arena = Arena(layout(), 50)
    size = arena.block.nbytes
    assert mapped_bytes() - before >= size
    assert not [name for name in set(os.listdir("/dev/shm")) - names if "rollmill" in name]
    fd = arena.block.fd
    arena.block.close_fd()
    arena.block.close_fd()  # a second time is harmless
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    arena["reward"][:] = 1  # the mapping stays as long as it is used
    last = arena["reward"]
    gone = weakref.ref(arena)
    del arena
    assert gone() is None
    assert mapped_bytes() - before >= size, "an array still refers to it"
    del last
    assert mapped_bytes() <= before
