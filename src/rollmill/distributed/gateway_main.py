"""The gateway's process: ``runs.train.cluster`` starts ``python -m rollmill.distributed.gateway_main FD``."""

from __future__ import annotations

import contextlib
import sys
from multiprocessing.connection import Connection

from rollmill.core.child import Parent, run_child
from rollmill.core.slots import Arena, SharedBlock
from rollmill.distributed.gateway import Gateway
from rollmill.distributed.link import Link
from rollmill.distributed.local_link import LocalLink
from rollmill.distributed.messages import GatewaySetup
from rollmill.distributed.settings import LOCAL, ClusterSettings
from rollmill.distributed.weight_buffer import WeightBuffer


def make_link(settings: ClusterSettings) -> Link:
    """Return the link that ``cluster.address`` means."""
    if settings.address == LOCAL:
        return LocalLink(settings.nodes)
    from rollmill.distributed.ray_link import RayLink

    return RayLink(settings)


def work(setup: GatewaySetup, _parent: Parent) -> None:
    arena_block, weights_block = SharedBlock(*setup.arena), SharedBlock(*setup.weights)
    arena = Arena(setup.layout, setup.slots, block=arena_block)
    weights = WeightBuffer(setup.plan.weight_bytes, len(setup.plan.env.variables), weights_block)
    for block in (arena_block, weights_block):
        block.close_fd()
    home = Connection(setup.channel)
    numbers = (setup.first_incarnation, setup.first_group)
    with contextlib.closing(make_link(setup.settings)) as link:
        Gateway(setup.plan, setup.settings, *numbers, arena, weights, link, home).serve()


if __name__ == "__main__":
    sys.exit(run_child(work))
