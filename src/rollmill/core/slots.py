"""Where experience lives: segments in shared memory, handed around by index.

Words
-----
slot      the place of one segment: ``T + 1`` rows for the ``L`` lanes of one group.
row t     what lane l saw at step t (``obs``), what was decided (``action``, ``log_prob``, ``value``)
          and what came of it (``reward``, ``terminated``, ``truncated``, ``valid``).
row T     the bootstrap row: an observation and its value, no outcome.
arena     all slots of a run; one array per field, ``[slots, T + 1, L, *shape]``, so that a gather
          over any (slot, row) pairs is one numpy expression.
record    the ``WORKER_FIELDS`` of one lane in one row, side by side in memory: one cache line to write in
          a step. The arrays of these fields are views with gaps.

Who writes what: workers write the ``WORKER_FIELDS`` of a row, the inference side the rest. An
episode's final observation occupies a row of its own with ``valid = False`` (the decision there is
ignored): its value is the bootstrap of a truncated episode, with no special case in the maths.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.core.fields import INFO, Array, EnvSpec, Field, Obs

OBS = "obs:"
"""Prefix of observation fields inside a slot."""

WORKER_FIELDS = (
    Field("reward", "float32"),
    Field("episode_return", "float32"),
    Field("terminated", "bool"),
    Field("truncated", "bool"),
    Field("valid", "bool"),
    Field("first", "bool"),
    Field("step", "int32"),
    Field("episode", "int64"),
)
"""In the order of a record: every number is aligned, what is written together lies together."""
RECORD = np.dtype([(field.name, field.dtype) for field in WORKER_FIELDS])
RECORD_BYTES = RECORD.itemsize
OUTCOME = struct.Struct("=ff???")
"""The part of a record that an action leads to: reward, episode_return, terminated, truncated, valid."""
OUTCOME_BYTES = OUTCOME.size
OPENING = struct.Struct("=?iq")
"""The rest of a record, known with the observation: first, step, episode."""
OUTPUT_FIELDS = (
    Field("log_prob", "float32"),
    Field("value", "float32"),
    Field("version", "int64"),
    Field("policy_id", "int16"),
    Field("frames", "int64"),
)
OPPONENT = Field("opponent", "int16")
"""Output field of runs with self-play: the ``policy_id`` of whom the lane plays against."""
SMALL_BYTES = 1 << 16
"""Columns of a segment below this size are gathered by one numpy expression, larger ones segment by segment."""
CARRIED_FIELDS = ("first", "step", "episode")
"""Worker fields of row T that open the next segment as its row 0, beside the observation."""


class SharedBlock:
    """Anonymous shared memory that a child process maps through an inherited file descriptor.

    It has no name in any file system, so nothing can be left behind: the kernel frees it with the
    last process that maps it, whatever ended that process.
    """

    def __init__(self, fd: int, nbytes: int, writable: bool = True) -> None:
        self.fd = fd
        self.nbytes = nbytes
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # Populated at once: a first touch in the middle of a step costs a page fault for every 4 KB.
        self._map = mmap.mmap(fd, nbytes, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), access)

    @classmethod
    def create(cls, nbytes: int) -> SharedBlock:
        nbytes = max(nbytes, mmap.PAGESIZE)
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("rollmill", os.MFD_CLOEXEC)
        else:  # pragma: no cover - macOS: an unlinked file has the same life time
            with tempfile.TemporaryFile() as handle:
                fd = os.dup(handle.fileno())
        os.ftruncate(fd, nbytes)
        return cls(fd, nbytes)

    def array(self, dtype: str | np.dtype[Any], shape: tuple[int, ...], offset: int) -> Array:
        count = math.prod(shape)
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=offset).reshape(shape)

    def raw(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes of the block, for who writes few numbers at a time: numpy costs them several times as much."""
        return memoryview(self._map)[offset : offset + nbytes]

    def close_fd(self) -> None:
        """Give up the descriptor; the mapping stays as long as arrays refer to it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def layout_arrays(fields: Sequence[tuple[Field, tuple[int, ...]]]) -> tuple[dict[str, int], int]:
    """Return the byte offset of each (field, leading shape), 64-byte aligned, and the total size."""
    offsets: dict[str, int] = {}
    end = 0
    for field, leading in fields:
        offsets[field.name] = end
        end += -(-math.prod(leading) * field.nbytes // 64) * 64
    return offsets, end


@dataclass(frozen=True)
class SegmentLayout:
    """Shape of every slot of a run.

    ``state_every`` is the number of rows between stored recurrent states (the truncation length of
    back-propagation); ``state_size`` is 0 for policies without memory.
    """

    spec: EnvSpec
    steps: int
    lanes: int
    state_size: int = 0
    state_every: int = 0
    opponents: bool = False
    """Whether rows say who plays against whom (self-play)."""

    @property
    def rows(self) -> int:
        return self.steps + 1

    @property
    def state_rows(self) -> int:
        return self.steps // (self.state_every or self.steps)

    def fields(self) -> list[tuple[Field, int]]:
        """Return every field with its number of rows in a slot."""
        columns = [Field(OBS + f.name, f.dtype, f.shape) for f in self.spec.observation]
        columns += [f for f in self.spec.written if f.name.startswith(INFO)]
        columns += [*WORKER_FIELDS, self.spec.action.field, *OUTPUT_FIELDS]
        columns += [OPPONENT] if self.opponents else []
        rows = [(field, self.rows) for field in columns]
        if self.state_size:
            rows.append((Field("state", "float32", (self.state_size,)), self.state_rows))
        return rows

    @property
    def slot_bytes(self) -> int:
        return sum(rows * self.lanes * field.nbytes for field, rows in self.fields())


class Arena:
    """All slots of a run as one array per field (see the module's words)."""

    def __init__(self, layout: SegmentLayout, slots: int, block: SharedBlock | None = None) -> None:
        fields = [(field, (slots, rows, layout.lanes)) for field, rows in layout.fields()]
        packed = (Field("records", f"V{RECORD_BYTES}"), (slots, layout.rows, layout.lanes))
        offsets, nbytes = layout_arrays([*((f, lead) for f, lead in fields if f not in WORKER_FIELDS), packed])
        self.layout = layout
        self.slots = slots
        self.block = block or SharedBlock.create(nbytes)
        records = self.block.array(RECORD, packed[1], offsets["records"])
        self.records = self.block.raw(offsets["records"], records.nbytes)
        """The bytes of all records, in the order (slot, row, lane)."""
        self.fields: dict[str, Array] = {
            field.name: records[field.name]
            if field in WORKER_FIELDS
            else self.block.array(field.dtype, lead + field.shape, offsets[field.name])
            for field, lead in fields
        }
        self.obs: dict[str, Array] = {
            name.removeprefix(OBS): array for name, array in self.fields.items() if name.startswith(OBS)
        }
        self.info = {name: array for name, array in self.fields.items() if name.startswith(INFO)}
        """Written by workers beside the observation; policies are not shown it."""
        self.obs_by_record = [
            (name, array.reshape(records.size, *array.shape[3:])) for name, array in (self.obs | self.info).items()
        ]
        """Name and array ``[slots * (T + 1) * L, *shape]`` of all that an env writes: one index instead of three."""

    def __getitem__(self, name: str) -> Array:
        return self.fields[name]

    def poison(self, slot: int) -> None:
        """Fill a slot with values nobody could mistake for data (debug mode)."""
        for array in self.fields.values():
            if array.dtype.kind == "f":
                array[slot] = np.nan
            elif array.dtype.kind == "i":
                array[slot] = np.iinfo(array.dtype).min
            else:
                array[slot] = 1

    def segment(self, slot: int) -> dict[str, Array]:
        """Return views of one slot: ``[T + 1, L, ...]`` per field."""
        return {name: array[slot] for name, array in self.fields.items()}

    def head(self, slot: int, row: int) -> dict[str, Array]:
        """Return views of what is written of a slot once row ``row`` has been decided; empty for row -1."""
        every = self.layout.state_every or self.layout.steps
        ends = {"state": row // every + 1}
        return {name: array[slot, : ends.get(name, row + 1)] for name, array in self.fields.items()}

    def gather(
        self, slots: list[int], out: dict[str, Array] | None = None, skip: Collection[str] = ()
    ) -> dict[str, Array]:
        """Copy segments side by side: ``[T + 1, len(slots) * L, ...]`` per field, but for those to ``skip``.

        ``out`` (from an earlier call with as many slots) is filled again instead of allocating.
        """
        lanes = self.layout.lanes
        if out is None:
            out = {
                name: np.empty((a.shape[1], len(slots) * lanes, *a.shape[3:]), a.dtype)
                for name, a in self.fields.items()
                if name not in skip
            }
        for name, columns in out.items():
            array = self.fields[name]
            if array[0].nbytes < SMALL_BYTES:  # two copies of little cost less than many calls
                np.copyto(columns.reshape(len(columns), len(slots), *array.shape[2:]), array[slots].swapaxes(0, 1))
                continue
            for k, slot in enumerate(slots):
                columns[:, k * lanes : (k + 1) * lanes] = array[slot]
        return out


class RowArrays:
    """Views of rows t and t + 1 of a slot (``protocols.StepArrays``)."""

    __slots__ = (
        "reward",
        "terminated",
        "truncated",
        "valid",
        "episode_return",
        "obs",
        "first",
        "step",
        "episode",
    )

    def __init__(self, arena: Arena, slot: int, row: int) -> None:
        f, after = arena.fields, row + 1
        row = max(row, 0)  # see ``RowOut``
        self.reward = f["reward"][slot, row]
        self.terminated = f["terminated"][slot, row]
        self.truncated = f["truncated"][slot, row]
        self.valid = f["valid"][slot, row]
        self.episode_return = f["episode_return"][slot, row]
        self.obs = {name: array[slot, after] for name, array in arena.obs.items()}
        self.first = f["first"][slot, after]
        self.step = f["step"][slot, after]
        self.episode = f["episode"][slot, after]


class RowOut:
    """Rows t and t + 1 of a slot, in the form a batch env writes (``protocols.StepOut``).

    Cheap to make: who writes lane by lane does not pay for arrays.
    """

    __slots__ = ("_arena", "_obs", "_record", "_row", "_slot", "openings_at", "outcomes_at", "records")

    def __init__(self, arena: Arena, slot: int, row: int) -> None:
        layout = arena.layout
        self._arena, self._slot, self._row = arena, slot, row
        self._obs = arena.obs_by_record
        self._record = record = (slot * (layout.steps + 1) + row + 1) * layout.lanes
        self.records = arena.records
        self.openings_at = record * RECORD_BYTES + OUTCOME_BYTES
        # row -1 is the reset before a run's first decision: it has no outcome to write, so the
        # outcome goes to row 0, where the first step overwrites it.
        self.outcomes_at = (record if row < 0 else record - layout.lanes) * RECORD_BYTES

    @property
    def obs(self) -> Obs:
        """The observations of all lanes."""
        return self.obs_of(0, self._arena.layout.lanes)

    def obs_of(self, begin: int, end: int) -> Obs:
        record, found = self._record, {}
        for name, array in self._obs:
            found[name] = array[record + begin : record + end]
        return found

    def arrays(self) -> RowArrays:
        return RowArrays(self._arena, self._slot, self._row)
