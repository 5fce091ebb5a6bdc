"""Learners of several ranks in processes of their own, for ``learning/test_ranks.py``.

``python ranking.py RANK FOLDER`` works through the cases of ``FOLDER/cases.json``, in step with the other ranks, and
writes what came out beside them. The parent process has prepared weights and batches, and compares.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from running import config_of, wait_until

from rollmill.core import atomic
from rollmill.core.errors import RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.learning.appo import Appo
from rollmill.learning.ranks import require_equal
from rollmill.learning.roll_call import Follower, find_store
from rollmill.learning.roll_call_leader import Leader
from rollmill.learning.torch_ranks import NOTE_BYTES, TorchRanks
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
    own = {"rank": ranks.rank, "weights": np.full((2, 3), ranks.rank)}
    first = ranks.from_first(own)
    return {
        "total": ranks.total(x.clone()).tolist(),
        "gather": ranks.gather(x).tolist(),
        "short": ranks.gather_notes({"rank": ranks.rank, "none": None}),
        "long": [len(note) for note in ranks.gather_notes("é" * (ranks.rank * NOTE_BYTES + 1))],
        "from first": [first["rank"], first["weights"].tolist()],
    }


def failing(act: Callable[[], Any]) -> str:
    try:
        act()
    except RollmillError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def line_of(rank: int, count: int, port: Path, silence: float = 60.0) -> TorchRanks:
    """Connected to the others; rank 0 writes down where they meet."""
    roll_call: Leader | Follower
    if rank == 0:
        roll_call = Leader("127.0.0.1", 0, count, silence)
        roll_call.open({})
        atomic.write_text(port, str(roll_call.port))
    else:
        wait_until(port.exists, what="rank 0")
        roll_call = Follower(find_store("127.0.0.1", int(port.read_text())), rank, silence)
    ranks = TorchRanks(roll_call, count, timeout=300)
    ranks.connect(CPU)
    return ranks


def be_late(ranks: TorchRanks, folder: Path) -> Outcome:
    """Rank 1 stays away for longer than rank 0 waits; then both go on, in another group."""
    outcome: Outcome = {}
    if ranks.rank == 0:
        ranks._timeout = 1
        outcome["error"] = failing(lambda: ranks.total(torch.ones(1)))
        ranks._timeout = 300
        (folder / "late").touch()
    else:
        wait_until((folder / "late").exists, what="rank 0 to give up")
    ranks.regroup()
    return {**outcome, "total": ranks.total(torch.ones(1)).tolist(), "present": ranks.present}


def survive(case: dict[str, Any], folder: Path, rank: int) -> None:
    """Three ranks. Rank 2 stands still in the middle of a batch, then rank 1 ends in the middle of one."""
    ranks = line_of(rank, 3, folder / "survivors", silence=5.0)
    learner = learner_of(case, folder, ranks)
    learner.agree()
    learner.train(lanes_of(load(folder / f"{case['name']}-batch0.npz"), slice(rank, None, 3)))
    keep(learner, ranks, folder / f"whole-{rank}.npz")
    for batch, victim in ((1, 2), (2, 1)):
        if rank == victim:
            at_call(ranks, 4, stand_still if victim == 2 else end)
        segments = lanes_of(load(folder / f"{case['name']}-batch{batch}.npz"), slice(rank, None, 3))
        said = failing(lambda segments=segments: learner.train(segments))  # type: ignore[misc]
        ranks.regroup()
        learner.agree()
        keep(learner, ranks, folder / f"without{victim}-{rank}.npz", said)
        learner.train(segments)
        keep(learner, ranks, folder / f"after{victim}-{rank}.npz")


def stand_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def end() -> None:
    os._exit(0)


def at_call(ranks: TorchRanks, number: int, act: Callable[[], Any]) -> None:
    """Do something before a rank's next sums have been added up so many times."""
    usual, calls = ranks.total, itertools.count(1)

    def total(x: torch.Tensor) -> torch.Tensor:
        if next(calls) == number:
            act()
        return usual(x)

    ranks.total = total  # type: ignore[method-assign]


def keep(learner: Appo, ranks: TorchRanks, path: Path, said: str = "") -> None:
    """All that ranks must have in common."""
    state = learner.state()
    arrays = {f"model:{name}": x for name, x in state["model"].items()}
    arrays |= {f"optimizer:{k}:{name}": x for k, entry in state["optimizer"].items() for name, x in entry.items()}
    counts = np.array([learner.version, learner.optimizer_steps])
    np.savez(path, counts=counts, present=np.array(ranks.present), said=np.array(said), **arrays)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    cases = json.loads((folder / "cases.json").read_text())
    if rank < 2:
        outcomes: dict[str, Outcome] = {}
        ranks = line_of(rank, 2, folder / "first")
        outcomes["talk"] = talk(ranks)
        for case in cases:
            outcomes[case["name"]] = learn(case, folder, ranks)
        outcomes["late"] = be_late(ranks, folder)
        ranks.close()
        ranks.close()
        (folder / f"rank{rank}.json").write_text(json.dumps(outcomes))
    survive(next(case for case in cases if case["name"] == "gaussian"), folder, rank)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
