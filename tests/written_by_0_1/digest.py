"""What a version of the code makes of this folder, to compare versions bit for bit: what it reads from the stores, and
which weights the commands of ``digests.json`` come to.

``OMP_NUM_THREADS=1 python digest.py OUT`` writes that file anew, with the digests of the installed version. Commands
run in a copy of the folder. Threads inside an operator would change the last bits of its sums.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rollmill.cli.main import main
from rollmill.core.checkpoints import Checkpoints
from rollmill.store.reader import Store

HERE = Path(__file__).resolve().parent
WEIGHTS = ("model", "critics", "targets", "encoder", "mean", "stds")
"""Where checkpoints keep what is learnt, below ``learners`` (online), ``fit`` (offline and models) and ``search``."""
PLACES = 12
"""How many numbers of the weights stand in a digest, at even distances."""

Array = np.ndarray[Any, Any]


def weights_of(folder: Path) -> dict[str, Array]:
    """Name -> array of all that was learnt, from the newest checkpoint of a run or of a world model's stage."""
    state = Checkpoints(folder / "checkpoints").load_newest().state
    parts = state.get("learners") or [state.get("fit") or state["search"]]
    found: dict[str, Array] = {}
    for number, part in enumerate(parts):
        for name in WEIGHTS:
            found.update(_arrays(part.get(name), f"{number}/{name}"))
    return found


def _arrays(tree: Any, name: str) -> Iterator[tuple[str, Array]]:
    if isinstance(tree, np.ndarray):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _arrays(value, f"{name}/{key}")


def digest(weights: Mapping[str, Array]) -> dict[str, Any]:
    """``sha256`` over names, types, shapes and bytes; ``values``: a few of the numbers."""
    sha, names = hashlib.sha256(), sorted(weights)
    for name in names:
        sha.update(f"{name} {weights[name].dtype.str} {weights[name].shape}\n".encode())
        sha.update(np.ascontiguousarray(weights[name]).tobytes())
    flat = np.concatenate([weights[name].astype(np.float64).ravel() for name in names])
    values = flat[np.linspace(0, flat.size - 1, PLACES).astype(int)]
    return {"sha256": sha.hexdigest(), "numbers": flat.size, "values": [float(f"{value:.8g}") for value in values]}


def contents(path: Path) -> dict[str, Any]:
    """A digest of every episode in a store: all columns, and how it ended."""
    sha = hashlib.sha256()
    with Store(path) as store:
        for i in np.argsort(store.table.uid):
            episode, end = store.episode(int(i)), store.end_record(int(i))
            facts = (end.uid, end.length, end.return_, end.terminated, end.truncated, end.first_step, end.seed)
            sha.update(repr((*facts, end.policy, end.worker, end.lane, sorted(end.stats.items()))).encode())
            sha.update(b"".join(name.encode() + episode.columns[name].tobytes() for name in sorted(episode.columns)))
        return {"episodes": len(store), "steps": int(store.table.length.sum()), "sha256": sha.hexdigest()}


def arithmetic() -> dict[str, str]:
    """What the last bits of sums depend on besides the code: libraries choose their kernels by the processor."""
    keys = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()]
    processor = " ".join(value.strip() for key, _, value in lines if key.strip() in keys) or platform.processor()
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "cma")}
    return {**versions, "kernels": torch.backends.cpu.get_cpu_capability(), "processor": processor}


def learn(command: str, folder: str) -> dict[str, Any]:
    """Run a command in a copy of this folder; ``folder`` is where its checkpoints are then."""
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(HERE, Path(place) / "copy")
        os.chdir(copy)
        try:
            if code := main(shlex.split(command)):
                return {"error": f"exit code {code}"}
            return digest(weights_of(copy / folder))
        finally:
            os.chdir(HERE)


def take(out: Path) -> None:
    """Write ``digests.json`` as it is with the installed version."""
    digests = json.loads((HERE / "digests.json").read_text())
    stores = sorted(path.parent for path in HERE.rglob("store.json"))
    digests |= {
        "arithmetic": arithmetic(),
        "stores": {str(path.relative_to(HERE)): contents(path) for path in stores},
    }
    for kind in ("trained", "continued"):
        for name, entry in digests[kind].items():
            print(f"\n=== {kind}: {name}", flush=True)
            words = {key: entry[key] for key in ("command", "folder")}
            digests[kind][name] = {**words, **learn(**words)}
    out.write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    take(Path(sys.argv[1]).absolute())
