"""``rollmill cluster``: Ray nodes of this machine, and how the nodes of a run stand."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rollmill.cli.options import Json
from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.run_folder import holder
from rollmill.core.text import columns
from rollmill.distributed import supervisor
from rollmill.distributed.ray_place import (
    WORKER_PORTS,
    is_loopback,
    make_token,
    missing_token,
    place_of,
    silence,
)
from rollmill.distributed.settings import RESOURCE
from rollmill.distributed.standing import RunStanding
from rollmill.distributed.supervisor import RayNode, Record, Supervisor
from rollmill.launch.listing import find_run, run_folders
from rollmill.launch.table import duration, first_line

_ROOT = Path("runs")
HEAD = (
    *("node", "seat", "stage", "incarnation", "steps/s"),
    *("MB/s", "packed", "lag", "lost", "heard s ago", "reason"),
)


def up(
    host: str = "127.0.0.1",
    port: int = 6379,
    sample: bool = False,
    cpus: float = 0.0,
    store_mb: int = 500,
    block: bool = False,
    json_: Json = False,
) -> int:
    """Start the head of a Ray cluster on this machine: ``rollmill cluster up --host 10.0.0.5``.

    Training starts on this machine, with cluster.address=auto. A process in the background looks after the head until
    `rollmill cluster down`.

    Args:
        host: Address of this machine that others reach. With 127.0.0.1, all of the cluster is on this machine and
            nothing of it can be reached from others.
        port: Where others join.
        sample: This machine also offers itself as a node (a run's own workers need no node).
        cpus: CPUs to offer to Ray; 0: all.
        store_mb: Size of Ray's object store, which segments and weights pass through.
        block: Stay in the foreground until it is ended.
        json_: Print JSON.
    """
    place = place_of(f"{host}:{port}", "--host and --port")
    if not place.loopback and port in WORKER_PORTS:
        raise ConfigError(f"--port {port}: Ray needs {WORKER_PORTS[0]} to {WORKER_PORTS[-1]} for its workers")
    for _, record in supervisor.records():
        if record.node.role == "head" and record.node.address == str(place):
            raise ConfigError(f"the head of the cluster at {place} is up already; `rollmill cluster status` shows it")
    if not silence(place):
        raise ConfigError(f"something listens at {place} already; --port chooses another port")
    token = "the one of RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else make_token()
    resource = RESOURCE if sample else ""
    node = RayNode("head", str(place), host=place.host, cpus=cpus, store_mb=store_mb, resource=resource)
    return _start(node, block, json_, f"token: {token}\njoin:  rollmill cluster join {place}")


def join(
    address: str,
    /,
    host: str = "",
    cpus: float = 0.0,
    store_mb: int = 500,
    patience: float = 300.0,
    block: bool = False,
    json_: Json = False,
) -> int:
    """Have this machine sample for runs of a cluster: ``rollmill cluster join 10.0.0.5:6379``.

    It needs the token of the cluster's user: the file ~/.ray/auth_token of the head's machine, or RAY_AUTH_TOKEN.

    Args:
        address: host:port of the head.
        host: Address of this machine that the head reaches; by default Ray finds out.
        cpus: CPUs to offer to Ray; 0: all.
        store_mb: Size of Ray's object store.
        patience: Seconds to try for when the head cannot be reached, now or later.
        block: Stay in the foreground until it is ended.
        json_: Print JSON.
    """
    place = place_of(address, "ADDRESS")
    mine = host or (place.host if place.loopback else "")
    if place.loopback and not is_loopback(mine):
        raise ConfigError(f"the head at {place} can be reached from its own machine alone, not from {mine}")
    if why := silence(place):  # a head that is being started may be about to make the token
        print(f"{why}; it is tried for {patience:g} s", file=sys.stderr, flush=True)
    elif why := missing_token():
        raise ConfigError(why)
    node = RayNode("node", str(place), mine, cpus, store_mb, RESOURCE, patience)
    return _start(node, block, json_, "")


def _start(node: RayNode, block: bool, json_: bool, more: str) -> int:
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError('clusters need Ray: pip install "rollmill[ray]"')
    file = supervisor.prepare(node)
    if block:
        print(f"{node.role} of the cluster at {node.address}; Ctrl-C ends it", flush=True)
        return Supervisor(file).run()
    record = supervisor.wait_until_up(file, supervisor.start_in_background(file))
    if json_:
        print(json.dumps(supervisor.about(record)))
    else:
        print(f"{node.role} of the cluster at {node.address} is up (log: {supervisor.log_of(file)})")
        print(more, end="\n" if more else "")
    return 0


def down(address: str = "", /, json_: Json = False) -> int:
    """End what `up` and `join` have started on this machine: ``rollmill cluster down``.

    Runs go on with workers of their own; nodes on other machines try to reach the head until their patience ends.

    Args:
        address: host:port of one cluster; by default all are left.
        json_: Print JSON.
    """
    place = place_of(address, "ADDRESS") if address else None
    found = [one for one in supervisor.records() if place is None or one[1].node.address == str(place)]
    found.sort(key=lambda one: one[1].node.role == "head")  # nodes first
    ended = [
        {"role": record.node.role, "address": record.node.address, "forced": supervisor.end(file, record)}
        for file, record in found
    ]
    if json_:
        print(json.dumps(ended))
        return 0
    for one in ended:
        print(f"{one['role']} of the cluster at {one['address']} has ended{' by force' if one['forced'] else ''}")
    if not ended:
        print(f"nothing of a cluster{f' at {place}' if place else ''} is up on this machine")
    return 0


def status(run: str | None = None, /, root: Path = _ROOT, json_: Json = False) -> int:
    """Show this machine's part in clusters, and the nodes of running trainings: ``rollmill cluster status``.

    Args:
        run: A run's folder, ``experiment/run``, or its name; by default all that are running.
        root: Folder of all experiments.
        json_: Print JSON.
    """
    here = [record for _, record in supervisor.records()]
    runs = [(find_run(run, root), True)] if run else [(folder, False) for folder in _running(root)]
    found = {folder: _standing(folder, named) for folder, named in runs}
    if json_:
        told = [{"run": str(folder), **asdict(one)} for folder, one in found.items() if one]
        print(json.dumps({"machine": [supervisor.about(record) for record in here], "runs": told}))
        return 0
    lines = [f"{r.node.role} of the cluster at {r.node.address}: {r.stage}{_restarts(r)}" for r in here]
    for folder, one in found.items():
        lines += ["", *_lines(folder, one)] if one else []
    print("\n".join(lines).strip() or "no node of a cluster on this machine, and no running training with nodes")
    return 0


def _running(root: Path) -> list[Path]:
    return [folder for folder in run_folders(root) if holder(folder)] if root.is_dir() else []


def _standing(folder: Path, named: bool) -> RunStanding | None:
    """Read how the nodes of a run stand; None for a run without nodes, or ConfigError where that one was asked for."""
    try:
        return RunStanding.read(folder)
    except FileNotFoundError:
        if named:
            raise ConfigError(f"{folder} has no nodes: it was started without cluster.address") from None
        return None


def _lines(folder: Path, run: RunStanding) -> list[str]:
    """Describe a run in lines of text."""
    ago = duration(max(0.0, time.time() - run.time))
    gateway = run.problem or f"the gateway was started again {run.restarts} times"
    title = f"{folder}: {run.received:,} segments received, {run.lost:,} lost, {run.refused:,} refused; {gateway}"
    rows = [
        (
            *(one.node, str(one.seat), one.stage, str(one.incarnation), f"{one.steps_per_s:,.0f}"),
            *(f"{one.mb_per_s:.2f}", f"{one.pack_ratio:.1f}x", f"{one.lag:.1f}", str(one.lost), f"{one.heard:.1f}"),
            first_line(one.reason),
        )
        for one in run.nodes
    ]
    return [f"{title} ({ago} ago)", *columns([HEAD, *rows])]


def _restarts(record: Record) -> str:
    return f", started again {record.restarts} times, last because: {record.reason}" if record.restarts else ""
