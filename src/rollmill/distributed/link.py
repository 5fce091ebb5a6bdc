"""How the gateway reaches nodes: six calls, so that what places processes on machines can be another one.

``local_link`` uses processes of this machine, ``ray_link`` a Ray cluster. Whatever happens to a call, there is at most
one answer or one ``Failure`` for it, never a second try; answers of a node come in the order of its calls.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from rollmill.distributed.messages import Chunk, Versions
from rollmill.distributed.weight_buffer import Publication


@dataclass(frozen=True)
class Collected:
    """The answer to a ``collect``."""

    node: str
    incarnation: int
    chunk: Chunk


@dataclass(frozen=True)
class Refreshed:
    """A publication has been taken over."""

    node: str
    incarnation: int
    sequence: int


@dataclass(frozen=True)
class Failure:
    """A call was not answered, and no other of this incarnation will be."""

    node: str
    incarnation: int
    reason: str


Event = Collected | Refreshed | Failure


class Link(Protocol):
    def nodes(self) -> Collection[str]:
        """Return the names of all nodes that could take part now."""

    def start(self, node: str, incarnation: int, order: bytes, versions: Versions, publication: Publication) -> None:
        """Put an agent on a node and have it begin (``NodeAgent.start``)."""

    def collect(self, node: str, most: int) -> None:
        """Ask for segments; the answer is an event."""

    def refresh(self, node: str, publication: Publication) -> None:
        """Send weights; their arrival is an event."""

    def end(self, node: str) -> None:
        """End the agent of a node and all that it has started, now. Nothing is heard of it any more."""

    def events(self, timeout: float, wake: int) -> list[Event]:
        """Return what has come in; waits for it, or until the descriptor ``wake`` can be read."""

    def close(self) -> None:
        """End all agents."""
