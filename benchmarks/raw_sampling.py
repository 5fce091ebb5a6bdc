"""Raw env stepping with random actions: rollmill's workers against other ways of stepping many envs.

    python benchmarks/raw_sampling.py                               everything, about 10 minutes
    python benchmarks/raw_sampling.py --tasks cartpole --peers gymnasium_sync pufferlib_serial

Every contender first tries a few sizes for a short time and keeps its best; then all are measured in turn,
``--repeats`` times. Prints medians with the range, and rollmill's share of the fastest other.

- rollmill: ``rollmill bench sample`` (workers that act at random and fill segments in shared memory, which the main
  process takes and throws away), one worker per core.
- bare: ``rollmill bench sim``, one env per core in bare pinned processes, nothing shared: the upper bound.
- Gymnasium and PufferLib step the same Gymnasium environment (PufferLib needs Gymnasium 0.29.1, whose CartPole is
  faster than 1.4.0's). They reset an env in a step of its own, which counts here (CartPole with random actions: 4 %
  of the steps); rollmill and ``bare`` count true steps only.
- EnvPool's CartPole is another implementation, in C++: for information. ALE's vector env and EnvPool run Pong in C++.

A peer that cannot be installed is named with the reason, and left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from common import (
    ROOT,
    PeerFailedError,
    PeerMissingError,
    load_text,
    median_text,
    ours,
    peer_venv,
    puffer_venv,
    record,
    run_peer,
    run_timed,
    with_load,
)

TRIAL_SECONDS = 1.5
CONFIGS = {"cartpole": "cartpole_fast", "pong": "pong", "doom": "doom_basic"}
COMMON = ["gymnasium==1.4.0", "numpy<2.5"]


@cache
def venv(name: str) -> Path:
    if name == "pufferlib":
        return puffer_venv()
    if name == "envpool":
        return peer_venv("envpool", ["envpool==1.2.5", *COMMON])
    return peer_venv("gymnasium", [*COMMON, "ale-py==0.12.1", "opencv-python-headless"])


@dataclass(frozen=True)
class Peer:
    """One way of stepping: its runner's backend and kind, the venv, and the sizes to try per task."""

    backend: str
    venv: str
    sizes: dict[str, tuple[int, ...]]
    kind: str = ""

    def measure(self, task: str, size: int, seconds: float) -> dict[str, Any]:
        words = ["--backend", self.backend, "--task", task, "--envs", str(size), "--seconds", str(seconds)]
        kind = ["--kind", self.kind] if self.kind else []
        return run_peer(venv(self.venv), "raw.py", *words, *kind)


PEERS = {
    "gymnasium_sync": Peer("gymnasium", "gymnasium", {"cartpole": (4, 16, 64), "pong": (1, 8)}, "sync"),
    "gymnasium_async": Peer("gymnasium", "gymnasium", {"cartpole": (2, 8, 32), "pong": (2, 4, 8)}, "async"),
    "pufferlib_serial": Peer("pufferlib", "pufferlib", {"cartpole": (4, 16, 64), "pong": (1, 8)}, "serial"),
    "pufferlib_multi": Peer(
        "pufferlib", "pufferlib", {"cartpole": (16, 128, 512), "pong": (2, 8, 32)}, "multiprocessing"
    ),
    "envpool": Peer("envpool", "envpool", {"cartpole": (8, 64, 256), "pong": (4, 8, 16)}),
    "ale_vector": Peer("ale", "gymnasium", {"pong": (4, 8, 16)}),
}
OURS_SIZES = {"cartpole": (16, 64, 128), "pong": (1, 2, 8), "doom": (1, 2, 8)}
"""Envs per worker: several simulators on one core push each other out of its cache."""
ROLLOUT = 128


def measure_ours(configs: dict[str, str], task: str, size: int, seconds: float) -> dict[str, Any]:
    words = ["-f", configs[task], f"sampling.envs_per_worker={size}", f"learning.batch_size={size * ROLLOUT}"]
    words += [f"sampling.groups={min(size, 2)}", f"sampling.rollout={ROLLOUT}", "learning.minibatches=1"]
    result = ours("bench", "sample", *words, "--seconds", str(seconds))
    sample = result["sample"]
    return {"steps_per_s": sample["steps_per_s"], "phases": sample["phases"]}


def measure_bare(configs: dict[str, str], task: str, _size: int, seconds: float) -> dict[str, Any]:
    result = ours("bench", "sim", "-f", configs[task], "--seconds", str(seconds))
    return {"steps_per_s": result["sim"]["steps_per_s"]}


@dataclass
class Contender:
    """Somebody in the race for one task."""

    name: str
    run: Callable[[int, float], dict[str, Any]]
    sizes: tuple[int, ...]
    best: int = 0

    def choose(self) -> None:
        """Keep the size that does best in a short trial."""
        if len(self.sizes) > 1:
            rates = {size: self.run(size, TRIAL_SECONDS)["steps_per_s"] for size in self.sizes}
            self.best = max(rates, key=lambda size: rates[size])
            print(self.name, {size: round(rate) for size, rate in rates.items()}, file=sys.stderr, flush=True)
        else:
            self.best = self.sizes[0]


def contenders(task: str, names: list[str], configs: dict[str, str]) -> list[Contender]:
    found = [
        Contender("rollmill", lambda size, s: measure_ours(configs, task, size, s), OURS_SIZES[task]),
        Contender("bare", lambda size, s: measure_bare(configs, task, size, s), (1,)),
    ]
    for name in names:
        peer = PEERS[name]
        if task not in peer.sizes:
            continue
        try:
            venv(peer.venv)
        except PeerMissingError as error:
            print(f"{name} is left out: {error}", flush=True)
            continue
        found.append(Contender(name, lambda size, s, peer=peer: peer.measure(task, size, s), peer.sizes[task]))
    return found


def race(task: str, names: list[str], configs: dict[str, str], repeats: int, seconds: float) -> dict[str, Any]:
    """Measure everybody in turn."""
    field = contenders(task, names, configs)
    runs: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    for turn in range(repeats + 1):
        for contender in [c for c in field if c.name not in failed]:
            try:
                if turn == 0:
                    contender.choose()
                else:
                    run = partial(contender.run, contender.best, seconds)
                    runs.setdefault(contender.name, []).append(with_load(run))
            except PeerFailedError as error:
                failed[contender.name] = str(error)
                print(f"{task}: {contender.name} failed and is left out from here on: {error}", flush=True)
    return {"task": task, "sizes": {c.name: c.best for c in field}, "runs": runs, "failed": failed}


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| task | | envs | steps/s, median (range) | of rollmill |\n|---|---|---|---|---|")
    for row in rows:
        rates = {name: [run["steps_per_s"] for run in runs] for name, runs in row["runs"].items()}
        mine = statistics.median(rates["rollmill"])
        for name, values in rates.items():
            size = row["sizes"][name]
            envs = {"rollmill": f"{size} a worker", "bare": "1 a core"}.get(name, str(size))
            print(
                f"| {row['task']} | {name} | {envs} | {median_text(values)} | {statistics.median(values) / mine:.2f} |"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    for task, path in CONFIGS.items():
        parser.add_argument(f"--{task}-config", default=path, help="our settings for the task")
    options = parser.parse_args()
    configs = {task: getattr(options, f"{task}_config") for task in CONFIGS}
    rows = [race(task, options.peers, configs, options.repeats, options.seconds) for task in options.tasks]
    print_table(rows)
    print(load_text(rows), end="")
    print(f"\nrecorded in {record('raw_sampling', {'seconds': options.seconds, 'rows': rows}).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    run_timed(main)
