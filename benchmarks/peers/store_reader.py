"""Opens a store, reads random windows of it and watches its own memory; prints one JSON line.

See benchmarks/big_store.py. Nothing but the store's own modules is imported, so memory is that of a reader alone.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WINDOW = 32
BATCH = 64
OPENINGS = 5
FIRST_S = 3.0
"""Processor seconds of the phase in which most windows meet an episode for the first time."""


def main() -> None:
    path, seconds, source = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    sys.path.insert(0, source)
    from rollmill.store.reader import Store
    from rollmill.store.views import Windows

    imported = memory_mb("VmRSS")
    warm = [opening(Store, path) for _ in range(OPENINGS)]
    cold = []
    for _ in range(OPENINGS):
        forget_pages([path / "store.json", *(path / "index").iterdir()])
        cold.append(opening(Store, path))
    store = Store(path)
    opened = memory_mb("VmRSS")
    windows = Windows(store, WINDOW)
    rng = np.random.default_rng(0)
    first = rate(windows, rng, min(FIRST_S, seconds))
    later = rate(windows, rng, seconds)
    peak = memory_mb("VmHWM")
    result = {
        "episodes": len(store),
        "steps": store.table.steps,
        "shards": len(store.shards),
        "open_warm_s": statistics.median(warm),
        "open_cold_s": statistics.median(cold),
        "windows_first_s": first["cpu"],
        "windows_s": later["cpu"],
        "windows_wall_s": later["wall"],
        "read": later["count"] + first["count"],
        "rss_imported_mb": imported,
        "rss_opened_mb": opened,
        "rss_peak_mb": peak,
        "rss_added_mb": peak - imported,
    }
    print(json.dumps(result))


def opening(store: Any, path: Path) -> float:
    begun = time.perf_counter()
    found = store(path)
    took = time.perf_counter() - begun
    if found.problems:
        raise SystemExit(f"{path}: {found.problems[0]}")
    return took


def rate(windows: Any, rng: np.random.Generator, seconds: float) -> dict[str, float]:
    """Random windows per second of processor time, and per second of the clock."""
    out = windows.empty(BATCH)
    count, cpu, wall = 0, time.process_time(), time.perf_counter()
    while time.process_time() - cpu < seconds:
        windows.batch(windows.sample(BATCH, rng), out)
        count += BATCH
    took, passed = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu": count / took, "wall": count / passed, "count": count}


def forget_pages(files: list[Path]) -> None:
    """Ask the operating system to drop these files from its page cache."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)  # pages that are not on the disk yet would stay
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def memory_mb(name: str) -> float:
    """``VmRSS``: resident memory now; ``VmHWM``: its peak so far (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1000
    raise SystemExit(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    main()
