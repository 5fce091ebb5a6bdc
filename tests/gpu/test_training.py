"""Whole trainings on the device: every mode and algorithm, what is recorded, what is saved, what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gpu_device import DEVICE, ON_GPU, WORDS
from running import SAC, rows_of, saved_state, train_here

from recording import Seen, check_stored
from rollmill.core.errors import MemoryFull, NonFiniteError, ObserverError
from rollmill.learning.appo import Appo
from rollmill.learning.step import Step
from rollmill.models.acting.graph import GraphPolicy
from rollmill.optim.device import free_memory
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

MEMORY = ("env=toy_memory", "model.memory=gru")


class Watch(Observer):
    """What acted, where the batch lay, and how far behind it was."""

    def __init__(self) -> None:
        self.lags: set[int] = set()
        self.graphs = False
        self.devices: set[str] = set()

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.lags |= set((iteration - 1 - run.segments["version"][:-1]).ravel().tolist())
        self.graphs = all(isinstance(policy, GraphPolicy) for policy in run.parts.policies)
        self.devices.add(run.parts.device.type)


@pytest.mark.parametrize("mode", ["serial", "sync", "async"])
@pytest.mark.parametrize(
    "words",
    [
        ("env=toy_target",),
        MEMORY,
        (*MEMORY, "model.memory=lstm", "learning.recurrence=4"),
        ("env=toy_image", "model.fc=[16]"),
        ("env=toy_masked",),
        ("env=toy_reach",),
        ("env=toy_agents", "learning.batch_size=128"),
        ("env=toy_agents", "env.policies=[0,1]", "learning.batch_size=128"),
        ("env=toy_target", "learning.epochs=3", "learning.minibatches=2", "learning.lr_schedule=kl_adaptive"),
        ("env=toy_target", "learning.targets=vtrace"),
    ],
    ids=["mlp", "gru", "lstm", "image", "mask", "continuous", "agents", "policies", "epochs", "vtrace"],
)
def test_a_training(tmp_path: Path, mode: str, words: tuple[str, ...]) -> None:
    watch = Watch()
    options = (*WORDS, f"sampling.mode={mode}", *words, "stop.batches=12")
    outcome, folder = train_here(tmp_path, *options, observers=[watch])
    assert outcome.reason.startswith("reached stop.batches=12")
    assert watch.devices == {DEVICE.type}
    if ON_GPU and "env.policies=[0,1]" not in words:
        assert watch.graphs
    if mode == "sync":
        assert watch.lags == {0}
    row = rows_of(folder)[-1]
    assert all(np.isfinite(value) for name, value in row.items() if name.startswith("learn/"))


def test_it_learns(tmp_path: Path) -> None:
    options = ("env=toy_target", "sampling.mode=async", "learning.learning_rate=0.01", "learning.batch_size=256")
    train_here(tmp_path, *WORDS, *options, "stop.mean_return=9", "stop.frames=200_000")
    folder = train_here(tmp_path, *WORDS, *options, "stop.frames=200_500", "stop.mean_return=9.5", mode="resume")[1]
    assert rows_of(folder)[-1]["episode/return"] > 8.5


def test_sync_is_on_policy_with_memory(tmp_path: Path) -> None:
    options = (*WORDS, *MEMORY, "sampling.mode=sync", "learning.learning_rate=0.05", "report.every_frames=1")
    _, folder = train_here(tmp_path, *options, "stop.batches=12")
    assert max(row["learn/ratio_deviation"] for row in rows_of(folder)) < 1e-3


def test_sac(tmp_path: Path) -> None:
    outcome, folder = train_here(tmp_path, *SAC, *WORDS, "stop.frames=1024")
    assert outcome.state == "finished"
    assert saved_state(folder)["learners"][0]["version"] > 0
    row = rows_of(folder)[-1]
    assert all(np.isfinite(value) for name, value in row.items() if name.startswith("learn/"))


def test_ranks_that_share_the_device(tmp_path: Path) -> None:
    place = "learning.device=cuda:0" if ON_GPU else "learning.device=cpu"
    options = ("env=toy_target", "sampling.mode=sync", "learning.ranks=2", "stop.batches=12")
    seen = LosesOne()
    outcome, _ = train_here(tmp_path, *WORDS, place, *options, observers=[seen])
    assert outcome.reason == "reached stop.batches=12"
    assert (seen.counts[0], seen.counts[-1]) == (2, 1)


class LosesOne(Observer):
    """Kills the other rank once optimizer steps are recorded as graphs: rank 0 goes on with those that it has."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.counts.append(run.parts.ranks.count)
        if iteration == 6:
            found = [child for child in psutil.Process().children() if "rank_main" in " ".join(child.cmdline())]
            found[0].kill()


