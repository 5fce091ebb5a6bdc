"""Observers: when they are told, what they may look at, and that they are told of the end, whatever it was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import SERIAL, assert_same, saved_state, train_here

from rollmill.core.config.load import load_config
from rollmill.core.errors import CheckpointError, ConfigError, ObserverError
from rollmill.core.shapes import check_shape
from rollmill.core.slots import SegmentLayout
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer, ObserverSettings, build_observers

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


class Counts(Observer):
    """Counts steps over all sessions, by itself."""

    def __init__(self, begin: int = 0) -> None:
        self.steps = np.array([begin])

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.steps += 1

    def on_save(self, run: OnlineRun) -> dict[str, Any]:
        return {"steps": self.steps.copy()}

    def on_load(self, run: OnlineRun, saved: Mapping[str, Any]) -> None:
        self.steps += saved["steps"]


def test_what_observers_keep_is_there_after_a_resume(tmp_path: Path) -> None:
    train_here(tmp_path, *TARGET, "stop.batches=2", observers=[Counts(), Observer(), Counts(10)])
    one, two, new = Counts(), Counts(), Counts()
    _, folder = train_here(tmp_path, *TARGET, "stop.batches=3", mode="resume", observers=[Observer(), one, two, new])
    assert [own.steps.tolist() for own in (one, two, new)] == [[3], [13], [1]]
    assert [entry["name"] for entry in saved_state(folder)["observers"]] == ["Counts"] * 3
    train_here(tmp_path, *TARGET, "stop.batches=4", mode="resume")  # nobody is there to go on with it


def test_what_an_observer_cannot_go_on_from_is_the_checkpoint_s_fault(tmp_path: Path) -> None:
    train_here(tmp_path, *TARGET, "stop.batches=1", observers=[Counts()])

    class Other(Observer):
        def on_load(self, run: OnlineRun, saved: Mapping[str, Any]) -> None:
            check_shape(saved, {"games": int})

    Other.__name__ = "Counts"
    with pytest.raises(CheckpointError, match=r"field observers.0.saved.games: it is missing"):
        train_here(tmp_path, *TARGET, "stop.batches=2", mode="resume", observers=[Other()])


@pytest.mark.parametrize("hook", ["init", "start", "step 2", "summaries", "stop"])
def test_all_are_told_of_the_end_once_whoever_fails(tmp_path: Path, hook: str) -> None:
    calls: list[str] = []
    observers = [Diary("a", calls), Diary("b", calls, fail_in=hook), Diary("c", calls)]
    with pytest.raises(ObserverError, match=f"observer Diary failed in .*: RuntimeError: b fails in {hook}"):
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
    assert last.checkpoints == 2  # of the start and of the end
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


def test_metrics_of_a_run(tmp_path: Path) -> None:
    gauges = Gauges()
    outcome, _ = train_here(tmp_path, *TARGET, "stop.frames=300", "stop.batches=100", observers=[gauges])
    assert gauges.allowed == {300}
    assert gauges.frames == sorted(gauges.frames)
    assert gauges.frames[-1] < 300 <= outcome.frames  # the frames that reach the limit are not learnt from any more
    assert gauges.progress == [min(1.0, frames / 300) for frames in gauges.frames]
    assert gauges.seconds == sorted(gauges.seconds)
    for name in ("main inference", "main gather", "main learn"):
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


# -- trajectories ------------------------------------------------------------------------------------------


class Parts(Observer):
    """Checks every trajectory against the batch it is a part of."""

    def __init__(self) -> None:
        self.workers: set[int] = set()
        self.lanes: set[int] = set()
        self.count = 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        batch, found = run.segments, run.trajectories()
        plan = run.parts.sampler.plan
        assert len(found) == run.parts.segments_per_batch
        for k, part in enumerate(found):
            columns = slice(k * plan.lanes_per_group, (k + 1) * plan.lanes_per_group)
            pairs = {"action": part.actions, "reward": part.rewards, "terminated": part.terminated}
            pairs |= {"truncated": part.truncated, "valid": part.valid, "log_prob": part.log_probs}
            for name, array in pairs.items():
                assert type(array) is np.ndarray
                assert np.shares_memory(array, batch[name]), f"{name} was copied"
                np.testing.assert_array_equal(array, batch[name][:-1, columns])
            np.testing.assert_array_equal(part.values, batch["value"][:, columns])
            assert set(part.obs) == {field.name for field in run.spec.observation}
            for name, array in part.obs.items():
                assert np.shares_memory(array, batch[f"obs:{name}"])
                assert array.shape[:2] == (plan.settings.rollout + 1, plan.lanes_per_group)
            assert len(part.lanes) == plan.lanes_per_group
            assert part.lanes.start // (plan.lanes_per_group * plan.settings.groups) == part.worker
            self.workers.add(part.worker)
            self.lanes.update(part.lanes)
        self.count += len(found)
        assert self.count == 2 * iteration
        if iteration >= 12 and self.lanes == set(range(8)):  # the first segment of a worker can come late
            run.stop("seen them all")


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_trajectories_of_every_worker(tmp_path: Path, mode: str) -> None:
    parts = Parts()
    train_here(tmp_path, "env=toy_masked", f"sampling.mode={mode}", "stop.batches=20000", observers=[parts])
    assert parts.workers == {0, 1}
    assert parts.lanes == set(range(8))
    assert parts.count >= 24


def test_the_batch_is_the_same_object_until_the_next_step(tmp_path: Path) -> None:
    class Twice(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            assert run.segments is run.segments

    train_here(tmp_path, *TARGET, "stop.batches=2", observers=[Twice()])


def test_no_trajectories_before_the_first_step(tmp_path: Path) -> None:
    class Early(Observer):
        def on_init(self, run: OnlineRun) -> None:
            assert run.trajectories() == []

    train_here(tmp_path, *TARGET, "stop.batches=1", observers=[Early()])


# -- faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"learn/loss": 1.0}, "there is a metric called 'learn/loss' already"),
        ({"frames": 1.0}, "there is a metric called 'frames' already"),
        ({"mine": "a lot"}, "every value must be a number"),
        (None, "returned NoneType, expected a dict"),
    ],
)
def test_summaries_that_cannot_be_reported(tmp_path: Path, answer: object, message: str) -> None:
    class Wrong(Observer):
        def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
            return answer  # type: ignore[return-value]

    with pytest.raises(ObserverError, match=f"observer Wrong: extra_summaries.*{message}"):
        train_here(tmp_path, *TARGET, observers=[Wrong()])


def test_a_failure_names_the_observer_and_keeps_the_weights(tmp_path: Path) -> None:
    with pytest.raises(ObserverError, match="observer Diary failed in on_training_step: RuntimeError"):
        train_here(tmp_path, *TARGET, observers=[Diary("a", [], fail_in="step 3")])
    folder = tmp_path / "x" / "run"
    assert "observer Diary failed" in (folder / "log.txt").read_text()
    assert "in _note" in (folder / "log.txt").read_text(), "the traceback is in the log"
    assert list((folder / "checkpoints").iterdir())


# -- from the config ---------------------------------------------------------------------------------------

CODE = """
from rollmill.runs.train.observers import Observer

