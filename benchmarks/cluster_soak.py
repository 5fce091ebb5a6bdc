"""What nodes take: foretold and found, and what of it grows with time (``cluster.py`` runs these)."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from cluster_run import (
    CARTPOLE,
    ENDLESS,
    OFTEN,
    QUIET,
    Leftovers,
    Training,
    growth,
    modules_below,
    pss_mb,
    segments_of,
    show,
    training,
)
from common import Marks
from ray_cluster import RayCluster, ray_cluster

from rollmill.distributed.gateway import CALLS
from rollmill.distributed.settings import ClusterSettings
from rollmill.distributed.supervisor import Record

HUNT = ("-f", "treasure_hunt", "sampling.envs_per_worker=16", *QUIET)
TASKS = {"cartpole": CARTPOLE, "treasure hunt": HUNT}
WORKER = "rollmill.sampling.worker"

# -- the forecast ------------------------------------------------------------------------------------

UNITS = {"B": 1e-6, "KB": 1e-3, "MB": 1.0, "GB": 1e3}
LEAST_ROWS = 5
SHARED = ("Pss_Shmem:",)
SIZE = r"([\d.,]+) (B|KB|MB|GB)"


def forecast(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """The lines of the log about nodes, beside what two nodes of this machine then do."""
    found: dict[str, Any] = {}
    left = Leftovers()
    for task, words in TASKS.items():
        name = task.replace(" ", "-")
        with training(folder, f"{name}-alone", *words, *OFTEN, "sampling.workers=1", *ENDLESS) as run:
            run.until("a first row", run.rows)
            time.sleep(options.seconds)
            alone = _memory_here(run)
        nodes = ("cluster=local", "cluster.nodes=2", "sampling.workers=1", "learning.max_policy_lag=1000")
        with training(folder, f"{name}-nodes", *words, *OFTEN, *nodes, *ENDLESS) as run:
            run.until("two nodes", run.sampling(2))
            time.sleep(10)
            found[task] = _beside(run, options.seconds, alone, marks, task)
        show({task: found[task]})
    left.judge(marks)
    return found


def _beside(run: Training, seconds: float, alone: float, marks: Marks, task: str) -> dict[str, Any]:
    before, begun = run.rows(), time.monotonic()
    traffic = []
    while time.monotonic() < begun + seconds or len(run.rows()) < len(before) + LEAST_ROWS:
        time.sleep(1)
        traffic += [(n.steps_per_s, n.mb_per_s * n.pack_ratio) for n in run.told().nodes if n.steps_per_s]
    memory = _memory_here(run) - alone
    rows = run.rows()[len(before) :]
    (each,) = run.said(r"1,000 steps/s of a node are ([\d.]+) MB/s")
    ((size, unit),) = run.said(rf"with the gateway about {SIZE}")
    ((low, high, way),) = run.said(r"rows will be ([\d.]+) to ([\d.]+) updates old .* the updates of ([\d.]+) s more")
    mb = sum(mb for _, mb in traffic) / sum(steps for steps, _ in traffic) * 1e3
    marks.within(f"{task}: MB/s of 1,000 steps/s of a node", mb, float(each), 0.15)
    marks.within(f"{task}: MB of the learner's machine", memory, _mb(size, unit), 0.15)
    lag = statistics.mean(row["learn/policy_lag"] for row in rows if "learn/policy_lag" in row)
    updates = (rows[-1]["frames"] - rows[0]["frames"]) / (rows[-1]["time"] - rows[0]["time"]) / _batch(run)
    of_nodes = (rows[-1]["cluster/segments"] - rows[0]["cluster/segments"]) * _segment(run)
    share = of_nodes / (rows[-1]["frames"] - rows[0]["frames"])
    more = updates * float(way) * share
    marks.at_least(f"{task}: updates that rows are old, beside the least foretold", lag, 0.85 * (float(low) + more))
    marks.at_most(f"{task}: updates that rows are old, beside the most foretold", lag, 1.15 * (float(high) + more))
    return {"lag": lag, "foretold": [float(low) + more, float(high) + more], "updates/s": updates, "of nodes": share}


def _batch(run: Training) -> int:
    return int(_setting(run, "batch_size"))


def _segment(run: Training) -> int:
    """Rows of a segment."""
    rollout, envs, groups = (int(_setting(run, name)) for name in ("rollout", "envs_per_worker", "groups"))
    return rollout * (envs // groups)


def _setting(run: Training, name: str) -> str:
    """A number of the run's resolved settings; names of sampling and learning are different ones."""
    found = re.search(rf"^  {name}: (\d+)$", (run.folder / "config.yaml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def _memory_here(run: Training) -> float:
    """MB of the gateway, and of the shared memory of the learner and its own workers: what is the learner's alone comes
    and goes by more than nodes take.
    """
    top = psutil.Process(run.process.pid)
    workers = [process for process in top.children() if WORKER in " ".join(process.cmdline())]
    return pss_mb(top, *workers, kinds=SHARED) + pss_mb(*run.below("gateway_main"))


# -- what grows --------------------------------------------------------------------------------------

NODES = 3
SAMPLES = 200
LEAST_SECONDS = 2.0
SHARE = 0.02
NOISE_MB = 1.0
"""Growth below this is none."""
ANON = ("Pss_Anon:",)


def soak(folder: Path, options: argparse.Namespace, marks: Marks) -> dict[str, Any]:
    """Three Ray nodes for so long with each task: what every process, Ray's store and its folder take."""
    left = Leftovers()
    found: dict[str, Any] = {}
    seconds = 60 * options.minutes
    for task, words in TASKS.items():
        with ray_cluster(folder / task.replace(" ", "-"), NODES) as cluster:
            nodes = (f"cluster={cluster.address}", f"cluster.nodes={NODES}", "sampling.workers=1")
            name = task.replace(" ", "-")
            with training(folder, name, *words, *nodes, "report.every_frames=20000", *ENDLESS) as run:
                run.until("three nodes", run.sampling(NODES))
                begun, series = time.monotonic(), []
                while time.monotonic() < begun + seconds:
                    time.sleep(max(LEAST_SECONDS, seconds / SAMPLES))
                    assert run.process.poll() is None, run.output()
                    series.append(_taken(run, cluster))
                standing = run.told()
                run.end(marks, f"{task}: ")
        rates = [row["time/frames_per_s"] for row in run.rows() if "time/frames_per_s" in row]
        found[task] = {"MB": series, "segments": segments_of(standing), "frames/s": rates[:: max(1, len(rates) // 20)]}
        for what in series[0]:
            _judge(f"{task}: {what}", [row[what] for row in series], marks)
        filled = max(row["Ray's stores"] for row in series)
        marks.at_most(f"{task}: MB in Ray's stores, two chunks per node", filled, _most_in_stores(run))
        marks.equal(f"{task}: starts of the gateway", standing.gateways, 1)
        show({task: {what: round(series[-1][what], 1) for what in series[-1]}})
    left.judge(marks)
    return found


def _judge(what: str, values: Sequence[float], marks: Marks) -> None:
    """The last fifth against the second one."""
    if what.endswith("spilled"):
        marks.equal(f"{what}, MB", max(values), 0.0)
        return
    before, share = growth(values)
    share = share if share * before > NOISE_MB else 0.0
    marks.at_most(f"{what}, growth after the first fifth (of {before:.1f} MB)", share, SHARE)


def _most_in_stores(run: Training) -> float:
    """MB: two chunks of each node and two versions of the weights, where they are made and where they are wanted."""
    ((slots, size, unit),) = run.said(rf"(\d+) slots for their segments take {SIZE} here")
    ((weights, weights_unit),) = run.said(rf"weights are {SIZE}, sent")
    chunk = ClusterSettings().chunk_mb + _mb(size, unit) / int(slots)  # the last segment may reach beyond
    return 2 * NODES * CALLS * chunk + 2 * (NODES + 1) * _mb(weights, weights_unit)


def _mb(size: str, unit: str) -> float:
    return float(size.replace(",", "")) * UNITS[unit]


def _taken(run: Training, cluster: RayCluster) -> dict[str, float]:
    """MB by who takes them."""
    top = psutil.Process(run.process.pid)
    tops = [cluster.processes(file) for file, _ in cluster.started]
    raylets = [processes["raylet"] for processes in tops]
    samplers = [sampler for raylet in raylets for sampler in modules_below(raylet, "node_sampler_main")]
    agents = [psutil.Process(sampler.ppid()) for sampler in samplers]
    of_nodes = [worker for sampler in samplers for worker in modules_below(sampler, WORKER)]
    folders = [Record.read(file).folder for file, _ in cluster.started]
    groups: Mapping[str, Sequence[psutil.Process]] = {
        "learner": [top],
        "gateway": run.below("gateway_main"),
        "agents": agents,
        "samplers": samplers,
        "workers": of_nodes,
        "raylets": raylets,
        "head": [tops[0]["gcs_server"]],
    }
    found = {name: pss_mb(*processes, kinds=ANON) for name, processes in groups.items()}
    found["Ray's stores"] = sum(_shared_files_mb(raylet) for raylet in raylets)
    found["Ray's folders"] = sum(_folder_mb(Path(place), "") for place in folders)
    found["spilled"] = sum(_folder_mb(Path(place), "ray_spilled_objects") for place in folders)
    return found


def _shared_files_mb(process: psutil.Process) -> float:
    """What of its files in shared memory is filled."""
    total = 0
    for entry in os.scandir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(entry.path).startswith("/dev/shm/"):
                total += os.stat(entry.path).st_blocks * 512
    return total / 1e6


def _folder_mb(folder: Path, part: str) -> float:
    """Of the files below a folder whose path has a part in it."""
    total = 0
    for place, _, names in os.walk(folder):
        if part in place:
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(place, name)).st_size
    return total / 1e6
