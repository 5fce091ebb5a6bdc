"""What a replay buffer will take, said before it holds anything.

How small a segment packs is known when it is there. Before, two ends are known: a segment in which nothing was seen,
where only the network's own numbers count, and one in which nothing can be saved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rollmill.core.slots import SegmentLayout
from rollmill.replay.buffer import is_kept
from rollmill.replay.packing import SegmentCodec
from rollmill.replay.settings import ReplaySettings

NOISE = ("value", "log_prob")
"""Fields that never shrink by much, whatever was seen."""


@dataclass(frozen=True)
class Forecast:
    """What one buffer takes, in bytes."""

    capacity: int
    least: int
    """A segment of one lane, packed, at the very least."""
    most: int
    batch: int
    """A batch while it is being drawn."""

    @property
    def contents(self) -> tuple[int, int]:
        """The full buffer: least and most."""
        return self.capacity * self.least, self.capacity * self.most

    @property
    def memory(self) -> tuple[int, int]:
        """With a batch: least and most."""
        least, most = self.contents
        return least + self.batch, most + self.batch


def forecast(settings: ReplaySettings, batch: int, layout: SegmentLayout) -> Forecast:
    """Return what a buffer will take with batches of ``batch`` segments of a lane; ``layout``: of the run's
    segments."""
    fields = [(field, rows) for field, rows in replace(layout, lanes=1).fields() if is_kept(field.name)]
    codec = SegmentCodec(fields)
    empty = {field.name: np.zeros((rows, *field.shape), field.dtype) for field, rows in fields}
    rng = np.random.default_rng(0)
    for name in NOISE:
        empty[name][:] = rng.normal(size=empty[name].shape)
    return Forecast(settings.capacity, len(codec.pack(empty)), codec.most_bytes, (batch + 1) * codec.raw_bytes)