class Count(Observer):
    def __init__(self, start: int = 0, *, name: str = "count") -> None:
        if start < 0:
            raise ValueError("start must not be negative")
        self.n, self.name = start, name

    def on_training_step(self, run, iteration):
        self.n += 1

    def extra_summaries(self, run):
        return {self.name: float(self.n)}

class Other:
    pass
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_observers_named_in_the_config(tmp_path: Path, code: Path) -> None:
    words = (f"observers=[{code}:Count]", "observers.args.Count.start=100", "stop.batches=4")
    _, folder = train_here(tmp_path, *TARGET, *words)
    rows = read_jsonl(folder.metrics)
    assert [row["count"] - 100 for row in rows] == [row["learn/batches"] for row in rows]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["observers=[{code}:Cuont]"], "has no 'Cuont'; did you mean 'Count'?"),
        (["observers=[{code}:Other]"], "has nothing fitting under the name 'Other'"),
        (["observers=[{code}:Count]", "observers.args.Count.begin=1"], "observers.args.Count: .*begin"),
        (["observers=[{code}:Count]", "observers.args.Count.start=-1"], "observers.args.Count: start must not be neg"),
        (["observers=[{code}:Count]", "observers.args.Conut.start=1"], "no such observer .* did you mean 'Count'"),
        (["observers=[{code}:Count]", "observers.args.Count=5"], "expected a mapping of arguments"),
        (["observers=[{code}:Count,{code}:Count]"], "every class may stand there once"),
        (["observers=[no_such_module:Count]"], "no module named 'no_such_module'"),
    ],
)
def test_observers_that_do_not_exist(tmp_path: Path, code: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_here(tmp_path, *TARGET, *(word.format(code=code) for word in words))
    assert not (tmp_path / "x").exists(), "nothing was started"


def test_no_observers_by_default() -> None:
    assert build_observers(ObserverSettings()) == []
    assert load_config(TrainConfig, [], ["observers=[a:B]"]).observers.use == ("a:B",)


# -- variables -------------------------------------------------------------------------------------------------

VARIABLES = ("env=variable_env:VariableEnv", "env.variables.level=9", "sampling.rollout=4", "learning.batch_size=16")
RAMP = (
    "observers=[rollmill.runs.train.curriculum:Ramp]",
    "observers.args.Ramp.level=[0,4]",
    "observers.args.Ramp.until=0.5",
)


class Levels(Observer):
    """Which levels stood in the observations of each batch; none changes within an episode.

    Ends the run well after the ramp with the first batch of the last level alone: a worker that is kept waiting may
    deliver what it began much earlier.
    """

    def __init__(self) -> None:
        self.seen: list[set[float]] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.seen.append({float(v) for part in run.trajectories() for v in np.unique(part.obs["obs"][..., 0])})
        for part in run.trajectories():
            same = part.episodes[1:] == part.episodes[:-1]
            np.testing.assert_array_equal(part.obs["obs"][1:, :, 0][same], part.obs["obs"][:-1, :, 0][same])
        if run.progress >= 0.6 and self.seen[-1] == {4.0}:
            run.stop("all have seen the end of the ramp")


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_ramp_reaches_the_environments(tmp_path: Path, mode: str) -> None:
    levels = Levels()
    words = (*VARIABLES, *RAMP, f"sampling.mode={mode}", "stop.batches=200", "report.every_frames=16")
    _, folder = train_here(tmp_path, *words, observers=[levels])
    assert levels.seen[0] == {0.0}, "set before the workers started, not env.variables"
    assert levels.seen[-1] == {4.0}
    assert read_jsonl(folder.metrics)[-1]["variable/level"] == 4.0


def test_variables_are_continued_bit_for_bit(tmp_path: Path) -> None:
    words = (*VARIABLES, *RAMP, *SERIAL)
    _, whole = train_here(tmp_path / "whole", *words, "stop.batches=14")
    train_here(tmp_path / "parts", *words, "stop.batches=14", observers=[StopAfter(6)])
    _, parts = train_here(tmp_path / "parts", *words, "stop.batches=14", mode="resume")
    one, two = saved_state(whole), saved_state(parts)
    assert_same(one["learners"], two["learners"])
    assert_same(one["sampler"]["envs"], two["sampler"]["envs"])
    assert one["sampler"]["variables"] == two["sampler"]["variables"]


class StopAfter(Observer):
    def __init__(self, iteration: int) -> None:
        self._iteration = iteration

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == self._iteration:
            run.stop("for now")


def test_a_variable_that_does_not_exist(tmp_path: Path) -> None:
    class Wrong(Observer):
        def on_start(self, run: OnlineRun) -> None:
            run.set_variable("levle", 1.0)

    with pytest.raises(ConfigError, match=r"set_variable\('levle'\): env.variables has no such name \(it has: level\)"):
        train_here(tmp_path, *VARIABLES, *SERIAL, observers=[Wrong()])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env=toy_target", "env.variables.level=1"], "toy_target takes no argument variables"),
        (["env=CartPole-v1", "env.variables.level=1"], "CartPole-v1 takes no argument variables"),
        (["env=CartPole-v1", "env.variables.level=1", "env.vector=true"], "CartPole-v1 takes no argument variables"),
        ([*VARIABLES, *RAMP, "observers.args.Ramp.until=0"], "until=0 is a share of the run"),
        ([*VARIABLES, *RAMP, "observers.args.Ramp.level=3"], "level=3: expected"),
        ([*VARIABLES, *RAMP, "observers.args.Ramp.level=[null,1]"], "observers.args.Ramp: .*NoneType"),
        ([*VARIABLES, *RAMP, "observers.args.Ramp.until=late"], "observers.args.Ramp: .*'str'"),
    ],
)
def test_variables_that_cannot_be(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_here(tmp_path, *words)
    assert not (tmp_path / "x").exists()
