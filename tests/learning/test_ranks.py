"""Ranks in processes of their own, connected by gloo: against one learner with the whole batch; and some are lost."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ranking import learner_of, load
from running import SUPPORT, config_of

from rollmill.core.errors import LostRankError
from rollmill.core.fields import Array
from rollmill.envs.probe import probe_here
from rollmill.learning.ranks import SingleRank, shared_mean_and_deviation, shared_moments
from rollmill.learning.torch_ranks import _library_settings
from rollmill.models.moments import RunningMoments
from rollmill.runs.train.build import build_parts

LANES = 8
COMMON = (
    *("sampling.mode=serial", "learning.batch_size=64", "learning.learning_rate=0.01", "learning.adam_eps=1e-5"),
    *("learning.epochs=3", "learning.max_grad_norm=0.1", "learning.threads=1"),
)
PLAIN = ("learning.targets=vtrace", "learning.normalize_returns=false", "learning.normalize_advantages=false")
MEMORY = ("env=toy_memory", "model.memory=gru")


@dataclass(frozen=True)
class Case:
    overrides: tuple[str, ...]
    spoil: str = ""
    """What is wrong with the lanes of rank 1."""
    exact: bool = True
    """Whether two halves must give what the whole gives (shuffles, and V-trace's running moments, do not)."""
    drift: bool = False


CASES = {
    "mlp": Case(("env=toy_target",)),
    "gru": Case(MEMORY),
    "gru in pieces": Case((*MEMORY, "learning.recurrence=4")),
    "lstm": Case(("env=toy_memory", "model.memory=lstm")),
    "gaussian": Case(("env=toy_reach", "model.normalize_observations=true")),
    "unequal": Case((*MEMORY,), spoil="few rows"),
    "empty": Case(("env=toy_reach", "model.normalize_observations=true"), spoil="no rows"),
    "vtrace": Case((*MEMORY, *PLAIN)),
    "micro-batches": Case(("env=toy_target", "learning.micro_batch=16")),
    "threads": Case(("env=toy_target", "learning.threads=2", "learning.micro_batch=16")),
    "early stop": Case(("env=toy_target", "learning.epochs=20", "learning.target_kl=0.002")),
    "adaptive rate": Case(("env=toy_target", "learning.lr_schedule=kl_adaptive")),
    "minibatches": Case((*MEMORY, "learning.minibatches=4"), spoil="few rows", exact=False),
    "vtrace, scaled": Case((*MEMORY, "learning.targets=vtrace"), exact=False),
    "nan": Case(("env=toy_reach",), spoil="nan", exact=False),
    "drift": Case(("env=toy_target",), exact=False, drift=True),
}
EXACT = [name for name, case in CASES.items() if case.exact]
HEALTHY = [name for name, case in CASES.items() if case.spoil != "nan" and not case.drift]


def prepare(name: str, folder: Path) -> dict[str, Any]:
    """Write weights and three batches of real segments; returns what the ranks are told."""
    case = CASES[name]
    overrides = (*COMMON, *case.overrides)
    config = config_of(Path(), *overrides)
    spec = probe_here(config.env)
    parts = build_parts(config, spec, os.environ)
    model = parts.learners[0].model
    np.savez(folder / f"{name}-weights.npz", **{n: x.numpy() for n, x in model.state_dict().items()})
    parts.sampler.start()
    for batch in range(3):
        while (slots := parts.sampler.take(parts.segments_per_batch, timeout=0)) is None:
            parts.sampler.round()
        segments = {field: array.copy() for field, array in parts.sampler.arena.gather(slots).items()}
        parts.sampler.release(slots)
        spoil(segments, case.spoil)
        np.savez(folder / f"{name}-batch{batch}.npz", **segments)  # type: ignore[arg-type]
    return {
        "name": name,
        "overrides": overrides,
        "spec": spec.to_dict(),
        "lanes": LANES,
        "batches": 3,
        "drift": case.drift,
    }


def spoil(segments: dict[str, Array], how: str) -> None:
    theirs = np.s_[:, LANES // 2 :]
    if how == "few rows":
        segments["valid"][theirs] = False
        segments["valid"][2:5, -1] = True
    elif how == "no rows":
        segments["valid"][theirs] = False
    elif how == "nan":
        next(array for field, array in segments.items() if field.startswith("obs:"))[3, -1] = np.nan


@dataclass(frozen=True)
class Pair:
    """What two ranks have made of all cases."""

    folder: Path
    cases: dict[str, dict[str, Any]]
    outcomes: list[dict[str, Any]]

    def arrays(self, name: str, rank: int) -> dict[str, Array]:
        return load(self.folder / f"{name}-rank{rank}.npz")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("ranks")
    cases = [prepare(name, folder) for name in CASES]
    (folder / "cases.json").write_text(json.dumps(cases))
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, str(SUPPORT / "ranking.py")]
    processes = [
        subprocess.Popen([*command, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        complaints = [process.communicate(timeout=600)[1] for process in processes[:2]]
    finally:
        for process in processes:  # the third one stands still
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0, -signal.SIGKILL], complaints
    outcomes = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return Pair(folder, {case["name"]: case for case in cases}, outcomes)


# -- learning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_two_halves_give_what_the_whole_gives(pair: Pair, name: str) -> None:
    """Gradients, weights, running moments and metrics after three batches of three epochs each."""
    learner = learner_of(pair.cases[name], pair.folder)
    metrics = [learner.train(load(pair.folder / f"{name}-batch{batch}.npz")) for batch in range(3)]
    found = pair.arrays(name, 0)
    for parameter, p in learner.model.named_parameters():
        assert p.grad is not None
        np.testing.assert_allclose(found[f"grad:{parameter}"], p.grad, rtol=1e-3, atol=1e-5, err_msg=parameter)
    for tensor, x in learner.model.state_dict().items():
        np.testing.assert_allclose(found[f"model:{tensor}"], x, rtol=1e-4, atol=1e-5, err_msg=tensor)
    for ours, theirs in zip(metrics, pair.outcomes[0][name]["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", HEALTHY)
def test_both_ranks_end_with_the_same_bits_and_metrics(pair: Pair, name: str) -> None:
    one, two = (pair.arrays(name, rank) for rank in range(2))
    assert one.keys() == two.keys()
    assert [field for field in one if one[field].tobytes() != two[field].tobytes()] == []
    assert pair.outcomes[0][name] == pair.outcomes[1][name]
    weights = load(pair.folder / f"{name}-weights.npz")
    assert any(not np.array_equal(one[f"model:{field}"], x) for field, x in weights.items()), "something was learnt"


def test_the_early_stop_was_early(pair: Pair) -> None:
    assert 1 <= pair.outcomes[1]["early stop"]["metrics"][0]["epochs"] < 20


def test_a_nan_in_one_rank_stops_all_and_is_found(pair: Pair) -> None:
    errors = {outcome["nan"]["error"] for outcome in pair.outcomes}
    assert len(errors) == 1
    error = errors.pop()
    assert error.startswith("NonFiniteError: NaN or infinity while learning (policy 0, batch 1, optimizer step 1)")
    assert "rank 1: the batch itself: observation" in error


def test_ranks_that_drift_apart_are_stopped(pair: Pair) -> None:
    for outcome in pair.outcomes:
        assert outcome["drift"]["error"].startswith(
            "RankError: the learners have drifted apart: at batch 2 rank 1 has another "
        )


# -- the line ------------------------------------------------------------------------------------------------


def test_everybody_hears_the_same(pair: Pair) -> None:
    expected = {
        "total": [1.0, 3.0, 5.0],
        "gather": [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]],
        "short": [{"rank": 0, "none": None}, {"rank": 1, "none": None}],
        "long": [1, 16_385],
        "from first": [0, [[0, 0, 0]] * 2],
    }
    assert [outcome["talk"] for outcome in pair.outcomes] == [expected] * 2


def test_a_rank_that_stays_away_is_not_waited_for_for_ever_and_may_come_back(pair: Pair) -> None:
    one, other = (outcome["late"] for outcome in pair.outcomes)
    assert one["error"].startswith(
        "LostRankError: rank 0 has lost the other ranks while adding up: no answer within 1 s"
    )
    assert one["total"] == other["total"] == [2.0]
    assert one["present"] == other["present"] == [0, 1]


# -- when ranks are lost -------------------------------------------------------------------------------------


def assert_same_bits(states: list[dict[str, Array]]) -> None:
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert [name for name in state if name != "said" and state[name].tobytes() != states[0][name].tobytes()] == []


def moved(one: dict[str, Array], two: dict[str, Array]) -> bool:
    return any(one[name].tobytes() != two[name].tobytes() for name in one if name.startswith("model:"))


def test_those_who_are_left_go_on_with_the_same_bits(pair: Pair) -> None:
    """One stands still in the middle of a batch, later one ends: weights, moments, optimizer and counts stay common."""
    present = {"whole": (0, 1, 2), "without2": (0, 1), "after2": (0, 1), "without1": (0,), "after1": (0,)}
    firsts = []
    for stage, ranks in present.items():
        states = [load(pair.folder / f"{stage}-{rank}.npz") for rank in ranks]
        assert_same_bits(states)
        assert tuple(states[0]["present"]) == ranks
        firsts.append(states[0])
    assert all(moved(one, two) for one, two in itertools.pairwise(firsts)), "each stage has learnt"
    assert [int(state["counts"][0]) for state in firsts] == [1, 1, 2, 2, 3]
    assert "LostRankError: rank 2 has given no sign of life for 5 s" in str(firsts[1]["said"])
    assert "LostRankError: rank 0 has lost the other ranks while adding up" in str(firsts[3]["said"])


def test_moments_are_as_they_were_where_a_rank_is_lost_in_between() -> None:
    moments = RunningMoments((2,))
    moments.update(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    before = {name: x.clone() for name, x in moments.state_dict().items()}
    others = SimpleNamespace(count=2, total=lambda _x: raise_lost())
    with pytest.raises(LostRankError), shared_moments(others, moments):  # type: ignore[arg-type]
        moments.update(torch.tensor([[9.0, 9.0]]))
    assert all(torch.equal(x, before[name]) for name, x in moments.state_dict().items())


def raise_lost() -> None:
    raise LostRankError("rank 1")


# -- one rank -----------------------------------------------------------------------------------------------


def test_variables_for_nccl_come_and_go_and_leave_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "chosen")
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    before = dict(os.environ)
    with _library_settings("127.0.0.1"):
        assert dict(os.environ) == {**before, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
        monkeypatch.setenv("SET_MEANWHILE", "by another thread")
    assert dict(os.environ) == {**before, "SET_MEANWHILE": "by another thread"}
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    with _library_settings("127.0.0.1"):
        assert os.environ["NCCL_SOCKET_IFNAME"] in ("lo", "lo0")
    with _library_settings("10.0.0.1"):
        assert "NCCL_SOCKET_IFNAME" not in os.environ


def test_alone_nothing_changes() -> None:
    ranks, x = SingleRank(), torch.arange(4.0)
    assert ranks.total(x) is x
    assert ranks.gather(x).tolist() == [x.tolist()]
    assert ranks.gather_notes({"a": 1}) == [{"a": 1}]
    assert ranks.from_first({"a": 1}) == {"a": 1}


def test_mean_and_deviation_leave_out_what_does_not_count() -> None:
    x = torch.tensor([1.0, float("nan"), 3.0])
    mean, deviation = shared_mean_and_deviation(SingleRank(), x, torch.tensor([True, False, True]))
    assert (float(mean), float(deviation)) == (2.0, 1.0)


def test_moments_can_be_set() -> None:
    moments = RunningMoments((2,))
    count, mean, var = torch.tensor(3.0), torch.tensor([1.0, 2.0]), torch.tensor([4.0, 9.0])
    moments.set(count, mean, var)
    assert float(moments.count) == 3
    torch.testing.assert_close(moments.normalise(torch.tensor([3.0, 2.0])), torch.tensor([1.0, 0.0]))
