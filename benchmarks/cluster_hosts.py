"""Several hosts on one machine, as network namespaces, and a link between them that fails (for ``cluster.py``)."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster_run import CARTPOLE, ENDLESS, OFTEN, Leftovers, Training, segments_of, show, training, twice
from common import Marks

PORT = 6379
NETWORK = "10.77.0"
DOWN_SECONDS = 30.0


class Hosts:
    """``count`` namespaces with an address each, plugged into a bridge that lies in one of its own."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._names = folder, [f"rm{os.getpid()}-{k}" for k in range(count)]
        self._switch = f"rm{os.getpid()}-switch"

    def __enter__(self) -> Hosts:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for k, name in enumerate(self._names):
            _ip("netns", "add", name)
            _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{k}", "netns", self._switch)
            _ip("-n", self._switch, "link", "set", f"port{k}", "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.address(k)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for k in reversed(range(len(self._names))):
            self.rollmill(k, "cluster", "down")
        for name in (*self._names, self._switch):
            _ip("netns", "delete", name)

    def address(self, k: int) -> str:
        return f"{NETWORK}.{k + 1}"

    def within(self, k: int) -> list[str]:
        """Words before a command that is to run there, as another machine would: with a cache folder of its own."""
        own = [f"XDG_CACHE_HOME={self._folder / f'cache{k}'}", f"RAY_AUTH_TOKEN_PATH={self._folder / 'token'}"]
        return ["nsenter", f"--net=/run/netns/{self._names[k]}", "env", *own]

    def rollmill(self, k: int, *words: str) -> None:
        command = [*self.within(k), sys.executable, "-m", "rollmill.cli.main", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    @contextlib.contextmanager
    def unplugged(self, k: int) -> Iterator[None]:
        _ip("-n", self._switch, "link", "set", f"port{k}", "down")
        try:
            yield
        finally:
            _ip("-n", self._switch, "link", "set", f"port{k}", "up")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def partition(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """Two nodes on hosts of their own; one cannot be reached for half a minute."""
    if os.geteuid():
        raise SystemExit("network namespaces need root")
    left = Leftovers()
    found: dict[str, Any] = {}
    with Hosts(folder, 3) as hosts:
        hosts.rollmill(0, "cluster", "up", "--host", hosts.address(0), "--port", str(PORT), "--cpus", "1")
        for k in (1, 2):
            hosts.rollmill(
                k, "cluster", "join", f"{hosts.address(0)}:{PORT}", "--cpus", "1", "--host", hosts.address(k)
            )
        words = ("cluster=auto", "cluster.nodes=2", "sampling.workers=1", "recording=all")
        with training(folder, "run", *CARTPOLE, *OFTEN, *words, *ENDLESS, before=hosts.within(0)) as run:
            run.until("two nodes", run.sampling(2))
            time.sleep(10)
            known = {node.node: node.incarnation for node in run.told().nodes}
            found["before"] = _rates(run, DOWN_SECONDS)
            moment = time.time()
            with hosts.unplugged(2):
                begun = time.monotonic()
                found["given up after, s"] = run.until("one node", run.sampling(1))
                (stays,) = (node.node for node in run.told().nodes if node.stage == "sampling")
                found["meanwhile"] = _rates(run, max(1.0, DOWN_SECONDS - (time.monotonic() - begun)))
            marks.at_most("back, s after the link is up again", run.until("two nodes", run.sampling(2)), 30)
            found["longest gap between rows, s"] = run.gap(moment)
            show(found)
            time.sleep(10)
            again = {node.node: node.incarnation for node in run.told().nodes}
            found["segments"] = segments_of(run.told())
            run.end(marks)
        marks.equal("episodes twice in the store", twice(run.folder / "data"), 0)
    left.judge(marks)
    marks.at_most("given up after, s", found["given up after, s"], 13)  # and told every 2 s
    marks.at_least("rate of the other node against before", found["meanwhile"][stays] / found["before"][stays], 0.95)
    marks.equal("the other node's incarnation", again[stays], known[stays])
    marks.equal("segments that came twice", found["segments"]["refused"], 0)
    return found


def _rates(run: Training, seconds: float) -> dict[str, float]:
    """Steps per second of every node, over so long."""
    before = {node.node: node.steps for node in run.told().nodes}
    time.sleep(seconds)
    return {node.node: (node.steps - before.get(node.node, 0)) / seconds for node in run.told().nodes}
