"""How fast ``rollmill view`` is with many runs: folders of made-up runs, then the index, the answers and the memory.

    python benchmarks/viewer.py                      1,000 runs of 100 rows in a temporary folder
    python benchmarks/viewer.py --keep runs/made_up  leave them there, for a look in the browser
    python benchmarks/viewer.py frames               a store of 1 GB of 128x72 images: its table, points and frames
                                                     (--gb 10; --keep for one that stays there)
    python benchmarks/viewer.py beside               a training alone and beside a viewer with an open page, by turns

*Cold*: the first look, without an index. *Warm*: a new process that finds the index. Prints the figures and writes
``runs/benchmarks/viewer-*.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from common import record, with_load

from rollmill.core.config.plain import to_dict
from rollmill.core.config.yaml import to_yaml
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.run_folder import RunFolder
from rollmill.launch.progress import last_row
from rollmill.runs.settings.train import TrainConfig
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter
from rollmill.viewer.catalog import Catalog
from rollmill.viewer.columns import Columns
from rollmill.viewer.episodes import MOST_FRAMES, PIXELS
from rollmill.viewer.index import Index

SEEDS, EXPERIMENTS = 5, 4
IMAGE = (72, 128)
METRICS = 50
"""Columns besides those that are looked at."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("runs", "frames", "beside"), default="runs")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="a folder for the runs or the store, which stay there")
    parser.add_argument("--gb", type=float, default=1.0, help="of the store")
    parser.add_argument("--pairs", type=int, default=5, help="of trainings, alone and beside the viewer")
    parser.add_argument("--frames", type=int, default=100_000, help="of each of these trainings")
    options = parser.parse_args()
    if options.what != "runs":
        with tempfile.TemporaryDirectory() as scratch:
            root = options.keep or Path(scratch) / "runs"
            job = (
                partial(of_a_store, gb=options.gb)
                if options.what == "frames"
                else partial(beside, pairs=options.pairs, frames=options.frames)
            )
            found = with_load(lambda: job(root))
        print(json.dumps(found))
        record(f"viewer_{options.what}", found)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch) / "runs"
        if not root.exists():
            make_runs(root, options.runs, options.rows)
        index = Path(scratch) / "index.sqlite"
        found: dict[str, Any] = {"runs": options.runs, "rows": options.rows}
        for name, job in (("cold", look), ("warm", look), ("curves", draw)):
            found[name] = with_load(lambda job=job: apart(job, root, index))
            print(f"{name}: {json.dumps(found[name])}", flush=True)
    record("viewer", found)
    return 0


