"""A store as large as an hour of recording makes it: does it still open at once, read fast, and in little memory?

    python benchmarks/big_store.py                            10 GB in a temporary folder, removed afterwards
    python benchmarks/big_store.py --gb 1 --dir big --keep    a smaller one, left in big/store
    python benchmarks/big_store.py --read big/store           measure a store that is there

Frames are real: a random policy plays health gathering supreme (72x128 RGB) once. Episodes of 525 steps are made of
random stretches of them, each shifted and mirrored in its own way, so that no two are equal. Two processes write at
the same time, several episodes at once as a recorder does; then a fresh process opens and reads (see
``peers/store_reader.py``).
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import BUSY, ROOT, record, run_peer, with_load

STEPS = 525
"""Of an episode: as long as health gathering supreme lasts at most."""
PLAYED = 4
"""Episodes that are really played."""
LANES = 8
"""Episodes that a process writes at the same time."""
CHUNK = 32
MARKS = (
    ("open_warm_s", "opening, index files in the page cache", "s", "below", 1.0),
    ("open_cold_s", "opening, index files read from the disk", "s", "below", 1.0),
    ("windows_s", "random windows of 32 per processor second", "", "at least", 900),
    ("windows_first_s", "the same, the first 3 processor seconds", "", "", 0),
    ("rss_peak_mb", "memory of the reading process, peak", "MB", "below", 500),
    ("rss_added_mb", "of that, added since its imports", "MB", "", 0),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=10, help="size of the store on disk")
    parser.add_argument("--dir", type=Path, help="where the store is made (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="do not remove the store afterwards")
    parser.add_argument("--processes", type=int, default=2, help="processes that write")
    parser.add_argument("--seconds", type=float, default=60, help="processor seconds of reading")
    parser.add_argument("--read", type=Path, help="measure this store instead of making one")
    options = parser.parse_args()
    if options.read is not None:
        return report({}, measure(options.read.absolute(), options.seconds))
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-big-store-")) if options.dir is None else options.dir.absolute()
    path = folder / "store"
    if path.exists():
        parser.error(f"{path} exists; remove it, or measure it with --read")
    try:
        written = write(path, folder / "frames.npz", options.gb * 1e9, options.processes)
        return report(written, measure(path, options.seconds))
    finally:
        (folder / "frames.npz").unlink(missing_ok=True)
        if not options.keep:
            shutil.rmtree(path, ignore_errors=True)
            if options.dir is None:
                folder.rmdir()


def measure(path: Path, seconds: float) -> dict[str, Any]:
    """Open and read the store in a process of its own."""
    words = (str(path), str(seconds), str(ROOT / "src"))
    return with_load(lambda: run_peer(sys.executable, "store_reader.py", *words, seconds=60 + 60 * seconds))


# -------------------------------------------------------------------------------------------------- writing


def write(path: Path, frames: Path, size: float, processes: int) -> dict[str, Any]:
    """A store of about ``size`` bytes, written by several processes at once."""
    from store import play

    play(PLAYED * STEPS, STEPS, frames)
    begun = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        jobs = [pool.submit(write_part, path, frames, size / processes, number) for number in range(processes)]
        parts = [job.result() for job in jobs]
    passed = time.perf_counter() - begun
    sizes = [file.stat().st_size for file in (path / "shards").iterdir()]
    raw, stored = (sum(part[name] for part in parts) for name in ("raw_bytes", "bytes"))
    return {
        "gb": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e9,
        "write_mb_s": raw / sum(part["cpu_s"] for part in parts) / 1e6,
        "write_wall_s": passed,
        "ratio": raw / stored,
        "processes": processes,
        "shard_mb": [min(sizes) / 1e6, max(sizes) / 1e6],
    }


def write_part(path: Path, frames: Path, size: float, number: int) -> dict[str, float]:
    """One process: episodes in ``LANES`` lanes until ``size`` bytes are written."""
    from rollmill.core.fields import ActionSpec, EnvSpec, Field
    from rollmill.store.episode import EpisodeInfo
    from rollmill.store.format.schema import StoreSchema
    from rollmill.store.writer import StoreWriter

    with np.load(frames) as data:
        obs = np.concatenate([data[f"obs{k}"] for k in range(PLAYED)])
        rewards = np.concatenate([np.append(data[f"reward{k}"], np.float32(0)) for k in range(PLAYED)])
    spec = EnvSpec("doom", (Field("obs", "uint8", obs.shape[1:]),), ActionSpec("discrete", nvec=(5,), start=(0,)))
    rng = np.random.default_rng(number)
    cpu, said, progress = 0.0, 0.0, 0
    with StoreWriter(path, StoreSchema.for_env(spec), expected_steps=STEPS) as writer:
        while writer.bytes_written < size:
            stretches = [Stretch(obs, rng) for _ in range(LANES)]
            for lane in range(LANES):
                writer.begin(lane, EpisodeInfo(policy="random", worker=number, lane=lane))
            for step in range(0, STEPS, CHUNK):
                count = min(CHUNK, STEPS - step)
                for lane, stretch in enumerate(stretches):
                    rows = {
                        "obs:obs": stretch.frames(step, step + count),
                        "action": rng.integers(0, 5, count),
                        "reward": rewards[stretch.start + step : stretch.start + step + count],
                        "global_step": 4 * LANES * (progress + np.arange(step, step + count)),
                        "version": (progress + step) // 1000,
                    }
                    begun = time.process_time()
                    writer.append(lane, rows)
                    cpu += time.process_time() - begun
            for lane, stretch in enumerate(stretches):
                writer.end(lane, final={"obs:obs": stretch.frames(STEPS, STEPS + 1)[0]}, truncated=True)
            progress += STEPS
            if number == 0 and writer.bytes_written - said > size / 10:
                said = writer.bytes_written
                print(f"written: {said / size:.0%}", file=sys.stderr, flush=True)
        return {"raw_bytes": writer.raw_bytes, "bytes": writer.bytes_written, "cpu_s": cpu}


class Stretch:
    """``STEPS`` + 1 consecutive frames of those that were played, shifted and perhaps mirrored."""

    def __init__(self, obs: np.ndarray, rng: np.random.Generator) -> None:
        self._obs = obs
        self.start = int(rng.integers(0, len(obs) - STEPS))
        self._shift = (int(rng.integers(0, obs.shape[1])), int(rng.integers(0, obs.shape[2])))
        self._mirrored = bool(rng.integers(0, 2))

    def frames(self, first: int, last: int) -> np.ndarray:
        part = self._obs[self.start + first : self.start + last]
        if self._mirrored:
            part = part[:, :, ::-1]
        return np.roll(part, self._shift, axis=(1, 2))


# -------------------------------------------------------------------------------------------------- the table


def report(written: dict[str, Any], found: dict[str, Any]) -> int:
    """Print the table and keep the record; 1 if a mark is missed."""
    missed = []
    print("| | measured | mark |\n|---|---|---|")
    for key, text, unit, relation, mark in MARKS:
        good = found[key] < mark if relation == "below" else found[key] >= mark
        if not good:
            missed.append(text)
        value = f"{found[key]:,.3f}" if unit == "s" else f"{found[key]:,.0f}"
        wanted = f"{relation} {mark:g} {unit}".strip() + (": missed" if not good else "") if relation else ""
        print(f"| {text} | {value} {unit}".rstrip() + f" | {wanted} |")
    print(f"\n{found['episodes']:,} episodes, {found['steps']:,} steps, {found['shards']} shards", end="")
    if written:
        low, high = written["shard_mb"]
        print(
            f" of {low:.0f} to {high:.0f} MB, {written['gb']:.2f} GB on disk ({written['ratio']:.1f} x smaller); "
            f"{written['processes']} processes wrote {written['write_mb_s']:.0f} MB/s of raw rows per processor second "
            f"each, in {written['write_wall_s']:.0f} s",
            end="",
        )
    print()
    if found["busy_cores_before"] > BUSY:
        print(f"NOT QUIET: others kept {found['busy_cores_before']:.1f} cores busy before the reading")
    print(f"recorded in {record('big_store', {'written': written, 'read': found}).relative_to(ROOT)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
