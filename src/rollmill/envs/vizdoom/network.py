"""Where the engines of a match hear each other, and nobody else does.

An engine binds its port on all interfaces. So a match gets a network of its own wherever Linux allows that: a
*namespace* with nothing in it but a loopback, whose host makes it and whose guests join it (``launcher``). Nothing
outside can reach it, and every match uses the same port. Where it is not allowed (some containers), the match uses the
machine's own network, on a port that is free, and says so.
"""

from __future__ import annotations

import functools
import logging
import subprocess
import sys
from dataclasses import dataclass

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.text import nearest
from rollmill.envs.make import EnvInstance
from rollmill.envs.vizdoom import launcher

log = logging.getLogger("rollmill")

PORT = 5029
"""Doom's own."""
KINDS = ("auto", "namespace", "shared")
TRY_SECONDS = 30.0


@dataclass(frozen=True)
class Network:
    """Where one match meets."""

    own: bool
    """A namespace; else it is the machine's network."""
    port: int


def check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"network={kind!r} {nearest(kind, KINDS)} (one of {', '.join(KINDS)})")


def choose_network(kind: str, instance: EnvInstance) -> Network:
    """Return what ``kind`` asks for; raises EnvError if it cannot be had."""
    reason = "" if kind == "shared" else why_no_namespace()
    if kind == "namespace" and reason:
        raise EnvError(f"network=namespace: this machine allows no network namespaces ({reason})")
    if kind != "shared" and not reason:
        return Network(own=True, port=PORT)
    if reason:
        _warn(reason)
    return Network(own=False, port=instance.port(PORT, host="", udp=True))


@functools.cache
def why_no_namespace() -> str:
    """Say why an engine may not have a network of its own; empty if it may. Tried once in a process."""
    if sys.platform != "linux":
        return f"they are Linux's, and this is {sys.platform}"
    try:
        command = [sys.executable, "-I", "-S", launcher.__file__, "--try-network"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRY_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1] if done.returncode else ""


@functools.cache
def _warn(reason: str) -> None:
    log.warning(
        "Doom matches use this machine's own network, where their engines listen on all interfaces, because it allows "
        "them none of their own (%s)",
        reason,
    )
