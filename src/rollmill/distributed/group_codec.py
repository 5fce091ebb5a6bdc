"""Packs the segment of a whole group, straight out of a slot and straight into one (``replay.packing`` does the work).

Lanes lie one after the other in what is packed: rows of one lane are more alike than those of its neighbours.
"""

from __future__ import annotations

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.slots import Arena, SegmentLayout
from rollmill.replay.packing import SegmentCodec


class GroupCodec:
    """Packs and unpacks slots of one layout; for one thread."""

    def __init__(self, layout: SegmentLayout) -> None:
        self._lanes = layout.lanes
        self._codec = SegmentCodec([(field, rows * layout.lanes) for field, rows in layout.fields()])
        self.raw_bytes = self._codec.raw_bytes
        """Bytes of a segment that is not packed."""

    def pack(self, arena: Arena, slot: int) -> bytes:
        return self._codec.pack({name: _lane_by_lane(array) for name, array in arena.segment(slot).items()})

    def unpack(self, data: bytes | memoryview, arena: Arena, slot: int) -> None:
        """Fill a slot; raises CodecError when that is no segment of this layout, and then nothing is written."""
        found = self._codec.unpack(data)
        for name, target in arena.segment(slot).items():
            lanes = found[name].reshape(self._lanes, len(target), *target.shape[2:])
            target[...] = lanes.swapaxes(0, 1)


def _lane_by_lane(array: Array) -> Array:
    """Return ``[rows, lanes, ...]`` as ``[lanes * rows, ...]``."""
    return np.ascontiguousarray(array.swapaxes(0, 1)).reshape(-1, *array.shape[2:])
