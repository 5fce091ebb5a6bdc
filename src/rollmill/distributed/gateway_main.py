"""The gateway's process: ``python -m rollmill.distributed.gateway_main FD`` is started by ``runs.train.cluster``."""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection

from rollmill.core.child import begin_child
from rollmill.core.errors import RollmillError
from rollmill.core.slots import Arena, SharedBlock
from rollmill.distributed.gateway import Gateway
from rollmill.distributed.link import Link
from rollmill.distributed.local_link import LocalLink
from rollmill.distributed.messages import GatewaySetup
from rollmill.distributed.settings import LOCAL, ClusterSettings
from rollmill.distributed.weight_buffer import WeightBuffer


def make_link(settings: ClusterSettings) -> Link:
    """What ``cluster.address`` means."""
    if settings.address == LOCAL:
        return LocalLink(settings.nodes)
    from rollmill.distributed.ray_link import RayLink

    return RayLink(settings)


def main(setup_fd: int) -> int:
    setup: GatewaySetup
    setup, parent = begin_child(setup_fd)
    arena_block, weights_block = SharedBlock(*setup.arena), SharedBlock(*setup.weights)
    arena = Arena(setup.layout, setup.slots, block=arena_block)
    weights = WeightBuffer(setup.plan.weight_bytes, len(setup.plan.env.variables), weights_block)
    for block in (arena_block, weights_block):
        block.close_fd()
    home = Connection(setup.channel)
    try:
        link = make_link(setup.settings)
        numbers = (setup.first_incarnation, setup.first_group)
        try:
            Gateway(setup.plan, setup.settings, *numbers, arena, weights, link, home).serve()
        finally:
            link.close()
    except RollmillError as error:
        parent.tell("failed", {"error": str(error)})
        return 1
    except Exception:  # noqa: BLE001 - the traceback goes home instead of being lost
        parent.tell("crash", {"trace": traceback.format_exc()})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