def apart(job: Callable[[Path, Path], dict[str, Any]], root: Path, index: Path) -> dict[str, Any]:
    """Run a job in a process of its own: its memory is counted alone."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(job, (root, index))


def look(root: Path, index: Path) -> dict[str, Any]:
    """Seconds until all runs are listed, and again when nothing has changed."""
    begun, cpu = time.perf_counter(), time.process_time()
    kept = Index(index)
    catalog = Catalog(root, kept)
    catalog.refresh()
    answer = json.dumps(catalog.to_dict())
    listed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    catalog._due = 0.0
    begun = time.perf_counter()
    catalog.refresh()
    again = time.perf_counter() - begun
    kept.close()
    times = {"listed_s": round(listed, 3), "listed_cpu_s": round(cpu, 3)}
    return {**times, "again_s": round(again, 3), "answer_bytes": len(answer), **memory()}


def draw(root: Path, index: Path) -> dict[str, Any]:
    """Seconds until one metric of all runs is read, for the first time and then another one."""
    catalog = Catalog(root, Index(index))
    catalog.refresh()
    columns, times = Columns(catalog.root), []
    for name in ("episode/return", "learn/entropy"):
        begun = time.perf_counter()
        points = 0
        for run in catalog.runs.values():
            points += len(columns.read(RunFolder(run.folder).metrics, ["frames", name])[1])
        times.append(round(time.perf_counter() - begun, 3))
    return {"first_metric_s": times[0], "second_metric_s": times[1], "points": points, **memory()}


def memory() -> dict[str, int]:
    return {"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1_000_000}


# -- a server, and a page that is open --------------------------------------------------------------------------------


class Client:
    """What a browser does, without drawing."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "rollmill.cli.main", "view", str(root), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._link = urlsplit(json.loads(self.process.stdout.readline())["url"])
        with self._request(f"/?{self._link.query}", "") as answer:
            self._cookie = answer.headers["Set-Cookie"].partition(";")[0]

    def _request(self, path: str, cookie: str) -> Any:
        address = f"http://{self._link.netloc}{path}"
        return urllib.request.urlopen(urllib.request.Request(address, headers={"Cookie": cookie}))

    def ask(self, path: str) -> bytes:
        with self._request(path, self._cookie) as answer:
            return bytes(answer.read())

    def follow(self, stop: threading.Event) -> None:
        """An open page of curves: whenever something has changed, the runs and their newest columns."""
        told = -1
        with self._request("/api/events", self._cookie) as events:
            for line in events:
                if stop.is_set():
                    return
                if line.startswith(b"data:"):
                    found = json.loads(self.ask(f"/api/runs?since={told}"))
                    told = found["revision"]
                    ids = ",".join(run["id"] for run in found["runs"][:200])
                    self.ask(f"/api/columns?name=frames&name=episode/return&runs={ids}")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def of_a_store(root: Path, gb: float) -> dict[str, Any]:
    """Milliseconds for the table, for all points and for parts of 128x72 frames."""
    store = root / "loose" / "store"
    if not store.exists():
        write_store(store, gb)
    episodes = len(Store(store))
    size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    client = Client(root)
    try:
        (known,) = json.loads(client.ask("/api/runs"))["stores"]
        rng, parts = np.random.default_rng(0), STEPS // FRAMES_OF_A_PART
        addresses = [
            f"/api/frames?store={known['id']}&episode={rng.integers(episodes)}&part={rng.integers(parts)}"
            for _ in range(100)
        ]
        table = f"/api/episodes?store={known['id']}"
        found = {
            "table": timed(client, [table] * 10),
            "points": timed(client, [f"/api/scatter?store={known['id']}"] * 10),
        }
        return {"bytes": size, "episodes": episodes, **found, "frames": timed(client, addresses)}
    finally:
        client.close()


def timed(client: Client, addresses: Sequence[str]) -> dict[str, float]:
    """The median of the clock, and the mean of the server's processor (which is counted in hundredths)."""
    clock, cpu = [], []
    client.ask(addresses[0])
    for address in addresses:
        begun, used = time.perf_counter(), client.cpu_seconds()
        client.ask(address)
        clock.append(1000 * (time.perf_counter() - begun))
        cpu.append(1000 * (client.cpu_seconds() - used))
    return {"clock_ms": round(statistics.median(clock), 1), "cpu_ms": round(statistics.fmean(cpu), 1)}


