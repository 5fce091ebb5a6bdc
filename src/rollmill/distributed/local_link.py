"""Nodes that are processes of this machine, without Ray: for a first try, for tests, and to use one machine's cores
under several samplers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait

from rollmill.core.process import Child
from rollmill.distributed.link import Collected, Event, Failure, Refreshed
from rollmill.distributed.local_agent_main import AgentSetup
from rollmill.distributed.messages import Ask, Begin, Chunk, Versions
from rollmill.distributed.weight_buffer import Publication

END_SECONDS = 0.0
"""Agents are ended at once; their samplers die with them, and the janitors of those clean up."""


class Line:
    """Messages to and from one agent, each way in a thread of its own.

    A pipe holds less than the weights of a network: to an agent that has been stopped, in the middle of a message or
    before, only its own threads wait. At most one publication waits to be sent: the newest.
    """

    def __init__(self, channel: Connection, wake: Callable[[], None]) -> None:
        """Start the threads; ``wake`` is called when something has come."""
        self._channel, self._wake = channel, wake
        self._change = threading.Condition()
        self._to_send: deque[object] = deque()
        self._came: deque[object] = deque()
        self.lost = False
        """Nothing comes any more."""
        self._closed = False
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def send(self, message: object) -> None:
        """Hand over a message without ever waiting."""
        with self._change:
            if isinstance(message, Publication):
                self._to_send = deque(one for one in self._to_send if not isinstance(one, Publication))
            self._to_send.append(message)
            self._change.notify()

    def take(self) -> list[object]:
        """Return what has come."""
        return [self._came.popleft() for _ in range(len(self._came))]

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify()
        with socket.socket(fileno=os.dup(self._channel.fileno())) as ours, contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)  # wakes both threads, whatever they wait for
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # it has ended: the other thread hears it
            while True:
                with self._change:
                    self._change.wait_for(lambda: self._to_send or self._closed)
                    if self._closed:
                        return
                    message = self._to_send.popleft()
                self._channel.send(message)

    def _receive(self) -> None:
        try:
            while True:
                self._came.append(self._channel.recv())
                self._wake()
        except Exception:  # noqa: BLE001 - it has ended, or is not to be understood: no other answer will come
            self.lost = True
            self._wake()


@dataclass
class Agent:
    """One process."""

    node: str
    incarnation: int
    child: Child
    line: Line


class LocalLink:
    """Implements ``Link``."""

    def __init__(self, count: int) -> None:
        self._names = [f"local-{number}" for number in range(count)]
        self._agents: dict[str, Agent] = {}
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def nodes(self) -> Collection[str]:
        return self._names

    def start(self, node: str, incarnation: int, order: bytes, versions: Versions, publication: Publication) -> None:
        ours, theirs = Pipe()
        setup = AgentSetup(theirs.fileno())
        child = Child("rollmill.distributed.local_agent_main", setup, os.environ, {theirs.fileno()})
        theirs.close()
        self._agents[node] = Agent(node, incarnation, child, Line(ours, self._wake))
        self._send(node, Begin(order, versions, publication))

    def collect(self, node: str, most: int) -> None:
        self._send(node, Ask(most))

    def refresh(self, node: str, publication: Publication) -> None:
        self._send(node, publication)

    def end(self, node: str) -> None:
        agent = self._agents.pop(node, None)
        if agent is not None:
            agent.line.close()
            agent.child.end(END_SECONDS)
            agent.child.close()

    def events(self, timeout: float, wake: int) -> list[Event]:
        wait([self._woken, wake], timeout)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        found: list[Event] = []
        for agent in list(self._agents.values()):
            lost = agent.line.lost  # first: what came before that counts
            found += [self._event(agent, answer) for answer in agent.line.take()]
            if lost:
                found.append(self._lose(agent))
        return found

    def close(self) -> None:
        for node in list(self._agents):
            self.end(node)
        os.close(self._woken)

    def pid(self, node: str) -> int:
        """Return the pid of the agent's process."""
        return self._agents[node].child.pid

    def _send(self, node: str, message: object) -> None:
        self._agents[node].line.send(message)

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    @staticmethod
    def _event(agent: Agent, answer: object) -> Event:
        if isinstance(answer, Chunk):
            return Collected(agent.node, agent.incarnation, answer)
        assert isinstance(answer, int)
        return Refreshed(agent.node, agent.incarnation, answer)

    def _lose(self, agent: Agent) -> Failure:
        how = agent.child.how_it_ended() if agent.child.ends_within(1.0) else "has closed its channel"
        with contextlib.suppress(OSError):
            agent.child.read_output()
        said = f"; it said: {agent.child.last_lines[-1]}" if agent.child.last_lines else ""
        reason = f"its agent (pid {agent.child.pid}) {how}{said}"
        self.end(agent.node)
        return Failure(agent.node, agent.incarnation, reason)
