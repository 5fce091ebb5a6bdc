"""End-to-end PPO training on CPUs: rollmill against Stable-Baselines3, one-file PPO, PufferLib 3 and TorchRL.

    python benchmarks/train_gym.py                              CartPole and Pong, 10 to 15 minutes
    python benchmarks/train_gym.py --tasks cartpole --repeats 5
    python benchmarks/train_gym.py --tasks pong --peers sb3 single_file_ale --seconds 30

CartPole-v1: steps/s, and seconds until the mean return of the last 100 episodes is 475: from the first env step, and
from the start of the process. The criterion is the same for all; each repeat has its own seed. Who has not got there
``--limit`` seconds after the first step is shown as a miss. Networks are MLPs of 64 units, as each library makes them.

Pong, 84x84 gray, skip 4, stack 4: steps/s with the Nature CNN, 8 envs x 128 steps, 4 epochs of 4 minibatches.

Contenders take turns. Steps/s are from the end of the first update to the end of the last one, over at least
``--seconds``. Ours come from ``rollmill bench train``, the time to 475 from ``rollmill train`` with everything on
(metrics, TensorBoard, checkpoint): it ends when the run says so, which is after the last checkpoint is on disk.

PufferLib has no wheel: ``common.puffer_venv`` compiles it. A peer that cannot be installed is named with the reason.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from common import (
    PEER_ATARI,
    PEER_BASE,
    ROOT,
    PeerFailedError,
    PeerMissingError,
    Watched,
    load_text,
    median_text,
    ours,
    peer_venv,
    puffer_venv,
    record,
    run_peer,
    run_timed,
    sb3_venv,
    with_load,
)

GOAL = 475
CONFIGS = {
    "cartpole": "cartpole",
    "cartpole_fast": "cartpole_fast",
    "pong": "pong",
}
SAME_PONG = (
    "sampling.workers=2",
    "sampling.envs_per_worker=4",
    "sampling.groups=2",
    "sampling.rollout=128",
    "model.encoder=convnet_atari",
    "model.fc=[512]",
    "model.memory=none",
    "learning.batch_size=1024",
    "learning.minibatches=4",
    "learning.epochs=4",
    "learning.device=cpu",
    "learning.precision=float32",
)
"""What makes our Pong the others' Pong: network, envs, batch, epochs."""
PUFFER_BATCH = (
    "sampling.mode=async",
    "sampling.workers=1",
    "sampling.envs_per_worker=64",
    "sampling.rollout=64",
    "learning.batch_size=4096",
    "learning.minibatches=1",
    "learning.epochs=1",
    "learning.target_kl=0",
)
"""The envs, horizon, batch and single epoch of PufferLib's default settings, for the rate alone."""


@cache
def venv(name: str) -> Path:
    if name == "pufferlib":
        return puffer_venv()
    if name == "torchrl":
        return peer_venv("torchrl", [*PEER_BASE, "torchrl==0.14.1"])
    if name == "sb3":
        return sb3_venv()
    return peer_venv("single-file", [*PEER_BASE, *PEER_ATARI, "envpool==1.2.5"])


@dataclass(frozen=True)
class Peer:
    """One contender: its runner, the venv it runs in, more words for it."""

    task: str
    venv: str
    script: str
    words: tuple[str, ...] = ()


PEERS = {
    "sb3_default": Peer("cartpole", "sb3", "sb3.py", ("--settings", "default")),
    "sb3_tuned": Peer("cartpole", "sb3", "sb3.py", ("--settings", "tuned")),
    "single_file": Peer("cartpole", "single-file", "single_file.py"),
    "pufferlib_default": Peer("cartpole", "pufferlib", "puffer.py", ("--settings", "default")),
    "pufferlib_tuned": Peer("cartpole", "pufferlib", "puffer.py", ("--settings", "tuned")),
    "torchrl": Peer("cartpole", "torchrl", "torchrl_ppo.py"),
    "sb3": Peer("pong", "sb3", "sb3.py", ("--settings", "pong")),
    "single_file_envpool": Peer("pong", "single-file", "single_file.py", ("--backend", "envpool")),
    "single_file_ale": Peer("pong", "single-file", "single_file.py", ("--backend", "ale")),
    "pufferlib": Peer("pong", "pufferlib", "puffer.py", ("--settings", "pong")),
    "pufferlib_multi": Peer("pong", "pufferlib", "puffer.py", ("--settings", "pong", "--backend", "multiprocessing")),
}

Run = Callable[[int], dict[str, Any]]


