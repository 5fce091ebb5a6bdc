"""Observers: when they are told, what they may look at, and that they are told of the end, whatever it was."""

from pathlib import Path

import numpy as np
import pytest

from rollmill.core.slots import SegmentLayout
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.observers import Observer
from rollmill.runs.online import OnlineRun
from running import SERIAL, train_here

TARGET = (*SERIAL, "env=toy_target")


class Diary(Observer):
    """Writes down every call; fails in one hook, if asked to."""

    def __init__(self, name: str, calls: list[str], fail_in: str = "") -> None:
        self.name, self.calls, self.fail_in = name, calls, fail_in

    def _note(self, hook: str) -> None:
        self.calls.append(f"{self.name} {hook}")
        if hook == self.fail_in:
            raise RuntimeError(f"{self.name} fails in {hook}")

    def on_init(self, run: OnlineRun) -> None:
        assert run.iteration == 0
        assert not run.segments
        self._note("init")

    def on_start(self, run: OnlineRun) -> None:
        self._note("start")

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        assert iteration == run.iteration
        self._note(f"step {iteration}")

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        self._note("summaries")
        return {f"{self.name}/calls": float(len(self.calls))}

    def on_stop(self, run: OnlineRun) -> None:
        self._note("stop")


def test_the_order_of_hooks(tmp_path: Path) -> None:
    calls: list[str] = []
    observers = [Diary("a", calls), Diary("b", calls)]
    train_here(tmp_path, *TARGET, "stop.batches=3", "report.every_frames=1000", observers=observers)
    hooks = ["init", "start", "step 1", "step 2", "step 3", "stop"]
    assert calls == [f"{name} {hook}" for hook in hooks for name in "ab"]


