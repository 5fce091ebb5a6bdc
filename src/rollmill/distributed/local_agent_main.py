"""An agent as a process of this machine: ``python -m rollmill.distributed.local_agent_main FD`` (``local_link``)."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from rollmill.core.child import Parent, run_child
from rollmill.core.exits import leave
from rollmill.distributed.messages import Ask, Begin
from rollmill.distributed.node_agent import NodeAgent
from rollmill.distributed.weight_buffer import Publication


@dataclass(frozen=True)
class AgentSetup:
    """What the process is given."""

    channel: int


def serve(channel: Connection) -> None:
    """Pass on what the gateway asks, until it has gone. Weights do not wait for segments."""
    agent = NodeAgent()
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    sending = threading.Lock()

    def answer() -> None:
        try:
            while True:
                chunk = agent.collect(asked.get())
                with sending:
                    channel.send(chunk)
        except BrokenPipeError:  # the gateway has gone: the other thread hears it
            pass
        except BaseException:  # noqa: BLE001 - else the gateway would wait for the answer for ever
            traceback.print_exc()
            leave(1)

    threading.Thread(target=answer, name="collect", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = channel.recv()
            if isinstance(message, Begin):
                agent.start(message.order, message.versions, message.publication)
            elif isinstance(message, Ask):
                asked.put(message.most)
            elif isinstance(message, Publication):
                agent.refresh(message)
                with sending:
                    channel.send(message.sequence)
    agent.stop()


def work(setup: AgentSetup, _parent: Parent) -> None:
    serve(Connection(setup.channel))


if __name__ == "__main__":
    sys.exit(run_child(work))
