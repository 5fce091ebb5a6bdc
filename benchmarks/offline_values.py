"""IQL and TD3+BC beside d3rlpy's on the same rows, with BC and DT in the same table.

    python benchmarks/offline_values.py                         records a SAC run on Pendulum first (minutes)
    python benchmarks/offline_values.py --store runs/default/pendulum/data --steps 10000 --seeds 3

Both libraries have the same hyperparameters, batch size and number of updates, and scale observations by the moments
of the data. All policies play the same episodes, with their most likely action; a Decision Transformer is asked for the
return that brought most in its own evaluation. The table is kept in ``runs/benchmarks``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from common import ROOT, ours, peer_venv, record, run_peer

from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.policies.load import load_policy
from rollmill.store.reader import Store
from rollmill.store.views import Episodes

FOLDER = ROOT / "runs" / "offline_values"
VALUE_BASED = ("iql", "td3bc")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="recorded rows with continuous actions")
    parser.add_argument("--steps", type=int, default=10_000, help="updates of every fit")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100, help="whole episodes that judge a policy")
    parser.add_argument("--algorithms", nargs="+", default=["iql", "td3bc", "bc", "dt"])
    parser.add_argument("--python", type=Path, help="an interpreter that has d3rlpy; default: a venv is made")
    options = parser.parse_args()
    constraint = next(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    )
    python = options.python or peer_venv("d3rlpy", [constraint, "d3rlpy"])
    store = options.store or record_sac()
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-values-") as folder:
        rows, env = write_rows(store, Path(folder) / "rows.npz")
        for algorithm in options.algorithms:
            for seed in range(options.seeds):
                table.append(fit_here(store, algorithm, seed, options))
                print(table[-1], file=sys.stderr, flush=True)
                if algorithm in VALUE_BASED:
                    words = (algorithm, str(rows), env, str(options.steps), str(seed), str(options.episodes))
                    found = run_peer(python, "d3rlpy_offline.py", *words, seconds=3600)
                    mean = statistics.mean(found.pop("returns"))
                    table.append({"library": "d3rlpy", "algorithm": algorithm, "seed": seed, "mean": mean, **found})
                    print(table[-1], file=sys.stderr, flush=True)
    print(text(table))
    print(f"kept in {record('offline_values', {'store': str(store), 'rows': table})}", file=sys.stderr)
    return 0


def record_sac() -> Path:
    run = FOLDER / "sac"
    words = (f"run.dir={FOLDER.parent}", "run.experiment=offline_values", "run.name=sac", "--overwrite")
    ours("train", "-f", "pendulum_sac", *words, "recording=all", "recording.when=spread", "recording.budget_gb=1")
    return run / "data"


def write_rows(path: Path, out: Path) -> tuple[Path, str]:
    """The rows that are learnt from, as d3rlpy wants them, and the environment's id. Nothing is held out."""
    store = Store(path)
    episodes = list(Episodes(store))
    ends = np.cumsum([len(episode.columns["reward"]) for episode in episodes]) - 1
    flags = np.zeros((2, ends[-1] + 1), np.float32)
    for end, episode in zip(ends, episodes):
        flags[0 if episode.terminated else 1, end] = 1
    action = store.schema.env.action
    np.savez(
        out,
        observations=np.concatenate([episode.columns["obs:obs"][:-1] for episode in episodes]),
        actions=np.concatenate([episode.columns["action"] for episode in episodes]),
        rewards=np.concatenate([episode.columns["reward"] for episode in episodes]),
        terminals=flags[0],
        timeouts=flags[1],
        low=np.array(action.low, np.float32),
        high=np.array(action.high, np.float32),
    )
    return out, store.schema.env_id


def fit_here(store: Path, algorithm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    name = f"{algorithm}-s{seed}"
    found = ours(
        *("offline", str(store), "-f", f"offline_{algorithm}", "--overwrite"),
        *(f"run.dir={FOLDER.parent}", "run.experiment=offline_values", f"run.name={name}", f"run.seed={seed}"),
        *(f"fit.steps={options.steps}", "fit.patience=0", "data.validation=0", "fit.threads=1", "model.encoder=auto"),
        *(f"evaluation.final_episodes={options.episodes}", "evaluation.deterministic=true", "evaluation.random=false"),
    )
    rows = [row for row in found["results"]["rows"] if row["policy"] == algorithm]
    best = max(rows, key=lambda row: row["mean"])
    policy = load_policy(FOLDER / name, target=best["target"], deterministic=True)
    mean = statistics.mean(play(policy, options.episodes))
    rate = found["metrics"]["time/updates_per_s"]
    return {"library": "rollmill", "algorithm": algorithm, "seed": seed, "mean": mean, "updates_per_s": rate}


def play(policy: LoadedPolicy, episodes: int) -> list[float]:
    """Returns of the episodes that the peer plays, too; all of them have the same length."""
    assert policy.env is not None
    envs = [gymnasium.make(policy.env.id) for _ in range(episodes)]
    obs = np.stack([env.reset(seed=10_000 + k)[0] for k, env in enumerate(envs)])
    total, reward, over = np.zeros(episodes), np.zeros(episodes, np.float32), False
    while not over:
        action = policy.act(obs, reward)
        steps = [env.step(a.clip(env.action_space.low, env.action_space.high)) for env, a in zip(envs, action)]
        obs, reward = np.stack([step[0] for step in steps]), np.array([step[1] for step in steps], np.float32)
        total, over = total + reward, any(step[2] or step[3] for step in steps)
    return [float(value) for value in total]


def text(table: list[dict[str, Any]]) -> str:
    lines = ["| algorithm | library | mean return of each seed | mean | updates/s |", "|---|---|---|---|---|"]
    for algorithm, library in dict.fromkeys((row["algorithm"], row["library"]) for row in table):
        rows = [row for row in table if (row["algorithm"], row["library"]) == (algorithm, library)]
        means = [row["mean"] for row in rows]
        each = ", ".join(f"{mean:.0f}" for mean in means)
        rate = statistics.median(row["updates_per_s"] for row in rows)
        lines.append(f"| {algorithm} | {library} | {each} | {statistics.mean(means):.1f} | {rate:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
