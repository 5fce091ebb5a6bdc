"""What nodes will take, forecast; how old rows will be, against a simulation of who waits for whom."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from clustering import node_plan
from running import config_of

from rollmill.distributed.messages import NodePlan
from rollmill.runs.train.cluster.forecast import GATEWAY_BYTES, Way, announce, memory_here, way_of
from rollmill.sampling.sampler import SamplerPlan

STEPS = 16
Came = tuple[int, list[int]]
"""When a segment was there, and the versions of its rows."""


@dataclass(eq=False)
class Machine:
    """Groups that fill a row each at every tick, and slots for segments that are finished."""

    groups: int
    room: int
    local: bool = False
    filling: deque[list[int]] = field(default_factory=deque)
    """Of every group: the versions of the rows of its segment so far."""
    finished: deque[Came] = field(default_factory=deque)

    def __post_init__(self) -> None:
        # The fullest first, so that whoever has waited longest is the next to go on; not all at the same time.
        self.filling.extend([0] * (k * STEPS // self.groups) for k in reversed(range(self.groups)))

    def tick(self, now: int, version: int) -> None:
        while len(self.filling[0]) == STEPS and len(self.finished) < self.room:
            self.finished.append((now, self.filling.popleft()))
            self.filling.append([])
        for rows in self.filling:
            if len(rows) < STEPS:
                rows.append(version)


def simulated_lag(way: Way, machines: list[Machine], remote: int, learn: float, ticks: int = 30_000) -> float:
    """Mean lag of rows; ``learn``: ticks that an update takes, ``publish_seconds`` are ticks, too."""
    nodes = [machine for machine in machines if not machine.local]
    here: deque[Came] = deque()
    """Segments of nodes that have come."""
    version = sent = 0
    busy_until, sent_at = 0.0, 0.0
    busy = False
    lags: list[float] = []
    for now in range(ticks):
        if busy and now >= busy_until:
            busy, version = False, version + 1
        if sent != version and now - sent_at >= way.publish_seconds:
            sent, sent_at = version, float(now)
        for machine in machines:
            machine.tick(now, version if machine.local else sent)
        while len(here) < remote and (ready := [machine for machine in nodes if machine.finished]):
            here.append((now, ready[0].finished.popleft()[1]))
            nodes.remove(ready[0])  # they are asked in turn
            nodes.append(ready[0])
        waiting = [here, *(machine.finished for machine in machines if machine.local)]
        while not busy and sum(map(len, waiting)) >= way.per_update:
            for _ in range(int(way.per_update)):
                _, rows = min((line for line in waiting if line), key=lambda line: line[0]).popleft()
                lags += [version - row for row in rows] if now > ticks / 4 else []
            busy, busy_until = learn > 0, now + learn
            version += learn == 0
    return sum(lags) / len(lags)


@pytest.mark.parametrize("batch", [2, 8])
@pytest.mark.parametrize(("own", "nodes"), [(0, 2), (2, 2), (4, 4)])
def test_rows_are_as_old_as_a_simulation_says(batch: int, own: int, nodes: int) -> None:
    """A learner that takes no time, one that takes far too long, and one in between."""
    remote, here, away = 2 * batch, 2 * batch, 2
    way = Way(batch, own + nodes * 2, here * (own > 0) + remote, nodes * away, publish_seconds=0.0)

    def simulated(learn: float) -> float:
        machines = [Machine(own, here, local=True)] if own else []
        machines += [Machine(2, away) for _ in range(nodes)]
        return simulated_lag(way, machines, remote, learn)

    low, high = way.lag
    fill = STEPS * batch / way.groups
    """Ticks between two batches of those that sample."""
    assert simulated(0.0) == pytest.approx(low, rel=0.15, abs=0.15)
    assert simulated(fill * 20) == pytest.approx(high, rel=0.15)
    assert low < simulated(fill * 0.9) < high


def test_weights_of_nodes_are_old_by_half_the_time_between_publications() -> None:
    updates = STEPS * 2 / 8
    """Ticks between two of them."""

    def simulated(publish: float) -> tuple[Way, float]:
        way = Way(2, 8, 4, 8, publish)
        return way, simulated_lag(way, [Machine(2, 2) for _ in range(4)], 4, learn=0.0)

    at_once = simulated(0.0)[1]
    way, later = simulated(10 * updates)
    assert later - at_once == pytest.approx(way.weight_seconds / updates, rel=0.15)


def plans(nodes: int, batch: int, tmp_path: Path, *words: str) -> tuple[Way, SamplerPlan, NodePlan]:
    node = node_plan()
    config = config_of(tmp_path, "cluster=local", f"cluster.nodes={nodes}", f"learning.batch_size={batch}", *words)
    here = SamplerPlan(config.sampling, config.env, node.spec, node.seeds, segments_per_batch=2, remote_slots=4)
    return way_of(config, here, node), here, node


def test_what_lies_on_the_way_is_read_from_the_plans(tmp_path: Path) -> None:
    way, here, node = plans(3, 32, tmp_path)
    assert (here.groups, node.groups) == (4, 4)
    assert way.per_update == 32 / 16
    assert way.groups == 4 + 3 * 4
    assert way.room_here == (here.slots - 4) + 4 == 4 + 4
    assert way.room_away == 3 * node.waiting == 3 * 4
    replay = ("replay.capacity=64", "replay.samples_per_insert=4", "learning.targets=vtrace")
    assert plans(3, 32, tmp_path, *replay)[0].per_update == 0.5, "batches that are drawn are updates"


def test_memory_is_that_of_slots_and_the_gateway_with_what_comes_in(tmp_path: Path) -> None:
    _, here, node = plans(3, 32, tmp_path)
    config = config_of(tmp_path, "cluster=local", "cluster.nodes=3")
    slots = 4 * node.layout.slot_bytes
    assert memory_here(config, here, node) == 2 * slots + 2 * node.weight_bytes + GATEWAY_BYTES[True]
    small = replace(node, chunk_bytes=10)
    assert memory_here(config, here, small) == slots + 20 + 2 * node.weight_bytes + GATEWAY_BYTES[True]


@pytest.mark.parametrize(
    ("lag", "level", "said"),
    [
        (20, "INFO", "; learning.max_policy_lag=20"),
        (10, "WARNING", "are dropped: learning.batch_size=48 would do"),
        (4, "WARNING", "are dropped: learning.max_policy_lag=21 would keep them"),
    ],
)
def test_rows_that_would_be_too_old_are_told_of(
    lag: int, level: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, here, node = plans(1, 32, tmp_path)
    config = config_of(tmp_path, "cluster=local", "learning.batch_size=32", f"learning.max_policy_lag={lag}")
    with caplog.at_level("INFO", "rollmill"):
        announce(config, here, node)
    first, second = caplog.records
    assert "up to 1 nodes of 2 workers x 4 environments; 4 slots" in first.getMessage()
    # Segments of 8 steps in 2 lanes, two in a batch; 8 groups, and room for 4 here, 4 of nodes, 4 on the node.
    assert "with 1 nodes rows will be 1.8 to 10.5 updates old" in second.getMessage()
    assert "the updates of 0.12 s more" in second.getMessage()
    assert second.levelname == level
    assert second.getMessage().endswith(said)


def test_a_batch_that_is_so_many_times_as_large_does() -> None:
    """Slots here grow with it, those on nodes do not."""
    way = Way(2, 8, 8, 4, 0.25)
    times = way.batches_for(7.5)
    assert times is not None
    larger = Way(2 * times, 8, round(8 * times), 4, 0.25)
    assert larger.lag[1] == pytest.approx(7.5)
    assert way.batches_for(4.5) is None
