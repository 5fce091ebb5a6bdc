"""How segments get to the recorder: a ring of slot numbers in shared memory, one writer, one reader, no locks.

The main process puts entries in and raises ``put``. The recorder raises ``begun``, does the work, raises ``done``.
So at any moment entries up to ``done`` are finished, and at most one is in the recorder's hands; a recorder that dies
leaves nothing locked, and its successor goes on at ``begun``. The recorder's metrics come back the same way.
"""

from __future__ import annotations

from rollmill.core.fields import Array, Field
from rollmill.core.slots import SharedBlock, layout_arrays
from rollmill.recording.sink import COUNTS

LEAVE = -1
"""In place of a slot: the group's next segment is not coming."""
FULL = -2
"""In place of a slot: there is no room for more, nothing else will come."""


class SegmentQueue:
    """The numbers of the queue, in shared memory."""

    put: Array  # [1] int64, written by main: entries ever put in
    begun: Array  # [1] int64, written by the recorder
    done: Array  # [1] int64, written by the recorder
    ready: Array  # [1] int64, written by the recorder: its store is open
    stop: Array  # [1] int64, written by main: end when everything is done
    counts: Array  # [len(COUNTS)] int64, written by the recorder
    slot: Array  # [capacity] int64, written by main
    group: Array  # [capacity] int64, written by main
    probability: Array  # [capacity] float64, written by main: of episodes that begin in the segment

    def __init__(self, capacity: int, block: SharedBlock | None = None) -> None:
        fields = [(Field(name, "int64"), (1,)) for name in ("put", "begun", "done", "ready", "stop")]
        fields += [(Field("counts", "int64"), (len(COUNTS),))]
        fields += [(Field(name, "int64"), (capacity,)) for name in ("slot", "group")]
        fields += [(Field("probability", "float64"), (capacity,))]
        offsets, nbytes = layout_arrays(fields)
        self.capacity = capacity
        self.block = block or SharedBlock.create(nbytes)
        for field, shape in fields:
            setattr(self, field.name, self.block.array(field.dtype, shape, offsets[field.name]))

    @property
    def free(self) -> int:
        return self.capacity - int(self.put[0] - self.done[0])

    def push(self, slot: int, group: int = 0, probability: float = 1.0) -> int:
        """Put an entry in; returns its number. There must be a free place."""
        number = int(self.put[0])
        place = number % self.capacity
        self.slot[place], self.group[place], self.probability[place] = slot, group, probability
        self.put[0] = number + 1
        return number

    def take(self) -> tuple[int, int, float] | None:
        """Take the next entry (slot, group, probability), or None. ``finish`` says that it is done with."""
        number = int(self.begun[0])
        if number == self.put[0]:
            return None
        self.begun[0] = number + 1
        place = number % self.capacity
        return int(self.slot[place]), int(self.group[place]), float(self.probability[place])

    def finish(self) -> None:
        self.done[0] = self.begun[0]

    def give_up_begun(self) -> int:
        """Give up the entry that the reader was at when it died; returns 1 if that was a segment."""
        begun, done = int(self.begun[0]), int(self.done[0])
        lost = [k for k in range(done, begun) if self.slot[k % self.capacity] >= 0]
        self.done[0] = begun
        return len(lost)
