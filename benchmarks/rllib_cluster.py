"""RLlib's APPO and rollmill on a Ray cluster of three nodes on this machine's loopback: speed, and what a death costs.

    python benchmarks/rllib_cluster.py                                  installs RLlib into .venv-bench-rllib first
    python benchmarks/rllib_cluster.py --seeds 1 --limit 60 --seconds 20

By turns, for every seed: CartPole with one runner (node) of 16 environments on each of three nodes, the learner beside
the head. First the rate, and the time until the mean return of 100 episodes is 475; then a node is killed, and replaced
at once; then the head, which rollmill's supervisor starts anew, and RLlib has nobody for. Both have settings that were
tuned for CartPole, by different people, so times to 475 say as much about those. Ray is of the same version for both.

Prints one table, writes ``runs/benchmarks/rllib-cluster-*.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import psutil
from cluster_run import ENDLESS, QUIET, Leftovers, Training, show, training
from common import ROOT, Marks, end_on_sigterm, load_text, peer_venv, record
from ray_cluster import RayCluster, ray_cluster

from rollmill.distributed.ray_place import make_token
from rollmill.runs.bench.run import load_of_others

INSTALLS = (["torch==2.13.0"], ["ray[rllib]==2.60.0"])
NODES, ENVS, GOAL = 3, 16, 475.0
HEADLESS_SECONDS = 90.0
START_SECONDS = 300.0


@dataclass(frozen=True)
class Row:
    """What a training says of itself now and then."""

    time: float
    """Seconds since 1970."""
    steps: int
    mean_return: float
    """Of the last 100 episodes; NaN before any."""
    runners: int
    """That sample."""


class Contestant(Protocol):
    begun: float
    """When its training was started, on a cluster that was up (seconds since 1970)."""

    def rows(self) -> list[Row]: ...

    def alive(self) -> bool: ...

    def kill_node(self) -> None:
        """And replace it."""

    def kill_head(self) -> None: ...


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=60, help="of the measurement of the rate")
    parser.add_argument("--limit", type=float, default=300, help="seconds from the first row on to reach 475 in")
    parser.add_argument("--who", nargs="+", choices=list(WHO), default=list(WHO))
    options = parser.parse_args()
    end_on_sigterm()
    python = peer_venv("rllib", *INSTALLS) if "rllib" in options.who else Path()
    left, marks = Leftovers(), Marks()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.who}
    for seed, name in itertools.product(options.seeds, options.who):
        others = load_of_others()
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp")))
            contestant = stack.enter_context(WHO[name](folder, seed, python))
            found[name].append({**judge(contestant, options), "busy_cores_before": others})
        show({name: found[name][-1]})
    left.judge(marks)
    print(table(found) + "\n" + load_text([{"runs": found}]) + marks.table())
    print(record("rllib-cluster", {"command": sys.argv[1:], **found, "marks": marks.rows}), file=sys.stderr)
    return 0


# -- what is measured --------------------------------------------------------------------------


def judge(contestant: Contestant, options: argparse.Namespace) -> dict[str, Any]:
    """One training, from its start to the death of its head."""
    found: dict[str, Any] = {}
    wait(contestant, "all runners", lambda: any(row.runners == NODES and row.steps for row in contestant.rows()))
    first = contestant.rows()[0].time
    found["first row, s"] = first - contestant.begun
    reached = lambda: next((row for row in contestant.rows() if row.mean_return >= GOAL), None)  # noqa: E731
    before = contestant.rows()[-1]
    time.sleep(options.seconds)
    after = contestant.rows()[-1]
    found["steps/s"] = (after.steps - before.steps) / (after.time - before.time)
    while not reached() and time.time() < first + options.limit:
        time.sleep(0.5)
    solved = reached()
    found["s to 475"] = solved.time - first if solved else None
    found["steps to 475"] = solved.steps if solved else None
    found["node"] = after_death(contestant, contestant.kill_node, options.seconds)
    moment = time.time()
    contestant.kill_head()
    while contestant.alive() and time.time() < moment + HEADLESS_SECONDS:
        time.sleep(0.2)
    ended = None if contestant.alive() else time.time() - moment
    later = [row for row in contestant.rows() if row.time > moment]
    steps = later[-1].steps - later[0].steps if len(later) > 1 else 0
    found["head"] = {"ended after, s": ended, "steps since": steps, "longest gap, s": gap(contestant, moment)}
    return found


def after_death(contestant: Contestant, kill: Callable[[], None], seconds: float) -> dict[str, Any]:
    """How long nothing was learnt, how long runners were missing."""
    moment = time.time()
    kill()
    missing = lambda: any(row.runners < NODES for row in contestant.rows() if row.time > moment)  # noqa: E731
    back = lambda: missing() and contestant.rows()[-1].runners == NODES  # noqa: E731
    while contestant.alive() and not back() and time.time() < moment + max(120.0, 2 * seconds):
        time.sleep(0.2)
    rows = contestant.rows()
    seen = next((row.time - moment for row in rows if row.time > moment and row.runners < NODES), None)
    all_again = rows[-1].time - moment if back() else None
    time.sleep(5)
    return {"noticed, s": seen, "all again, s": all_again, "longest gap, s": gap(contestant, moment)}


def gap(contestant: Contestant, since: float) -> float | None:
    """The longest time without more steps, until now; None for a training that has ended."""
    rows = contestant.rows()
    grown = [later for row, later in itertools.pairwise(rows) if later.steps > row.steps]
    times = [*(row.time for row in grown), time.time()]
    gaps = [after - before for before, after in itertools.pairwise(times) if after > since]
    return max(gaps, default=times[-1] - since) if contestant.alive() else None


def wait(contestant: Contestant, what: str, done: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while not done():
        assert contestant.alive(), f"it has ended before {what}"
        assert time.monotonic() < begun + START_SECONDS, f"not within {START_SECONDS:g} s: {what}"
        time.sleep(0.2)


# -- who takes part ----------------------------------------------------------------------------


@dataclass
class Rollmill:
    run: Training
    cluster: RayCluster
    begun: float

    def rows(self) -> list[Row]:
        return [
            Row(row["time"], row["frames"], row.get("episode/return", math.nan), int(row.get("cluster/nodes", 0)))
            for row in self.run.rows()
        ]

    def alive(self) -> bool:
        return self.run.process.poll() is None

    def kill_node(self) -> None:
        """Its supervisor replaces it."""
        self.cluster.processes(self.cluster.started[1][0])["raylet"].kill()

    def kill_head(self) -> None:
        """Its supervisor replaces it."""
        self.cluster.processes(self.cluster.started[0][0])["gcs_server"].kill()


@contextlib.contextmanager
def rollmill(folder: Path, seed: int, _python: Path) -> Iterator[Rollmill]:
    with ray_cluster(folder, NODES) as cluster:
        nodes = (f"cluster={cluster.address}", f"cluster.nodes={NODES}", "cluster.local_workers=false")
        words = ("-f", "cartpole", "sampling.mode=async", "sampling.workers=1", f"sampling.envs_per_worker={ENVS}")
        often = ("report.every_frames=2000", f"run.seed={seed}", "stop.mean_return=null", *QUIET, *ENDLESS)
        begun = time.time()
        with training(folder, "run", *words, *nodes, *often) as run:
            yield Rollmill(run, cluster, begun)


@dataclass
class Rllib:
    process: subprocess.Popen[bytes]
    cluster: subprocess.Popen[str]
    told: dict[str, Any]
    output: Path
    begun: float

    def rows(self) -> list[Row]:
        lines = [line for line in self.output.read_text().splitlines(keepends=True) if line.startswith("{")]
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [Row(row["time"], int(row["steps"]), row["return"], row["runners"]) for row in rows]

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill_node(self) -> None:
        """Another one takes its place."""
        psutil.Process(self.told["raylets"][0]).kill()
        assert self.cluster.stdin is not None
        self.cluster.stdin.write("add\n")
        self.cluster.stdin.flush()

    def kill_head(self) -> None:
        psutil.Process(self.told["gcs"]).kill()


@contextlib.contextmanager
def rllib(folder: Path, seed: int, python: Path) -> Iterator[Rllib]:
    script = [str(python), str(ROOT / "benchmarks" / "peers" / "rllib_appo.py")]
    own = {"RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_AUTH_MODE": "token", "PYTHONPATH": ""}
    with mock.patch.dict(os.environ, own), contextlib.ExitStack() as stack:
        make_token()
        noise = stack.enter_context(open(folder / "noise", "ab"))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": noise, "text": True}
        cluster = subprocess.Popen([*script, "cluster", "--nodes", str(NODES)], **pipes)
        stack.callback(end, cluster)
        assert cluster.stdout is not None
        line = cluster.stdout.readline()
        assert line, f"the cluster did not start: {(folder / 'noise').read_text()[-3000:]}"
        told = json.loads(line)
        output = stack.enter_context(open(folder / "rows", "wb"))
        words = ["train", told["address"], "--runners", str(NODES), "--envs", str(ENVS), "--seed", str(seed)]
        begun = time.time()
        process = subprocess.Popen([*script, *words], stdout=output, stderr=noise)
        stack.callback(end, process)
        yield Rllib(process, cluster, told, folder / "rows", begun)


def end(process: subprocess.Popen[Any]) -> None:
    """With everything that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
        for one in (process, *below):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


