"""Nodes, gateways, heads and learners that are killed again and again (``cluster.py`` runs these)."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from cluster_run import (
    CARTPOLE,
    ENDLESS,
    OFTEN,
    Leftovers,
    Training,
    growth,
    modules_below,
    pss_mb,
    segments_of,
    show,
    training,
    twice,
)
from common import Marks
from ray_cluster import ray_cluster

from rollmill.core.checkpoints import Checkpoints
from rollmill.distributed import supervisor
from rollmill.distributed.supervisor import Record

LOCAL = ("cluster=local", "cluster.nodes=2", "sampling.workers=1")
WORKER = "rollmill.sampling.worker"
STOPPED_SHARE = 0.8
STOP_PERIOD = 0.5
MEMORY_SECONDS = 1.0
LEASE = 10.0


# -- everything of a node, at random moments ---------------------------------------------------------


def kills(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """SIGKILL for an agent, a sampler, a worker or the gateway, in turn, at random moments."""
    rng, left = random.Random(options.seeds[0]), Leftovers()
    back: dict[str, list[float]] = {what: [] for what in ("agent", "sampler", "worker", "gateway")}
    with training(folder, "run", *CARTPOLE, *OFTEN, *LOCAL, *ENDLESS) as run:
        run.until("two nodes", run.sampling(2))
        for number, what in zip(range(options.times), itertools.cycle(back)):
            time.sleep(rng.uniform(0, 2 * options.pause))
            back[what].append(_kill_local(run, what, rng))
            show({"kill": number + 1, what: round(back[what][-1], 1)})
        standing = run.told()
        run.end(marks)
    left.judge(marks)
    marks.at_most("until all nodes sample again, s, at most", max(t for found in back.values() for t in found), 30)
    return {"kills": options.times, "back, s": back, "segments": segments_of(standing)}


def _kill_local(run: Training, what: str, rng: random.Random) -> float:
    """Kill one process of nodes on this machine; seconds until all is as before."""
    samplers, before = run.below("node_sampler_main"), run.incarnations()
    if what == "worker":
        owner = rng.choice(samplers)
        workers = modules_below(owner, WORKER)
        rng.choice(workers).kill()
        pids = {worker.pid for worker in workers}

        def replaced() -> bool:
            return not owner.is_running() or any(one.pid not in pids for one in modules_below(owner, WORKER))

        return run.until("another worker", lambda: replaced() and run.sampling(2)())
    found = {"agent": run.below("local_agent_main"), "sampler": samplers, "gateway": run.below("gateway_main")}
    rng.choice(found[what]).kill()
    return run.until(f"two nodes after a {what}", lambda: run.sampling(2)() and run.incarnations() != before)


# -- nodes that come and go --------------------------------------------------------------------------


def churn(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """Ray nodes die and join again, their supervisors see to it, while everything is recorded."""
    left, rng = Leftovers(), random.Random(options.seeds[0])
    memory: list[tuple[float, float]] = []
    with ray_cluster(folder, 3) as cluster:
        words = (f"cluster={cluster.address}", "cluster.nodes=3", "sampling.workers=1", "recording=all")
        with training(folder, "run", *CARTPOLE, *OFTEN, *words, *ENDLESS) as run:
            run.until("three nodes", run.sampling(3))
            for number in range(options.times):
                memory += _memory_over(run, options.pause)
                before = run.incarnations()
                cluster.processes(rng.choice(cluster.started[1:])[0])["raylet"].kill()
                died = run.until("a death", lambda before=before: run.incarnations() != before)
                back = run.until("three nodes again", run.sampling(3))
                show({"death": number + 1, "noticed, s": round(died, 1), "back, s": round(died + back, 1)})
            memory += _memory_over(run, options.pause)
            standing = run.told()
            run.end(marks)
        marks.equal("episodes twice in the store", twice(run.folder / "data"), 0)
    left.judge(marks)
    for who, values in zip(("learner", "gateway"), zip(*memory)):
        before_mb, grown = growth(values)
        marks.at_most(f"memory of the {who}, growth after the first fifth of {before_mb:.0f} MB", grown, 0.03)
    return {"learner MB, gateway MB": memory, "segments": segments_of(standing)}


def _memory_over(run: Training, seconds: float) -> list[tuple[float, float]]:
    """MB of the learner's process and of its gateway's, again and again for so long."""
    found, begun = [], time.monotonic()
    while not found or time.monotonic() < begun + seconds:
        time.sleep(MEMORY_SECONDS)
        found.append((pss_mb(psutil.Process(run.process.pid)), pss_mb(*run.below("gateway_main"))))
    return found


# -- a node that is stopped most of the time ---------------------------------------------------------


def stopped(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """The sampler of one node has a fifth of the time; the learner and the other node must not notice."""
    found: dict[str, Any] = {"before": {}, "meanwhile": {}}
    left = Leftovers()
    lag = 20
    words = (*LOCAL, f"learning.max_policy_lag={lag}", *ENDLESS)
    with training(folder, "run", *CARTPOLE, *OFTEN, *words) as run:
        run.until("two nodes", run.sampling(2))
        time.sleep(10)
        sampler = next(one for one in run.below("node_sampler_main") if _is_of(one, run, "local-0"))
        for _ in range(options.repeats):
            for when in found:
                with _stopping(sampler) if when == "meanwhile" else contextlib.nullcontext():
                    for name, rate in _rates(run, options.seconds).items():
                        found[when].setdefault(name, []).append(rate)
        oldest = max(row.get("learn/policy_lag_max", 0) for row in run.rows())
        dropped = run.rows()[-1]["sample/dropped_segments"]
        run.end(marks)
    left.judge(marks)
    middle = {when: {name: statistics.median(rates) for name, rates in found[when].items()} for when in found}
    for name in ("the learner's own workers", "the other node"):
        marks.at_least(f"rate of {name} against before", middle["meanwhile"][name] / middle["before"][name], 0.95)
    marks.at_most("updates that a row was old when it was learnt from", oldest, lag)
    return {**found, "dropped segments": dropped}


def _rates(run: Training, seconds: float) -> dict[str, float]:
    """Frames per second of the learner's own workers and of both nodes, over so long."""

    def counts() -> tuple[float, float, dict[str, float]]:
        row, nodes = run.rows()[-1], run.told().nodes
        return row["time"], row["frames"], {node.node: float(node.steps) for node in nodes}

    begun, frames, nodes = counts()
    time.sleep(seconds)
    ended, later, after = counts()
    each = {name: (after[name] - nodes[name]) / seconds for name in nodes}
    own = (later - frames) / (ended - begun) - sum(each.values())
    return {"the learner's own workers": own, "the node": each["local-0"], "the other node": each["local-1"]}


