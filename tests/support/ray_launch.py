"""Launches runs on a real Ray cluster of one node; started in namespaces of its own (network, processes) by a test.

Ray listens on all interfaces, whatever it is told: in here is only a loopback, and everything ends with this process.
Prints what happened as JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

from launching import checked_ledger, experiment, launcher, population, population_launcher, sessions, states
from running import wait_until

from rollmill.launch.launcher import cancel
from rollmill.launch.params import ParamGrid


def raise_loopback() -> None:
    """``ip link set lo up`` without the program."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def start_ray(folder: Path) -> None:
    script = "from ray.scripts.scripts import main; main()"
    options = {"port": 6399, "dashboard-host": "127.0.0.1", "dashboard-port": 8265, "num-cpus": 2, "temp-dir": folder}
    options |= {"node-ip-address": "127.0.0.1", "object-store-memory": 80_000_000, "include-dashboard": "true"}
    words = [f"--{name}={value}" for name, value in options.items()]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_agent_register_timeout_ms": "300000"}
    environment |= {"RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300", "RAY_gcs_server_request_timeout_seconds": "300"}
    with open(folder.parent / "ray.out", "wb") as output:
        command = [sys.executable, "-c", script, "start", "--head", "--disable-usage-stats", *words]
        subprocess.run(command, check=True, env=environment, stdout=output, stderr=output)
    wait_until(answers, what="the dashboard to answer")


def answers() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.0.1:8265/api/jobs/", timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main(folder: Path) -> None:
    raise_loopback()
    (folder / "ray").mkdir()
    start_ray(folder / "ray")
    gate = folder / "gate"
    made = launcher(
        folder, experiment(ParamGrid({"env.args.gate": [str(gate)]}), seeds=3), "backend=ray", "ray.parallel=2"
    )
    names = [run.name for run in made.plan.runs]

    def two_wait() -> bool:
        made.tick()
        return sum(any((folder / "tests" / name / "checkpoints").glob("*.ckpt")) for name in names) == 2

    wait_until(two_wait, what="two runs at their gate")
    told = {"first": states(made.look())}
    before = made.records.submission(names[0])
    made.records.write_submission(names[0], replace(before, handle=None))  # as if the launcher had been killed
    made.tick()
    told["found"] = {names[0]: str(made.records.submission(names[0]).handle == before.handle)}
    cancel(made.records, made.plan, made.backend, [names[1]])
    gate.touch()
    told["last"] = states(made.run())
    made.reset_failures()
    told["again"] = states(made.run())
    starts = [session["step_at_start"] for session in sessions(folder / "tests" / names[1])]
    members = population_launcher(folder, population(), "backend=ray", "ray.parallel=2")
    told["population"] = states(members.run())
    rounds = len(checked_ledger(members)) - 1
    print(json.dumps({**told, "starts": starts, "rounds": rounds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
