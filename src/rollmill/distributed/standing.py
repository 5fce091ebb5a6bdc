"""How the nodes of a run stand, as the run's folder tells: written by the run, read by ``rollmill cluster status``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.errors import ClusterError
from rollmill.core.opening import read_json
from rollmill.distributed.messages import NodeState
from rollmill.replay.packing import FORMAT

FILE = "cluster.json"
SPAN_SECONDS = 5.0
"""Rates are means over so long: a slow node brings a segment in seconds, and news come twice in one."""


@dataclass(frozen=True)
class NodeStanding:
    """One node."""

    node: str
    seat: int
    incarnation: int
    stage: str
    reason: str
    steps_per_s: float
    mb_per_s: float
    lag: float
    """Updates that its last segment was behind when it arrived."""
    steps: int
    """Of this incarnation."""
    lost: int
    """Segments of all its incarnations."""
    pack_ratio: float
    """Bytes of segments before packing, divided by those after; 0 before the first."""
    heard: float
    """Seconds since it was last heard."""
    codec: str = ""
    """What its segments are packed with."""


@dataclass(frozen=True)
class RunStanding:
    """All nodes of a run."""

    gateways: int
    """That the run has had, over all its sessions: incarnations go by them."""
    address: str
    time: float
    """When this was written, in seconds since 1970."""
    restarts: int
    """Of the gateway, in this session."""
    problem: str
    """Why there is no gateway now; empty where there is one."""
    received: int
    lost: int
    refused: int
    nodes: Sequence[NodeStanding] = ()

    def write(self, folder: Path, durable: bool = True) -> None:
        """Write the file; ``durable``: it is on the disk when this returns (``core.atomic``)."""
        atomic.write_json(folder / FILE, asdict(self), durable)

    @classmethod
    def read(cls, folder: Path) -> RunStanding:
        """Read the file; raises FileNotFoundError for a run without nodes."""
        found: Mapping[str, Any] = read_json(folder / FILE)
        try:
            return cls(**{**found, "nodes": [NodeStanding(**node) for node in found["nodes"]]})
        except (KeyError, TypeError) as error:
            raise ClusterError(f"{folder / FILE} is damaged: {error}") from error


@dataclass(frozen=True)
class Rate:
    """What comes of a node."""

    rows_per_s: float
    bytes_per_s: float


class Rates:
    """Rates of every incarnation, over the last ``SPAN_SECONDS`` of news of it, or as long as there has been any."""

    def __init__(self) -> None:
        self._told = time.monotonic()
        self._news: dict[int, deque[tuple[float, int, int]]] = {}
        """Time, rows and bytes, the oldest first."""

    def hear(self, nodes: Sequence[NodeState], told: float) -> Mapping[int, Rate]:
        """Return rates by incarnation; those of a new one begin at the news before. ``told``: when this news came."""
        begun = (self._told, 0, 0)
        self._news = {node.incarnation: self._news.get(node.incarnation, deque([begun])) for node in nodes}
        self._told = told
        return {node.incarnation: self._rate(node, told) for node in nodes}

    def _rate(self, node: NodeState, told: float) -> Rate:
        news = self._news[node.incarnation]
        news.append((told, node.rows, node.packed_bytes))
        while told - news[1][0] >= SPAN_SECONDS:
            news.popleft()
        then, rows, packed_bytes = news[0]
        passed = max(told - then, 1e-9)
        return Rate((node.rows - rows) / passed, (node.packed_bytes - packed_bytes) / passed)


def standing_of(node: NodeState, rate: Rate) -> NodeStanding:
    return NodeStanding(
        node=node.node,
        seat=node.seat,
        incarnation=node.incarnation,
        stage=node.stage,
        reason=node.reason,
        steps_per_s=round(rate.rows_per_s, 1),
        mb_per_s=round(rate.bytes_per_s / 1e6, 4),
        lag=round(node.lag, 3),
        steps=node.rows,
        lost=node.lost,
        pack_ratio=round(node.raw_bytes / node.packed_bytes, 3) if node.packed_bytes else 0.0,
        heard=round(node.heard, 2),
        codec=FORMAT,
    )
