"""``rollmill view``: serve the pages until Ctrl-C."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.machine import cache_folder
from rollmill.reports.html.serving import ANYWHERE, LOOPBACK, LOOPBACK_NAMES, Door
from rollmill.viewer.catalog import Catalog
from rollmill.viewer.export import Copied, export
from rollmill.viewer.index import Index

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

_CLOSE_SECONDS = 2
CONNECTIONS = 256
"""Of all browsers, four times the requests that are answered at a time; the web server refuses more itself."""


@dataclass(frozen=True)
class Address:
    """Where the server listens. ``port`` 0: any that is free."""

    host: str = LOOPBACK
    port: int = 0

    def listen(self) -> socket.socket:
        """Return a socket that is bound there; raises ConfigError where that is impossible."""
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port {self.port}: ports are numbers up to 65535; 0 takes any that is free")
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            bound = socket.socket(family, kind, protocol)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(128)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self.host}, port {self.port}: {error.strerror or error}; --host and --port choose"
            ) from error
        return bound

    def door(self) -> Door:
        """Return the door of this address: it lets in by the names that the address can have."""
        if self.host in LOOPBACK_NAMES:
            return Door()
        return Door({self.host, socket.gethostname(), socket.getfqdn()}, any_address=self.host in ANYWHERE)


def index_file(root: Path) -> Path:
    """Return where the index of the runs below a folder lies."""
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    return cache_folder() / "viewer" / f"{name}.sqlite"


def copy(root: Path, folder: Path, episodes: int) -> Copied:
    """Write a copy of the pages into a folder, without a server; see ``viewer.export``."""
    if episodes < 0:
        raise ConfigError(f"--episodes {episodes}: 0 or more of each store are copied")
    with contextlib.closing(Index(index_file(root))) as index:
        return export(Catalog(root, index), folder, episodes)


def settings_of(app: ASGIApp) -> uvicorn.Config:
    """Return the settings of the web server."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )


def view(root: Path, address: Address, announce: Callable[[str, int], None]) -> None:
    """Serve until a signal comes, which is raised as ever; ``announce`` is told the link and the port."""
    try:
        import uvicorn

        from rollmill.viewer.server import Viewer, make_app
    except ModuleNotFoundError as error:
        raise MissingExtraError('rollmill view needs a web server: pip install "rollmill[viewer]"') from error
    if not root.is_dir():
        raise ConfigError(f"{root}: there is no such folder of runs")
    index = Index(index_file(root))
    with contextlib.closing(index), contextlib.closing(address.listen()) as bound:
        catalog, door = Catalog(root, index), address.door()
        catalog.refresh()
        server: uvicorn.Server
        viewer = Viewer(catalog, stopping=lambda: server.should_exit)
        server = uvicorn.Server(settings_of(make_app(viewer, door)))
        port = int(bound.getsockname()[1])
        announce(door.link(address.host, port), port)
        server.run([bound])
