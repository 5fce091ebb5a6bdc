"""The store against what one would write trajectories with instead, on the same real ViZDoom frames.

    python benchmarks/store.py                       all containers, 4,000 steps, medians over 3 rounds
    python benchmarks/store.py --formats rollmill minari npz --steps 8000

Frames are played by a random policy (health gathering supreme, 72x128 RGB, frame skip 4). It dies soon; its episodes
are joined to the length that a trained agent's have (``--episode-steps``). Every container writes the same episodes and
gives windows of 32 steps (observations, actions, rewards) back; one process does one container at a time, rounds
alternate. Rates are per second of processor time, so that other processes on the machine matter little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, median_text, peer_venv, record, run_peer, with_load

from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings

FORMATS = (
    "rollmill",
    "rollmill_zstd",
    "rollmill_cache",
    "minari",
    "npz",
    "h5py",
    "zarr",
    "parquet",
    "memmap",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--episode-steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="processor seconds of each reading measurement")
    options = parser.parse_args()
    python = install()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.formats}
    with tempfile.TemporaryDirectory(prefix="bench-store-") as folder:
        frames = Path(folder) / "frames.npz"
        play(options.steps, options.episode_steps, frames)
        for turn in range(options.repeats):
            for name in options.formats:
                words = [
                    name,
                    str(frames),
                    str(Path(folder) / f"{name}-{turn}"),
                    str(options.seconds),
                    str(ROOT / "src"),
                ]
                result = with_load(lambda w=words: run_peer(python, "store_formats.py", *w))
                runs[name].append(result)
                print(name, result, file=sys.stderr, flush=True)
    print_table(runs)
    print(f"\nrecorded in {record('store', {'steps': options.steps, 'runs': runs}).relative_to(ROOT)}")
    return 0


def install() -> Path:
    """Everything in one environment, so that all containers run on the same interpreter and numpy."""
    ours = ["numpy", "zstandard", "google-crc32c", "msgpack", "gymnasium", "pydantic", "pyyaml"]
    return peer_venv(
        "store",
        [*ours, "h5py", "hdf5plugin", "zarr>=3", "pyarrow"],
        ["minari[hdf5,arrow]", "pillow", "opencv-python-headless"],
    )


def play(steps: int, length: int, path: Path) -> None:
    """Episodes of ``length`` steps as arrays: obs [n + 1], action [n], reward [n]."""
    env = make_env(EnvSettings(id="doom_health_gathering_supreme"), EnvInstance())
    rng = np.random.default_rng(0)
    row: dict[str, np.ndarray] = {"obs": np.zeros((1, *env.spec.observation[0].shape), np.uint8)}
    count, seed = max(1, steps // length), 0
    episodes: dict[str, np.ndarray] = {}
    env.reset(seed, row)
    for k in range(count):
        obs, actions, rewards = [row["obs"][0].copy()], [], []
        while len(actions) < length:
            action = rng.integers(0, env.spec.action.nvec[0], 1)
            reward, terminated, truncated, _ = env.step(action, row)
            if terminated or truncated:
                seed += 1
                env.reset(seed, row)
            obs.append(row["obs"][0].copy())
            actions.append(int(action[0]))
            rewards.append(float(reward))
        episodes |= {f"obs{k}": np.stack(obs), f"action{k}": np.array(actions), f"reward{k}": np.float32(rewards)}
    env.close()
    np.savez(path, count=count, **episodes)


def print_table(runs: dict[str, list[dict[str, Any]]]) -> None:
    print("| container | write MB/s | KB per step | windows of 32 /s | single frames /s |\n|---|---|---|---|---|")
    for name, rows in runs.items():
        columns = [[row[key] for row in rows] for key in ("write_mb_s", "kb_per_step", "windows_s", "frames_s")]
        print(f"| {name} | " + " | ".join(median_text(values) for values in columns) + " |")
    for ratio, key, mine, other in (
        ("window reads against Minari's", "windows_s", "rollmill", "minari"),
        ("writing against savez_compressed's", "write_mb_s", "rollmill", "npz"),
    ):
        if runs.get(mine) and runs.get(other):
            a, b = (statistics.median(row[key] for row in runs[name]) for name in (mine, other))
            print(f"{ratio}: {a / b:.1f} x")


if __name__ == "__main__":
    sys.exit(main())
