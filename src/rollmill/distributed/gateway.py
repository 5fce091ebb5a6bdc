"""The gateway: moves segments of nodes into free slots of the learner's arena, and the newest weights to the nodes.

One process beside the learner, and one loop: hear what the learner says, look who is there, send weights, ask for as
many segments as there are free slots, put what has come into the slots. Unpacking touches nobody's interpreter but its
own. When it dies, the learner starts another one and loses what was under way.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np

from rollmill.core.slots import Arena
from rollmill.distributed.credits import Credits, fair_share
from rollmill.distributed.deliveries import Deliveries
from rollmill.distributed.group_codec import GroupCodec
from rollmill.distributed.link import Collected, Event, Failure, Link, Refreshed
from rollmill.distributed.membership import End, Member, Membership, Start
from rollmill.distributed.messages import (
    Admitted,
    Chunk,
    Ended,
    NodeOrder,
    NodePlan,
    NodeState,
    Said,
    SamplerCounts,
    Slots,
    State,
    versions,
)
from rollmill.distributed.settings import ClusterSettings
from rollmill.distributed.weight_buffer import Publication, WeightBuffer
from rollmill.store.format.codec import CodecError

CALLS = 2
"""Calls of ``collect`` under way per node: while one travels, the next is packed."""
LOOK_SECONDS = 0.5
"""Between two looks at who is there, and two reports."""
PULSE_SECONDS = 1.0
"""A node without free slots to fill is asked how it stands."""
WAIT_SECONDS = 0.05


@dataclass
class _Node:
    """What goes to and comes from one incarnation."""

    name: str
    seat: int
    incarnation: int
    calls: deque[int] = field(default_factory=deque)
    """Under way, oldest first."""
    asked: float = 0.0
    """When it was last asked."""
    sent: int = -1
    """Sequence number of the last publication that was sent."""
    version: int = -1
    """Of the last weights that were sent."""
    refreshing: bool = False
    refreshed: float = 0.0
    counts: SamplerCounts = field(default_factory=SamplerCounts)
    rows: int = 0
    packed_bytes: int = 0
    raw_bytes: int = 0
    lag: float = 0.0


class Gateway:
    """Serves until the learner says that it is over, or has gone."""

    def __init__(
        self,
        plan: NodePlan,
        settings: ClusterSettings,
        first_incarnation: int,
        first_group: int,
        arena: Arena,
        weights: WeightBuffer,
        link: Link,
        home: Connection,
    ) -> None:
        """Set up the gateway; ``first_group``: groups of the learner's own machine come before."""
        self._plan, self._settings, self._first_group = plan, settings, first_group
        self._arena, self._weights, self._link, self._home = arena, weights, link, home
        self._members = Membership(
            settings.seats, first_incarnation, settings.start_timeout, max(settings.node_timeout, PULSE_SECONDS * 2)
        )
        self._codec = GroupCodec(arena.layout)
        self._credits, self._deliveries = Credits(), Deliveries()
        self._nodes: dict[str, _Node] = {}
        self._closed_counts = SamplerCounts()
        self._lost: Counter[str] = Counter()
        """Segments of each node, over its incarnations."""
        self._published = 0
        self._publication: Publication | None = None
        self._next_call = 0
        self._looked = 0.0

    def serve(self) -> None:
        """Run until the learner has closed its end of the line, or says that it is over."""
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while not self._members.used_up:  # then another gateway goes on, with numbers of its own
                if not self.turn(WAIT_SECONDS):
                    return

    def turn(self, timeout: float) -> bool:
        """Run the loop once; returns whether there is another turn."""
        while self._home.poll():
            message = self._home.recv()
            if not isinstance(message, Slots):
                return False
            self._credits.give(message.slots)
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._do(self._members.look(self._link.nodes(), now))
            self._report(now)
        self._publish(now)
        self._ask(now)
        for event in self._link.events(timeout, self._home.fileno()):
            self._take(event, time.monotonic())
        return True

    # -- members -------------------------------------------------------------------------------

    def _do(self, steps: list[Start | End]) -> None:
        for step in steps:
            if isinstance(step, Start):
                self._start(step)
            else:
                self._end(step)

    def _start(self, step: Start) -> None:
        if self._weights.version < 0:  # the learner has not written any yet: the next look tries again
            self._do(self._members.fails(step.node, step.incarnation, "there are no weights yet", time.monotonic()))
            return
        self._deliveries.open(step.incarnation)
        node = self._nodes[step.node] = _Node(step.node, step.seat, step.incarnation)
        order = NodeOrder(self._plan, step.seat, step.incarnation)
        publication = self._newest()
        node.sent, node.version = publication.sequence, publication.version
        self._link.start(step.node, step.incarnation, pickle.dumps(order), versions(), publication)

    def _end(self, step: End) -> None:
        self._link.end(step.node)
        node = self._nodes.pop(step.node, None)
        if node is None:
            return
        for call in node.calls:
            self._credits.settle(call)
        self._closed_counts = _sum(self._closed_counts, node.counts)
        lost = self._deliveries.close(step.incarnation)
        self._lost[step.node] += lost
        more = f", and {lost} finished segments with it" if lost else ""
        self._say(
            logging.WARNING, f"node {step.node} (seat {step.seat}, incarnation {step.incarnation}): {step.reason}{more}"
        )

    def _fail(self, node: str, incarnation: int, reason: str, now: float) -> None:
        self._do(self._members.fails(node, incarnation, reason, now))

    # -- weights -------------------------------------------------------------------------------

    def _newest(self) -> Publication:
        """Return what the learner has written last; it is copied once for all nodes."""
        if self._publication is None or self._publication.sequence != self._weights.sequence:
            self._publication = self._weights.read()
        return self._publication

    def _publish(self, now: float) -> None:
        """Send weights, one publication under way to a node at a time; when it is there, the newest follows."""
        for name, node in self._nodes.items():
            due = not node.refreshing and now - node.refreshed >= self._settings.publish_seconds
            if due and node.sent != self._weights.sequence:
                newest = self._newest()
                publication = newest if newest.version != node.version else newest.without_weights
                node.sent, node.version, node.refreshing, node.refreshed = newest.sequence, newest.version, True, now
                self._link.refresh(name, publication)

    # -- segments ------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        members = self._members.sampling()
        share = fair_share(self._credits.free, len(members), CALLS)
        for member in sorted(members, key=lambda m: self._nodes[m.node].asked):
            node = self._nodes[member.node]
            while len(node.calls) < CALLS and self._credits.free:
                self._call(member.node, node, share, now)
        for name, node in self._nodes.items():  # those that start, and those there is no room for
            if not node.calls and now - node.asked >= (PULSE_SECONDS if node.asked else 0.0):
                self._call(name, node, 0, now)

    def _call(self, name: str, node: _Node, most: int, now: float) -> None:
        call, self._next_call = self._next_call, self._next_call + 1
        count = self._credits.lend(call, most)
        node.calls.append(call)
        node.asked = now
        self._link.collect(name, count)

    def _take(self, event: Event, now: float) -> None:
        member = self._members.hears(event.node, event.incarnation, now)
        if member is None:
            return
        if isinstance(event, Failure):
            self._fail(event.node, event.incarnation, event.reason, now)
        elif isinstance(event, Refreshed):
            self._nodes[event.node].refreshing = False
            self._published += 1
        else:
            self._take_chunk(event, member, now)

    def _take_chunk(self, event: Collected, member: Member, now: float) -> None:
        node, chunk = self._nodes[event.node], event.chunk
        call = node.calls.popleft()
        node.counts = chunk.counts
        self._deliveries.hears(event.incarnation, chunk.finished)
        for line in chunk.words:
            self._say(logging.INFO, f"node {event.node}: {line}")
        if chunk.extras:
            lanes = self._plan.groups * self._plan.layout.lanes
            before = self._first_group * self._plan.layout.lanes + node.seat * lanes
            self._home.send(Ended(tuple((before + lane, number, stats) for lane, number, stats in chunk.extras)))
        self._unpack(call, node, chunk)
        self._credits.settle(call)
        if chunk.stage == "sampling" and self._members.samples(event.node, event.incarnation, now):
            self._say(logging.INFO, f"node {event.node} samples (seat {node.seat}, incarnation {node.incarnation})")
        elif chunk.stage == "failed":
            self._fail(event.node, event.incarnation, chunk.reason, now)
        elif chunk.stage == "refused":
            self._do(self._members.refuse(event.node, event.incarnation, f"refused: {chunk.reason}", now))

    def _unpack(self, call: int, node: _Node, chunk: Chunk) -> None:
        data = memoryview(b"") if chunk.data is None else chunk.data.data
        at = 0
        for number, group, size in zip(chunk.numbers, chunk.groups, chunk.sizes, strict=True):
            part, at = data[at : at + size], at + size
            hole = self._deliveries.take(node.incarnation, number)
            if hole is None:
                continue
            self._lost[node.name] += hole
            slot = self._credits.use(call)
            assert slot is not None, "a node sends no more than it was asked for"
            try:
                self._codec.unpack(part, self._arena, slot)
            except CodecError as error:
                self._deliveries.damaged()
                self._lost[node.name] += 1
                self._credits.give([slot])
                self._say(logging.ERROR, f"a segment of seat {node.seat} is lost: {error}")
                continue
            self._count(node, slot, size)
            self._home.send(Admitted(slot, self._first_group + node.seat * self._plan.groups + group))

    def _count(self, node: _Node, slot: int, size: int) -> None:
        node.rows += int(np.count_nonzero(self._arena["valid"][slot][:-1]))
        node.packed_bytes += size
        node.raw_bytes += self._codec.raw_bytes
        node.lag = float(self._weights.version - self._arena["version"][slot][:-1].mean())

    # -- to the learner ------------------------------------------------------------------------

    def _report(self, now: float) -> None:
        total, states = self._closed_counts, []
        for member in self._members.members.values():
            node = self._nodes.get(member.node) or _Node(member.node, member.seat, member.incarnation)
            total = _sum(total, node.counts)
            counts = (node.rows, node.packed_bytes, node.raw_bytes, node.lag)
            who = (member.node, member.seat, member.incarnation, member.stage, member.reason.partition("\n")[0])
            states.append(
                NodeState(
                    *who,
                    *counts,
                    member.silent(now),
                    self._lost[member.node],
                )
            )
        found = self._deliveries
        numbers = (found.received, found.lost, found.refused, found.waiting)
        self._home.send(State(tuple(states), *numbers, total, self._published))

    def _say(self, level: int, text: str) -> None:
        self._home.send(Said(level, text))


def _sum(one: SamplerCounts, other: SamplerCounts) -> SamplerCounts:
    return SamplerCounts(
        one.env_faults + other.env_faults,
        one.worker_restarts + other.worker_restarts,
        one.lost_segments + other.lost_segments,
    )