STEPS = 1000
FRAMES_OF_A_PART = max(1, min(MOST_FRAMES, PIXELS // (IMAGE[0] * IMAGE[1])))


def write_store(path: Path, gb: float) -> None:
    """Episodes of images with noise in their lower bits, as simulators draw textures."""
    fields = (Field("image", "uint8", (*IMAGE, 3)),)
    spec = EnvSpec("made_up", fields, ActionSpec("discrete", nvec=(3,), start=(0,)))
    rng, episodes = np.random.default_rng(0), 0
    scene = np.add.outer(np.linspace(0, 150, IMAGE[0]), np.linspace(0, 80, IMAGE[1])).astype(np.uint8)[..., None]
    with StoreWriter(path, StoreSchema.for_env(spec), sync="seal") as writer:
        while sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < gb * 1e9:
            image = scene + rng.integers(0, 16, (STEPS + 1, *IMAGE, 3), dtype=np.uint8)
            reward = rng.normal(size=STEPS).astype(np.float32)
            columns = {"obs:image": image, "action": np.zeros(STEPS, int), "reward": reward}
            columns |= {"global_step": STEPS * episodes + np.arange(STEPS), "version": np.zeros(STEPS, int)}
            writer.add_episode(Episode(columns, EpisodeInfo(uid=episodes + 1, seed=episodes), True, False))
            episodes += 1


def beside(root: Path, pairs: int, frames: int) -> dict[str, Any]:
    """Frames per second of the same training, alone and beside a viewer with an open page, by turns."""
    make_runs(root, 100, 100)
    rates: dict[str, list[float]] = {"alone": [], "beside": []}
    shares = []
    for k in range(pairs):
        for how in ("alone", "beside") if k % 2 == 0 else ("beside", "alone"):
            rate, share = train_once(root, f"{how}-{k}", frames, how == "beside")
            rates[how].append(rate)
            shares += [share] if how == "beside" else []
    ratios = [with_ / without for with_, without in zip(rates["beside"], rates["alone"])]
    told = {"ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}
    return {**told, "share_of_a_core": round(statistics.median(shares), 4), "frames_per_s": rates}


def train_once(root: Path, name: str, frames: int, viewed: bool) -> tuple[float, float]:
    """(frames per second, share of one core that the server took)."""
    words = ("env=CartPole-v1", f"run.dir={root}", "run.experiment=live", f"run.name={name}", f"stop.frames={frames}")
    command = [sys.executable, "-m", "rollmill.cli.main", "train", *words, "report.every_frames=1000"]
    client, stop = (Client(root) if viewed else None), threading.Event()
    if client is not None:
        threading.Thread(target=client.follow, args=(stop,), daemon=True).start()
    begun, used = time.perf_counter(), client.cpu_seconds() if client else 0.0
    subprocess.run(command, check=True, capture_output=True)
    share = ((client.cpu_seconds() if client else 0.0) - used) / (time.perf_counter() - begun)
    stop.set()
    if client is not None:
        client.close()
    row = last_row(RunFolder(root / "live" / name).metrics)
    assert row is not None
    return float(row["time/frames_per_s"]), share


# -- made-up runs ---------------------------------------------------------------------------------------------------


def make_runs(root: Path, runs: int, rows: int) -> None:
    """Runs with the files that a training writes, in experiments of groups of five seeds."""
    settings = to_dict(TrainConfig())
    for k in range(runs):
        group, seed = divmod(k, SEEDS)
        gamma, rate = 0.9 + 0.01 * (group % 10), 1e-4 * (1 + group // 10 % 10)
        experiment = f"sweep_{group % EXPERIMENTS}"
        settings["env"]["id"] = "CartPole-v1"
        settings["run"].update(
            seed=seed, experiment=experiment, name=f"gamma-{gamma:.2f}_rate-{rate:g}-{group}-s{seed}"
        )
        settings["learning"].update(gamma=round(gamma, 4), learning_rate=round(rate, 6))
        settings["report"]["console_seconds"] = float(group + 1)  # every group differs
        write_run(root / experiment / settings["run"]["name"], settings, curve(gamma, rate, k, rows), k)


def write_run(folder: Path, settings: dict[str, Any], returns: Sequence[float], k: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(settings))
    written = [json.dumps(row(number, value)) for number, value in enumerate(returns)]
    (folder / "metrics.jsonl").write_text("\n".join(written) + "\n")
    state = {"state": "failed" if k % 50 == 7 else "finished", "reason": "made up", "frames": 20_000 * len(returns)}
    (folder / "state.json").write_text(json.dumps(state))
    session = {"started": "2026-11-01T10:00:00+00:00", "host": f"node{k % 8}", "step_at_start": 0, "how": "finished"}
    diary = {"created": "2026-11-01T10:00:00+00:00", "command": "rollmill train", "git": None, "sessions": [session]}
    (folder / "diary.json").write_text(json.dumps(diary))


def curve(gamma: float, rate: float, seed: int, rows: int) -> list[float]:
    rng = np.random.default_rng(seed)
    way = np.arange(1, rows + 1) / rows
    return (500 * gamma * (1 - np.exp(-way * (1 + 3000 * rate))) + rng.normal(0, 15, rows)).tolist()


def row(number: int, value: float) -> dict[str, float]:
    own = {"frames": 20_000 * (number + 1), "time": 1.79e9 + number, "episode/return": value}
    own |= {"time/seconds": 5.0 * (number + 1), "learn/batches": number + 1, "learn/entropy": math.exp(-number / 30)}
    own |= {"time/frames_per_s": 4000.0 + number, "sample/env_faults": 0, "sample/worker_restarts": 0}
    return own | {f"made/up_{k}": value / (k + 1) for k in range(METRICS)}


if __name__ == "__main__":
    sys.exit(main())
