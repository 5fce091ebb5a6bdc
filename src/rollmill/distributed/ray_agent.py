"""The agent of a node as a Ray actor. Ray imports this module in a process of the node; nothing else of ours does.

The sampler is a process below this one: what Ray kills are the actor and its children, and what a sampler leaves behind
is cleared by its janitor, one level further down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from rollmill.core.fields import Array
from rollmill.distributed.messages import Chunk, Versions
from rollmill.distributed.node_agent import NodeAgent
from rollmill.distributed.weight_buffer import Publication

Told = tuple[int, int, int, tuple[float, ...]]
"""A publication without its weights: sequence, version, frames, variables."""


def told_of(publication: Publication) -> Told:
    return publication.sequence, publication.version, publication.frames, publication.variables


class RayAgent:
    """Two kinds of calls, each in a thread of its own: weights do not wait for segments."""

    def __init__(self) -> None:
        self._agent = NodeAgent()

    @ray.method(concurrency_group="weights")
    def start(self, order: bytes, versions: Versions, told: Told, weights: Array) -> None:
        self._agent.start(order, versions, Publication(*told, np.asarray(weights)))

    @ray.method(concurrency_group="weights")
    def refresh(self, told: Told, weights: Array | None) -> int:
        self._agent.refresh(Publication(*told, weights))
        return told[0]

    @ray.method(concurrency_group="segments")
    def collect(self, most: int) -> Chunk:
        return self._agent.collect(most)


def agent_class() -> Any:
    """Return what the gateway places on nodes. A call that fails is not repeated, and neither is an agent."""
    make: Any = ray.remote  # its types do not know of groups
    return make(concurrency_groups={"weights": 1, "segments": 1}, max_restarts=0, max_task_retries=0)(RayAgent)
