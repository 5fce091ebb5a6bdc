"""Runs over several nodes: what they cost, and what is lost when something dies. Ray, SLURM and all on this machine.

    python benchmarks/cluster.py speed --repeats 3        one node against local workers, and a cluster without nodes
    python benchmarks/cluster.py faults                   everything is killed once, and a node joins
    python benchmarks/cluster.py weights                  from a publication of 12 MB to its use on three nodes
    python benchmarks/cluster.py learning --seeds 1 2     CartPole to 475: three nodes against local workers
    python benchmarks/cluster.py slurm                    nodes as tasks of a SLURM array that join and leave

Ray listens on 127.0.0.1 only. Prints a table, writes ``runs/benchmarks/cluster-*.json``. Times are of this machine with
all nodes on it: they say what the way costs, not how it grows with machines.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from common import ROOT, end_on_sigterm, record

sys.path.insert(0, str(ROOT / "tests" / "support"))

from ray_cluster import RayCluster, ray_cluster
from slurm_cluster import Cluster as SlurmCluster
from slurm_cluster import missing

from rollmill.distributed.standing import RunStanding
from rollmill.monitor.jsonl import read_jsonl

CARTPOLE = ("env=CartPole-v1", "sampling.envs_per_worker=16", "report.tensorboard=false", "report.page=false")
ENDLESS = ("stop.frames=0", "stop.seconds=3600")
OFTEN = ("report.every_frames=4000",)
LIMIT_SECONDS = 240.0
PAUSE_SECONDS = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30, help="of each training of speed")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as folder:
        found = KINDS[options.kind](Path(folder), options)
    print(json.dumps(found, indent=1))
    print(record(f"cluster-{options.kind}", found), file=sys.stderr)
    return 0


# -- a training beside this program ------------------------------------------------------------------


@dataclass
class Training:
    """``rollmill train`` in a process of its own, watched through its files."""

    folder: Path
    process: subprocess.Popen[bytes]
    begun: float

    def rows(self) -> list[dict[str, Any]]:
        file = self.folder / "metrics.jsonl"
        return list(read_jsonl(file)) if file.exists() else []

    def standing(self) -> RunStanding | None:
        with contextlib.suppress(FileNotFoundError):
            return RunStanding.read(self.folder)
        return None

    def incarnations(self) -> set[int]:
        """Of nodes that sample."""
        found = self.standing()
        return {node.incarnation for node in found.nodes if node.stage == "sampling"} if found else set()

    def said(self, pattern: str) -> list[str]:
        log = self.folder / "log.txt"
        return re.findall(pattern, log.read_text()) if log.exists() else []

    def until(self, what: str, done: Callable[[], Any]) -> float:
        """Seconds until it is so."""
        begun = time.monotonic()
        while not done():
            assert self.process.poll() is None, f"the training has ended: {self.output()}"
            assert time.monotonic() - begun < LIMIT_SECONDS, f"not within {LIMIT_SECONDS} s: {what}; {self.output()}"
            time.sleep(PAUSE_SECONDS)
        return time.monotonic() - begun

    def gap(self, since: float) -> float:
        """The longest time between two rows of metrics after a moment (seconds since 1970)."""
        times = [row["time"] for row in self.rows()]
        return max((b - a for a, b in itertools.pairwise(times) if b > since), default=0.0)

    def below(self, name: str) -> list[psutil.Process]:
        """Its processes of a module."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if name in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def output(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.out").read_text()[-2000:]

    def finish(self) -> int:
        self.process.terminate()
        return self.process.wait()