def _is_of(sampler: psutil.Process, run: Training, node: str) -> bool:
    """Whether a sampler is the one of a node: agents are started in the order of seats."""
    agents = sorted(run.below("local_agent_main"), key=lambda agent: agent.create_time())
    return sampler.ppid() == agents[int(node[-1])].pid


@contextlib.contextmanager
def _stopping(process: psutil.Process) -> Iterator[None]:
    """SIGSTOP it for most of the time."""
    over = threading.Event()

    def stop() -> None:
        while not over.is_set():
            process.suspend()
            over.wait(STOP_PERIOD * STOPPED_SHARE)
            process.resume()
            over.wait(STOP_PERIOD * (1 - STOPPED_SHARE))

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- the head has gone -------------------------------------------------------------------------------


def headless(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """The head of the Ray cluster dies, and nobody starts another one."""
    left = Leftovers()
    with ray_cluster(folder, 2) as cluster:
        words = (f"cluster={cluster.address}", "cluster.nodes=2", "sampling.workers=1", "checkpoints.every_seconds=20")
        with training(folder, "run", *CARTPOLE, *OFTEN, *words, *ENDLESS) as run:
            run.until("two nodes", run.sampling(2))
            moment, known = time.time(), set(run.checkpoints())
            file, head = cluster.started[0]
            gcs, record = cluster.processes(file)["gcs_server"], Record.read(file)
            head.kill()  # the supervisor, who would start another one
            gcs.kill()
            begun = time.monotonic()
            said = run.until("the message", lambda: run.said("the gateway .*; training goes on"))
            time.sleep(max(0.0, options.seconds + 60 - (time.monotonic() - begun)))
            alive = time.monotonic() - begun if run.process.poll() is None else None
            frames = run.rate(5)
            written, gap, state = set(run.checkpoints()) - known, run.gap(moment), run.state()
            standing = run.told()
            run.end(marks)
    supervisor.forget(file, record)
    left.judge(marks)
    marks.at_least("the learner lives on, s", alive, 90)
    marks.at_least("frames/s of its own workers", frames, 1)
    marks.at_least("checkpoints written meanwhile", len(written), 1)
    marks.equal("state.json", state["state"], "running")
    marks.equal("the status names the problem", bool(standing.problem), True)
    return {"message, s": said, "longest gap between rows, s": gap, "problem": standing.problem}


# -- the learner dies --------------------------------------------------------------------------------

RATIO = 2.0
INSERTS = 5000
"""From here on the limiter's own margin, a batch, is below 2 %."""
REPLAY = ("learning.targets=vtrace", "replay.capacity=512", f"replay.samples_per_insert={RATIO:g}", "replay.save=true")


def resumes(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """SIGKILL for the learner at random moments, and ``--resume``."""
    rng, left = random.Random(options.seeds[0]), Leftovers()
    often = ("checkpoints.every_seconds=5", f"cluster.lease={LEASE:g}")
    words = (*CARTPOLE, *OFTEN, *LOCAL, *REPLAY, *often, *ENDLESS)
    gone: list[float] = []
    backwards = 0
    saved = -1
    for number in range(options.times + 1):
        with training(folder, "run", *words, resume=number > 0) as run:
            known, rows = set(run.checkpoints()), len(run.rows())
            run.until("two nodes", run.sampling(2))
            run.until("a new row", lambda rows=rows: len(run.rows()) > rows)
            backwards += run.rows()[-1]["frames"] < saved
            run.until("a new checkpoint", lambda known=known: set(run.checkpoints()) - known)
            if number == options.times:
                run.until("enough to tell the ratio", lambda run=run: run.rows()[-1]["replay/inserted"] >= INSERTS)
                run.end(marks)
                break
            time.sleep(rng.uniform(0, 2 * options.pause))
            below = psutil.Process(run.process.pid).children(recursive=True)
            run.process.kill()
            run.process.wait()
            begun = time.monotonic()
            psutil.wait_procs(below, timeout=60)
            gone.append(time.monotonic() - begun)
            saved = Checkpoints(run.folder / "checkpoints").load_newest().step
            show({"death": number + 1, "nodes gone, s": round(gone[-1], 1), "saved frames": saved})
    left.judge(marks)
    row = run.rows()[-1]
    inserted, sampled = row["replay/inserted"], row["replay/sampled"]
    marks.at_most("all of the nodes is gone, s, at most", max(gone), LEASE + 5)
    marks.equal("sessions that began before their checkpoint", backwards, 0)
    marks.within("samples per insert over all sessions", row["replay/ratio"], RATIO, 0.02)
    return {"gone, s": gone, "inserted": inserted, "sampled": sampled, "frames": row["frames"]}
