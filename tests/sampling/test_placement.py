"""Who runs on which core: ranks, workers, the inference thread."""

import os
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.sampling import placement
from rollmill.sampling.placement import POLL_INTERVAL, InferenceCore, Placement, share_cores
from rollmill.sampling.settings import SamplingSettings


def inference_core(workers: int, **settings: Any) -> InferenceCore | None:
    return Placement.of(SamplingSettings(**settings), workers, pin_inference=True).inference


@pytest.mark.parametrize(
    ("workers", "settings", "expected"),
    [
        (7, {}, InferenceCore(17, pause=0.0)),  # a core without a worker
        (8, {}, InferenceCore(17, pause=POLL_INTERVAL)),  # shared with the last worker
        (9, {}, InferenceCore(17, pause=POLL_INTERVAL)),
        (8, {"mode": "sync"}, None),  # all wait for the slowest: nobody steps aside
        (7, {"mode": "sync"}, InferenceCore(17, pause=0.0)),
        (7, {"affinity": False}, None),
    ],
)
def test_where_the_thread_that_answers_runs(
    monkeypatch: pytest.MonkeyPatch, workers: int, settings: dict[str, Any], expected: InferenceCore | None
) -> None:
    monkeypatch.setattr(placement, "usable_cores", lambda: list(range(10, 18)))
    monkeypatch.setattr(placement, "available_cores", lambda: 8)
    assert inference_core(workers, **settings) == expected


def test_it_does_not_stay_awake_on_time_that_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that sees 8 cores and may use the time of 4."""
    monkeypatch.setattr(placement, "usable_cores", lambda: list(range(8)))
    monkeypatch.setattr(placement, "available_cores", lambda: 4)
    assert inference_core(3) == InferenceCore(3, pause=0.0)
    assert inference_core(4) == InferenceCore(4, pause=POLL_INTERVAL)


def test_two_cores_are_too_few_to_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "usable_cores", lambda: [0, 1])
    assert inference_core(2) is None


def test_each_rank_has_cores_of_its_own() -> None:
    cores = os.sched_getaffinity(0)
    assert share_cores(1) == [frozenset(cores)]
    shares = share_cores(len(cores))
    assert sorted(core for share in shares for core in share) == sorted(cores)
    assert set(share_cores(len(cores) + 1)) == {frozenset()}, "too few: nobody is held to any"


def test_each_worker_has_a_core_and_those_beyond_the_last_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "usable_cores", lambda: [4, 5, 6, 7])
    found = Placement.of(SamplingSettings(mode="async"), workers=5, pin_inference=True)
    assert [found.worker(index) for index in range(5)] == [4, 5, 6, 7, 4]
    assert [index for index in range(5) if found.beside_inference(index)] == [3]
    anywhere = Placement.of(SamplingSettings(affinity=False), workers=2, pin_inference=True)
    assert (anywhere.worker(0), anywhere.beside_inference(0)) == (None, False)


def test_one_place_keeps_processes_to_cores() -> None:
    """Elsewhere somebody would forget the machine that does not know cores, or the container's quota."""
    source = Path(rollmill.__file__).parent
    found = {str(path.relative_to(source)) for path in source.rglob("*.py") if "affinity(" in path.read_text()}
    assert found == {"core/machine.py", "envs/vizdoom/launcher.py"}, "that one is run without rollmill"
