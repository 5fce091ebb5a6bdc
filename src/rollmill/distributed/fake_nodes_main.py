"""All nodes of a benchmark in one process: ``python -m rollmill.distributed.fake_nodes_main FD`` (``fake_nodes``)."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

import numpy as np

from rollmill.core.child import begin_child
from rollmill.distributed.fake_nodes import FakeSetup
from rollmill.distributed.messages import Admitted, Ask, Chunk, Slots
from rollmill.distributed.weight_buffer import Publication


class FakeNode:
    """Has always finished as many segments as it is asked for."""

    def __init__(self, segments: Sequence[bytes], chunk_bytes: int) -> None:
        self._next, self._chunk_bytes = itertools.cycle(segments), chunk_bytes
        self._sent = 0

    def answer(self, message: object) -> object:
        """Return what an agent would say; None where it says nothing."""
        if isinstance(message, Publication):
            return message.sequence
        return self._chunk(message.most) if isinstance(message, Ask) else None

    def _chunk(self, most: int) -> Chunk:
        packed: list[bytes] = []
        while len(packed) < most and sum(map(len, packed)) < self._chunk_bytes:
            packed.append(next(self._next))
        first, self._sent = self._sent + 1, self._sent + len(packed)
        return Chunk(
            "sampling",
            "",
            self._sent,
            numbers=tuple(range(first, self._sent + 1)),
            groups=(0,) * len(packed),
            sizes=tuple(map(len, packed)),
            data=np.frombuffer(b"".join(packed), np.uint8) if packed else None,
        )


def serve(setup: FakeSetup) -> None:
    """Answer for all nodes until the gateway has gone."""
    nodes = {Connection(fd): FakeNode(setup.segments, setup.chunk_bytes) for fd in setup.channels}
    home = Connection(setup.home)
    with contextlib.suppress(EOFError, OSError):
        while True:
            for channel in wait([home, *nodes]):
                assert isinstance(channel, Connection)
                message = channel.recv()
                if channel is home and isinstance(message, Admitted):
                    home.send(Slots((message.slot,)))
                elif channel is not home and (answer := nodes[channel].answer(message)) is not None:
                    channel.send(answer)


def main(setup_fd: int) -> int:
    setup: FakeSetup
    setup, _parent = begin_child(setup_fd)
    serve(setup)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
