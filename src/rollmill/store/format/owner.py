"""Who writes a shard, and whether that process still lives.

A pid alone proves nothing: it may belong to another machine, another container, or by now to another process. So a
writer notes the kernel's boot id, its pid namespace and its start time as well. Where one of the first two differs
from ours, we cannot know.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from typing import Literal

from rollmill.core.identity import boot_id, start_ticks
from rollmill.store.format.records import Owner

State = Literal["alive", "dead", "unknown"]


def this_process() -> Owner:
    pid = os.getpid()
    return Owner(socket.gethostname(), boot_id(), _pid_namespace(), pid, start_ticks(pid) or 0)


def state_of(owner: Owner) -> State:
    """Return whether the owner of a shard lives; "unknown" unless this machine and container can tell for certain."""
    here = this_process()
    if not here.boot or not here.namespace or (owner.boot, owner.namespace) != (here.boot, here.namespace):
        return "unknown"
    started = start_ticks(owner.pid)
    return "alive" if started is not None and started == owner.started else "dead"


def writer_name() -> str:
    """Return a name no other writer has, on any machine; sorts by time: ``20261103T141119-host-1234-a1b2c3d4``."""
    host = re.sub(r"[^A-Za-z0-9]+", "_", socket.gethostname())[:40] or "host"
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{host}-{os.getpid()}-{secrets.token_hex(4)}"


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
