"""Nodes that are processes of this machine, without Ray: for a first try, for tests, and to use one machine's cores
under several samplers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait

from rollmill.core.process import Child
from rollmill.distributed.link import Collected, Event, Failure, Refreshed
from rollmill.distributed.local_agent_main import AgentSetup
from rollmill.distributed.messages import Ask, Begin, Chunk, Versions
from rollmill.distributed.weight_buffer import Publication

END_SECONDS = 0.0
"""Agents are ended at once; their samplers die with them, and the janitors of those clean up."""


@dataclass
class Agent:
    """One process."""

    node: str
    incarnation: int
    child: Child
    channel: Connection
    lost: bool = field(default=False)


class LocalLink:
    """Implements ``Link``."""

    def __init__(self, count: int) -> None:
        self._names = [f"local-{number}" for number in range(count)]
        self._agents: dict[str, Agent] = {}

    def nodes(self) -> Collection[str]:
        return self._names

    def start(self, node: str, incarnation: int, order: bytes, versions: Versions, publication: Publication) -> None:
        ours, theirs = Pipe()
        setup = AgentSetup(theirs.fileno())
        child = Child("rollmill.distributed.local_agent_main", setup, os.environ, {theirs.fileno()})
        theirs.close()
        self._agents[node] = Agent(node, incarnation, child, ours)
        self._send(node, Begin(order, versions, publication))

    def collect(self, node: str, most: int) -> None:
        self._send(node, Ask(most))

    def refresh(self, node: str, publication: Publication) -> None:
        self._send(node, publication)

    def end(self, node: str) -> None:
        agent = self._agents.pop(node, None)
        if agent is not None:
            agent.channel.close()
            agent.child.end(END_SECONDS)
            agent.child.close()

    def events(self, timeout: float, wake: int) -> list[Event]:
        by_channel = {agent.channel: agent for agent in self._agents.values() if not agent.lost}
        failed = [agent for agent in self._agents.values() if agent.lost]
        ready = wait([*by_channel, wake], 0 if failed else timeout)
        found = [self._receive(by_channel[one]) for one in ready if isinstance(one, Connection)]
        return found + [self._lose(agent) for agent in failed]

    def close(self) -> None:
        for node in list(self._agents):
            self.end(node)

    def pid(self, node: str) -> int:
        """Of the agent's process."""
        return self._agents[node].child.pid

    def _send(self, node: str, message: object) -> None:
        agent = self._agents[node]
        try:
            agent.channel.send(message)
        except OSError:
            agent.lost = True

    def _receive(self, agent: Agent) -> Event:
        try:
            answer = agent.channel.recv()
        except (EOFError, OSError):
            return self._lose(agent)
        if isinstance(answer, Chunk):
            return Collected(agent.node, agent.incarnation, answer)
        return Refreshed(agent.node, agent.incarnation, answer)

    def _lose(self, agent: Agent) -> Failure:
        how = agent.child.how_it_ended() if agent.child.ends_within(1.0) else "has closed its channel"
        with contextlib.suppress(OSError):
            agent.child.read_output()
        said = f"; it said: {agent.child.last_lines[-1]}" if agent.child.last_lines else ""
        reason = f"its agent (pid {agent.child.pid}) {how}{said}"
        self.end(agent.node)
        return Failure(agent.node, agent.incarnation, reason)
