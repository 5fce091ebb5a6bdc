"""The agent of a node: keeps one sampler process, packs what it has finished, gives it the newest weights.

Whatever places agents on machines (``link``) calls ``start`` once, then ``collect`` and ``refresh`` as often as it
likes, from different threads. Nothing here waits for the learner: what is not collected stays in the sampler's slots,
and without free slots it pauses. An agent imports neither torch nor Ray.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections import deque
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from rollmill.core import given
from rollmill.core.errors import ConfigError, error_text, trace_text
from rollmill.core.process import Child
from rollmill.core.slots import Arena, SharedBlock
from rollmill.distributed.group_codec import GroupCodec
from rollmill.distributed.messages import (
    Alive,
    Chunk,
    Counted,
    Extra,
    Full,
    NodeOrder,
    NodeSetup,
    NodeStage,
    Ready,
    Release,
    SamplerCounts,
    Versions,
    differences,
    versions,
)
from rollmill.distributed.weight_buffer import Publication, WeightBuffer
from rollmill.sampling.pool import ONE_THREAD

LOOK_SECONDS = 0.2
PATIENCE = 0.1
"""How long ``collect`` waits for a first segment."""
END_SECONDS = 5.0
"""How long a sampler may take to end its workers."""
MOST_WORDS = 50


class NodeAgent:
    """One incarnation of one node."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._stage: NodeStage = "starting"
        self._reason = ""
        self._full: deque[Full] = deque()
        self._finished = self._sent = 0
        self._counts = SamplerCounts()
        self._extras: list[Extra] = []
        self._words: deque[str] = deque(maxlen=MOST_WORDS)
        self._heard = time.monotonic()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._sending, self._writing = threading.Lock(), threading.Lock()
        self._newest = -1
        """Sequence number of the newest publication."""
        self._channel: Connection | None = None
        self._weights: WeightBuffer | None = None
        self._arena: Arena | None = None
        self._codec: GroupCodec | None = None
        self._chunk_bytes = 0

    # -- what the link calls -------------------------------------------------------------------

    def start(self, order: bytes, learner: Versions, publication: Publication) -> None:
        """Begin to sample; how that goes is what ``collect`` says. ``order``: a pickled ``NodeOrder``."""
        self._heard = time.monotonic()
        if different := differences(versions(), learner):
            self._end("refused", f"it has {different}")
            return
        told: NodeOrder = pickle.loads(order)  # noqa: S301 - from the learner, who may run code here anyway
        given.receive(told.plan.own_code)
        sys.path += [folder for folder in told.plan.path if folder not in sys.path and os.path.exists(folder)]
        self._chunk_bytes = told.plan.chunk_bytes
        self._codec = GroupCodec(told.plan.layout)
        self._weights = WeightBuffer(told.plan.weight_bytes, len(told.plan.env.variables))
        self.refresh(publication)
        # A thread that lives as long as the agent: Linux ends the sampler with the thread that has started it.
        self._thread = threading.Thread(target=self._look_after, args=(told,), name="node-sampler", daemon=True)
        self._thread.start()

    def collect(self, most: int) -> Chunk:
        """Return up to so many segments, as soon as there is one; after a moment none. 0: only how it stands."""
        self._heard = time.monotonic()
        with self._change:
            if most:
                self._change.wait_for(lambda: self._full or self._stage != "sampling", PATIENCE)
        packed: list[bytes] = []
        groups: list[int] = []
        while len(packed) < most and sum(map(len, packed)) < self._chunk_bytes:
            with self._change:
                if not self._full or self._arena is None:
                    break
                full, arena = self._full.popleft(), self._arena
            assert self._codec is not None
            packed.append(self._codec.pack(arena, full.slot))
            groups.append(full.group)
            self._say(Release((full.slot,)))
        first, self._sent = self._sent + 1, self._sent + len(packed)
        with self._change:
            extras, self._extras = self._extras, []
            words = tuple(self._words)
            self._words.clear()
            return Chunk(
                self._stage,
                self._reason,
                self._finished,
                numbers=tuple(range(first, self._sent + 1)),
                groups=tuple(groups),
                sizes=tuple(map(len, packed)),
                data=np.frombuffer(b"".join(packed), np.uint8) if packed else None,
                counts=self._counts,
                extras=tuple(extras),
                words=words,
            )

    def refresh(self, publication: Publication) -> int:
        """Take newer weights; older ones than there are change nothing. Returns the version that is in use."""
        self._heard = time.monotonic()
        buffer = self._weights
        if buffer is None:
            return -1
        with self._writing:
            if publication.sequence > self._newest:
                self._newest = publication.sequence
                buffer.write(publication.version, publication.frames, publication.variables, publication.weights)
        return buffer.version

    def stop(self) -> None:
        """End the sampler, and wait for that."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS + LOOK_SECONDS)

    # -- the sampler's process -----------------------------------------------------------------

    def _look_after(self, order: NodeOrder) -> None:
        """Run the sampler; everything about its process happens in this one thread."""
        try:
            self._run_sampler(order)
        except Exception as error:  # noqa: BLE001 - no process, no memory, a message that cannot be read: it is told
            with self._change:
                self._words += trace_text(error).splitlines()
                self._end("failed", f"its agent failed: {error_text(error)}")
                self._change.notify_all()

    def _run_sampler(self, order: NodeOrder) -> None:
        assert self._weights is not None
        self._channel, theirs = Pipe()
        block = self._weights.block
        setup = NodeSetup(order, theirs.fileno(), (block.fd, block.nbytes))
        environment = {**ONE_THREAD, **os.environ}
        child = Child("rollmill.distributed.node_sampler_main", setup, environment, {theirs.fileno(), block.fd})
        theirs.close()
        with contextlib.closing(child):
            try:
                self._attend(child, order)
            finally:
                self._channel.close()  # the sampler ends when nobody is there
                child.end(END_SECONDS)
            self._listen(child)
            self._tell_the_end(child)

    def _attend(self, child: Child, order: NodeOrder) -> None:
        """Attend to the sampler until it has ended, or is to end."""
        assert self._channel is not None
        while not self._stopping.is_set() and child.alive:
            if self._channel.poll(LOOK_SECONDS):
                self._hear(child, order)
            if time.monotonic() - self._heard < order.plan.lease:
                self._say(Alive())
            self._listen(child)
        self._hear(child, order)

    def _tell_the_end(self, child: Child) -> None:
        with self._change:
            last = f"; it said: {child.last_lines[-1]}" if child.last_lines else ""
            for event in child.read_events():
                self._words += event["trace"].splitlines()
                # Wrong settings will be wrong the next time, too.
                self._end("refused" if child.code == ConfigError.exit_code else "failed", event["error"])
            self._end("failed", f"its sampler (pid {child.pid}) {child.how_it_ended()}{last}")

    def _hear(self, child: Child, order: NodeOrder) -> None:
        assert self._channel is not None
        with contextlib.suppress(EOFError, OSError):
            while self._channel.poll():
                self._take(self._channel.recv(), child, order)

    def _take(self, message: Any, child: Child, order: NodeOrder) -> None:
        with self._change:
            if isinstance(message, Full):
                self._full.append(message)
                self._finished += 1
            elif isinstance(message, Counted):
                self._counts = message.counts
                self._extras += message.extras
            elif isinstance(message, Ready):
                fd = os.open(f"/proc/{child.pid}/fd/{message.fd}", os.O_RDWR | os.O_CLOEXEC)
                block = SharedBlock(fd, message.nbytes, writable=False)
                self._arena = Arena(order.plan.layout, message.slots, block=block)
                block.close_fd()
                self._stage = "sampling"
            self._change.notify_all()

    def _say(self, message: object) -> None:
        with contextlib.suppress(OSError, AttributeError), self._sending:
            self._channel.send(message)  # type: ignore[union-attr]

    def _listen(self, child: Child) -> None:
        lines = child.read_output()
        with self._change:
            self._words += lines

    def _end(self, stage: NodeStage, reason: str) -> None:
        """Note that it has ended and why; the first reason counts."""
        if self._stage in ("starting", "sampling"):
            self._stage, self._reason = stage, reason
