"""Learners of two ranks in processes of their own, for ``learning/test_ranks.py``.

``python ranking.py RANK FOLDER`` works through the cases of ``FOLDER/cases.json``, in step with the other rank, and
writes what came out beside them. The parent process has prepared weights and batches, and compares.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from running import config_of

from rollmill.core.errors import RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.learning.appo import Appo
from rollmill.learning.ranks import NOTE_BYTES, TorchRanks, require_equal
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model
from rollmill.models.saving import load_weights

CPU = torch.device("cpu")
Outcome = dict[str, Any]


def load(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


def learner_of(case: dict[str, Any], folder: Path, ranks: TorchRanks | None = None) -> Appo:
    """A learner with the saved weights and the settings of the case."""
    config = config_of(Path(), *case["overrides"])
    model = build_model(EnvSpec.from_dict(case["spec"]), config.model)
    load_weights(model, load(folder / f"{case['name']}-weights.npz"))
    return Appo(model, WeightBoard(model), config.learning, seed=3, ranks=ranks)


def lanes_of(segments: dict[str, np.ndarray], part: slice) -> dict[str, np.ndarray]:
    """Some lanes of gathered segments; the lane axis of every field is the second."""
    return {name: np.ascontiguousarray(array[:, part]) for name, array in segments.items()}


def learn(case: dict[str, Any], folder: Path, ranks: TorchRanks) -> Outcome:
    """Train on this rank's half of every batch; in the drifting case, with a weight changed in between."""
    learner = learner_of(case, folder, ranks)
    half = case["lanes"] // 2
    part = slice(None, half) if ranks.rank == 0 else slice(half, None)
    outcome: Outcome = {"metrics": []}
    try:
        learner.agree()
        for batch in range(case["batches"]):
            segments = lanes_of(load(folder / f"{case['name']}-batch{batch}.npz"), part)
            outcome["metrics"].append(learner.train(segments))
            require_equal(ranks, learner.model, f"batch {batch + 1}")
            if case["drift"] and ranks.rank == 1:
                next(learner.model.parameters()).data[0] += 1e-3
    except RollmillError as error:
        outcome["error"] = f"{type(error).__name__}: {error}"
    arrays = {f"model:{name}": x.numpy() for name, x in learner.model.state_dict().items()}
    arrays |= {f"grad:{n}": p.grad.numpy() for n, p in learner.model.named_parameters() if p.grad is not None}
    np.savez(folder / f"{case['name']}-rank{ranks.rank}.npz", **arrays)
    return outcome


def talk(ranks: TorchRanks) -> Outcome:
    """Every call of the interface once."""
    x = torch.arange(3.0) + ranks.rank
    weights = [torch.full((2, 3), float(ranks.rank)).t(), torch.tensor(ranks.rank)]
    ranks.from_first(weights)
    return {
        "total": ranks.total(x.clone()).tolist(),
        "gather": ranks.gather(x).tolist(),
        "short": ranks.gather_notes({"rank": ranks.rank, "none": None}),
        "long": [len(note) for note in ranks.gather_notes("é" * (ranks.rank * NOTE_BYTES + 1))],
        "from first": [tensor.tolist() for tensor in weights],
    }


def failing(act: Callable[[], Any]) -> str:
    try:
        act()
    except RollmillError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    outcomes: dict[str, Outcome] = {}
    ranks = TorchRanks(rank, 2, folder / "first", timeout=300)
    ranks.connect(CPU)
    outcomes["talk"] = talk(ranks)
    outcomes["twice"] = {"error": failing(lambda: ranks.connect(CPU))}
    for case in json.loads((folder / "cases.json").read_text()):
        outcomes[case["name"]] = learn(case, folder, ranks)
    ranks.close()
    ranks.close()

    ranks = TorchRanks(rank, 2, folder / "second", timeout=300)
    ranks.connect(CPU)
    ranks._timeout = 1  # connecting may take long on a busy machine
    if rank == 0:
        outcomes["late"] = {"error": failing(lambda: ranks.total(torch.ones(1)))}
        (folder / "late").touch()
    else:
        while not (folder / "late").exists():  # here, but not there
            os.sched_yield()
    ranks.close()

    ranks = TorchRanks(rank, 2, folder / "third", timeout=300)
    ranks.connect(CPU)
    if rank == 0:
        looks: list[int] = []
        ranks.watch = lambda: looks.append(1)
        outcomes["gone"] = {"error": failing(lambda: ranks.total(torch.ones(1))), "looks": len(looks)}
    (folder / f"rank{rank}.json").write_text(json.dumps(outcomes))
    if rank == 1:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
