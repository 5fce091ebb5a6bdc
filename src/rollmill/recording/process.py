"""The recorder's process: takes segments out of the queue and gives them to a ``SegmentSink``. It never imports torch.

``python -m rollmill.recording.process FD`` is started by ``recording.recorder``, which says through a pipe what to do.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import time
import traceback
from dataclasses import dataclass

from rollmill.core.slots import Arena, SegmentLayout, SharedBlock
from rollmill.recording.segment_queue import FULL, LEAVE, SegmentQueue
from rollmill.recording.sink import COUNTS, SegmentSink, SinkPlan
from rollmill.sampling.mailbox import Bell
from rollmill.sampling.worker import PARENT_CHECK_SECONDS, die_with_parent, send_event


@dataclass(frozen=True)
class RecorderSetup:
    """What the process is given: its plan and the inherited file descriptors."""

    plan: SinkPlan
    layout: SegmentLayout
    slots: int
    arena: tuple[int, int]  # fd, bytes
    queue: tuple[int, int]
    capacity: int
    bell: tuple[int, int]
    events_fd: int
    parent: int
    path: list[str]


class _EventLog(logging.Handler):
    """Sends log lines home."""

    def __init__(self, fd: int) -> None:
        super().__init__(logging.INFO)
        self._fd = fd

    def emit(self, record: logging.LogRecord) -> None:
        send_event(self._fd, "log", {"level": record.levelno, "text": record.getMessage()})


class RecorderProcess:
    """Serves the queue until told to stop; what waits then is still written."""

    def __init__(self, setup: RecorderSetup) -> None:
        arena_block = SharedBlock(*setup.arena, writable=False)
        queue_block = SharedBlock(*setup.queue)
        self._arena = Arena(setup.layout, setup.slots, block=arena_block)
        self._queue = SegmentQueue(setup.capacity, block=queue_block)
        for block in (arena_block, queue_block):
            block.close_fd()
        self._bell = Bell(*setup.bell)
        self._parent = setup.parent
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
            if self._bell.wait(PARENT_CHECK_SECONDS):
                self._bell.hush()
            elif os.getppid() != self._parent:
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


def main(setup_fd: int) -> int:
    # Stopping is the main process's business: a Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    with os.fdopen(setup_fd, "rb") as pipe:
        setup: RecorderSetup = pickle.load(pipe)  # noqa: S301 - from our own parent, never from a file
    if os.getppid() != setup.parent:
        return 1
    os.nice(setup.plan.settings.nice)
    sys.path[:] = setup.path
    log = logging.getLogger("rollmill")
    log.addHandler(_EventLog(setup.events_fd))
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        RecorderProcess(setup).serve()
    except Exception:  # noqa: BLE001 - the traceback goes home instead of being lost
        send_event(setup.events_fd, "crash", {"trace": traceback.format_exc()})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