WHO: dict[str, Callable[[Path, int, Path], contextlib.AbstractContextManager[Contestant]]] = {
    "rollmill": rollmill,
    "rllib": rllib,
}


# -- the table ---------------------------------------------------------------------------------


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Medians, and the range in brackets; - where it never came to that."""
    flat = {name: [_flat(run) for run in runs] for name, runs in found.items()}
    names = next(iter(flat.values()))[0]
    lines = [_line(what, [[run[what] for run in runs] for runs in flat.values()]) for what in names]
    return "\n".join(["| | " + " | ".join(found) + " |", "|---|" + "---|" * len(found), *lines])


def _flat(run: dict[str, Any]) -> dict[str, float | None]:
    parts: dict[str, float | None] = {}
    for name, value in run.items():
        if isinstance(value, dict):
            parts |= {f"{name} killed: {what}": number for what, number in value.items()}
        elif name != "busy_cores_before":
            parts[name] = value
    return parts


def _line(what: str, columns: list[list[float | None]]) -> str:
    return f"| {what} | " + " | ".join(_cell(values) for values in columns) + " |"


def _cell(values: list[float | None]) -> str:
    known = [x for x in values if x is not None and not math.isnan(x)]
    if not known:
        return "-"
    text = f"{statistics.median(known):,.4g}"
    if len(known) > 1:
        text += f" ({min(known):,.4g} to {max(known):,.4g})"
    return text + (f", {len(values) - len(known)} of {len(values)} never" if len(known) < len(values) else "")


if __name__ == "__main__":
    sys.exit(main())