def run_of_peer(peer: Peer, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    words = ["--task", peer.task, "--seed", str(seed), "--rate-seconds", str(options.seconds), *peer.words]
    if peer.task == "cartpole":
        words += ["--goal", str(GOAL), "--limit", str(options.limit)]
    words += ["--launched", str(time.time())]
    return run_peer(venv(peer.venv), peer.script, *words, seconds=options.limit + 10 * options.seconds + 120)


def run_ours(task: str, config: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    words = ["-f", config, f"run.seed={seed}", *(SAME_PONG if task == "pong" else ())]
    result = our_rate(words, options)
    if task == "cartpole":
        result |= solve(words, options.limit)
    return result


def our_rate(words: list[str], options: argparse.Namespace) -> dict[str, Any]:
    train = ours("bench", "train", *words, "--seconds", str(options.seconds))["train"]
    return {"steps_per_s": train["steps_per_s"], "phases": train["phases"]}


def solve(words: list[str], limit: float) -> dict[str, Any]:
    """Train until the goal is reached or the config's frames are used up; later than ``limit`` seconds is a miss.

    The limit is not given to the run: its schedules would follow the clock instead of the frames.
    """
    with tempfile.TemporaryDirectory(prefix="bench-us-") as folder:
        stop = (f"stop.mean_return={GOAL}", "report.window=100")
        command = [sys.executable, "-m", "rollmill.cli.main", "train", *words, *stop, f"run.dir={folder}"]
        watched = Watched(command, {"PYTHONUNBUFFERED": "1"})
        watched.run(limit + 60)
        rows = next(Path(folder).glob("*/*/metrics.jsonl")).read_text().splitlines()
    last = json.loads(rows[-1])
    when = next((t for t, line in watched.lines if "finished: mean return" in line), None)
    solved = when is not None and last["time/seconds"] <= limit
    return {
        "mean_return": last["episode/return"],
        "solved_s": last["time/seconds"] if solved else None,
        "solved_wall_s": when if solved else None,
        "solved_steps": last["frames"] if solved else None,
        "peak_mb": watched.peak_mb,
    }


def contenders(task: str, options: argparse.Namespace) -> dict[str, Run]:
    """Everybody in the race for one task; says who is left out and why."""
    found: dict[str, Run] = {}
    mine = {"cartpole": ("cartpole", "cartpole_fast"), "pong": ("pong",)}[task]
    for name in mine:
        config = getattr(options, f"{name}_config")
        if not Path(ROOT, config).exists():
            flag = f"--{name.replace('_', '-')}-config"
            print(f"rollmill with {config} is left out: there is no such file (give {flag})", flush=True)
            continue
        label = "rollmill" if name == task else f"rollmill {Path(config).stem}"
        found[label] = lambda seed, config=config: run_ours(task, config, seed, options)
    if task == "cartpole" and "pufferlib_default" in options.peers:
        fast = options.cartpole_fast_config
        found["rollmill, PufferLib's default batch"] = lambda seed: our_rate(
            ["-f", fast, f"run.seed={seed}", *PUFFER_BATCH], options
        )
    for name in options.peers:
        peer = PEERS[name]
        if peer.task != task:
            continue
        try:
            venv(peer.venv)
        except PeerMissingError as error:
            print(f"{name} is left out: {error}", flush=True)
            continue
        found[name] = lambda seed, peer=peer: run_of_peer(peer, seed, options)
    return found


def race(task: str, options: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {}
    field = contenders(task, options)
    failed: dict[str, str] = {}
    for seed in range(options.repeats):
        for name in [name for name in field if name not in failed]:
            try:
                runs.setdefault(name, []).append(with_load(partial(field[name], seed)))
            except PeerFailedError as error:
                failed[name] = str(error)
                print(f"{task}: {name} failed and is left out from here on: {error}", flush=True)
                continue
            print(task, name, runs[name][-1], file=sys.stderr, flush=True)
    return {"task": task, "runs": {name: some for name, some in runs.items() if some}, "failed": failed}


def seconds_text(values: list[float | None]) -> str:
    """Median and range of the seconds, and how many got there at all."""
    reached = sorted(v for v in values if v is not None)
    if not reached:
        return "not reached"
    text = f"{statistics.median(reached):.1f} ({reached[0]:.1f} to {reached[-1]:.1f})"
    return text if len(reached) == len(values) else f"{text}; {len(reached)} of {len(values)} runs"


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| task | | steps/s, median (range) | of rollmill | s to 475 | s from process start | steps to 475 |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        rates = {name: [run["steps_per_s"] for run in runs] for name, runs in row["runs"].items()}
        mine = statistics.median(next(iter(rates.values())))
        for name, runs in row["runs"].items():
            goal = ["", "", ""]
            if row["task"] == "cartpole" and "solved_s" in runs[0]:
                seconds = [seconds_text([run[key] for run in runs]) for key in ("solved_s", "solved_wall_s")]
                steps = [run["solved_steps"] for run in runs if run["solved_steps"]]
                goal = [*seconds, f"{statistics.median(steps):,.0f}" if steps else ""]
            ratio = statistics.median(rates[name]) / mine
            print(f"| {row['task']} | {name} | {median_text(rates[name])} | {ratio:.2f} | {' | '.join(goal)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["cartpole", "pong"], choices=["cartpole", "pong"])
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="seconds of a rate")
    parser.add_argument("--limit", type=float, default=30, help="seconds CartPole may take to reach the goal")
    for name, path in CONFIGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}-config", default=path, help="our settings")
    options = parser.parse_args()
    rows = [race(task, options) for task in options.tasks]
    print_table([row for row in rows if row["runs"]])
    print(load_text(rows), end="")
    content = {"seconds": options.seconds, "limit": options.limit, "rows": rows}
    print(f"\nrecorded in {record('train_gym', content).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    run_timed(main)
