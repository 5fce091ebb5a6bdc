"""The agent of a node, before it has a sampler."""

from __future__ import annotations

import numpy as np

from rollmill.distributed.messages import versions
from rollmill.distributed.node_agent import NodeAgent
from rollmill.distributed.weight_buffer import Publication


def test_a_node_with_other_versions_is_refused_with_the_difference_and_reads_nothing() -> None:
    agent = NodeAgent()
    learner = {**versions(), "torch": "1.0", "more": "2"}
    agent.start(b"no order", learner, Publication(2, 0, 0, (), np.zeros(4, np.uint8)))
    chunk = agent.collect(1)
    assert chunk.stage == "refused"
    assert chunk.reason == f"it has more missing (the learner has 2), torch {versions()['torch']} (the learner has 1.0)"
    assert not chunk.numbers
    agent.stop()
