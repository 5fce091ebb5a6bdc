"""Learners on three machines, one of which dies: how long the others need to go on. As root, on one Linux machine.

    python benchmarks/learners.py faults            its process is killed, its machine loses power, its cable is pulled
    python benchmarks/learners.py faults --big      the same with 11.7 MB of weights
    python benchmarks/learners.py slurm             three tasks of one srun, one of which is killed; a real SLURM

The machines are network namespaces on one bridge (``ip netns``): they share processor and disk, nothing else. Prints
JSON, writes ``runs/benchmarks/learners-*.json``. Speed is measured by ``several_gpus.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, end_on_sigterm, record

sys.path.insert(0, str(ROOT / "tests" / "support"))

from rollmill.monitor.jsonl import read_jsonl

COMMAND = (sys.executable, "-m", "rollmill.cli.main")
RUN = (
    *("env=CartPole-v1", "sampling.workers=3", "sampling.envs_per_worker=16", "sampling.mode=async"),
    *("learning.ranks=3", "learning.device=cpu", "learning.threads=1", "learning.batch_size=3072"),
    *(
        "report.every_frames=1000",
        "report.tensorboard=false",
        "report.page=false",
        "stop.frames=0",
        "stop.seconds=3600",
    ),
)
BIG = ("model.mlp=[1700,1700]", "learning.epochs=1")
PORT = 29500
_numbers = itertools.count()
LIMIT_SECONDS = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--big", action="store_true")
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="rl-", dir="/tmp") as folder:
        found = KINDS[options.kind](Path(folder), options)
    print(json.dumps(found, indent=1))
    print(record(f"learners-{options.kind}", found), file=sys.stderr)
    return 0


# -- machines ----------------------------------------------------------------------------------------


@dataclass
class Machine:
    """A network namespace with an address of its own."""

    name: str
    address: str

    def start(self, output: Path, *words: str) -> subprocess.Popen[bytes]:
        command = ["ip", "netns", "exec", self.name, *COMMAND, *words]
        with open(output, "wb") as file:
            return subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)

    def pull_cable(self) -> None:
        ip("link", "set", f"{self.name}-out", "down")

    def pids(self) -> list[int]:
        return [int(word) for word in ip("netns", "pids", self.name).split()]

    def kill_all(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """Namespaces on a bridge; whatever still runs in them is killed with them."""
    bridge = f"rl{next(_numbers)}-{os.getpid() % 10000}"
    made = [Machine(f"{bridge}-{k}", f"10.77.0.{k + 1}") for k in range(count)]
    ip("link", "add", bridge, "type", "bridge")
    ip("link", "set", bridge, "up")
    try:
        for one in made:
            ip("netns", "add", one.name)
            ip("link", "add", f"{one.name}-out", "type", "veth", "peer", "name", "eth0", "netns", one.name)
            ip("link", "set", f"{one.name}-out", "master", bridge, "up")
            ip("-n", one.name, "address", "add", f"{one.address}/24", "dev", "eth0")
            ip("-n", one.name, "link", "set", "eth0", "up")
            ip("-n", one.name, "link", "set", "lo", "up")
        yield made
    finally:
        for one in made:
            with contextlib.suppress(subprocess.CalledProcessError):
                one.kill_all()
                ip("link", "del", f"{one.name}-out")
                ip("netns", "del", one.name)
        ip("link", "del", bridge)


# -- faults ------------------------------------------------------------------------------------------


def _power(machine: Machine, _process: subprocess.Popen[bytes]) -> None:
    machine.pull_cable()  # first: nothing tells the others
    machine.kill_all()


FAULTS: dict[str, Callable[[Machine, subprocess.Popen[bytes]], None]] = {
    "its process is killed": lambda _machine, process: process.kill(),
    "its machine loses power": _power,
    "its cable is pulled": lambda machine, _process: machine.pull_cable(),
    "it is ended by SIGTERM": lambda _machine, process: process.terminate(),
}


def faults(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """For each fault a run of three machines: seconds until the next training step of the two that are left."""
    found: dict[str, Any] = {}
    for number, (what, act) in enumerate(FAULTS.items()):
        with machines(3) as hosts:
            found[what] = _one_fault(folder / str(number), hosts, act, BIG if options.big else ())
        print(what, found[what], file=sys.stderr, flush=True)
    return found


def _one_fault(
    folder: Path, hosts: list[Machine], act: Callable[[Machine, subprocess.Popen[bytes]], None], words: tuple[str, ...]
) -> dict[str, Any]:
    place, run = f"{hosts[0].address}:{PORT}", folder / "x" / "run"
    folder.mkdir()
    named = (f"run.dir={folder}", "run.experiment=x", "run.name=run", f"learning.meet={place}")
    first = hosts[0].start(folder / "rank 0", "train", *RUN, *words, *named)
    others = [host.start(folder / host.name, "join-learner", place) for host in hosts[1:]]
    alive = lambda: [p.poll() for p in (first, others[0])] == [None, None]  # noqa: E731
    _until("ten rows of three ranks", lambda: len(_rows(run)) >= 10, alive)
    moment = time.time()
    act(hosts[2], others[1])
    after = lambda: [row for row in _rows(run) if row["learn/ranks"] == 2]  # noqa: E731
    _until("rows of the two that are left", lambda: len(after()) >= 5, alive)
    first.terminate()
    codes = [process.wait(LIMIT_SECONDS) for process in (first, *others)]  # who is cut off ends by itself, too
    rows = _rows(run)
    return {
        "goes on after, s": round(after()[0]["time"] - moment, 2),
        "frames never fall": all(a["frames"] <= b["frames"] for a, b in itertools.pairwise(rows)),
        "rows of a batch, before and after": [round(rows[5]["learn/rows"]), round(rows[-1]["learn/rows"])],
        "exit codes": codes,
        "said": [line for line in (run / "log.txt").read_text().splitlines() if "lost for this run" in line],
        "processes left": sum(len(host.pids()) for host in hosts),
    }


def _rows(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    return [row for row in read_jsonl(file) if "learn/rows" in row] if file.exists() else []


def _until(what: str, done: Callable[[], Any], alive: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while not done():
        assert alive(), f"a process ended while waiting for {what}"
        assert time.monotonic() - begun < LIMIT_SECONDS, f"not within {LIMIT_SECONDS} s: {what}"
        time.sleep(0.05)


# -- SLURM -------------------------------------------------------------------------------------------

JOB = """\
#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --no-kill --output={folder}/job.out
srun --no-kill --kill-on-bad-exit=0 {command} learning.meet=127.0.0.1:{port}
"""


def slurm(folder: Path, _options: argparse.Namespace) -> dict[str, Any]:
    """The recipe of the documentation, on three nodes that share this machine."""
    from slurm_cluster import Cluster, free_ports

    cluster, run = Cluster(folder / "slurm"), folder / "x" / "run"
    words = (*COMMAND, "train", *RUN, f"run.dir={folder}", "run.experiment=x", "run.name=run")
    job = folder / "job.sh"
    job.write_text(JOB.format(folder=folder, command=" ".join(map(shlex.quote, words)), port=free_ports(1)[0]))
    cluster.start()
    try:
        number = cluster.call("sbatch", "--parsable", f"--chdir={ROOT}", str(job)).strip()
        up = lambda: cluster.call("squeue", "-h", "-j", number) != ""  # noqa: E731
        _until("ten rows of three ranks", lambda: len(_rows(run)) >= 10, up)
        ranks = re.findall(r"rank \d is on \S+ \(pid (\d+)\)", (run / "log.txt").read_text())
        moment = time.time()
        os.kill(int(ranks[0]), signal.SIGKILL)
        after = lambda: [row for row in _rows(run) if row["learn/ranks"] == 2]  # noqa: E731
        _until("rows of the two that are left", lambda: len(after()) >= 5, up)
        cluster.call("scancel", "--signal=TERM", number)
        _until("the end of the job", lambda: not up(), lambda: True)
    finally:
        cluster.stop()
    said = (folder / "job.out").read_text().splitlines()
    return {
        "goes on after, s": round(after()[0]["time"] - moment, 2),
        "said": [line for line in said if "lost for this run" in line or "is over:" in line or "go on" in line],
        "state": json.loads((run / "state.json").read_text())["state"],
    }


KINDS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "faults": faults,
    "slurm": slurm,
}


if __name__ == "__main__":
    sys.exit(main())
