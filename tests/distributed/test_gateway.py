"""The gateway with nodes that answer what the test says: no processes, no clock to wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

import numpy as np
import pytest
from clustering import SLOTS, Learner, gateway, node_plan

from rollmill.core.slots import Arena
from rollmill.distributed.group_codec import GroupCodec
from rollmill.distributed.link import Collected, Event, Failure
from rollmill.distributed.messages import Chunk, Versions
from rollmill.distributed.weight_buffer import Publication

NODE, INCARNATION = "scripted", 7


class Scripted:
    """A link (``Link``) to one node, whose answers lie ready."""

    def __init__(self) -> None:
        self.asked: deque[int] = deque()
        self.ended: list[str] = []
        self.answers: deque[Event] = deque()

    def nodes(self) -> Collection[str]:
        return [NODE]

    def start(self, node: str, incarnation: int, order: bytes, versions: Versions, publication: Publication) -> None:
        self.answers.append(Collected(node, incarnation, Chunk("sampling", "", 0)))

    def collect(self, node: str, most: int) -> None:
        self.asked.append(most)

    def refresh(self, node: str, publication: Publication) -> None:
        raise AssertionError("there are no newer weights")

    def end(self, node: str) -> None:
        self.ended.append(node)

    def events(self, timeout: float, wake: int) -> list[Event]:
        """One answer for each call."""
        count = min(len(self.asked), len(self.answers))
        for _ in range(count):
            self.asked.popleft()
        return [self.answers.popleft() for _ in range(count)]

    def close(self) -> None:
        pass

    def send(self, parts: list[bytes], first: int, groups: list[int] | None = None) -> None:
        """A chunk with these packed segments, numbered from ``first`` on."""
        numbers = tuple(range(first, first + len(parts)))
        data = np.frombuffer(b"".join(parts), np.uint8)
        sizes = tuple(map(len, parts))
        chunk = Chunk("sampling", "", numbers[-1], numbers, tuple(groups or [0] * len(parts)), sizes, data)
        self.answers.append(Collected(NODE, INCARNATION, chunk))


@pytest.fixture
def link() -> Scripted:
    return Scripted()


@pytest.fixture
def learner(link: Scripted) -> Iterator[Learner]:
    with gateway(link, nodes=1) as learner:
        learner.until(lambda: learner.stages() == ["sampling"])
        yield learner


def packed(steps: int) -> bytes:
    """A segment whose rows say which one it is."""
    layout = node_plan().layout
    arena = Arena(layout, 1)
    for array in arena.segment(0).values():
        array[...] = 0
    arena["step"][0] = steps
    data = GroupCodec(layout).pack(arena, 0)
    arena.block.close_fd()
    return data


def test_a_segment_that_is_damaged_is_counted_and_its_slot_is_used_again(learner: Learner, link: Scripted) -> None:
    good, other, damaged = packed(1), packed(2), bytearray(packed(3))
    damaged[len(damaged) // 2] ^= 4
    link.send([good, bytes(damaged), other], first=1, groups=[0, 1, 2])
    learner.until(lambda: len(learner.segments) == 2)
    assert [(group, int(segment["step"][0, 0])) for group, segment in learner.segments] == [(6, 1), (8, 2)]
    learner.until(lambda: learner.states[-1].lost == 1)
    state = learner.states[-1]
    assert (state.received, state.refused, state.nodes[0].lost) == (2, 0, 1)
    assert state.nodes[0].stage == "sampling", "the node goes on"
    assert any("a segment of seat 0 is lost" in line for line in learner.said)
    for number in range(4, 4 + SLOTS):  # its slot has not gone with it
        link.send([bytes(damaged)], first=number)
    link.send([good], first=4 + SLOTS)
    learner.until(lambda: len(learner.segments) == 3)
    learner.until(lambda: learner.states[-1].lost == 1 + SLOTS)


def test_a_segment_that_comes_twice_is_refused_and_one_that_is_missing_is_counted(
    learner: Learner, link: Scripted
) -> None:
    link.send([packed(1)], first=1)
    link.send([packed(1)], first=1)
    link.send([packed(4)], first=4)
    learner.until(lambda: len(learner.segments) == 2)
    learner.until(lambda: learner.states[-1].lost == 2)
    assert [int(segment["step"][0, 0]) for _, segment in learner.segments] == [1, 4]
    assert (learner.states[-1].received, learner.states[-1].refused) == (2, 1)


def test_what_an_incarnation_that_was_given_up_still_says_is_not_listened_to(learner: Learner, link: Scripted) -> None:
    link.answers.append(Failure(NODE, INCARNATION, "it has gone"))
    link.send([packed(1)], first=1)
    learner.until(lambda: link.ended == [NODE])
    learner.until(lambda: learner.stages() == ["resting"])
    assert not learner.segments
    assert learner.states[-1].nodes[0].reason == "it has gone"
