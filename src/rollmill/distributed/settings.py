"""How a run uses other machines. Without ``cluster.address`` nothing of this is looked at."""

from __future__ import annotations

from rollmill.core.config.schema import settings

LOCAL = "local"
"""The address of nodes that are plain processes of this machine."""
RESOURCE = "rollmill"
"""What a Ray node offers that may sample."""
USUAL_SEATS = 16
MOST_NODES = 500


@settings(shorthand="address")
class ClusterSettings:
    """Nodes that sample for this run, each like the learner's own machine (``docs/cluster.md``)."""

    address: str = ""
    """Where they are: ``local`` (processes of this machine, without Ray), ``auto`` or ``host:port`` (a Ray cluster, see
    ``rollmill cluster up``). Empty: no nodes."""

    nodes: int = 1
    """Nodes that must sample within ``start_timeout``; with ``local`` so many are started. More may join later."""

    max_nodes: int = 0
    """Nodes that may take part at a time; 0: 16, with ``local`` as many as ``nodes``."""

    workers: int = 0
    """Worker processes of each node; 0: as many as ``sampling.workers``."""

    local_workers: bool = True
    """Sample on the learner's own machine as well, with ``sampling.workers``."""

    remote_slots: int = 0
    """Slots for segments from nodes; as many may wait for the learner. 0: as many as local ones may."""

    chunk_mb: float = 4.0
    """Size of packed segments from which on a node sends what it has at once."""

    publish_seconds: float = 0.25
    """Least time between two publications of weights to a node."""

    start_timeout: float = 120.0
    """Seconds a node may take to begin sampling."""

    node_timeout: float = 10.0
    """Seconds without a word after which a node is given up; it is tried again."""

    lease: float = 30.0
    """Seconds without a word from the learner after which a node ends by itself."""

    patience: float = 120.0
    """Seconds a run without workers of its own waits for a node before it ends."""

    cpus: float = 1.0
    """CPUs that Ray is asked for on each node; workers are not counted by Ray."""

    resource: str = RESOURCE
    """Name of the Ray resource that nodes must offer (``rollmill cluster join`` does); empty: every node is used."""

    def __post_init__(self) -> None:
        if min(self.workers, self.max_nodes, self.remote_slots, self.cpus) < 0:
            raise ValueError("workers, max_nodes, remote_slots and cpus must not be negative")
        if self.nodes < 0 or (self.max_nodes and self.max_nodes < self.nodes):
            raise ValueError(f"nodes={self.nodes} must be between 0 and max_nodes={self.max_nodes}")
        if self.seats > MOST_NODES:
            raise ValueError(f"at most {MOST_NODES} nodes can take part, not {self.seats}")
        if min(self.chunk_mb, self.publish_seconds, self.start_timeout, self.node_timeout, self.lease) <= 0:
            raise ValueError("chunk_mb, publish_seconds, start_timeout, node_timeout and lease must be positive")
        if self.address == LOCAL and not self.nodes:
            raise ValueError("address=local needs nodes of at least 1")

    @property
    def on(self) -> bool:
        return bool(self.address)

    @property
    def seats(self) -> int:
        """Nodes that may take part at a time."""
        if not self.on:
            return 0
        return self.max_nodes or (self.nodes if self.address == LOCAL else max(self.nodes, USUAL_SEATS))
