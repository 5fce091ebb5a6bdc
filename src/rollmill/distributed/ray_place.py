"""Where a Ray cluster is, and what Ray must be told before it is imported: loopback and the token.

Nothing here imports Ray: it reads its environment when it is.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollmill.core.errors import ConfigError

AUTO = "auto"
"""The address of the cluster that was started on this machine."""
KEEP_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Keeps Ray from replacing 127.0.0.1 by an address that others can reach."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
TOKEN_FILE = Path(".ray") / "auth_token"
"""Below the home folder: where Ray's own tools look for it."""
PORTS = range(1024, 65536)
WORKER_PORTS = range(10002, 20000)
"""Which Ray takes for its workers."""
ANSWER_SECONDS = 3.0


@dataclass(frozen=True)
class Place:
    """Host and port of a cluster's head."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host of this name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def place_of(text: str, what: str = "cluster.address") -> Place:
    """Read ``host:port``; raises ConfigError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdigit() or int(port) not in PORTS:
        raise ConfigError(f"{what}={text} is no address: host:port is expected, with a port from 1024 to 65535")
    return Place("127.0.0.1" if host == "localhost" else host, int(port))


def silence(place: Place) -> str:
    """Return why nobody can be there, empty where somebody answers: Ray itself would try for a long time."""
    try:
        socket.create_connection((place.host, place.port), ANSWER_SECONDS).close()
    except OSError as error:
        return f"nothing answers at {place} ({error.strerror or error})"
    return ""


# -- the token --------------------------------------------------------------------------------------


def token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / TOKEN_FILE)


def make_token() -> Path:
    """Return the file with this user's token, made if there is none; only the user may read it."""
    file = token_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return file
    with os.fdopen(descriptor, "w") as opened:
        opened.write(secrets.token_hex(32))
    return file


def has_token() -> bool:
    """Return whether there is a token to show, or Ray is told that none is needed."""
    known = bool(os.environ.get("RAY_AUTH_TOKEN")) or token_file().exists()
    return known or os.environ.get("RAY_AUTH_MODE") == "disabled"


def missing_token() -> str:
    """Say what to do about a missing token; empty where there is one, or none is needed."""
    if has_token():
        return ""
    return (
        f"no token: copy {token_file()} from the head's machine, or set RAY_AUTH_TOKEN; RAY_AUTH_MODE=disabled where "
        "the cluster has none"
    )


def environment(loopback: bool) -> Mapping[str, str]:
    """Return what processes that import Ray need beside what they inherit."""
    found = {**QUIET, **(KEEP_LOOPBACK if loopback else {})}
    if has_token() and not os.environ.get("RAY_AUTH_MODE"):
        found["RAY_AUTH_MODE"] = "token"
    return found
