"""The recorder's process: takes segments out of the queue and gives them to a ``SegmentSink``. It never imports torch.

``python -m rollmill.recording.process FD`` is started by ``recording.recorder``, which says through a pipe what to do.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass

from rollmill.core.child import PARENT_CHECK_SECONDS, Parent, run_child
from rollmill.core.slots import Arena, SegmentLayout, SharedBlock
from rollmill.recording.segment_queue import FULL, LEAVE, SegmentQueue
from rollmill.recording.sink import COUNTS, SegmentSink, SinkPlan
from rollmill.sampling.mailbox import Wakeup


@dataclass(frozen=True)
class RecorderSetup:
    """What the process is given: its plan and the inherited file descriptors."""

    plan: SinkPlan
    layout: SegmentLayout
    slots: int
    arena: tuple[int, int]  # fd, bytes
    queue: tuple[int, int]
    capacity: int
    wakeup: tuple[int, int]


class _EventLog(logging.Handler):
    """Sends log lines home."""

    def __init__(self, parent: Parent) -> None:
        super().__init__(logging.INFO)
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        self._parent.tell("log", {"level": record.levelno, "text": record.getMessage()})


class RecorderProcess:
    """Serves the queue until told to stop; what waits then is still written."""

    def __init__(self, setup: RecorderSetup, parent: Parent) -> None:
        arena_block = SharedBlock(*setup.arena, writable=False)
        queue_block = SharedBlock(*setup.queue)
        self._arena = Arena(setup.layout, setup.slots, block=arena_block)
        self._queue = SegmentQueue(setup.capacity, block=queue_block)
        for block in (arena_block, queue_block):
            block.close_fd()
        self._wakeup = Wakeup(*setup.wakeup)
        self._parent = parent
        self._busy = 0.0
        self._sink = SegmentSink(setup.plan)
        self._publish()
        self._queue.ready[0] = 1

    def serve(self) -> None:
        while True:
            if self._work():
                continue
            if self._queue.stop[0] and not self._work():  # looked once more: stop is written after the last entry
                break
            if self._wakeup.wait(PARENT_CHECK_SECONDS):
                self._wakeup.clear()
            elif self._parent.is_gone:
                break  # the run is gone: seal what there is
        self._sink.close()
        self._publish()

    def _work(self) -> bool:
        entry = self._queue.take()
        if entry is None:
            return False
        slot, group, probability = entry
        begun = time.perf_counter()
        if slot == LEAVE:
            self._sink.leave(group)
        elif slot == FULL:
            self._sink.stop_at_budget()
        else:
            self._sink.take(self._arena.segment(slot), group, probability)
        self._busy += time.perf_counter() - begun
        self._queue.finish()
        self._publish()
        return True

    def _publish(self) -> None:
        counts = {**self._sink.counts(), "busy_us": int(self._busy * 1e6)}
        self._queue.counts[:] = [counts[name] for name in COUNTS]


def work(setup: RecorderSetup, parent: Parent) -> None:
    os.nice(setup.plan.settings.nice)
    log = logging.getLogger("rollmill")
    log.addHandler(_EventLog(parent))
    log.setLevel(logging.INFO)
    log.propagate = False
    RecorderProcess(setup, parent).serve()


if __name__ == "__main__":
    sys.exit(run_child(work))
