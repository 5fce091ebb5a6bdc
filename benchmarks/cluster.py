"""Runs over several nodes: what they cost, and what is lost when something dies. Ray, SLURM and all on this machine.

    python benchmarks/cluster.py speed --repeats 3        one node against local workers, and a cluster without nodes
    python benchmarks/cluster.py forecast                 what the log foretells beside what is found
    python benchmarks/cluster.py replay                   samples per insert with three nodes, fast and slow ones
    python benchmarks/cluster.py weights                  from a publication of 12 MB to its use on three nodes
    python benchmarks/cluster.py learning --seeds 1 2     CartPole to 475: three nodes against local workers
    python benchmarks/cluster.py hunt --seeds 1 2 3       the treasure hunt: nodes that die and join against one machine
    python benchmarks/cluster.py faults                   everything is killed once, and a node joins
    python benchmarks/cluster.py churn --times 10         nodes die and join again, with recording on
    python benchmarks/cluster.py kills --times 50         agents, samplers, workers, gateways die at random moments
    python benchmarks/cluster.py stopped                  one node has a fifth of the time
    python benchmarks/cluster.py headless                 the head of the Ray cluster dies and stays away
    python benchmarks/cluster.py resumes --times 20       the learner is killed and goes on
    python benchmarks/cluster.py partition                a node cannot be reached for 30 s (network namespaces; root)
    python benchmarks/cluster.py slurm                    nodes as tasks of a SLURM array that join and leave (root)
    python benchmarks/cluster.py soak --minutes 30        what grows: memory of every process, Ray's store, its folder

Ray listens on 127.0.0.1 only. Prints what was found and a table of marks, writes ``runs/benchmarks/cluster-*.json``;
the exit code is 1 where a mark was missed. Times are of this machine with all nodes on it: they say what the way costs,
not how it grows with machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from cluster_churn import churn, headless, kills, resumes, stopped
from cluster_hosts import partition
from cluster_hunt import hunt
from cluster_run import (
    CARTPOLE,
    ENDLESS,
    OFTEN,
    QUIET,
    Leftovers,
    Training,
    backwards,
    modules_below,
    segments_of,
    show,
    training,
    twice,
)
from cluster_soak import forecast, soak
from common import ROOT, Marks, end_on_sigterm, record
from ray_cluster import RayCluster, ray_cluster
from slurm_cluster import Cluster as SlurmCluster
from slurm_cluster import free_ports, missing

from rollmill.runs.bench.run import load_of_others


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30, help="of each measurement")
    parser.add_argument("--minutes", type=float, default=30, help="of soak")
    parser.add_argument("--times", type=int, default=10, help="how often something is killed")
    parser.add_argument("--pause", type=float, default=20, help="mean seconds between two deaths")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--frames", type=int, default=2_000_000, help="of each training of hunt")
    parser.add_argument("--envs", nargs="+", choices=list(SPEEDS), default=list(SPEEDS), help="of speed")
    options = parser.parse_args()
    end_on_sigterm()
    marks, others = Marks(), load_of_others()
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as folder:
        found = KINDS[options.kind](Path(folder), options, marks)
    print(json.dumps(found, indent=1))
    print(marks.table())
    kept = {"command": sys.argv[1:], "busy_cores_before": others, **found, "marks": marks.rows}
    print(record(f"cluster-{options.kind}", kept), file=sys.stderr)
    return int(not marks.all_met)


# -- speed -------------------------------------------------------------------------------------------

SPEEDS = {"cartpole": (CARTPOLE, 0.80), "doom": (("-f", "doom_basic", *QUIET), 0.90)}
"""Settings, and the share of local workers' frames per second that the same workers should reach on a node."""


