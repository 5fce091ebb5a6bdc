"""Nodes of a Ray cluster: one actor on each (``ray_agent``). Only the gateway's process imports this module.

Ray places the actors and moves megabytes; who takes part is ``Membership``'s business. Ray ends a driver whose cluster
has lost its head, without a word to Python: that ends the gateway, never the learner.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import select
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rollmill.core.errors import ClusterError, MissingExtraError
from rollmill.distributed.link import Collected, Event, Failure, Refreshed
from rollmill.distributed.messages import Versions
from rollmill.distributed.ray_place import AUTO, environment, place_of, silence
from rollmill.distributed.settings import ClusterSettings
from rollmill.distributed.supervisor import place_of_this_machine
from rollmill.distributed.weight_buffer import Publication

LOOK_SECONDS = 0.5
"""Between two looks at which nodes Ray knows."""
HEAD_SECONDS = 10
"""The gateway ends after so long without the cluster's head; Ray's own default is a minute."""
SHORT_ID = 8


@dataclass
class _Call:
    """Under way, or answered: ``make`` turns the answer into an event."""

    make: Callable[[Any], Event | None]
    future: Future[Any] | None = None


@dataclass
class _Agent:
    """One incarnation: its actor, and its calls, the oldest first."""

    node: str
    incarnation: int
    actor: Any
    segments: deque[_Call] = field(default_factory=deque)
    weights: deque[_Call] = field(default_factory=deque)

    def answered(self) -> list[_Call]:
        """Return calls that are over, in the order in which they were made: small answers may overtake large ones."""
        found = []
        for calls in (self.segments, self.weights):
            while calls and calls[0].future is not None:
                found.append(calls.popleft())
        return found


class RayLink:
    """Implements ``Link``."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._ray = _connect(settings.address)
        from rollmill.distributed.ray_agent import agent_class, told_of

        self._class, self._told = agent_class(), told_of
        self._agents: dict[str, _Agent] = {}
        self._ids: dict[str, str] = {}
        """Ray's id of every node there was, by our name for it."""
        self._present: list[str] = []
        self._weights: tuple[int, Any] = (-1, None)
        """The version that lies in Ray's store, and the reference to it."""
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._broken: BaseException | None = None
        self._looker = threading.Thread(target=self._look, name="nodes", daemon=True)
        self._looker.start()

    def nodes(self) -> Collection[str]:
        if self._broken is not None:
            raise ClusterError(f"Ray does not say which nodes there are: {self._broken}") from self._broken
        return self._present

    def start(self, node: str, incarnation: int, order: bytes, versions: Versions, publication: Publication) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        settings = self._settings
        actor = self._class.options(
            num_cpus=settings.cpus,
            resources={settings.resource: 1} if settings.resource else None,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._ids[node], soft=False),
        ).remote()
        agent = self._agents[node] = _Agent(node, incarnation, actor)
        told, weights = self._told(publication), self._stored(publication)
        call = actor.start.remote(order, dict(versions), told, weights)
        self._follow(agent, agent.weights, call, lambda _: None)

    def collect(self, node: str, most: int) -> None:
        agent = self._agents.get(node)
        if agent is not None:
            make = functools.partial(Collected, node, agent.incarnation)
            self._follow(agent, agent.segments, agent.actor.collect.remote(most), make)

    def refresh(self, node: str, publication: Publication) -> None:
        agent = self._agents.get(node)
        if agent is not None:
            weights = None if publication.weights is None else self._stored(publication)
            call = agent.actor.refresh.remote(self._told(publication), weights)
            self._follow(agent, agent.weights, call, functools.partial(Refreshed, node, agent.incarnation))

    def end(self, node: str) -> None:
        agent = self._agents.pop(node, None)
        if agent is not None:
            self._work.put(lambda: self._kill(agent))

    def events(self, timeout: float, wake: int) -> list[Event]:
        _wait([self._woken, wake], timeout)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        found: list[Event] = []
        for agent in list(self._agents.values()):
            found += self._events_of(agent)
        return found

    def close(self) -> None:
        for node in list(self._agents):
            self.end(node)
        self._work.put(None)
        self._looker.join(LOOK_SECONDS * 4)
        self._ray.shutdown()  # agents that could not be killed end with their owner
        os.close(self._woken)

    # -- calls ---------------------------------------------------------------------------------

    def _stored(self, publication: Publication) -> Any:
        """Return a reference to the weights: they go into Ray's store once, and once to each machine."""
        if self._weights[0] != publication.version:
            self._weights = (publication.version, self._ray.put(publication.weights))
        return self._weights[1]

    def _follow(self, agent: _Agent, calls: deque[_Call], reference: Any, make: Callable[[Any], Event | None]) -> None:
        call = _Call(make)
        calls.append(call)

        def over(future: Future[Any]) -> None:  # in a thread of Ray's
            call.future = future
            with contextlib.suppress(OSError):  # closed
                os.eventfd_write(self._woken, 1)

        reference.future().add_done_callback(over)

    def _events_of(self, agent: _Agent) -> list[Event]:
        found: list[Event] = []
        for call in agent.answered():
            assert call.future is not None
            error = call.future.exception()
            if error is not None:
                self.end(agent.node)
                return [*found, Failure(agent.node, agent.incarnation, _reason(error))]
            event = call.make(call.future.result())
            if event is not None:
                found.append(event)
        return found

    # -- what may wait for the cluster's head, in a thread of its own --------------------------

    def _look(self) -> None:
        try:
            while True:
                found = {_name(node): node["NodeID"] for node in self._ray.nodes() if self._may_sample(node)}
                self._ids.update(found)
                self._present = list(found)
                with contextlib.suppress(queue.Empty):
                    work = self._work.get(timeout=LOOK_SECONDS)
                    if work is None:
                        return
                    work()
        except Exception as error:  # noqa: BLE001 - whatever Ray raises ends the gateway, with its reason
            self._broken = error

    def _may_sample(self, node: dict[str, Any]) -> bool:
        resource = self._settings.resource
        return bool(node["Alive"]) and (not resource or node["Resources"].get(resource, 0) >= 1)

    def _kill(self, agent: _Agent) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):  # it has ended already
            self._ray.kill(agent.actor, no_restart=True)


def _wait(descriptors: list[int], timeout: float) -> None:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(int(timeout * 1000))


def _name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']}-{node['NodeID'][:SHORT_ID]}"


def _reason(error: BaseException) -> str:
    """Return what Ray says, as far as it tells something, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if 'Traceback' in str(error) else ' '.join(lines[:3])}"


def _connect(address: str) -> Any:
    """Connect to the cluster and return Ray; once in this process."""
    place = place_of_this_machine() if address == AUTO else place_of(address)
    if place is not None and (why := silence(place)):
        raise ClusterError(f"{why}; `rollmill cluster up` starts the head of a cluster there")
    os.environ.update(environment(place is not None and place.loopback))
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(HEAD_SECONDS))
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(f'cluster.address={address} needs Ray: pip install "rollmill[ray]"') from error
    try:
        ray.init(str(place or AUTO), namespace="rollmill", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(f"Ray at {place or AUTO} cannot be used: {_reason(error)}") from error
    return ray
