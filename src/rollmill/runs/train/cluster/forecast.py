"""What nodes will take, before anything is known of them: memory, network, and how old rows will be."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from rollmill.core.text import bytes_text
from rollmill.distributed.messages import NodePlan
from rollmill.distributed.settings import LOCAL
from rollmill.runs.settings.train import TrainConfig
from rollmill.sampling.sampler import SamplerPlan

log = logging.getLogger("rollmill")

GATEWAY_BYTES = {True: 24_000_000, False: 70_000_000}
"""What a gateway's process takes before it has received anything, for local nodes and for Ray's."""


@dataclass(frozen=True)
class Way:
    """What lies between the decision about a row and learning from it, in segments."""

    per_update: float
    """Segments that an update takes in."""
    groups: int
    """Who fill one each, here and on nodes."""
    room_here: int
    """Finished segments that find a slot here; it grows with the batch."""
    room_away: int
    """The same on nodes."""
    publish_seconds: float

    @property
    def lag(self) -> tuple[float, float]:
        """Updates that rows are old, in the mean, if weights were everywhere at once: where the learner waits for rows,
        and where rows wait for the learner.

        By Little's law these are the rows on their way, divided by those of an update. A learner that waits has half a
        segment of every group there, but for the one that completes the batch. One that is waited for finds all slots
        full, those of the groups, too, and is in the middle of an update.
        """
        least = max(0, self.groups - 1) / 2 / self.per_update
        return least, (self.groups + self.room_away) / self.per_update + self._lag_here

    @property
    def _lag_here(self) -> float:
        """The lag of rows that wait for the learner here: the same for every batch."""
        return self.room_here / self.per_update + 0.5

    def batches_for(self, lag: float) -> float | None:
        """Return how many times as large a batch must be for rows waiting for the learner to be at most ``lag`` old.

        Returns None if no batch is large enough.
        """
        left = lag - self._lag_here
        return (self.groups + self.room_away) / self.per_update / left if left > 0 else None

    @property
    def weight_seconds(self) -> float:
        """Seconds that weights of a node are old, in the mean, while updates come faster than publications."""
        return self.publish_seconds / 2


def way_of(config: TrainConfig, here: SamplerPlan, node: NodePlan) -> Way:
    """Return the way of rows in a run with all the nodes that it asks for."""
    nodes = max(1, config.cluster.nodes)
    draws = config.replay.samples_per_insert if config.replay.on else 1.0
    segment = node.layout.steps * node.layout.lanes
    return Way(
        per_update=config.learning.batch_size / segment / draws,
        groups=here.groups + nodes * node.groups,
        room_here=here.slots - here.groups + here.remote_slots,
        room_away=nodes * node.waiting,
        publish_seconds=config.cluster.publish_seconds,
    )


def memory_here(config: TrainConfig, here: SamplerPlan, node: NodePlan) -> int:
    """Return the bytes that nodes take on the learner's machine.

    These are slots, and the gateway with its weights and what is coming in.
    """
    slots = here.remote_slots * node.layout.slot_bytes
    coming = min(2 * node.chunk_bytes, slots)
    return slots + GATEWAY_BYTES[config.cluster.address == LOCAL] + 2 * node.weight_bytes + coming


def announce(config: TrainConfig, here: SamplerPlan, node: NodePlan) -> None:
    """Log the forecast."""
    cluster, s, layout = config.cluster, node.sampling, node.layout
    step = layout.slot_bytes / (layout.steps * layout.lanes)
    log.info(
        "cluster %s: up to %d nodes of %d workers x %d environments; %d slots for their segments take %s here, with "
        "the gateway about %s. 1,000 steps/s of a node are %.2f MB/s before packing; weights are %s, sent at most %g "
        "times per second and node",
        *(cluster.address, cluster.seats, s.workers, s.envs_per_worker, here.remote_slots),
        *(bytes_text(here.remote_slots * layout.slot_bytes), bytes_text(memory_here(config, here, node))),
        *(step / 1e3, bytes_text(node.weight_bytes), 1 / cluster.publish_seconds),
    )
    way, lag = way_of(config, here, node), config.learning.max_policy_lag
    low, high = way.lag
    text = (
        f"with {max(1, cluster.nodes)} nodes rows will be {low:.1f} to {high:.1f} updates old when they are learnt "
        f"from, and those of nodes the updates of {way.weight_seconds:.2g} s more (cluster.publish_seconds)"
    )
    if high <= lag:
        log.info("%s; learning.max_policy_lag=%d", text, lag)
        return
    times = way.batches_for(lag)
    segment = layout.steps * layout.lanes
    advice = f"learning.max_policy_lag={round(high * 2)} would keep them"
    if times is not None:
        advice = f"learning.batch_size={math.ceil(config.learning.batch_size * times / segment) * segment} would do"
    log.warning("%s; those older than learning.max_policy_lag=%d are dropped: %s", text, lag, advice)
