"""The agent of a node, without a sampler."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from clustering import node_plan
from running import wait_until

from rollmill.distributed import node_agent
from rollmill.distributed.messages import NodeOrder, versions
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


@pytest.mark.parametrize("error", [OSError("no memory"), ValueError("this message cannot be read")])
def test_whatever_fails_in_an_agent_is_told_with_its_trace(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The thread that looks after the sampler ends, and nobody else looks."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(node_agent, "Child", fail)
    agent, plan = NodeAgent(), node_plan()
    weights = np.zeros(plan.weight_bytes, np.uint8)
    agent.start(pickle.dumps(NodeOrder(plan, 0, 7)), versions(), Publication(2, 0, 0, (), weights))
    wait_until(lambda: agent._stage != "starting", what="the agent to fail")
    chunk = agent.collect(0)
    assert (chunk.stage, chunk.reason) == ("failed", f"its agent failed: {type(error).__name__}: {error}")
    assert "Traceback" in chunk.words[0]
    agent.stop()