def speed(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """Frames per second by turns: two local workers; the same on one node; two local workers and a cluster without
    nodes."""
    left = Leftovers()
    found: dict[str, Any] = {}
    with ray_cluster(folder, 1) as cluster:
        away = {
            "local": (),
            "node": (f"cluster={cluster.address}", "cluster.nodes=1", "cluster.local_workers=false"),
            "empty": (f"cluster={cluster.address}", "cluster.nodes=0", "cluster.resource=nobody"),
        }
        for env in options.envs:
            rates: dict[str, list[float]] = {kind: [] for kind in away}
            for repeat in range(options.repeats):
                for kind, words in away.items():
                    rates[kind].append(_rate(folder, f"{env}-{kind}{repeat}", options.seconds, *SPEEDS[env][0], *words))
                    show({env: {kind: round(rates[kind][-1])}})
            middle = {kind: statistics.median(values) for kind, values in rates.items()}
            found[env] = {"frames/s": rates}
            marks.at_least(f"{env}: node / local", middle["node"] / middle["local"], SPEEDS[env][1])
            marks.at_least(f"{env}: empty / local", middle["empty"] / middle["local"], 0.97)
    left.judge(marks)
    return found


def _rate(folder: Path, name: str, seconds: float, *words: str) -> float:
    """Frames per second of a training once it is under way: nodes take a while to start."""
    with training(folder, name, *words, *OFTEN, "sampling.workers=2", *ENDLESS) as run:
        run.until("a first row", run.rows)
        time.sleep(5)
        return run.rate(seconds)


# -- replay ------------------------------------------------------------------------------------------

RATIOS = (0.5, 1, 3, 8)
INSERTS = 2000
SLOW_SECONDS = 0.004


def replay(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """Samples per insert with three nodes: those that the learner waits for, and those that wait for it."""
    found: dict[str, Any] = {}
    left = Leftovers()
    nodes = ("cluster=local", "cluster.nodes=3", "sampling.workers=1", "sampling.envs_per_worker=16")
    env = (
        f"env={ROOT / 'tests' / 'support' / 'paced_envs.py'}:Paced",
        "model.mlp=[256,256]",
        "learning.max_policy_lag=1000",
    )
    for ratio in RATIOS:
        for speed_of_nodes, seconds in (("fast", 0.0), ("slow", SLOW_SECONDS)):
            words = (f"env.args.seconds={seconds}", "learning.targets=vtrace", "replay.capacity=400", *QUIET)
            name = f"r{ratio}-{speed_of_nodes}"
            with training(
                folder, name, *env, *nodes, *words, f"replay.samples_per_insert={ratio}", *OFTEN, *ENDLESS
            ) as run:
                run.until("three nodes", run.sampling(3))
                run.until("inserts", lambda run=run: run.rows() and run.rows()[-1].get("replay/inserted", 0) >= INSERTS)
                row = run.rows()[-1]
                found[name] = {key: row[f"replay/{key}"] for key in ("inserted", "sampled", "ratio")}
                found[name]["segments of nodes"] = row["cluster/segments"]
                show({name: found[name]})
            marks.within(f"samples per insert, {speed_of_nodes} nodes", row["replay/ratio"], ratio, 0.02)
    left.judge(marks)
    return found


# -- faults ------------------------------------------------------------------------------------------


def faults(folder: Path, _options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """One run with three nodes, in which one thing after the other dies."""
    found: dict[str, Any] = {}
    left = Leftovers()
    with ray_cluster(folder, 2) as cluster:
        cluster.hold()
        marks.equal("addresses that are listened at", ", ".join(sorted(cluster.listening())), "127.0.0.1")
        words = (f"cluster={cluster.address}", "cluster.nodes=2", "sampling.workers=1", "cluster.workers=1")
        with training(folder, "run", *CARTPOLE, *OFTEN, *words, *ENDLESS, "recording=all") as run:
            found["first training step, s"] = run.until("a first row", run.rows)  # of the learner's own worker
            nodes = found["first training step, s"] + run.until("two nodes", run.sampling(2))
            marks.at_most("nodes sample, s after the command", nodes, 30)
            cluster.release()
            found["a third one joins, s"] = run.until("three nodes", run.sampling(3))
            for what in ("raylet", "agent", "sampler", "worker", "gateway", "head"):
                known = len(run.checkpoints())
                found[what] = _kill(what, run, cluster)
                show({what: found[what]})
            found["head"]["checkpoints after it"] = len(run.checkpoints()) - known
            run.end(marks)
        found["segments"] = segments_of(run.told())
        marks.equal("segments that came twice", found["segments"]["refused"], 0)
        marks.equal("episodes twice in the store", twice(run.folder / "data"), 0)
    left.judge(marks)
    for what in ("raylet", "agent", "sampler", "gateway", "head"):
        marks.at_most(f"{what}: noticed, s", found[what]["noticed, s"], 10)
    for what in ("agent", "sampler", "gateway"):
        marks.at_most(f"{what}: all again, s", found[what]["all again, s"], 30)
    for what in ("raylet", "agent", "sampler", "worker"):
        marks.at_most(f"{what}: longest gap between rows, s", found[what]["longest gap between rows, s"], 3)
    marks.at_most("a third one joins, s after it was started", found["a third one joins, s"], 15)
    return found


def _kill(what: str, run: Training, cluster: RayCluster) -> dict[str, Any]:
    """SIGKILL for one process; how the run takes it."""
    run.until("three nodes", run.sampling(3))
    before, moment, lost = run.incarnations(), time.time(), run.told().lost
    _victims(what, run, cluster)[0].kill()
    found: dict[str, Any] = {}
    if what == "worker":  # the node's own sampler replaces it
        time.sleep(10)
    else:
        found["noticed, s"] = run.until("somebody noticed", lambda: run.incarnations() != before)
        again = run.until("three nodes again", lambda: run.sampling(3)() and run.incarnations() != before)
        found["all again, s"] = found["noticed, s"] + again
    return {**found, "longest gap between rows, s": run.gap(moment), "lost segments": run.told().lost - lost}


def _victims(what: str, run: Training, cluster: RayCluster) -> list[psutil.Process]:
    if what == "gateway":
        return run.below("gateway_main")
    head, node = cluster.started[0][0], cluster.started[1][0]
    if what == "head":
        return [cluster.processes(head)["gcs_server"]]
    raylet = cluster.processes(node)["raylet"]
    if what == "raylet":
        return [raylet]
    (sampler,) = modules_below(raylet, "node_sampler_main")
    if what == "agent":
        return [psutil.Process(sampler.ppid())]
    return [sampler] if what == "sampler" else modules_below(sampler, "sampling.worker")


# -- weights -----------------------------------------------------------------------------------------


def weights(folder: Path, _options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
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
        older, newest = 0, dict[int, int]()
        with gateway(link, plan, slots=24, address=cluster.address, nodes=3, publish_seconds=0.01) as learner:
            take = learner.gateway._take

            def watch(event: Event, now: float) -> None:
                if isinstance(event, Refreshed):
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
                older += backwards(learner.segments, newest)
                learner.segments.clear()
    times.sort()
    marks.at_most("on all three nodes, ms, half of all publications", times[len(times) // 2], 150)
    marks.at_most("on all three nodes, ms, 99 % of all publications", times[int(len(times) * 0.99)], 500)
    marks.equal("rows that older weights decided than an earlier one of their group", older, 0)
    marks.at_least("versions that rows of the slowest group show", min(newest.values()), 1)
    return {"MB": plan.weight_bytes / 1e6, "publications": len(times), "newest version of each group": newest}


def _bytes_of(spec: Any, model: Any) -> int:
    from rollmill.distributed.acting import weight_bytes
    from rollmill.models.acting.weights import tensors_of
    from rollmill.models.actor_critic import build_model

    return weight_bytes(tensors_of(build_model(spec, model)))


# -- learning ----------------------------------------------------------------------------------------


def learning(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """Frames until the mean return of CartPole is 475, on three nodes and on local workers."""
    found: dict[str, list[float | None]] = {"local": [], "nodes": []}
    with ray_cluster(folder, 3) as cluster:
        away = (f"cluster={cluster.address}", "cluster.nodes=3", "cluster.local_workers=false", "sampling.workers=1")
        for seed in options.seeds:
            for kind, words in {"local": ("sampling.workers=3",), "nodes": away}.items():
                limits = (
                    "stop.frames=1_000_000",
                    "report.every_frames=5000",
                    f"run.seed={seed}",
                    "sampling.mode=async",
                )
                with training(folder, f"{kind}{seed}", "-f", "cartpole", *limits, *QUIET, *words) as run:
                    reached = lambda run=run: [r for r in run.rows() if r.get("episode/return", 0) >= 475]  # noqa: E731
                    while run.process.poll() is None and not reached():
                        time.sleep(1)
                    found[kind].append(reached()[0]["frames"] if reached() else None)
                    show({f"{kind}{seed}": found[kind][-1]})
    frames = {kind: [x for x in values if x is not None] for kind, values in found.items()}
    marks.equal("trainings on nodes that reached 475", len(frames["nodes"]), len(options.seeds))
    if all(frames.values()):
        ratio = statistics.median(frames["nodes"]) / statistics.median(frames["local"])
        marks.at_most("frames on nodes / frames on local workers", ratio, 1.3)
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


def slurm(folder: Path, _options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """A learner's job, and an array of three nodes: one task is taken away, another job brings one more."""
    if why := missing():
        raise SystemExit(why)
    left, port = Leftovers(), free_ports(1)[0]
    bin_folder = str(Path(sys.executable).parent)
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    cluster = SlurmCluster(folder / "slurm", nodes=5)
    cluster.environment |= {**own, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    words = " ".join((*CARTPOLE, *OFTEN, "sampling.workers=1"))
    scripts = {"learner": LEARNER.format(port=port, folder=folder, words=words), "nodes": NODES.format(port=port)}
    for name, text in scripts.items():
        (folder / f"{name}.sh").write_text(text)
    submit = ["sbatch", "--parsable", f"--output={folder}/%x-%a.out", "--export=ALL"]
    run = Training(folder / "default" / "run", subprocess.Popen(["sleep", "infinity"]))
    (folder / "default").mkdir()
    (folder / "default" / "run.out").touch()
    found: dict[str, Any] = {}
    try:
        cluster.start()
        cluster.call(*submit, str(folder / "learner.sh"))
        array = cluster.call(*submit, "--array=0-2", str(folder / "nodes.sh")).strip()
        found["first training step, s"] = run.until("a first row", run.rows)
        found["three tasks sample, s"] = run.until("three nodes", run.sampling(3))
        first, moment = run.incarnations(), time.time()
        cluster.call("scancel", f"{array}_1")
        marks.at_most("scancel of one is noticed, s", run.until("two nodes", run.sampling(2)), 10)
        marks.equal("the others go on as they were", run.incarnations() < first, True)
        cluster.call(*submit, str(folder / "nodes.sh"))
        found["a job joins, s"] = run.until("three nodes again", run.sampling(3))
        marks.at_most("longest gap between rows, s", run.gap(moment), 3)
        found["segments"] = segments_of(run.told())
        return found
    finally:
        with contextlib.suppress(AssertionError):  # of a cluster that never came up
            cluster.call("scancel", "--user=root")
            found["all has ended, s"] = run.until("SLURM to be idle", lambda: set(cluster.states()) == {"idle"})
        run.process.kill()
        run.process.wait()
        cluster.stop()
        left.judge(marks)


KINDS: dict[str, Callable[[Path, argparse.Namespace, Marks], dict[str, Any]]] = {
    "speed": speed,
    "forecast": forecast,
    "replay": replay,
    "weights": weights,
    "learning": learning,
    "hunt": hunt,
    "faults": faults,
    "churn": churn,
    "kills": kills,
    "stopped": stopped,
    "headless": headless,
    "resumes": resumes,
    "partition": partition,
    "slurm": slurm,
    "soak": soak,
}

if __name__ == "__main__":
    sys.exit(main())