def test_steps_are_counted_over_all_sessions(tmp_path: Path) -> None:
    calls: list[str] = []
    train_here(tmp_path, *TARGET, "stop.batches=2", "report.every_frames=1000")

    class Steps(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            calls.append(f"step {iteration}")

    train_here(tmp_path, *TARGET, "stop.batches=4", mode="resume", observers=[Steps()])
    assert calls == ["step 3", "step 4"]


@pytest.mark.parametrize("hook", ["init", "start", "step 2", "summaries", "stop"])
def test_all_are_told_of_the_end_once_whoever_fails(tmp_path: Path, hook: str) -> None:
    calls: list[str] = []
    observers = [Diary("a", calls), Diary("b", calls, fail_in=hook), Diary("c", calls)]
    with pytest.raises(RuntimeError, match=f"b fails in {hook}"):
        train_here(tmp_path, *TARGET, "stop.batches=9", observers=observers)
    assert [call for call in calls if call.endswith("stop")] == ["a stop", "b stop", "c stop"]
    assert calls[-1] == "c stop"


def test_the_folder_is_still_held_when_the_run_stops(tmp_path: Path) -> None:
    class Last(Observer):
        state = ""
        checkpoints = 0

        def on_stop(self, run: OnlineRun) -> None:
            self.state = run.folder.read_state()["state"]  # type: ignore[index]
            self.checkpoints = len(list(run.folder.checkpoints.iterdir()))

    last = Last()
    _, folder = train_here(tmp_path, *TARGET, "stop.batches=1", observers=[last])
    assert last.state == "running"
    assert last.checkpoints == 1
    assert folder.read_state()["state"] == "finished"  # type: ignore[index]


# -- what they see -----------------------------------------------------------------------------------------


class Look(Observer):
    """Keeps copies of every batch, and checks its form."""

    def __init__(self) -> None:
        self.batches: list[dict[str, np.ndarray]] = []
        self.versions: list[int] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        settings, learning = run.config.sampling, run.config.learning
        lanes = learning.batch_size // settings.rollout
        size = run.parts.policies[0].state_size
        layout = SegmentLayout(run.spec, settings.rollout, lanes, size, learning.recurrence)
        assert run.segments.keys() == {field.name for field, _ in layout.fields()}
        for field, rows in layout.fields():
            array = run.segments[field.name]
            assert type(array) is np.ndarray
            assert array.shape == (rows, lanes, *field.shape)
            assert array.dtype == field.dtype
        self.batches.append({name: array.copy() for name, array in run.segments.items()})
        self.versions.append(run.parts.learners[0].version)


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_segments_are_what_was_learnt_from(tmp_path: Path, mode: str) -> None:
    look = Look()
    words = ("env=toy_target", f"sampling.mode={mode}", "sampling.workers=1", "stop.batches=6")
    train_here(tmp_path, *words, observers=[look])
    assert look.versions == [1, 2, 3, 4, 5, 6]
    for iteration, batch in enumerate(look.batches, 1):
        assert batch["version"][:-1].max() < iteration  # learnt from what older weights have done
        right = batch["action"][:-1] == batch["obs:obs"][:-1].argmax(-1)
        valid = batch["valid"][:-1]
        assert valid.any()
        np.testing.assert_array_equal(batch["reward"][:-1][valid], right[valid])


@pytest.mark.parametrize(
    "words",
    [
        ("env=toy_memory", "model.memory=gru", "learning.recurrence=4"),
        ("env=toy_agents", "learning.batch_size=64", "model.memory=lstm"),
        ("env=toy_masked",),
        ("env=toy_reach",),
        ("env=toy_image", "model.fc=[8]"),
    ],
    ids=lambda words: words[0],
)
def test_segments_have_the_documented_shapes(tmp_path: Path, words: tuple[str, ...]) -> None:
    look = Look()
    train_here(tmp_path, *SERIAL, *words, "stop.batches=2", observers=[look])
    assert len(look.batches) == 2
    first = look.batches[0]
    assert np.isfinite(first["value"]).all()
    assert ("state" in first) == ("model.memory" in " ".join(words))


class Gauges(Observer):
    """Reads every figure at every step."""

    def __init__(self) -> None:
        self.frames: list[int] = []
        self.progress: list[float] = []
        self.allowed: set[int] = set()
        self.seconds: list[float] = []
        self.phases: list[dict[str, float]] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.frames.append(run.frames)
        self.progress.append(run.progress)
        self.allowed.add(run.frames_allowed)
        self.seconds.append(run.seconds)
        self.phases.append(run.phase_seconds())


def test_figures_of_a_run(tmp_path: Path) -> None:
    gauges = Gauges()
    outcome, _ = train_here(tmp_path, *TARGET, "stop.frames=300", "stop.batches=100", observers=[gauges])
    assert gauges.allowed == {300}
    assert gauges.frames == sorted(gauges.frames)
    assert gauges.frames[-1] < 300 <= outcome.frames  # the frames that reach the limit are not learnt from any more
    assert gauges.progress == [min(1.0, frames / 300) for frames in gauges.frames]
    assert gauges.seconds == sorted(gauges.seconds)
    for name in ("main answer", "main gather", "main learn"):
        values = [phases[name] for phases in gauges.phases]
        assert values == sorted(values)
        assert values[-1] > 0


def test_no_limit_on_frames(tmp_path: Path) -> None:
    gauges = Gauges()
    train_here(tmp_path, *TARGET, "stop.frames=0", "stop.batches=4", observers=[gauges])
    assert gauges.allowed == {0}
    assert gauges.progress == [0.25, 0.5, 0.75, 1.0]


# -- what they do ------------------------------------------------------------------------------------------


def test_an_observer_ends_the_run(tmp_path: Path) -> None:
    class Stop(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            if iteration == 3:
                run.stop("three are enough")
                run.stop("and a second reason does not count")

    outcome, folder = train_here(tmp_path, *TARGET, observers=[Stop()])
    assert (outcome.state, outcome.reason, outcome.exit_code) == ("finished", "three are enough", 0)
    assert folder.read_state()["reason"] == "three are enough"  # type: ignore[index]


def test_extra_summaries_stand_in_every_row(tmp_path: Path) -> None:
    calls: list[str] = []
    observers = [Diary("a", calls), Diary("b", calls)]
    _, folder = train_here(tmp_path, *TARGET, "stop.frames=400", observers=observers)
    rows = read_jsonl(folder.metrics)
    assert len(rows) > 3
    assert calls.count("a summaries") == calls.count("b summaries") == len(rows)
    assert all(row["b/calls"] == row["a/calls"] + 1 for row in rows)
