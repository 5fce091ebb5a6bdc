"""What nodes will take, before anything is known of them: memory, network, and how old rows will be."""

from __future__ import annotations

import logging

from rollmill.core.slots import SegmentLayout
from rollmill.core.text import bytes_text
from rollmill.distributed.messages import NodePlan
from rollmill.runs.settings.train import TrainConfig

log = logging.getLogger("rollmill")


def expected_lag(config: TrainConfig, layout: SegmentLayout, groups: int, waiting: int) -> tuple[float, float]:
    """Updates that rows are old when they are learnt from, in the mean: while the learner waits, and while nodes do.

    Little's law: the rows on their way, divided by the rows of an update. Open segments are half full; ``waiting``:
    finished segments that fit into slots, which are none where the learner is faster, and all where it is slower.
    """
    segment = layout.steps * layout.lanes
    batch = config.learning.batch_size
    low = groups * segment / 2 / batch
    return low, low + waiting * segment / batch


def announce(config: TrainConfig, plan: NodePlan, own_groups: int, slots: int, remote: int) -> None:
    """Log it. ``slots``: of the learner's arena, ``remote`` of them for segments of nodes."""
    cluster, s, layout = config.cluster, plan.sampling, plan.layout
    step = layout.slot_bytes / (layout.steps * layout.lanes)
    log.info(
        "cluster %s: up to %d nodes of %d workers x %d environments; %d slots for their segments take %s here. "
        "1,000 steps/s of a node are %.2f MB/s before packing; weights are %s, sent at most %g times per second and "
        "node",
        *(cluster.address, cluster.seats, s.workers, s.envs_per_worker, remote, bytes_text(remote * layout.slot_bytes)),
        *(step / 1e3, bytes_text(plan.weight_bytes), 1 / cluster.publish_seconds),
    )
    nodes = max(1, cluster.nodes)
    groups = own_groups * cluster.local_workers + nodes * plan.groups
    low, high = expected_lag(config, layout, groups, max(0, slots - own_groups))
    lag = config.learning.max_policy_lag
    text = f"with {nodes} nodes rows will be {low:.1f} to {high:.1f} updates old when they are learnt from"
    if high > lag:
        log.warning(
            "%s, and those older than learning.max_policy_lag=%d are dropped: a learning.batch_size of %d would make "
            "it half of that at most",
            *(text, lag, round(config.learning.batch_size * 2 * high / lag)),
        )
    else:
        log.info("%s (learning.max_policy_lag=%d)", text, lag)
