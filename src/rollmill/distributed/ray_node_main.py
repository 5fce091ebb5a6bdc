"""The processes of one Ray node, until they end: ``python -m rollmill.distributed.ray_node_main FD`` (``supervisor``).

This is ``ray start --block`` with the options that were asked for. On 127.0.0.1 all that Ray opens stays there: by
itself Ray replaces that address by one that others can reach, and then listens on all of them. Ray has a variable that
keeps it from doing so, but refuses to join any cluster under it; so the variable is for Ray's children
(``ray_place.KEEP_LOOPBACK``), and the function that replaces the address is switched off here.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rollmill.core.child import begin_errand
from rollmill.distributed.ray_place import KEEP_LOOPBACK


def main(answer_fd: int) -> None:
    question, _reply = begin_errand(answer_fd)
    for name in KEEP_LOOPBACK:
        os.environ.pop(name, None)
    from ray._private import services
    from ray.scripts import scripts as ray_scripts

    scripts: Any = ray_scripts
    # A door of Ray's that nobody here uses, with a process and a port of its own.
    scripts.get_ray_client_dependency_error = lambda: "not wanted"
    if question["loopback"]:
        os.environ.update(KEEP_LOOPBACK)
        services.resolve_ip_for_localhost = lambda host: host
    scripts.start.main(question["options"], prog_name="ray start")


if __name__ == "__main__":
    main(int(sys.argv[1]))