@pytest.mark.parametrize("mode", ["serial", "sync", "async"])
def test_recording_what_lies_on_the_device(tmp_path: Path, mode: str) -> None:
    seen = Seen()
    options = ("env=recordable_env:Recordable", "env.args.longest=29", "learning.reward_scale=1e-4", "recording=all")
    options += ("recording.queue_segments=300", "recording.columns=[log_prob,value]", "learning.max_policy_lag=1000000")
    _, run = train_here(tmp_path, *WORDS, f"sampling.mode={mode}", *options, "stop.batches=20", observers=[seen])
    assert check_stored(run.data, seen) == set(seen.rows)


# -- saved here, continued there ---------------------------------------------------------------------------


def test_a_checkpoint_moves_between_devices(tmp_path: Path) -> None:
    options = (*MEMORY, "sampling.mode=sync", "learning.precision=float32")
    _, folder = train_here(tmp_path, *options, f"learning.device={DEVICE}", "stop.batches=6")
    before = saved_state(folder)["learners"][0]["model"]
    train_here(tmp_path, *options, "learning.device=cpu", "stop.batches=9", mode="resume")
    train_here(tmp_path, *options, f"learning.device={DEVICE}", "stop.batches=12", mode="resume")
    state = saved_state(folder)
    assert state["iteration"] == 12
    after = state["learners"][0]["model"]
    assert before.keys() == after.keys()
    assert all(np.isfinite(array).all() for array in after.values() if array.dtype.kind == "f")


def test_one_training_after_the_other_in_one_process(tmp_path: Path) -> None:
    for number in range(4):
        words = MEMORY if number % 2 else ("env=toy_image", "model.fc=[16]")
        outcome, _ = train_here(tmp_path / str(number), *WORDS, *words, "stop.batches=8")
        assert outcome.state == "finished"
    if ON_GPU:
        free_memory()
        assert torch.cuda.memory_allocated(DEVICE) < 64 << 20


# -- what goes wrong, and a training after it --------------------------------------------------------------


class Fail(Observer):
    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == 3:
            raise RuntimeError("told to fail")


class Spoil(Observer):
    """A weight becomes NaN: the learner's next step must not go unnoticed."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == 6:
            learner = run.parts.learners[0]
            with torch.no_grad():
                next(iter(learner.model.parameters())).fill_(float("nan"))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("observer", "error"), [(Fail, ObserverError), (Spoil, NonFiniteError)])
def test_after_a_failure_the_next_training_works(
    tmp_path: Path, observer: type[Observer], error: type[Exception]
) -> None:
    for number in range(2):
        with pytest.raises(error):
            train_here(tmp_path / f"bad{number}", *WORDS, *MEMORY, "stop.batches=12", observers=[observer()])
        outcome, _ = train_here(tmp_path / f"good{number}", *WORDS, *MEMORY, "stop.batches=6")
        assert outcome.state == "finished"


@pytest.mark.parametrize("mode", ["serial", "sync", "async"])
@pytest.mark.parametrize("call", [1, 2, 4, 6], ids=["first", "second", "recording", "replaying"])
def test_a_learner_that_fails_ends_the_run_and_leaves_the_device_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, call: int
) -> None:
    """Inside the optimizer step: before graphs, while they are recorded, and around one that is replayed."""
    calls = 0

    def fails(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise RuntimeError("told to fail while learning")
            return original(*args, **kwargs)

        return wrapped

    words = (*WORDS, *MEMORY, f"sampling.mode={mode}")
    with monkeypatch.context() as patch:
        # ``losses`` runs where Python does, recording included; ``train`` also where a graph is replayed.
        if call < 6:
            patch.setattr(Step, "losses", fails(Step.losses))
        else:
            patch.setattr(Appo, "train", fails(Appo.train))
        with pytest.raises(RuntimeError, match="told to fail while learning"):
            train_here(tmp_path / "bad", *words, "stop.batches=12")
    assert calls >= call
    outcome, _ = train_here(tmp_path / "good", *words, "stop.batches=6")
    assert outcome.state == "finished"


@pytest.mark.skipif(not ON_GPU, reason="a CPU would take all of the machine's memory first")
def test_out_of_memory_is_named_and_the_next_training_works(tmp_path: Path) -> None:
    free_memory()
    torch.cuda.set_per_process_memory_fraction(0.005)  # the machine's own memory must hold the network first
    try:
        with pytest.raises(MemoryFull, match=r"out of memory: .*micro_batch"):
            train_here(tmp_path / "bad", *WORDS, "env=toy_target", "model.mlp=[10000,10000]", "stop.batches=2")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    free_memory()
    outcome, _ = train_here(tmp_path / "good", *WORDS, "env=toy_target", "stop.batches=6")
    assert outcome.state == "finished"
