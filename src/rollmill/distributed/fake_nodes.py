"""Nodes that answer at once, with segments that were packed beforehand: how much does one gateway take in?

All of them are one process (``fake_nodes_main``), which is the learner to the gateway as well: it gives slots back the
moment they are filled. So what is measured is the gateway's own work: receiving, unpacking, keeping accounts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

from rollmill.core.process import Child
from rollmill.distributed.link import Collected, Event
from rollmill.distributed.local_link import Agent, Line, LocalLink
from rollmill.distributed.messages import Slots, Versions
from rollmill.distributed.weight_buffer import Publication


@dataclass(frozen=True)
class FakeSetup:
    """What the process of all fake nodes is given."""

    channels: tuple[int, ...]
    """One for each node."""
    home: int
    """To the gateway, as its learner."""
    segments: tuple[bytes, ...]
    """Packed; they are sent again and again."""
    chunk_bytes: int


class FakeNodes(LocalLink):
    """A link to so many of them; ``home`` is the gateway's way to its learner, who has ``slots`` to fill."""

    def __init__(self, count: int, segments: Sequence[bytes], chunk_bytes: int, slots: Sequence[int]) -> None:
        super().__init__(count)
        pairs = [Pipe() for _ in range(count)]
        self._channels = {name: ours for name, (ours, _) in zip(self._names, pairs, strict=True)}
        self.home, learner = Pipe()
        learner.send(Slots(tuple(slots)))
        theirs = [channel for _, channel in pairs]
        given = tuple(channel.fileno() for channel in theirs)
        setup = FakeSetup(given, learner.fileno(), tuple(segments), chunk_bytes)
        module = "rollmill.distributed.fake_nodes_main"
        self._child = Child(module, setup, os.environ, {*given, learner.fileno()})
        for channel in (*theirs, learner):
            channel.close()
        self.segments = self.packed_bytes = 0
        """That have come."""

    def start(self, node: str, incarnation: int, order: bytes, versions: Versions, publication: Publication) -> None:
        self._agents[node] = Agent(node, incarnation, self._child, Line(self._channels.pop(node), self._wake))

    def end(self, node: str) -> None:
        agent = self._agents.pop(node, None)
        if agent is not None:
            agent.line.close()

    def events(self, timeout: float, wake: int) -> list[Event]:
        found = super().events(timeout, wake)
        for event in found:
            if isinstance(event, Collected):
                self.segments += len(event.chunk.sizes)
                self.packed_bytes += sum(event.chunk.sizes)
        return found

    def close(self) -> None:
        super().close()
        channels: list[Connection] = [*self._channels.values(), self.home]
        for channel in channels:
            channel.close()
        self._child.end(0.0)
        self._child.close()
