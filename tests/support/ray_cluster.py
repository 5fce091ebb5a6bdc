"""A real Ray cluster of several nodes on this machine's loopback, kept by supervisors as ``rollmill cluster`` does."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest import mock

import psutil
from slurm_cluster import free_ports

from rollmill.core.process import module_command
from rollmill.distributed import supervisor
from rollmill.distributed.ray_place import make_token
from rollmill.distributed.settings import RESOURCE
from rollmill.distributed.supervisor import RayNode, Record

STORE_MB = 100


@dataclass
class RayCluster:
    """The head and the nodes that were started."""

    address: str
    started: list[tuple[Path, subprocess.Popen[bytes]]] = field(default_factory=list)

    held: list[tuple[Path, subprocess.Popen[bytes]]] = field(default_factory=list)

    def begin(self, role: Literal["head", "node"]) -> None:
        """Start one more, without waiting for it."""
        file = self._prepare(role)
        self.started.append((file, supervisor.start_in_background(file)))

    def hold(self) -> None:
        """A node whose supervisor starts with ``release``: whatever is started during a run ends with it."""
        file = self._prepare("node")
        words = module_command("rollmill.distributed.supervisor_main", str(file))
        waiting = ["sh", "-c", 'read go && exec "$@"', "sh", *words]
        self.held.append((file, subprocess.Popen(waiting, stdin=subprocess.PIPE, start_new_session=True)))

    def release(self) -> None:
        file, process = self.held.pop()
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        self.started.append((file, process))

    def _prepare(self, role: Literal["head", "node"]) -> Path:
        resource = RESOURCE if role == "node" else ""
        return supervisor.prepare(RayNode(role, self.address, "127.0.0.1", 1.0, STORE_MB, resource, patience=120.0))

    def wait(self) -> None:
        """Until all are up."""
        for file, process in self.started:
            supervisor.wait_until_up(file, process)

    def processes(self, record: Path) -> dict[str, psutil.Process]:
        """The supervisor and everything below it, by the beginning of their names; the last one of each."""
        top = psutil.Process(Record.read(record).pid)
        return {process.name(): process for process in [top, *top.children(recursive=True)]}

    def lose(self, number: int) -> None:
        """One of those that were started is gone for good, as a machine that was switched off."""
        file, process = self.started[number]
        record = Record.read(file)
        below = psutil.Process(record.pid).children(recursive=True)
        process.kill()
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        supervisor.forget(file, record)
        del self.started[number]

    def listening(self) -> set[str]:
        """Addresses that anything of the cluster listens on; of IPv4 also where the socket is one of IPv6."""
        found = set()
        for file, _ in self.started:
            top = psutil.Process(Record.read(file).pid)
            for process in [top, *top.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    listening = (c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN)
                    found |= {connection.laddr.ip.removeprefix("::ffff:") for connection in listening}
        return found

    def end(self) -> list[psutil.Process]:
        """End everything; returns all processes there were."""
        below = [
            process
            for file, _ in self.started
            if supervisor.alive(file)
            for process in psutil.Process(Record.read(file).pid).children(recursive=True)
        ]
        while self.held:
            self.held.pop()[1].kill()
        for file, process in reversed(self.started):
            if supervisor.alive(file):
                supervisor.end(file, Record.read(file))
            process.wait()
        return below


@contextlib.contextmanager
def ray_cluster(folder: Path, nodes: int) -> Iterator[RayCluster]:
    """A head and so many nodes; records and token lie in ``folder``, so that it is a cluster of its own."""
    own: Mapping[str, str] = {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_AUTH_MODE": "token",
    }
    with mock.patch.dict(os.environ, own):
        make_token()
        cluster = RayCluster(f"127.0.0.1:{free_ports(1)[0]}")
        try:
            cluster.begin("head")
            cluster.wait()
            for _ in range(nodes):
                cluster.begin("node")
            cluster.wait()
            yield cluster
        finally:
            cluster.end()