@contextlib.contextmanager
def training(folder: Path, name: str, *words: str) -> Iterator[Training]:
    place = folder / "default" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rollmill.cli.main", "train", f"run.dir={folder}", f"run.name={name}", *words]
    with open(place.parent / f"{name}.out", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield Training(place, process, time.monotonic())
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


# -- speed -------------------------------------------------------------------------------------------


def speed(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Frames per second by turns: two local workers; the same on one node; two local workers and a cluster without
    nodes."""
    kinds = {"local": (), "node": ("cluster.nodes=1", "cluster.local_workers=false"), "empty": ("cluster.nodes=0",)}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with ray_cluster(folder, 1) as cluster:
        for repeat in range(options.repeats):
            for kind, words in kinds.items():
                away = (f"cluster={cluster.address}", *words) if kind != "local" else ()
                if kind == "empty":
                    away = (*away, "cluster.resource=nobody")
                found[kind].append(_rate(folder, f"{kind}{repeat}", options.seconds, *away))
                print(kind, found[kind][-1], file=sys.stderr, flush=True)
    middle = {kind: statistics.median(rates) for kind, rates in found.items()}
    ratios = {f"{kind} / local": middle[kind] / middle["local"] for kind in ("node", "empty")}
    return {"frames_per_s": found, **ratios}


def _rate(folder: Path, name: str, seconds: float, *words: str) -> float:
    """Frames per second of a training once it is under way: nodes take a while to start."""
    with training(folder, name, *CARTPOLE, *OFTEN, "sampling.workers=2", *ENDLESS, *words) as run:
        run.until("a first row", run.rows)
        time.sleep(5)
        first = run.rows()[-1]
        time.sleep(seconds)
        last = run.rows()[-1]
        return float((last["frames"] - first["frames"]) / (last["time"] - first["time"]))


# -- faults ------------------------------------------------------------------------------------------


def faults(folder: Path, _options: argparse.Namespace) -> dict[str, Any]:
    """One run with three nodes, in which one thing after the other dies."""
    found: dict[str, Any] = {}
    with ray_cluster(folder, 2) as cluster:
        cluster.hold()
        found["listens on"] = sorted(cluster.listening())
        words = (f"cluster={cluster.address}", "cluster.nodes=2", "sampling.workers=1", "cluster.workers=1")
        with training(folder, "run", *CARTPOLE, *OFTEN, *words, *ENDLESS, "recording=all") as run:
            found["first training step, s"] = run.until("a first row", run.rows)
            found["two nodes sample, s"] = run.until("two nodes", lambda: len(run.incarnations()) == 2)
            cluster.release()
            found["a third one joins, s"] = run.until("three nodes", lambda: len(run.incarnations()) == 3)
            for what in ("raylet", "agent", "sampler", "worker", "gateway", "head"):
                found[what] = _kill(what, run, cluster)
                print(what, found[what], file=sys.stderr, flush=True)
            found["head"]["checkpoints after it"] = len(list((run.folder / "checkpoints").glob("*.ckpt")))
            below = [p for file, _ in cluster.started for p in psutil.Process(pid_of(file)).children(recursive=True)]
            below += psutil.Process(run.process.pid).children(recursive=True)
            found["exit code"] = run.finish()
        cluster.end()
        _, alive = psutil.wait_procs(below, timeout=30)
        found["processes left"] = len(alive)
        found["twice in the store"] = twice(run.folder / "data")
        standing = run.standing()
        assert standing is not None
        found["segments"] = {"received": standing.received, "lost": standing.lost, "refused": standing.refused}
    return found


def pid_of(record: Path) -> int:
    return int(json.loads(record.read_text())["pid"])


def _kill(what: str, run: Training, cluster: RayCluster) -> dict[str, Any]:
    """SIGKILL for one process; how the run takes it."""
    run.until("three nodes", lambda: len(run.incarnations()) == 3)
    before, moment = run.incarnations(), time.time()
    standing = run.standing()
    assert standing is not None
    victims = _victims(what, run, cluster)
    victims[0].kill()
    found: dict[str, Any] = {}
    if what == "worker":  # the node's own sampler replaces it
        time.sleep(10)
    else:
        noticed = lambda: run.incarnations() != before  # noqa: E731
        found["noticed, s"] = run.until("somebody noticed", noticed)
        all_again = lambda: len(run.incarnations()) == 3 and run.incarnations() != before  # noqa: E731
        found["all again, s"] = found["noticed, s"] + run.until("three nodes again", all_again)
    after = run.standing()
    assert after is not None
    return {**found, "longest gap between rows, s": run.gap(moment), "lost segments": after.lost - standing.lost}


def _victims(what: str, run: Training, cluster: RayCluster) -> list[psutil.Process]:
    if what == "gateway":
        return run.below("gateway_main")
    head, node = cluster.started[0][0], cluster.started[1][0]
    if what == "head":
        return [cluster.processes(head)["gcs_server"]]
    raylet = cluster.processes(node)["raylet"]
    if what == "raylet":
        return [raylet]
    below = raylet.children(recursive=True)
    (sampler,) = (process for process in below if "node_sampler_main" in " ".join(process.cmdline()))
    if what == "agent":
        return [psutil.Process(sampler.ppid())]
    return [sampler] if what == "sampler" else [p for p in sampler.children() if "worker" in " ".join(p.cmdline())]


def twice(data: Path) -> int:
    """Episodes of the recording that are there more than once: seeds are of lane and episode."""
    from rollmill.store.reader import Store

    store = Store(data)
    ends = [store.end_record(i) for i in range(len(store))]
    names = [(end.lane, end.worker, end.seed, end.first_step) for end in ends]
    return len(names) - len(set(names))


# -- weights -----------------------------------------------------------------------------------------


def weights(folder: Path, _options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds from a publication until nodes have it, while segments are under way."""
    from clustering import gateway, node_plan

    from rollmill.distributed.link import Event, Refreshed
    from rollmill.distributed.ray_link import RayLink
    from rollmill.distributed.settings import ClusterSettings
    from rollmill.models.settings import ModelSettings

    plan = node_plan()
    model = ModelSettings(mlp=(1700, 1700), hidden_size=8)
    support = str(ROOT / "tests" / "support")  # where its environment is
    plan = node_plan(model=model, weight_bytes=_bytes_of(plan.spec, model), path=(support,))
    with ray_cluster(folder, 3) as cluster:
        settings = ClusterSettings(address=cluster.address, nodes=3, publish_seconds=0.01)
        link = RayLink(settings)
        applied: dict[str, int] = {}
        backwards = 0
        with gateway(link, plan, slots=24, address=cluster.address, nodes=3, publish_seconds=0.01) as learner:
            take = learner.gateway._take

            def watch(event: Event, now: float) -> None:
                nonlocal backwards
                if isinstance(event, Refreshed):
                    backwards += event.sequence < applied.get(event.node, -1)
                    applied[event.node] = event.sequence
                take(event, now)

            learner.gateway._take = watch  # type: ignore[method-assign]
            learner.until(lambda: learner.stages() == ["sampling"] * 3 and len(learner.segments) > 30)
            times = []
            for version in range(1, 201):
                learner.publish(version)
                begun, sequence = time.monotonic(), learner.weights.sequence
                learner.until(lambda sequence=sequence: sum(s >= sequence for s in applied.values()) == 3)
                times.append((time.monotonic() - begun) * 1e3)
                learner.segments.clear()
    times.sort()
    return {
        "MB": plan.weight_bytes / 1e6,
        "publications": len(times),
        "p50, ms": times[len(times) // 2],
        "p99, ms": times[int(len(times) * 0.99)],
        "backwards": backwards,
    }


def _bytes_of(spec: Any, model: Any) -> int:
    from rollmill.distributed.acting import weight_bytes
    from rollmill.models.acting.weights import tensors_of
    from rollmill.models.actor_critic import build_model

    return weight_bytes(tensors_of(build_model(spec, model)))


# -- learning ----------------------------------------------------------------------------------------


def learning(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Frames until the mean return of CartPole is 475, on three nodes and on local workers."""
    found: dict[str, list[float | None]] = {"local": [], "nodes": []}
    with ray_cluster(folder, 3) as cluster:
        away = (f"cluster={cluster.address}", "cluster.nodes=3", "cluster.local_workers=false", "sampling.workers=1")
        for seed in options.seeds:
            for kind, words in {"local": ("sampling.workers=3",), "nodes": away}.items():
                name = f"{kind}{seed}"
                limits = ("stop.frames=1_000_000", "report.every_frames=5000", f"run.seed={seed}")
                with training(folder, name, "-f", "cartpole", *limits, "sampling.mode=async", *words) as run:
                    reached = lambda run=run: [r for r in run.rows() if r.get("episode/return", 0) >= 475]  # noqa: E731
                    while run.process.poll() is None and not reached():
                        time.sleep(1)
                    found[kind].append(reached()[0]["frames"] if reached() else None)
                    print(name, found[kind][-1], file=sys.stderr, flush=True)
    return {"frames to 475": found}


# -- slurm -------------------------------------------------------------------------------------------


LEARNER = """#!/bin/bash
set -e
trap "rollmill cluster down 127.0.0.1:{port}" EXIT
rollmill cluster up --port {port} --cpus 1 --store-mb 100
rollmill train run.dir={folder} run.name=run {words} cluster=auto cluster.nodes=0 stop.frames=0 stop.seconds=600
"""
NODES = """#!/bin/bash
exec rollmill cluster join 127.0.0.1:{port} --cpus 1 --store-mb 100 --block
"""


def slurm(folder: Path, _options: argparse.Namespace) -> dict[str, Any]:
    """A learner's job, and an array of nodes: one task is taken away, another job brings one more."""
    if why := missing():
        raise SystemExit(why)
    from slurm_cluster import free_ports

    port = free_ports(1)[0]
    bin_folder = str(Path(sys.executable).parent)
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    cluster = SlurmCluster(folder / "slurm", nodes=4)
    cluster.environment |= {**own, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    words = " ".join((*CARTPOLE, *OFTEN, "sampling.workers=1"))
    scripts = {"learner": LEARNER.format(port=port, folder=folder, words=words), "nodes": NODES.format(port=port)}
    for name, text in scripts.items():
        (folder / f"{name}.sh").write_text(text)
    submit = ["sbatch", "--parsable", f"--output={folder}/%x-%a.out", "--export=ALL"]
    run = Training(folder / "default" / "run", subprocess.Popen(["sleep", "infinity"]), time.monotonic())
    found: dict[str, Any] = {}
    try:
        cluster.start()
        cluster.call(*submit, str(folder / "learner.sh"))
        array = cluster.call(*submit, "--array=0-1", str(folder / "nodes.sh")).strip()
        found["first training step, s"] = run.until("a first row", run.rows)
        found["two tasks sample, s"] = run.until("two nodes", lambda: len(run.incarnations()) == 2)
        first = run.incarnations()
        moment = time.time()
        cluster.call("scancel", f"{array}_1")
        found["scancel of one is noticed, s"] = run.until("one node", lambda: len(run.incarnations()) == 1)
        assert run.incarnations() < first
        cluster.call(*submit, str(folder / "nodes.sh"))
        found["a job joins, s"] = run.until("two nodes again", lambda: len(run.incarnations()) == 2)
        found["longest gap between rows, s"] = run.gap(moment)
        standing = run.standing()
        assert standing is not None
        found["segments"] = {"received": standing.received, "lost": standing.lost, "refused": standing.refused}
        cluster.call("scancel", "--user=root")
        found["all has ended, s"] = run.until("SLURM to be idle", lambda: set(cluster.states()) == {"idle"})
        found["processes of Ray left"] = len([p for p in psutil.process_iter(["cmdline"]) if f":{port}" in str(p.info)])
        return found
    finally:
        run.process.kill()
        run.process.wait()
        cluster.stop()


KINDS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "speed": speed,
    "faults": faults,
    "weights": weights,
    "learning": learning,
    "slurm": slurm,
}

if __name__ == "__main__":
    sys.exit(main())
