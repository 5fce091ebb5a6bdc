"""Measures offline learning: how fast the loader is beside the network, and what memory a large store takes.

    python benchmarks/offline.py STORE                       windows/s of the loader alone and of a training step
    python benchmarks/offline.py STORE --memory-mb 1500      also read all of it with this much memory allowed

The loader must give at least three times what the network takes. The memory check runs in a process whose memory
(RLIMIT_DATA: all it allocates) is limited, and fails there if reading needs more; it wants a store that is larger than
the limit when decoded. Results are kept in ``runs/benchmarks``. Exit code 1 when a mark is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from common import record

from rollmill.core.machine import available_cores
from rollmill.offline.data import WindowLoader, open_store, scales_of, select
from rollmill.offline.fit import PolicyFitter
from rollmill.offline.model import SequencePolicy
from rollmill.offline.settings import DataSettings, FitSettings, SequenceSettings
from rollmill.optim.device import choose_device

WANTED = 3.0
"""The loader's rate over the network's."""
MB = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--context", type=int, default=8)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--cache", type=Path, help="folder of a decoded copy; none: from the compressed shards")
    parser.add_argument("--memory-mb", type=int, default=0, help="limit for the memory check; 0 leaves it out")
    parser.add_argument("--limited", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.limited:
        print(json.dumps(read_within(options)))
        return 0
    found = {"rates": rates(options)}
    passed = found["rates"]["ratio"] >= WANTED
    if options.memory_mb:
        found["memory"] = check_memory(options)
        passed = passed and found["memory"]["passed"]
    print(json.dumps(found, indent=1))
    print(f"kept in {record('offline', {'store': str(options.store), **found})}", file=sys.stderr)
    return 0 if passed else 1


def parts(options: argparse.Namespace) -> tuple[WindowLoader, SequencePolicy, torch.device]:
    device = choose_device("auto")
    data = DataSettings(window=options.window, cache=options.cache)
    sequence = SequenceSettings(context=options.context, size=128, layers=2, heads=2)
    store = open_store(options.store, data)
    chosen = select(store, data, "dt", 0)
    loader = WindowLoader(store, chosen, store.schema.env, data, sequence, options.batch, 0, device)
    model = SequencePolicy(store.schema.env, sequence, scales_of(store, chosen), True).to(device)
    return loader, model, device


def rates(options: argparse.Namespace) -> dict[str, float]:
    """Steps (real tokens' worth of data) per second: read alone, and learnt from. CPU seconds are less noisy."""
    loader, model, device = parts(options)
    torch.set_num_threads(1)
    fitter = PolicyFitter(model, loader, FitSettings(batch_size=options.batch), 0)
    fitter.train_step()  # what happens once
    fitter.metrics()
    begun = time.perf_counter()
    while time.perf_counter() - begun < options.seconds:
        fitter.train_step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    learnt = fitter.metrics()
    fitter.close()
    batches, steps = iter(loader), 0
    next(batches)
    begun, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < options.seconds:
        steps += int(next(batches).mask.sum())
    passed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    learning = learnt["time/samples_per_s"] / max(1e-9, 1 - learnt["data/wait_share"])
    return {
        "loader_steps_per_s": steps / passed,
        "loader_steps_per_cpu_s": steps / cpu,
        "network_steps_per_s": learning,
        "training_steps_per_s": learnt["time/samples_per_s"],
        "wait_share": learnt["data/wait_share"],
        "ratio": steps / passed / learning,
        "cores": available_cores(),
        "window": options.window,
        "batch": options.batch,
    }


def check_memory(options: argparse.Namespace) -> dict[str, object]:
    """Read windows from all over the store in a process that may not allocate more than the limit."""
    words = [sys.executable, __file__, str(options.store), "--limited", "--memory-mb", str(options.memory_mb)]
    words += ["--window", str(options.window), "--batch", str(options.batch), "--seconds", str(options.seconds)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return {"passed": False, "limit_mb": options.memory_mb, "error": done.stderr[-1000:]}
    found: dict[str, object] = json.loads(done.stdout)
    return found


def read_within(options: argparse.Namespace) -> dict[str, object]:
    limit = options.memory_mb * MB
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    options.cache = None
    loader, _, _ = parts(options)
    store = open_store(options.store, DataSettings())
    decoded = store.schema.row_bytes * int(store.table.length.sum())
    begun, steps = time.perf_counter(), 0
    for batch in loader:
        steps += int(batch.mask.sum())
        if time.perf_counter() - begun > options.seconds:
            break
    return {
        "passed": decoded > limit,
        "limit_mb": options.memory_mb,
        "store_decoded_mb": decoded // MB,
        "read_mb": steps * store.schema.row_bytes // MB,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // MB,
    }


if __name__ == "__main__":
    sys.exit(main())
